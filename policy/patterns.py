"""How names are written in a policy: ``schema.name``, ``"Quoted Name"``, ``*``.

Owns the reading of one name or pattern. Knows no YAML file's layout and no rule.

Names follow PostgreSQL's own quoting, with one difference for safety: an unquoted name in upper case, which
SQL would fold to lower case, is refused rather than guessed at, because a deny entry that matches nothing
lets through what it was written to stop. For the same reason a name too long to exist is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from policy import builtin
from policy.diagnostics import nearest, printable
from policy.model import Pattern

MAX_NAME_BYTES = 63
"""NAMEDATALEN - 1: PostgreSQL cuts longer names, so a longer one could never match."""
ANY = "*"
PG_CATALOG = "pg_catalog"
BUILTIN_SAFE = "builtin-safe"
"""Under functions, the word for the reviewed list of ``policy.builtin``."""

_PART = re.compile(r'"(?P<quoted>(?:[^"]|"")*)"(?=\.|$)|(?P<bare>[^".]*)(?=\.|$)')
_BARE = re.compile(r"[a-z0-9_$*\u0080-\U0010ffff]+")


class BadNameError(ValueError):
    """A name or pattern that cannot stand. ``near`` is what was probably meant."""

    def __init__(self, message: str, near: str | None = None) -> None:
        super().__init__(message)
        self.near = near


def split_name(text: str) -> tuple[str, ...]:
    """The parts of a dotted name, unquoted: ``public."Odd.Name"`` gives ``public`` and ``Odd.Name``.

    ``*`` stands for itself as the wildcard, so it may not stand inside quotes. Raises ``BadNameError``.
    """
    return tuple(_parts(text))


def column_name(text: str) -> str:
    """One column's exact name. Raises ``BadNameError``."""
    parts = split_name(text)
    if len(parts) != 1:
        raise BadNameError("a column is named alone: its relation is the key above", parts[-1])
    if ANY in parts[0]:
        raise BadNameError("columns are named one by one; to hide all of them, deny the relation")
    return parts[0]


def name_part(text: str) -> str:
    """One part of a name, which may hold wildcards: a schema, a function. Raises ``BadNameError``."""
    parts = split_name(text)
    if len(parts) != 1:
        raise BadNameError("expected one name without a dot", parts[-1])
    return parts[0]


def relation_pattern(text: str, line: int = 0) -> Pattern:
    """``schema.name`` for ``relations`` and ``columns``. Raises ``BadNameError``."""
    match split_name(text):
        case (schema, name):
            return Pattern(schema, name, line)
        case (name,):
            meant = "*.*" if name == ANY else f"public.{text}"
            raise BadNameError("a relation needs its schema", meant)
        case parts:
            raise BadNameError(
                "expected schema.name; the database is chosen under agents.databases", ".".join(parts[-2:])
            )


def denied_function(text: str, line: int = 0) -> Pattern:
    """``schema.name``, or a bare name that stands for it in every schema. Raises ``BadNameError``."""
    return _function(text, line, bare_schema=ANY)


def allowed_function(text: str, line: int = 0) -> Pattern:
    """``schema.name``, or the bare name of a function of pg_catalog. Raises ``BadNameError``."""
    pattern = _function(text, line, bare_schema=PG_CATALOG)
    bare = len(split_name(text)) == 1
    if bare and pattern.name == ANY:
        raise BadNameError(
            '"*" alone would allow every built-in function; to mean that, write pg_catalog.*', BUILTIN_SAFE
        )
    if bare and ANY not in pattern.name and not builtin.is_builtin(pattern.name):
        raise BadNameError(
            "no built-in function has this name; name a function of your own with its schema",
            nearest(text, [BUILTIN_SAFE]) or f"public.{text}",
        )
    return pattern


def _function(text: str, line: int, bare_schema: str) -> Pattern:
    if "(" in text:
        raise BadNameError("a function is named without its arguments", text.partition("(")[0])
    match split_name(text):
        case (schema, name):
            return Pattern(schema, name, line)
        case (name,):
            return Pattern(bare_schema, name, line)
        case parts:
            raise BadNameError("expected schema.name or name", ".".join(parts[-2:]))


def _parts(text: str) -> Iterator[str]:
    at = 0
    while at <= len(text):
        matched = _PART.match(text, at)
        if matched is None:
            raise BadNameError("not a name: a double quote is out of place")
        quoted, bare = matched["quoted"], matched["bare"]
        yield _quoted(quoted.replace('""', '"')) if quoted is not None else _bare(bare)
        at = matched.end() + 1


def _quoted(part: str) -> str:
    if ANY in part:
        raise BadNameError("* is always the wildcard and cannot be quoted")
    return _fitting(part)


def _bare(part: str) -> str:
    folded = part.translate(_FOLD)
    if folded != part:
        raise BadNameError(
            f'upper case is ambiguous: SQL reads {part} as {folded}; write that, or "{part}" with its double '
            "quotes for a name that was created in them"
        )
    if part and not _BARE.fullmatch(part):
        raise BadNameError(f'this name needs double quotes within the text: "{printable(part)}"')
    return _fitting(part)


def _fitting(part: str) -> str:
    if not part:
        raise BadNameError("a part of the name is empty")
    if len(part.encode()) > MAX_NAME_BYTES:
        raise BadNameError(f"longer than the {MAX_NAME_BYTES} bytes of a PostgreSQL name")
    return part


_FOLD = {ord(upper): ord(upper.lower()) for upper in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
