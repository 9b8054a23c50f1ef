"""``catalogs: filtered``: the statement that goes to the server in the place of one that reads catalogs.

``catalogs: off`` opens no catalog, and what makes a name of a number or a text is held by the same look-ups:
else ``SELECT n::regclass FROM generate_series(16384, 20000) n`` would list what is hidden.

Owns what is put where. Each catalog in FROM becomes a sub-select of the rows that the policy shows
(``catalog_filters``); each value that PostgreSQL would turn into a name (``name_givers``) goes through a
look-up that knows no hidden object. Whatever else can name one is refused, and so is what cannot be filtered.

Why it is sound. A name comes out of the server by a catalog's row, by a function or type that makes a name of
an OID, or by the text of a definition or an error. Rows are filtered where they are read, whatever is done
with them afterwards, by joins, cursors or COPY. Values of the types ``regclass`` and its like exist in the
rewritten statement only where they end at once: in a column of its result, under a cast to text, or beside an
operator that compares. Elsewhere they are text, since a number that meets a ``regclass`` in CASE, UNION or an
array would become a name unseen. Definitions are shown with objects of which every part is shown.

What the text of the statement became is proven, not trusted. A sketch of it, in which each sub-select of ours
is ``(SELECT n)`` and each look-up ``(SELECT n, (x))``, is parsed, and must have the tree of the agent's own
with the very replacements and nothing else. That each of ours is one sub-select, with x in brackets as one
value, is proven once by parsing it alone. In PostgreSQL's grammar what stands in brackets is read by itself
(select_with_parens, c_expr), so that the one may be put for the other. The whole text has some 50 KB, and
parsing it every time was measured at a second.

Texts are edited by the spans of PostgreSQL's own lexer, not written anew from the tree, so that positions in
errors can be told in the statement as sent. Knows nothing of sockets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from policy.builtin import PG_CATALOG, SYSTEM_SCHEMAS
from policy.catalog_filters import FILTERS, VIEWS, needs_columns, select
from policy.catalog_names import CatalogNames
from policy.catalog_values import Function
from policy.expressions import PLACES
from policy.facts import CallKind, Facts, FunctionRef, QueryString, RelationRef, TypeRef
from policy.filtered_calls import SPECIAL
from policy.filtered_pieces import is_select
from policy.filtered_values import Values
from policy.model import Catalogs, Mode, Policy, Violation
from policy.names import Names, QualifiedName
from policy.parse import tokens, trees
from policy.reg_types import CLOSED_TYPES, names_objects
from policy.rules import relation_not_allowed
from policy.rules.naming import system_relation
from policy.rules.relation_not_allowed import is_opened_by_name
from policy.text_edits import Edits, Refusal, quoted
from policy.value_types import type_named
from policy.visibility import Visibility, visibility

Node = Any
"""A part of libpg_query's tree: a mapping, a list or a plain value."""

_OWN: Final = (None, PG_CATALOG)
_OF_SEQUENCES: Final = frozenset({"currval", "nextval", "setval"})


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What is forwarded.

    ``edits`` are, in order: where in it a replacement begins and how long it is, where in the statement as
    sent it stands and how much it replaces, all in characters from 0. ``priced`` is ``text`` without the
    conditions on rows, to be asked for its price: they are the gate's own work and no fault of the agent's.
    What is where in the one is there in the other.
    """

    text: str
    edits: tuple[tuple[int, int, int, int], ...]
    priced: str

    def position(self, position: int) -> int:
        """The place in the statement as sent, from 1, that ``position`` of ``text`` stands for."""
        at = position - 1
        shift = 0
        for start, length, original, replaced in self.edits:
            if at < start:
                break
            if at < start + length:
                return original + 1
            shift = (original + replaced) - (start + length)
        return at + shift + 1


def rewrite(query: QueryString, names: Names, policy: Policy) -> Rewritten | Violation | None:
    """What to forward in the place of ``query``; None where it may go as it is; a violation where neither is
    possible."""
    if policy.relations.catalogs is Catalogs.ON or policy.mode is Mode.OBSERVE:
        return None
    try:
        for facts in query.statements:
            _check_own_types(facts, names)
        if not any(_concerns(facts, names, policy) for facts in query.statements):
            return None
        return _Rewriter(query, names, policy).rewritten()
    except Refusal as refused:
        is_off = policy.relations.catalogs is Catalogs.OFF
        return Violation(
            refused.rule,
            refused.message,
            "Do without looking names up: this policy opens no catalog." if is_off else refused.hint,
            object=refused.object,
            position=refused.position,
            line=policy.relations.line,
        )


def catalog(ref: RelationRef, names: Names, policy: Policy) -> QualifiedName | None:
    """The catalog that ``ref`` means, if it is one to be filtered. Raises Refusal where that is uncertain."""
    known = system_relation(ref, names)
    candidates = tuple(names.relations(ref)) if known is None else (known,)
    found = [name for name in candidates if name in FILTERS and not is_opened_by_name(name, policy)]
    if not found:
        return None
    if len(candidates) > 1:
        raise Refusal(
            relation_not_allowed.NAME,
            f"{ref.name} may be a catalog or another relation",
            f"Write {ref.name} with its schema.",
            ref.position,
        )
    return found[0]


def _concerns(facts: Facts, names: Names, policy: Policy) -> bool:
    is_off = policy.relations.catalogs is Catalogs.OFF
    return (
        any(
            function.name in SPECIAL
            and function.schema in _OWN
            and not (is_off and _names_a_sequence(function))
            for function in facts.functions
        )
        or any(_is_reg(ref.name) and ref.schema in _OWN for ref in facts.types)
        # Where no catalog is open, what reads one has been refused.
        or (not is_off and any(_may_be_catalog(ref, names, policy) for ref in facts.relations))
    )


def _names_a_sequence(function: FunctionRef) -> bool:
    """``nextval('name')``: relation-not-allowed has judged the name, and a writer asks for every row."""
    text = next(iter(function.literals), None)
    return function.name in _OF_SEQUENCES and text is not None and not text.strip().isdecimal()


def _check_own_types(facts: Facts, names: Names) -> None:
    """Refuse somebody's own types and functions that would make a name of any number: what is put into them
    cannot be seen."""
    if not isinstance(names, CatalogNames):
        return
    # f(x) may be a cast to f; x.f is a column or a function of x.
    calls = (call for call in facts.functions if call.kind is CallKind.CALL)
    refs: tuple[TypeRef | FunctionRef, ...] = (*facts.types, *calls)
    for ref in refs:
        named = type_named(ref.name, ref.schema, names)
        if any(each.schema != PG_CATALOG and names_objects(each, names.catalog) for each in named):
            raise _names_any("Type", ref, "Use text or oid in its place.")
    for call in facts.functions:
        schemas = (call.schema,) if call.schema is not None else names.schemas
        given = (names.catalog.functions(each, call.name) for each in schemas if each != PG_CATALOG)
        results = _results(chain.from_iterable(given))
        if any(names_objects(each, names.catalog) for each in results):
            raise _names_any("Function", call, "Leave the call out.")


def _names_any(what: str, ref: TypeRef | FunctionRef, hint: str) -> Refusal:
    name = ref.name if ref.schema is None else f"{ref.schema}.{ref.name}"
    message = f"{what} {name} cannot be used unless catalogs are open: it would name any object"
    return Refusal("function-not-allowed", message, hint, ref.position, name)


def _results(functions: Iterable[Function]) -> Iterator[QualifiedName]:
    for function in functions:
        yield function.result
        yield from (column.type for column in function.columns)


def _may_be_catalog(ref: RelationRef, names: Names, policy: Policy) -> bool:
    if ref.schema is not None and ref.schema not in SYSTEM_SCHEMAS:
        return False
    try:
        return catalog(ref, names, policy) is not None
    except Refusal:
        return True


def _is_reg(name: str) -> bool:
    return name in CLOSED_TYPES or (name.startswith("_") and name[1:] in CLOSED_TYPES)


class _Rewriter:
    """One query string. ``walk`` plans the edits of a part of its tree and gives the tree it must become."""

    def __init__(self, query: QueryString, names: Names, policy: Policy) -> None:
        self._facts = query.statements
        snapshot = names.catalog if isinstance(names, CatalogNames) else None
        self._visibility: Visibility = visibility(policy, snapshot)
        self._snapshot = snapshot
        data = query.sql.encode()
        self._trees = trees(query.sql)
        self.edits = Edits(query.sql, data, tokens(data))
        self._catalogs: dict[int, QualifiedName] = {}
        for ref in self._references():
            found = catalog(ref, names, policy)
            if found is None:
                continue
            if ref.position is None:
                raise _not_in_from(ref, None)
            self._catalogs[ref.position] = found
        self._left = set(self._catalogs)
        self._values = Values(self, self._facts, self._catalogs, self._visibility, snapshot)
        self._system = self._values.columns.system()

    def _references(self) -> Iterator[RelationRef]:
        return (ref for facts in self._facts for ref in facts.relations)

    def rewritten(self) -> Rewritten | None:
        if not self._trees or not self.edits.tokens:
            raise _cannot("The statement reads catalogs in a way that cannot be filtered")
        expected = [self._statement(tree) for tree in self._trees]
        if self._left:
            position = min(self._left)
            raise _not_in_from(next(r for r in self._references() if r.position == position), position)
        if not self.edits:
            return None
        self._check_kinds()
        if _plain(trees(self.edits.sketched())) != expected:
            raise _cannot("The statement reads catalogs in a way that cannot be filtered")
        return Rewritten(*self.edits.applied(), self.edits.priced())

    def _check_kinds(self) -> None:
        """What would show the conditions themselves, which name what is hidden."""
        for facts in self._facts:
            if facts.node == "ExplainStmt":
                raise Refusal(
                    relation_not_allowed.NAME,
                    "EXPLAIN of a statement over filtered catalogs would show the filter",
                    "Run the statement itself instead.",
                    facts.start,
                )
            for call in facts.functions:
                if call.name == "current_query" and call.schema in _OWN and call.kind is CallKind.CALL:
                    raise Refusal(
                        "function-not-allowed",
                        "Function pg_catalog.current_query is not allowed beside filtered catalogs",
                        "Leave the call out.",
                        call.position,
                    )

    # The tree -----------------------------------------------------------------------------------------------

    def _statement(self, tree: Mapping[str, Any]) -> Node:
        ((kind, fields),) = tree.items()
        if kind == "SelectStmt":
            return {kind: self.select(fields, final=True)}
        if kind in _HOLDS_A_FINAL:
            return {
                kind: {
                    key: self._statement(value)
                    if key == "query" and isinstance(value, Mapping) and "SelectStmt" in value
                    else self.walk(value)
                    for key, value in fields.items()
                    if key not in PLACES
                }
            }
        return self.walk(tree)

    def walk(self, node: Node) -> Node:
        """``node`` as it is to be, locations left out."""
        if isinstance(node, list):
            return [self.walk(item) for item in node]
        if not isinstance(node, Mapping):
            return node
        if len(node) == 1:
            ((kind, fields),) = node.items()
            told = self._node(kind, fields)
            if told is not None:
                return told
        return {key: self._field(key, value) for key, value in node.items() if key not in PLACES}

    def _node(self, kind: str, fields: Node) -> Node | None:
        """What ``{kind: fields}`` is to be, where that takes a look of its own."""
        match kind:
            case "RangeVar":
                return self._range(fields)
            case "RangeTableSample":
                return {kind: self._sample(fields)}
            case "RangeFunction":
                return self._values.of_range(fields)
            case "SelectStmt":
                return {kind: self.select(fields)}
            case _:
                return self._values.of(kind, fields)

    def _field(self, key: str, value: Node) -> Node:
        if key in ("larg", "rarg") and isinstance(value, Mapping) and "limitOption" in value:
            return self.select(value)
        if key == "typeName" and isinstance(value, Mapping):
            self._values.check_type(value)
        return self.walk(value)

    def select(self, fields: Mapping[str, Any], *, final: bool = False, wanted: str | None = None) -> Node:
        """A SELECT; ``final`` where its columns are the result's, ``wanted`` what becomes of them else."""
        if "lockingClause" in fields and any(self._is_catalog(item) for item in fields.get("fromClause", ())):
            raise _cannot("Rows of a catalog cannot be locked", "Leave FOR UPDATE or FOR SHARE out.")
        if fields.get("op") == "SETOP_NONE" and "valuesLists" not in fields:
            return self._values.of_select(fields, final=final, wanted=wanted)
        return self._values.of_select(fields, final=False, wanted=wanted if wanted == "number" else None)

    def _is_catalog(self, item: Node) -> bool:
        if not isinstance(item, Mapping):
            return False
        if "RangeVar" in item:
            return self.edits.position(item["RangeVar"].get("location", 0)) in self._catalogs
        join = item.get("JoinExpr")
        return join is not None and (self._is_catalog(join.get("larg")) or self._is_catalog(join.get("rarg")))

    def _range(self, fields: Mapping[str, Any]) -> Node:
        """A relation in FROM."""
        at = fields.get("location", 0)
        position = self.edits.position(at)
        name = self._catalogs.get(position)
        if name is None:
            return {"RangeVar": _plain(fields)}
        if not fields.get("inh"):
            raise _cannot(f"Catalog {name} has no parts", "Leave ONLY out.", position)
        self._left.discard(position)
        query, bare = self._selects(name, position)
        alias = fields.get("alias")
        called = "" if alias is not None else f" AS {quoted(fields['relname'])}"
        if not is_select(query):
            raise ValueError(f"the filter of {name} is no SELECT")
        sketch = f"(SELECT {self.edits.next_sketch()})"
        table = self.edits.keyword_before(at, b"table")
        start, select = (at, "") if table is None else (table, "SELECT * FROM ")
        self.edits.replace(
            start,
            self.edits.end_of_name(at),
            f"{select}({query}){called}",
            f"{select}{sketch}{called}",
            f"{select}({bare}){called}",
        )
        tree = _parsed(f"SELECT FROM {sketch} AS t")["SelectStmt"]["fromClause"][0]
        tree["RangeSubselect"]["alias"] = (
            _plain(alias) if alias is not None else {"aliasname": fields["relname"]}
        )
        return tree

    def _selects(self, name: QualifiedName, position: int) -> tuple[str, str]:
        """What stands in the place of the catalog, and what is priced for it."""
        relation = None if self._snapshot is None else self._snapshot.relation(*name)
        if relation is None and needs_columns(name, snapshot=self._snapshot is not None):
            raise _cannot(
                f"Catalog {name} can be filtered only by what the database's schema is known to be",
                "Read another catalog.",
                position,
            )
        columns = relation.columns if relation is not None else ()
        system = self._system_of(name, position)
        numbers = self._values.columns.numbers
        return (
            select(name, columns, self._visibility, system, numbers),
            select(name, columns, None, system, numbers),
        )

    def _system_of(self, name: QualifiedName, position: int) -> frozenset[str]:
        """The system columns wanted of it: a view has none."""
        is_table = name.schema == PG_CATALOG and name.name not in VIEWS
        return self._system.get(position, frozenset()) if is_table else frozenset()

    def _sample(self, fields: Mapping[str, Any]) -> Node:
        if self._is_catalog(fields.get("relation")):
            raise _cannot("A catalog cannot be sampled", "Leave TABLESAMPLE out.")
        return {key: self.walk(value) for key, value in fields.items() if key not in PLACES}


_HOLDS_A_FINAL: Final = frozenset({"DeclareCursorStmt", "PrepareStmt", "CopyStmt"})
"""Statements that return the rows of the query they hold, or have another return them."""


def _cannot(
    message: str, hint: str = "Write it as a plain SELECT … FROM.", position: int | None = None
) -> Refusal:
    return Refusal(relation_not_allowed.NAME, message, hint, position)


def _not_in_from(ref: RelationRef, position: int | None) -> Refusal:
    return Refusal(
        relation_not_allowed.NAME,
        f"Catalog {ref.name} may be read by SELECT alone",
        f"Write SELECT … FROM {ref.name}; copy it by COPY (SELECT …) TO STDOUT.",
        position,
    )


def _plain(node: Node) -> Node:
    """``node`` without locations."""
    if isinstance(node, list | tuple):
        return [_plain(item) for item in node]
    if isinstance(node, Mapping):
        return {key: _plain(value) for key, value in node.items() if key not in PLACES}
    return node


def _parsed(text: str) -> dict[str, Any]:
    """The tree of a text of ours."""
    (tree,) = trees(text)
    plain: dict[str, Any] = _plain(tree)
    return plain
