"""Which settings an agent may change, and to what.

One judgement for SET, RESET, set_config, ALTER … SET and start-up parameters. Owns the base set that drivers
need, the values that some of its members are held to, and how PostgreSQL reads a list of schema names. Knows
nothing of how a setting arrives (``rules/setting_not_allowed``, ``proxy/handshake``).

What the base set leaves out, it leaves out because it lifts a limit (statement_timeout), bends prices
(cpu_tuple_cost), hides from the log (log_min_duration_statement), changes who the session is (role) or how
text is read (backslash_quote). Everything the proxy pins (read-only, timeouts, encoding, string syntax)
travels in the backend's startup packet, so RESET ALL and DISCARD ALL bring the pins back and are allowed; a
RESET of one pinned setting by name is judged like any other change and refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from policy.facts import SettingHow, SettingRef
from policy.model import Access, Catalogs, Policy, Violation, glob_match

NAME = "setting-not-allowed"
READ_ONLY_NAME = "access-read-only"

_OF_THE_TRANSACTION = "transaction_read_only"
"""Up to PostgreSQL 15 its default is off, whatever the session's is; later ones refuse to reset it."""
READ_ONLY_SETTINGS = frozenset({"default_transaction_read_only", _OF_THE_TRANSACTION})
_TRUE = frozenset({"on", "true", "yes", "1", "t", "tr", "tru", "y", "ye"})
"""What PostgreSQL reads as true (parse_bool_with_len in bool.c), lower case."""


def _is_true(values: tuple[str, ...], policy: Policy) -> str | None:  # noqa: ARG001 - one of a table
    if len(values) == 1 and values[0].strip().lower() in _TRUE:
        return None
    return "only on is accepted"


def _is_utf8(values: tuple[str, ...], policy: Policy) -> str | None:  # noqa: ARG001 - one of a table
    # pg_char_to_encoding compares letters and digits only; "unicode" is its alias for UTF8.
    plain = "".join(c for c in values[0] if c.isascii() and c.isalnum()).lower() if len(values) == 1 else ""
    return None if plain in ("utf8", "unicode") else "only UTF8 is accepted"


def _message_level(values: tuple[str, ...], policy: Policy) -> str | None:  # noqa: ARG001 - one of a table
    if len(values) == 1 and values[0].lower() in ("notice", "warning", "error"):
        return None
    return "only notice, warning and error are accepted"


def _within_relations(values: tuple[str, ...], policy: Policy) -> str | None:
    for place, schema in enumerate(values):
        if (schema == "pg_catalog" and place == 0) or schema == "":
            # SET search_path = '' is how a session asks for no schema at all.
            continue
        if schema == "pg_catalog":
            return "pg_catalog may only stand first, so that nothing shadows a built-in name"
        if schema == "$user":
            return 'name the schemas themselves instead of "$user"'
        if schema == "information_schema":
            if policy.relations.catalogs is Catalogs.OFF:
                return f"schema {schema} is not among the relations allowed"
            continue
        if schema.startswith("pg_") or not reaches_schema(schema, policy):
            return f"schema {schema} is not among the relations allowed"
    return None


def reaches_schema(schema: str, policy: Policy) -> bool:
    """Whether ``relations`` opens anything in ``schema``, as far as its patterns tell."""
    rules = policy.relations
    return any(glob_match(p.schema, schema) for p in rules.allow) and not any(
        p.covers_schema(schema) for p in rules.deny
    )


_Values = Callable[[tuple[str, ...], Policy], str | None]
"""Says what is wrong with the values, or None."""

HELD: Mapping[str, _Values] = MappingProxyType(
    {
        "client_encoding": _is_utf8,
        "standard_conforming_strings": _is_true,
        "search_path": _within_relations,
        "client_min_messages": _message_level,
    }
)
"""Settings whose value is held to something even where a policy's ``settings.allow`` names them: what the
gate has read must be what PostgreSQL reads."""

BASE = frozenset(
    {
        # The contract's list: what every driver sends.
        "application_name",
        "client_encoding",
        "datestyle",
        "timezone",
        "intervalstyle",
        "extra_float_digits",
        "geqo",
        "search_path",
        "standard_conforming_strings",
        # How binary values are written out, as datestyle is for dates; set by older drivers and admin tools.
        "bytea_output",
        # Which notices the session itself is sent; debug levels excepted.
        "client_min_messages",
        # asyncpg switches it off and on around its reading of types. It changes how, never what or how much.
        "jit",
        # What BEGIN may say of one transaction, said for all of them (psycopg2's set_session).
        "default_transaction_isolation",
        "default_transaction_deferrable",
        "transaction_isolation",
        "transaction_deferrable",
        # Towards read-only always; back only where the policy is read_write.
        *READ_ONLY_SETTINGS,
    }
)

FOLLOWED = HELD.keys() | READ_ONLY_SETTINGS
"""Settings whose value others keep account of, who know of a change only where the text names the setting."""


def allowed_names(policy: Policy) -> frozenset[str]:
    """Lower-case names of all settings that agents of ``policy`` may change."""
    return BASE | policy.settings.allow


def judge_setting(name: str, values: tuple[str, ...] | None, policy: Policy) -> Violation | None:
    """Judge a start-up parameter or one setting of ``options``: None where it may be set.

    ``name`` in any case; ``values`` is the one text sent, as a 1-tuple. The violation carries no position.
    """
    ref = SettingRef(name.lower(), SettingHow.SET_CONFIG, values)
    return judge_read_only(ref, policy) or judge_name(ref, policy)


def judge_read_only(ref: SettingRef, policy: Policy) -> Violation | None:
    """Refuse what would leave read-only under a read-only policy; None for every other setting."""
    if ref.name not in READ_ONLY_SETTINGS or policy.access is not Access.READ_ONLY:
        return None
    to_default = ref.values is None and ref.how in (SettingHow.SET, SettingHow.RESET)
    if to_default and ref.name != _OF_THE_TRANSACTION:
        # To the session's default, which the startup packet has set to on.
        return None
    if ref.values is not None and _is_true(ref.values, policy) is None:
        return None
    return Violation(
        rule=READ_ONLY_NAME,
        message=f"Policy {policy.name} is read-only and {ref.name} may only be set to on",
        hint=f"Leave {ref.name} as it is.",
        object=ref.name,
        position=ref.position,
        line=policy.lines.get("access", 0),
    )


def judge_name(ref: SettingRef, policy: Policy) -> Violation | None:
    """Refuse a setting that is not allowed, or one of the held settings to a value that is not."""
    if ref.name is None:
        return not_allowed(ref, policy, "A setting whose name is no constant is not allowed")
    if ref.name not in allowed_names(policy):
        return not_allowed(ref, policy, f"Setting {ref.name} is not allowed by policy {policy.name}")
    wrong = _wrong_value(ref, policy)
    if wrong is None:
        return None
    return not_allowed(ref, policy, f"Setting {ref.name} is not allowed to take this value: {wrong}")


def _wrong_value(ref: SettingRef, policy: Policy) -> str | None:
    held = HELD.get(ref.name or "")
    if held is None or ref.how is SettingHow.RESET:
        return None
    if ref.values is None:
        # SET … TO DEFAULT goes back to the startup packet's value; anything else is a value unknown here.
        return None if ref.how is SettingHow.SET else "its value must be a constant"
    values = ref.values
    if ref.name == "search_path" and ref.how is not SettingHow.SET and len(values) == 1:
        split = split_identifiers(values[0])
        if split is None:
            return "it is no list of schema names"
        values = split
    return held(values, policy)


def not_allowed(ref: SettingRef, policy: Policy, message: str) -> Violation:
    """The objection to ``ref`` in these words, with what may be set instead."""
    return Violation(
        rule=NAME,
        message=message,
        hint=f"Leave it as it is. Settings that may be changed: {', '.join(sorted(allowed_names(policy)))}.",
        object=ref.name,
        position=ref.position,
        line=policy.settings.line,
    )


def split_identifiers(text: str) -> tuple[str, ...] | None:
    """The names in a comma-separated list, folded, as SplitIdentifierString of varlena.c reads them.

    None where PostgreSQL would call the list invalid. An empty text is the empty list.
    """
    return _split(text, ",") if text.strip(_SPACE) else ()


def split_qualified(text: str) -> tuple[str, ...] | None:
    """The parts of a dotted name in a text, folded, as stringToQualifiedNameList of regproc.c reads them."""
    return _split(text, ".")


def _split(text: str, separator: str) -> tuple[str, ...] | None:
    names: list[str] = []
    rest = text.strip(_SPACE)
    while True:
        taken = _take_identifier(rest, separator)
        if taken is None:
            return None
        name, rest = taken
        # truncate_identifier: names end at 63 bytes.
        names.append(name.encode()[:63].decode(errors="ignore"))
        rest = rest.lstrip(_SPACE)
        if not rest:
            return tuple(names)
        if rest[0] != separator:
            return None
        rest = rest[1:].lstrip(_SPACE)


_SPACE = " \t\n\r\f\v"


def _take_identifier(text: str, separator: str) -> tuple[str, str] | None:
    """The identifier at the start of ``text`` and what follows it."""
    if not text.startswith('"'):
        end = next((i for i, c in enumerate(text) if c == separator or c in _SPACE), len(text))
        return (text[:end].translate(_FOLD), text[end:]) if end else None
    at, name = 1, ""
    while True:
        close = text.find('"', at)
        if close < 0:
            return None
        name += text[at:close]
        if text[close + 1 : close + 2] != '"':
            return (name, text[close + 1 :]) if name else None
        name += '"'
        at = close + 2


_FOLD = {ord(upper): ord(upper.lower()) for upper in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
"""downcase_identifier in a UTF8 database folds ASCII alone."""
