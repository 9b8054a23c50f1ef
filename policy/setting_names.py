"""Which settings PostgreSQL has that a session may change.

Owns the list, for one purpose: a name in ``settings.allow`` that PostgreSQL has never heard of is a slip, and
says so at load. Judges nothing (``settings`` does).
"""

from __future__ import annotations

from importlib import resources


def _read() -> frozenset[str]:
    text = resources.files(__package__).joinpath("setting_names.txt").read_text(encoding="utf-8")
    return frozenset(line for line in text.splitlines() if line and not line.startswith("#"))


KNOWN = _read()
"""Lower-case names, all majors from 15 to 18 together, without custom settings (``shop.tenant``)."""
