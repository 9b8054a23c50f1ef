"""What PostgreSQL's own functions and catalogs do: the review behind ``builtin-safe`` and ``catalogs``.

Owns three data files that ship beside it, and every question about them:

``builtin_review.txt``
    the judgement, by hand: each name of pg_catalog and information_schema under a section that says whether
    an agent may call it and why. It is written to be audited by a DBA; its head says what *safe* means.
``builtin_functions.txt``
    the facts, by machine: kind, volatility, set-returning, takes a row, numbers of arguments. Written by
    ``tests/policy/derive_builtins.py`` from pg_proc of the oldest and the newest major we test (15 and 18);
    where overloads or majors differ, the more dangerous answer stands.
``builtin_relations.txt``
    the judgement on the system catalogs and views: structure, or something an agent has no business with.

How the review was done: the union of pg_proc of both majors was split by what the definition says (arguments
or results ``internal``, ``cstring``, ``trigger``, handlers: unreachable or pointless in SQL); every VOLATILE
name, every STABLE name and every pg_* name was then judged on its own; the rest, IMMUTABLE functions of plain
values, was grouped by subject. Tests hold the lists to real servers: no name unclassified, no VOLATILE name
safe outside the sections reserved for them, nothing unsafe behind a built-in operator or cast.

Knows no policy, and no schema but PostgreSQL's own. Names are as the grammar folds them. What is unknown here
is neither built-in nor safe. Pure after import; an unreadable data file raises ``ValueError`` at import, so
that nothing starts without the list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from types import MappingProxyType

PG_CATALOG = "pg_catalog"
INFORMATION_SCHEMA = "information_schema"
SYSTEM_SCHEMAS = frozenset({PG_CATALOG, INFORMATION_SCHEMA})

NOT_REVIEWED = "is not on the reviewed list of built-in functions"
"""``category`` of a name, or of a number of arguments, that nobody has looked at."""

CASTS_TO_JSON = frozenset(
    {
        "array_to_json",
        "json_agg",
        "json_agg_strict",
        "json_build_array",
        "json_build_object",
        "json_object_agg",
        "json_object_agg_strict",
        "json_object_agg_unique",
        "json_object_agg_unique_strict",
        "jsonb_agg",
        "jsonb_agg_strict",
        "jsonb_build_array",
        "jsonb_build_object",
        "jsonb_object_agg",
        "jsonb_object_agg_strict",
        "jsonb_object_agg_unique",
        "jsonb_object_agg_unique_strict",
        "row_to_json",
        "to_json",
        "to_jsonb",
    }
)
"""Functions that look in pg_cast for a function from a value's type to json and call it: json_categorize_type
in src/backend/utils/adt/jsonfuncs.c. A user-defined cast to json is thus called without being named. The SQL
constructors JSON_OBJECT, JSON_ARRAY, JSON_OBJECTAGG, JSON_ARRAYAGG and JSON_SCALAR do the same."""


class Volatility(StrEnum):
    """pg_proc.provolatile."""

    IMMUTABLE = "i"
    STABLE = "s"
    VOLATILE = "v"


class Kind(StrEnum):
    """pg_proc.prokind."""

    FUNCTION = "f"
    AGGREGATE = "a"
    WINDOW = "w"
    PROCEDURE = "p"


class CatalogAccess(StrEnum):
    """What a relation of pg_catalog or information_schema shows.

    Only STRUCTURE and COMMON are for agents, and only to read: UPDATE on pg_settings is SET by another name.
    """

    STRUCTURE = "structure"
    """Names, types, keys, privileges, definitions: what introspection reads, filtered row by row."""
    COMMON = "common"
    """What belongs to no user's object: roles, settings, languages, databases."""
    UNFILTERED = "unfiltered"
    """Structure of which nothing tells whose it is."""
    VALUES = "values"
    """Stored values, beyond the rules on relations and columns: statistics, large objects."""
    STATISTICS = "statistics"
    """Counters of the activity of the server, of databases and of functions."""
    SESSIONS = "sessions"
    """Statements, locks and addresses of sessions."""
    SERVER = "server"
    """Files, memory, replication and build of the server."""
    SECRETS = "secrets"
    """Password hashes, connection strings, user mappings, settings kept per role."""

    @property
    def readable(self) -> bool:
        return self in (CatalogAccess.STRUCTURE, CatalogAccess.COMMON)

    @property
    def phrase(self) -> str:
        """Ends the sentence "the catalog …"."""
        return _ACCESS_PHRASES[self]


_ACCESS_PHRASES: Mapping[CatalogAccess, str] = MappingProxyType(
    {
        CatalogAccess.STRUCTURE: "shows names, types and definitions",
        CatalogAccess.COMMON: "shows what belongs to the whole server or database",
        CatalogAccess.UNFILTERED: "shows names whatever the policy hides",
        CatalogAccess.VALUES: "holds stored values of any table",
        CatalogAccess.STATISTICS: "shows the activity of the whole server or database",
        CatalogAccess.SESSIONS: "shows sessions and what they run",
        CatalogAccess.SERVER: "shows internals of the server",
        CatalogAccess.SECRETS: "holds passwords or connection secrets",
    }
)


_INTERNAL = "internal"
"""The section of what SQL cannot call."""


@dataclass(frozen=True, slots=True)
class Review:
    """One section of ``builtin_review.txt``. ``phrase`` ends "the function …" where it is unsafe."""

    key: str
    safe: bool
    phrase: str


@dataclass(frozen=True, slots=True)
class Builtin:
    """What pg_proc says of a name, over all overloads and both majors: the worst case of each property.

    ``arities`` are the numbers of arguments it can be called with, ``open_arity`` the smallest from which any
    number will do (VARIADIC), None where there is none. ``takes_row``: some overload takes one argument that
    may be a whole row, so that ``f(t)`` and ``t.f`` read every column of ``t``. ``results`` are the types
    that it can return, of pg_catalog.
    """

    name: str
    kinds: frozenset[Kind]
    volatility: Volatility
    returns_set: bool
    takes_row: bool
    arities: frozenset[int]
    open_arity: int | None
    results: frozenset[str]

    def accepts(self, nargs: int) -> bool:
        return nargs in self.arities or (self.open_arity is not None and nargs >= self.open_arity)


def is_builtin(name: str, schema: str = PG_CATALOG) -> bool:
    """True for a function, aggregate, window function or procedure of PostgreSQL itself."""
    return _key(name, schema) in FUNCTIONS


def is_safe(name: str, nargs: int | None = None, schema: str = PG_CATALOG) -> bool:
    """True when every form of ``schema.name``, or every one with ``nargs`` arguments, is reviewed as safe."""
    reviews = _reviews(name, nargs, schema)
    return bool(reviews) and all(review.safe for review in reviews)


def is_support(name: str, schema: str = PG_CATALOG) -> bool:
    """True when every form of it is safe, or unsafe only in that no SQL can call it: an estimator, a type's
    input. Nothing is wrong with a definition that names one."""
    reviews = _reviews(name, None, schema)
    return bool(reviews) and all(review.safe or review.key == _INTERNAL for review in reviews)


def category(name: str, nargs: int | None = None, schema: str = PG_CATALOG) -> str | None:
    """Why ``schema.name`` is not safe, to end "the function …"; None where it is safe."""
    reviews = _reviews(name, nargs, schema)
    if not reviews:
        return NOT_REVIEWED
    return next((review.phrase for review in reviews if not review.safe), None)


def accepts(name: str, nargs: int, schema: str = PG_CATALOG) -> bool:
    """True when some form of it takes ``nargs`` arguments: ``x.f`` can only be a call of f if it accepts one.

    An ordered-set aggregate counts its direct and its aggregated arguments together.
    """
    function = FUNCTIONS.get(_key(name, schema))
    return function is not None and function.accepts(nargs)


def is_aggregate(name: str, schema: str = PG_CATALOG) -> bool:
    return _is_kind(Kind.AGGREGATE, name, schema)


def is_window(name: str, schema: str = PG_CATALOG) -> bool:
    return _is_kind(Kind.WINDOW, name, schema)


def returns_set(name: str, schema: str = PG_CATALOG) -> bool:
    """True when some form of it can return any number of rows."""
    function = FUNCTIONS.get(_key(name, schema))
    return function is not None and function.returns_set


def results(name: str) -> frozenset[str]:
    """The types, of pg_catalog, that some form of pg_catalog's function can return; none where it has none of
    that name."""
    function = FUNCTIONS.get(name)
    return frozenset() if function is None else function.results


def takes_row(name: str, schema: str = PG_CATALOG) -> bool:
    """True when ``f(t)`` or ``t.f`` may hand it a whole row of ``t``."""
    function = FUNCTIONS.get(_key(name, schema))
    return function is not None and function.takes_row


def volatility(name: str, schema: str = PG_CATALOG) -> Volatility:
    """The worst over all forms; VOLATILE for what is unknown."""
    function = FUNCTIONS.get(_key(name, schema))
    return function.volatility if function is not None else Volatility.VOLATILE


def catalog_relation(schema: str, name: str) -> CatalogAccess | None:
    """What the table or view shows; None where ``schema.name`` is no known relation of a system schema."""
    return RELATIONS.get(f"{schema}.{name}")


def withheld_columns(schema: str, name: str) -> frozenset[str]:
    """Columns of a catalog under ``catalogs: filtered`` that show more than structure."""
    return WITHHELD.get(f"{schema}.{name}", frozenset())


def _key(name: str, schema: str) -> str:
    return name if schema == PG_CATALOG else f"{schema}.{name}"


def _is_kind(kind: Kind, name: str, schema: str) -> bool:
    function = FUNCTIONS.get(_key(name, schema))
    return function is not None and kind in function.kinds


def _reviews(name: str, nargs: int | None, schema: str) -> tuple[Review, ...]:
    by_arity = REVIEWS.get(_key(name, schema))
    if by_arity is None:
        return ()
    if None in by_arity:
        return (by_arity[None],)
    if nargs is None:
        return tuple(by_arity.values())
    review = by_arity.get(nargs)
    return () if review is None else (review,)


_REVIEW_HEADER = re.compile(r"\[(safe|unsafe) ([a-z-]+): ([^]]+)\]")
_RELATION_HEADER = re.compile(r"\[(pg_catalog|information_schema) ([a-z]+)\]")


def _lines(file: str) -> Iterator[tuple[str, str]]:
    """Each line that is neither empty nor a comment, with ``file:line`` for the error that names it."""
    text = resources.files("policy").joinpath(file).read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), start=1):
        if line and not line.startswith("#"):
            yield f"{file}:{number}", line


def _load_reviews() -> Mapping[str, Mapping[int | None, Review]]:
    """name -> number of arguments (None: any) -> its section."""
    reviews: dict[str, dict[int | None, Review]] = {}
    section: Review | None = None
    for place, line in _lines("builtin_review.txt"):
        if line.startswith("["):
            header = _REVIEW_HEADER.fullmatch(line)
            if header is None:
                raise ValueError(f"{place}: not a section header: {line}")
            section = Review(key=header[2], safe=header[1] == "safe", phrase=header[3])
            continue
        if section is None:
            raise ValueError(f"{place}: a name before the first section")
        for item in line.split():
            name, slash, arity = item.partition("/")
            forms = reviews.setdefault(name, {})
            form = int(arity) if slash else None
            if form in forms or None in forms or (form is None and forms):
                raise ValueError(f"{place}: {item} is classified twice")
            forms[form] = section
    return MappingProxyType(reviews)


def _load_functions() -> Mapping[str, Builtin]:
    functions: dict[str, Builtin] = {}
    for place, line in _lines("builtin_functions.txt"):
        name, kinds, worst, flags, arities, given = line.split()
        if name in functions:
            raise ValueError(f"{place}: {name} is described twice")
        exact = [int(arity) for arity in arities.split(",") if not arity.endswith("+")]
        open_from = [int(arity[:-1]) for arity in arities.split(",") if arity.endswith("+")]
        functions[name] = Builtin(
            name=name,
            kinds=frozenset(Kind(kind) for kind in kinds),
            volatility=Volatility(worst),
            returns_set="s" in flags,
            takes_row="r" in flags,
            arities=frozenset(exact),
            open_arity=min(open_from, default=None),
            results=frozenset(given.split(",")),
        )
    return MappingProxyType(functions)


def _load_relations() -> tuple[Mapping[str, CatalogAccess], Mapping[str, frozenset[str]]]:
    """``schema.name`` -> access; ``schema.name`` -> columns withheld, written ``name(column,column)``."""
    relations: dict[str, CatalogAccess] = {}
    withheld: dict[str, frozenset[str]] = {}
    schema, access = "", CatalogAccess.SECRETS
    for place, line in _lines("builtin_relations.txt"):
        if line.startswith("["):
            header = _RELATION_HEADER.fullmatch(line)
            if header is None:
                raise ValueError(f"{place}: not a section header: {line}")
            schema, access = header[1], CatalogAccess(header[2])
            continue
        if not schema:
            raise ValueError(f"{place}: a name before the first section")
        for item in line.split():
            name, _, columns = item.rstrip(")").partition("(")
            qualified = f"{schema}.{name}"
            if qualified in relations:
                raise ValueError(f"{place}: {qualified} is classified twice")
            relations[qualified] = access
            if columns:
                withheld[qualified] = frozenset(columns.split(","))
    return MappingProxyType(relations), MappingProxyType(withheld)


REVIEWS = _load_reviews()
"""Name (with its schema outside pg_catalog) -> number of arguments, None for any -> section of the review."""
FUNCTIONS = _load_functions()
"""Name (with its schema outside pg_catalog) -> what pg_proc says of it."""
RELATIONS, WITHHELD = _load_relations()
