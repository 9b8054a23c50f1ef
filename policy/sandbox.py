"""Trying a statement on a clone: what may be tried, under which session, and what the clone's answer means.

Owns four things: which statements go to the clone at all (``asks``, ``why_not``), the one question that tells
what a session is at the moment (``question``, ``read_session``), the settings that the clone is given of it,
and what an error there is worth (``Worth``). Pure; the question's text goes to both servers, and the proxy
carries the answers. Knows no connection and no protocol.

Source: PostgreSQL's errcodes.txt for the classes of SQLSTATE; "System Catalogs" for the fingerprint.
"""
# ruff: noqa: S608 - names and values are quoted by _literal, all else is this module's own

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from policy import wrapping
from policy.catalog import Catalog
from policy.catalog_names import CatalogNames
from policy.catalog_values import PG_CATALOG, Relation, Uses
from policy.decision import Allow, Decision
from policy.facts import Facts, QueryString
from policy.model import Mode, OnStale, Policy, StatementClass
from policy.names import QualifiedName

SETTINGS: Final = (
    "search_path",
    "DateStyle",
    "IntervalStyle",
    "TimeZone",
    "timezone_abbreviations",
    "extra_float_digits",
    "bytea_output",
    "xmloption",
    "xmlbinary",
    "array_nulls",
    "backslash_quote",
    "transform_null_equals",
    "quote_all_identifiers",
    "default_text_search_config",
    "lc_monetary",
    "lc_numeric",
    "lc_time",
    "lc_messages",
    "row_security",
    "check_function_bodies",
    "session_replication_role",
)
"""What a session may have changed that changes what a statement means or says. Limits are the clone's own."""

FIRST_OWN_OID: Final = 16_384
"""FirstNormalObjectId: types from here on were made in their database, and have another number elsewhere."""

_OF_THE_SESSION: Final[Mapping[StatementClass, str]] = {
    StatementClass.SET: "it is about the session alone",
    StatementClass.SHOW: "it is about the session alone",
    StatementClass.PREPARE: "it is about prepared statements of the session",
    StatementClass.CURSOR: "it is about cursors of the session",
    StatementClass.LOCK: "it is about the transaction alone",
    StatementClass.NOTIFY: "it is about the session alone",
}


class Worth(StrEnum):
    """What an error that the clone raised is worth."""

    EVIDENCE = "evidence"
    """It is the statement's own, and what the agent is told."""
    ROWS = "rows"
    """It rests on which rows there are, and the clone's are older: the database itself is asked, by running
    the statement, which its constraints then refuse for the same reason or for none."""
    SESSION = "session"
    """It is about what the agent's session has and the clone's has not, or the statement cannot be tried."""
    NONE = "none"
    """It is about the clone: it was busy, full, too slow, or does not let the role do what it may do."""


_WORTH: Final[Mapping[str, Worth]] = {
    "23503": Worth.ROWS,
    "23505": Worth.ROWS,
    "23P01": Worth.ROWS,
    **dict.fromkeys(wrapping.CANNOT_BE_WRAPPED, Worth.SESSION),
    # invalid_sql_statement_name, invalid_cursor_name, object_not_in_prerequisite_state (currval).
    **dict.fromkeys(("26000", "34000", "55000"), Worth.SESSION),
    # What a role may do is granted on each server anew.
    "42501": Worth.NONE,
}
_WORTHLESS: Final = frozenset({"08", "25", "28", "40", "53", "55", "57", "58", "F0", "XX"})
"""Classes that tell of the server and its load, not of the statement."""


def worth(sqlstate: str) -> Worth:
    """What an error with this SQLSTATE, raised by the clone, is worth."""
    known = _WORTH.get(sqlstate)
    if known is not None:
        return known
    return Worth.NONE if sqlstate[:2] in _WORTHLESS else Worth.EVIDENCE


def asks(policy: Policy, decision: Decision) -> bool:
    """Whether the statement of ``decision`` is of a class that ``policy`` wants tried on its clone first."""
    if policy.sandbox is None or policy.mode is Mode.OBSERVE or not isinstance(decision, Allow):
        return False
    return any(facts.classes & policy.sandbox.classes for facts in decision.query.statements)


def on_stale(policy: Policy) -> OnStale:
    """What becomes of a statement that the clone can say nothing of."""
    return OnStale.REJECT if policy.sandbox is None else policy.sandbox.on_stale


def why_not(query: QueryString, *, simple: bool, types: Sequence[int] = ()) -> str | None:
    """Why ``query`` is not tried although its class is listed; None where its text does not speak against it.

    ``simple``: it came as a Query, which has no values for its parameters. ``types`` are the OIDs that its
    Parse gave these.
    """
    cannot = wrapping.why_not(query)
    if cannot is not None:
        return cannot
    facts = query.statements[0]
    if simple and facts.parameters:
        return "its parameters have no values"
    if any(oid >= FIRST_OWN_OID for oid in types):
        return "its parameters are of types that were made in the database"
    if any(write.current_of is not None for write in facts.writes):
        return "it is about cursors of the session"
    return next((why for cls, why in _OF_THE_SESSION.items() if cls in facts.classes), None)


_TOLD: Final = ("sqlstate", "message", "detail", "hint", "position")
"""The fields of an error that the audit has."""
_MOST_KEPT: Final = 1_000
"""Characters of a field that are kept with a lineage."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of trying a statement: ``error`` is PostgreSQL's, by the names of ``engine_errors``, None
    where it ran. ``why_not`` says why the clone tells nothing, None where it does; ``unfit`` that this is the
    clone's fault, so that ``on_stale`` decides; ``cancelled`` that the agent asked for its end.
    """

    error: Mapping[str, str] | None = None
    why_not: str | None = None
    unfit: bool = False
    cancelled: bool = False

    @property
    def is_evidence(self) -> bool:
        """Whether ``error`` is what the agent is to be told."""
        if self.cancelled:
            return True
        return self.error is not None and worth(self.error.get("sqlstate", "")) is Worth.EVIDENCE

    @classmethod
    def cancel(cls) -> Tried:
        """The agent cancelled the statement while it was tried: it ends as it would on the database."""
        message = "canceling statement due to user request"
        return cls(error={"sqlstate": "57014", "message": message}, cancelled=True)

    @classmethod
    def of(cls, error: Mapping[str, str] | None) -> Tried:
        """What the ``error`` that ended a statement on the clone, None for success, makes of it."""
        if error is None:
            return cls()
        sqlstate = error.get("sqlstate", "")
        match worth(sqlstate):
            case Worth.NONE:
                return cls(why_not=f"the clone could not run it (SQLSTATE {sqlstate})", unfit=True)
            case Worth.SESSION:
                return cls(why_not=f"it rests on what the session alone has (SQLSTATE {sqlstate})")
            case _:
                return cls(error=error)

    def brief(self) -> Tried:
        """What is worth keeping for the end of a lineage: what the audit tells of it, at no great length."""
        told = self.error
        if told is not None:
            told = {name: told[name][:_MOST_KEPT] for name in _TOLD if name in told}
        return Tried(told, self.why_not)

    def as_json(self, *, full: bool = True) -> dict[str, object]:
        """The audit's ``sandbox``; not ``full``: without what may quote the statement."""
        told = self.error
        if told is not None:
            kept = _TOLD if full else ("sqlstate",)
            told = {name: told[name] for name in kept if name in told}
        return {"error": told, **({} if self.why_not is None else {"not_tried": self.why_not})}


# What a session is ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Session:
    """What ``question`` told of a session on the database itself.

    ``settings`` are pairs of name and value; ``role`` is who it is at the moment. ``fingerprint`` is of the
    schema that the statement meets. ``written``: its transaction has written something already.
    ``temporary`` are the names of its temporary relations.
    """

    settings: tuple[tuple[str, str], ...]
    role: str
    fingerprint: str
    written: bool
    temporary: tuple[str, ...]

    def like(self, other: Session) -> bool:
        """Whether a statement means the same in both."""
        return (self.settings, self.role) == (other.settings, other.role)

    def why_not(self, query: QueryString) -> str | None:
        """Why ``query`` is not tried in this session."""
        if self.written:
            return "its transaction has written what the clone cannot see"
        if any(_is_temporary(facts, self.temporary) for facts in query.statements):
            return "it uses temporary objects of the session"
        return None


def _is_temporary(facts: Facts, names: Sequence[str]) -> bool:
    if any(ref.schema is None and ref.name in names for ref in facts.relations):
        return True
    schemas = [ref.schema for ref in facts.relations] + [ref.schema for ref in facts.functions]
    return any(schema is not None and schema.startswith("pg_temp") for schema in schemas)


_BETWEEN: Final = "\x1f"


def settings_of(policy: Policy) -> tuple[str, ...]:
    """The settings that the clone is given of a session: those that mean something everywhere, and those of
    applications (``app.tenant``) that the policy lets its agents set."""
    return (*SETTINGS, *sorted(name for name in policy.settings.allow if "." in name))


def question(policy: Policy, query: QueryString, names: CatalogNames) -> str:
    """What to ask the database, or the clone, about the session that is to run ``query``. One row, which
    ``read_session`` reads: written, role, temporary relations, fingerprint, then ``settings_of``."""
    values = ", ".join(f"pg_catalog.current_setting({_literal(name)}, true)" for name in settings_of(policy))
    return (
        "SELECT (pg_catalog.txid_current_if_assigned() IS NOT NULL)::pg_catalog.text, CURRENT_USER, "
        f"(SELECT pg_catalog.string_agg(relname::pg_catalog.text, '{_BETWEEN}') FROM pg_catalog.pg_class "
        "WHERE relnamespace = pg_catalog.pg_my_temp_schema()), "
        f"({fingerprint(query, names)}), {values} /* pgturnstile */"
    )


def ask_types(types: Iterable[int]) -> str | None:
    """What to ask the clone about parameters of ``types``, by their OIDs there: how many are of its own
    making and no enums. None where all came with the server."""
    own = sorted({oid for oid in types if oid >= FIRST_OWN_OID})
    if not own:
        return None
    listed = ", ".join(f"{oid}::pg_catalog.oid" for oid in own)
    return f"SELECT pg_catalog.count(*) FROM pg_catalog.pg_type WHERE oid IN ({listed}) AND typtype <> 'e'"


def read_session(policy: Policy, row: Sequence[bytes | None]) -> Session:
    """The session that the one ``row`` of ``question`` tells of, in the text format. A setting that is
    unknown to the server is left out."""
    written, role, temporary, digest, *values = [None if v is None else v.decode() for v in row]
    settings = zip(settings_of(policy), values, strict=True)
    return Session(
        tuple((name, value) for name, value in settings if value is not None),
        role or "",
        digest or "",
        written == "true",
        tuple(temporary.split(_BETWEEN)) if temporary else (),
    )


def setup(session: Session) -> str:
    """What makes the clone's transaction like ``session``; the role comes last, which may set less."""
    wanted = [*session.settings, ("role", session.role)]
    rows = ", ".join(f"({_literal(name)}, {_literal(value)})" for name, value in wanted)
    return (
        f"SELECT pg_catalog.count(pg_catalog.set_config(name, value, true)) FROM (VALUES {rows}) "
        "AS s (name, value) WHERE pg_catalog.current_setting(name, true) IS DISTINCT FROM value"
    )


def fingerprint(query: QueryString, names: CatalogNames) -> str:
    """A query for the SHA-256, in hex, of the definitions that ``query`` meets: relations with all that hangs
    on them, their types, and functions. The text is the same for the clone; so is the answer where they are.

    Definitions are as the server itself writes them, under the search_path in force. Privileges and comments
    take no part, nor does the order in which columns were once dropped.
    """
    relations, functions = _met(query, names)
    # Every comparison is of one type with itself: so it is pg_catalog's operator, whatever the path.
    return (
        f"WITH {_WANTED.format(relations=_pairs(relations), functions=_pairs(functions))}, {_LINES} "
        "SELECT pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(pg_catalog.concat("
        "pg_catalog.left(pg_catalog.current_setting('server_version_num'), 2), "
        "pg_catalog.string_agg(line, E'\\n' ORDER BY line COLLATE pg_catalog.\"C\")), 'UTF8')), 'hex') "
        "FROM lines"
    )


_CASCADING: Final = frozenset({StatementClass.UPDATE, StatementClass.DELETE, StatementClass.MERGE})
_WANTED: Final = (
    "rels AS MATERIALIZED (SELECT c.* FROM (VALUES {relations}) AS w (schema, name) "
    "JOIN pg_catalog.pg_namespace n ON n.nspname = w.schema "
    "JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w.name), "
    "procs AS MATERIALIZED (SELECT p.* FROM (VALUES {functions}) AS w (schema, name) "
    "JOIN pg_catalog.pg_namespace n ON n.nspname = w.schema "
    "JOIN pg_catalog.pg_proc p ON p.pronamespace = n.oid AND p.proname = w.name "
    "UNION SELECT p.* FROM rels r JOIN pg_catalog.pg_trigger t ON t.tgrelid = r.oid "
    "JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid WHERE NOT t.tgisinternal)"
)
_COLUMNS_OF_RELS: Final = "rels r JOIN pg_catalog.pg_attribute a ON a.attrelid = r.oid"
_TYPES_OF_RELS: Final = f"{_COLUMNS_OF_RELS} JOIN pg_catalog.pg_type y ON y.oid = a.atttypid"
_PARTS: Final = (
    (
        "'relation', r.oid::pg_catalog.regclass, r.relkind, pg_catalog.pg_get_userbyid(r.relowner), "
        "r.relrowsecurity, r.relforcerowsecurity, r.relispartition",
        "rels r",
    ),
    (
        "'column', a.attrelid::pg_catalog.regclass, "
        "pg_catalog.row_number() OVER (PARTITION BY a.attrelid ORDER BY a.attnum), a.attname, "
        "pg_catalog.format_type(a.atttypid, a.atttypmod), a.attcollation::pg_catalog.regcollation, "
        "a.attnotnull, a.attidentity, a.attgenerated, pg_catalog.pg_get_expr(d.adbin, d.adrelid)",
        f"{_COLUMNS_OF_RELS} LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid "
        "AND d.adnum = a.attnum WHERE a.attnum > 0::pg_catalog.int2 AND NOT a.attisdropped",
    ),
    (
        "'constraint', k.conrelid::pg_catalog.regclass, k.conname, k.convalidated, "
        "pg_catalog.pg_get_constraintdef(k.oid)",
        "rels r JOIN pg_catalog.pg_constraint k ON k.conrelid = r.oid",
    ),
    (
        "'index', i.indrelid::pg_catalog.regclass, pg_catalog.pg_get_indexdef(i.indexrelid)",
        "rels r JOIN pg_catalog.pg_index i ON i.indrelid = r.oid WHERE i.indisunique OR i.indisexclusion",
    ),
    (
        "'trigger', t.tgrelid::pg_catalog.regclass, t.tgenabled, pg_catalog.pg_get_triggerdef(t.oid)",
        "rels r JOIN pg_catalog.pg_trigger t ON t.tgrelid = r.oid WHERE NOT t.tgisinternal",
    ),
    (
        "'rule', u.ev_class::pg_catalog.regclass, u.ev_enabled, pg_catalog.pg_get_ruledef(u.oid)",
        "rels r JOIN pg_catalog.pg_rewrite u ON u.ev_class = r.oid",
    ),
    (
        "'policy', p.polrelid::pg_catalog.regclass, p.polname, p.polcmd, p.polpermissive, "
        "ARRAY(SELECT pg_catalog.pg_get_userbyid(o) FROM pg_catalog.unnest(p.polroles) o), "
        "pg_catalog.pg_get_expr(p.polqual, p.polrelid), pg_catalog.pg_get_expr(p.polwithcheck, p.polrelid)",
        "rels r JOIN pg_catalog.pg_policy p ON p.polrelid = r.oid",
    ),
    (
        "'label', e.enumtypid::pg_catalog.regtype, e.enumlabel, "
        "pg_catalog.row_number() OVER (PARTITION BY r.oid, a.attnum ORDER BY e.enumsortorder)",
        f"{_TYPES_OF_RELS} JOIN pg_catalog.pg_enum e ON e.enumtypid = y.oid OR e.enumtypid = y.typelem",
    ),
    (
        "'domain', k.contypid::pg_catalog.regtype, k.conname, pg_catalog.pg_get_constraintdef(k.oid)",
        f"{_TYPES_OF_RELS} JOIN pg_catalog.pg_constraint k ON k.contypid = y.oid OR k.contypid = y.typelem "
        "WHERE k.contypid <> 0::pg_catalog.oid",
    ),
    (
        "'function', p.oid::pg_catalog.regprocedure, p.prokind, p.provolatile, p.prosecdef, p.proisstrict, "
        "pg_catalog.pg_get_userbyid(p.proowner), p.prorettype::pg_catalog.regtype, p.proretset, p.proconfig, "
        "pg_catalog.pg_get_function_arguments(p.oid), l.lanname, p.prosrc, p.probin, "
        "pg_catalog.pg_get_function_sqlbody(p.oid)",
        "procs p JOIN pg_catalog.pg_language l ON l.oid = p.prolang",
    ),
)
"""Each kind of definition: what is told of it, and where it is."""
_LINES: Final = "lines (line) AS ({})".format(
    " UNION ".join(f"SELECT ROW({told})::pg_catalog.text FROM {source}" for told, source in _PARTS)
)


def _met(query: QueryString, names: CatalogNames) -> tuple[list[QualifiedName], list[QualifiedName]]:
    """The relations and functions that running ``query`` can meet: those it names, what views and rules of
    them read, their partitions, and what a change of theirs cascades to; what all of these call."""
    catalog = names.catalog
    waiting: list[Relation] = []
    functions: set[QualifiedName] = set()
    for facts in query.statements:
        for answer in names.resolve(facts).relations:
            waiting += answer.relations
        for ref in facts.functions:
            functions.update(names.functions(ref))
    changes = any(facts.classes & _CASCADING for facts in query.statements)
    met: set[QualifiedName] = set()
    while waiting:
        relation = waiting.pop()
        if relation.qualified in met or relation.schema == PG_CATALOG:
            continue
        met.add(relation.qualified)
        functions |= _called_by(relation, catalog)
        waiting += _beside(relation, catalog, referrers=changes)
    called = {each for each in functions if each.schema != PG_CATALOG}
    return sorted(met), sorted(called)


def _called_by(relation: Relation, catalog: Catalog) -> frozenset[QualifiedName]:
    uses: list[Uses] = [rule.uses for rule in relation.rules]
    uses += [expression.uses for expression in relation.expressions]
    return frozenset[QualifiedName]().union(*map(catalog.closure, uses))


def _beside(relation: Relation, catalog: Catalog, *, referrers: bool) -> Iterable[Relation]:
    """What a statement on ``relation`` may come to by a rule, a partition or a foreign key."""
    reads = (read.relation for rule in relation.rules for read in rule.reads)
    named = (*reads, *catalog.descendants(relation), *catalog.ancestors(relation))
    yield from (found for name in named if (found := catalog.relation(*name)) is not None)
    if referrers:
        own = relation.foreign_keys
        yield from (other for other, key in catalog.neighbours(relation) if key not in own)


def _pairs(names: Iterable[QualifiedName]) -> str:
    """Rows of VALUES; one of NULLs, which nothing equals, where there is no name."""
    pairs = [", ".join(f"{_literal(part)}::pg_catalog.name" for part in each) for each in names]
    return ", ".join(f"({pair})" for pair in pairs or ["NULL::pg_catalog.name, NULL::pg_catalog.name"])


def _literal(text: str) -> str:
    """``text`` as a string constant, whatever standard_conforming_strings says."""
    quoted = text.replace("'", "''")
    return f"E'{quoted.replace(chr(92), chr(92) * 2)}'" if "\\" in text else f"'{quoted}'"
