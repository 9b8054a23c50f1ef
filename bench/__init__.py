"""The benchmark: direct, PgBouncer and the proxy side by side; README.md here says how to run it."""
