"""The peers' own test suites, run straight at PostgreSQL and through the proxy: `python -m tests.peers`.

Not part of pytest's run: what a suite needs is obtained from a package registry, built, and may take an hour.
"""
