"""Calls of functions that tell an object's name or definition by its number, and what takes their place.

Owns which of their arguments are looked up, and the functions that go their own way. How an argument is read,
and how a look-up is put round it, is ``filtered_values``'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from policy.expressions import PLACES
from policy.filtered_columns import CatalogColumns
from policy.filtered_pieces import FUNCTIONS_RULE, TEXT, Fields, Node, Wanted, cast_to, own_name, own_type
from policy.name_givers import (
    ADDRESSES,
    ARGUMENT_TYPES,
    BY_TEXT,
    COMMENTS,
    DESCRIBING,
    EXPRESSIONS,
    GIVERS,
    LOOK_UP_FUNCTIONS,
    REFUSED,
    TRUSTED,
    TYPES,
    Thing,
    comment,
    look_up,
)
from policy.text_edits import Edits, Refusal
from policy.visibility import Visibility

ANCESTORS: Final = "pg_partition_ancestors"
_ROOT: Final = "pg_partition_root"
TREE: Final = "pg_partition_tree"
_DESCRIPTION: Final = "obj_description"
_ELEMENTS: Final = "unnest"
"""What becomes of it becomes of the array's elements."""
_TYPE_OF: Final = "pg_typeof"
_VECTOR: Final = "oidvectortypes"
SPECIAL: Final = (
    frozenset(GIVERS)
    | frozenset(REFUSED)
    | frozenset(LOOK_UP_FUNCTIONS)
    | DESCRIBING
    | {_DESCRIPTION, _ROOT, _TYPE_OF, _VECTOR}
)
"""Functions of pg_catalog that are looked at here."""
_NAMING: Final = frozenset(REFUSED) | DESCRIBING
_SHOWN_COLUMNS: Final = frozenset({("pg_attribute", "attname"), ("pg_attribute", "attnum")})
"""A column that is read from here is shown, so that it may be told of."""

Span = tuple[int, int]


class Expressions(Protocol):
    """Whoever reads the expressions that calls stand in, and their arguments."""

    @property
    def columns(self) -> CatalogColumns: ...

    in_range: bool
    """Whether the call is of a function in FROM."""
    range_names_columns: bool
    """Whether that function's columns are named, or need no name."""

    def walk(self, node: Node) -> Node: ...

    def value(self, node: Node, wanted: Wanted, label: str = "") -> Node: ...

    def looked_up(
        self, node: Node, thing: Thing, inner: Span, outer: Span, *, tail: str, label: str = ""
    ) -> Node: ...

    def put(
        self,
        node: Node,
        inner: Span,
        outer: Span,
        round_it: tuple[str, str],
        tail: str,
        *,
        priced: str | None = None,
        priced_behind: str | None = None,
        function: bool = False,
    ) -> Node: ...


class Calls:
    """The calls of one statement."""

    def __init__(self, values: Expressions, edits: Edits, visibility: Visibility) -> None:
        self._values = values
        self._edits = edits
        self._visibility = visibility
        self._own_ways: Mapping[tuple[str, int], Callable[[Fields, Wanted], Node]] = {
            (ANCESTORS, 1): self._ancestors,
            (_DESCRIPTION, 1): self._any_description,
            (_ROOT, 1): self._root,
            **{(name, 3): self._describing for name in DESCRIBING},
            (_TYPE_OF, 1): self._type_of,
            (_VECTOR, 1): self._vector,
        }

    def of(self, fields: Fields, wanted: Wanted, _label: str) -> Node:
        """What the call is to be. Raises Refusal where it could name any object."""
        name = own_name(fields.get("funcname", ()))
        args = fields.get("args", [])
        if name == _ELEMENTS and wanted is Wanted.NUMBER:
            return {"FuncCall": self._walked(fields, [self._values.value(arg, wanted) for arg in args])}
        if name not in SPECIAL:
            return {"FuncCall": self._walked(fields)}
        if name in REFUSED or any("NamedArgExpr" in arg for arg in args) or "func_variadic" in fields:
            raise self._refused(fields, name, REFUSED.get(name, "Give its arguments by place."))
        own_way = self._own_ways.get((name, len(args)))
        if own_way is not None:
            return own_way(fields, wanted)
        if name in LOOK_UP_FUNCTIONS and len(args) == 1:
            spans, end = self._arguments(fields)
            reg = LOOK_UP_FUNCTIONS[name]
            tail = cast_to(reg, wanted)
            return self._values.looked_up(
                args[0], TYPES[reg], spans[0], (fields["location"], end), tail=tail, label=name
            )
        return self._giver(fields, self._places(name, fields))

    def _walked(self, fields: Fields, args: list[Node] | None = None) -> Node:
        return {
            key: args if key == "args" and args is not None else self._values.walk(value)
            for key, value in fields.items()
            if key not in PLACES
        }

    def _places(self, name: str, fields: Fields) -> Mapping[int, Thing]:
        args = fields.get("args", [])
        if name == _DESCRIPTION:
            catalog = _constant(args[1]) if len(args) == 2 else None
            if catalog is None or catalog not in COMMENTS:
                raise self._refused(fields, name, "Name its catalog, as in obj_description(oid, 'pg_class').")
            thing = COMMENTS[catalog]
            return {} if thing is None else {0: thing}
        by_count = GIVERS.get(name)
        if by_count is None:
            raise self._refused(fields, name, "Give it one argument.")
        places = by_count.get(len(args), by_count.get(None, {}))
        if self._is_of_one_row(name, args):
            return {}
        if Thing.WHOLE in places.values() and any(
            (self._values.columns.direct(arg) or (None,))[0] in _SHOWN_COLUMNS for arg in args
        ):
            return dict.fromkeys(places, Thing.CLASS)
        return places

    def _giver(self, fields: Fields, places: Mapping[int, Thing]) -> Node:
        if not places:
            return {"FuncCall": self._walked(fields)}
        spans, _ = self._arguments(fields)
        name = own_name(fields["funcname"])
        tail = "::pg_catalog.regclass::pg_catalog.text" if name in BY_TEXT else ""
        told: list[Node] = []
        for number, arg in enumerate(fields["args"]):
            thing = places.get(number)
            direct = self._values.columns.direct(arg)
            if thing is None:
                told.append(self._values.value(arg, Wanted.TEXT))
            elif not tail and direct is not None and thing in TRUSTED.get(direct[0], ()):
                told.append(self._values.value(arg, Wanted.NUMBER))
            else:
                told.append(self._values.looked_up(arg, thing, spans[number], spans[number], tail=tail))
        return {"FuncCall": self._walked(fields, told)}

    def _is_of_one_row(self, name: str, args: list[Node]) -> bool:
        """Whether what is told is told of one row of a filtered catalog."""
        found = [self._values.columns.direct(arg) for arg in args[:2]]
        if len(found) < 2 or found[0] is None or found[1] is None or found[0][1] != found[1][1]:
            return False
        (catalog, first), (_, second) = found[0][0], found[1][0]
        if name == "pg_get_expr":
            return (catalog, first, second) in EXPRESSIONS
        return name == "col_description" and (catalog, first, second) == (
            "pg_attribute",
            "attrelid",
            "attnum",
        )

    def _ancestors(self, fields: Fields, wanted: Wanted) -> Node:
        """A function whose result is of regclass, and names the tables above a partition: numbers in FROM."""
        if self._values.in_range and not self._values.range_names_columns:
            raise self._refused(fields, ANCESTORS, "Read pg_catalog.pg_inherits instead.")
        spans, end = self._arguments(fields)
        before, behind = look_up(Thing.CLASS, self._visibility, "")
        first = f"pg_catalog.unnest(ARRAY(SELECT a.r::pg_catalog.oid FROM pg_catalog.{ANCESTORS}("
        last = (
            ") WITH ORDINALITY AS a(r, i) WHERE a.r::pg_catalog.oid IN "
            f"({self._visibility.classes()}) ORDER BY a.i))"
        )
        tail = "" if self._values.in_range else cast_to("regclass", wanted)
        outer = fields["location"], end
        return self._values.put(
            fields["args"][0], spans[0], outer, (first + before, behind + last), tail, function=True
        )

    def _root(self, fields: Fields, wanted: Wanted) -> Node:
        """A function whose result is of regclass, and names the uppermost table above a partition."""
        spans, end = self._arguments(fields)
        before, behind = look_up(Thing.CLASS, self._visibility, "")
        shown = f"CASE WHEN r.o IN ({self._visibility.classes()}) THEN r.o END"
        # Within FROM, where no name of ours can be taken for the agent's.
        first = f"(SELECT {{}} AS {_ROOT} FROM (SELECT pg_catalog.{_ROOT}("
        return self._values.put(
            fields["args"][0],
            spans[0],
            (fields["location"], end),
            (first.format(shown) + before, behind + ")::pg_catalog.oid AS o OFFSET 0) AS r)"),
            cast_to("regclass", wanted),
            priced=first.format("r.o") + look_up(Thing.CLASS, None, "")[0],
        )

    def _describing(self, fields: Fields, _wanted: Wanted) -> Node:
        """What names the object of an address: of one that a filtered catalog shows, or the whole of it."""
        read = [self._values.columns.direct(arg) for arg in fields["args"]]
        rows = {found.row for found in read if found is not None}
        columns = [None if found is None else found.of for found in read]
        if len(rows) == 1 and any(
            columns[:2] == [(catalog, of), (catalog, object_)]
            and (columns[2] == (catalog, number) or fields["args"][2].get("A_Const", {}).get("ival") == {})
            for catalog, of, object_, number in ADDRESSES
        ):
            return {"FuncCall": self._walked(fields)}
        name = str(own_name(fields["funcname"]))
        raise self._refused(fields, name, "Give it an address as one row of pg_catalog.pg_depend holds it.")

    def tree_in_range(self, fields: Fields, tail: str) -> Node:
        """pg_partition_tree in FROM, as a sub-select: the tables of it that are shown, as numbers."""
        spans, end = self._arguments(fields)
        is_plain = fields.keys() <= {"funcname", "args", "funcformat", "location"}
        if len(spans) != 1 or not is_plain or "NamedArgExpr" in fields["args"][0]:
            raise self._refused(fields, TREE, "Give it one argument, by place.")
        shown = self._visibility.classes()
        before, behind = look_up(Thing.CLASS, self._visibility, "")
        above = "a.parentrelid::pg_catalog.oid"
        first = (
            f"(SELECT a.relid::pg_catalog.oid AS relid, {{}} AS parentrelid, a.isleaf, a.level "
            f"FROM pg_catalog.{TREE}("
        )
        last = ") AS a{})"
        at = fields["location"]
        if self._edits.keyword_before(at, b"lateral") is None:
            self._edits.replace(at, at, "LATERAL ")
        (arg,) = fields["args"]
        return self._values.put(
            arg,
            spans[0],
            (at, end),
            (
                first.format(f"CASE WHEN {above} IN ({shown}) THEN {above} END") + before,
                behind + last.format(f" WHERE a.relid::pg_catalog.oid IN ({shown})"),
            ),
            tail,
            priced=first.format(above) + look_up(Thing.CLASS, None, "")[0],
            priced_behind=behind + last.format(""),
        )

    def _type_of(self, fields: Fields, wanted: Wanted) -> Node:
        call = {"FuncCall": self._walked(fields)}
        if wanted is not Wanted.TEXT:
            return call
        _, end = self._arguments(fields)
        self._edits.replace(end, end, TEXT)
        return {"TypeCast": {"arg": call, "typeName": own_type("text")}}

    def _vector(self, fields: Fields, _wanted: Wanted) -> Node:
        (arg,) = fields["args"]
        found = self._values.columns.direct(arg)
        if found is None or found[0] not in ARGUMENT_TYPES:
            raise self._refused(fields, _VECTOR, "Give it proargtypes of pg_catalog.pg_proc.")
        return {"FuncCall": self._walked(fields)}

    def _any_description(self, fields: Fields, _wanted: Wanted) -> Node:
        """obj_description(oid): whichever catalog the object is of."""
        spans, end = self._arguments(fields)
        outer = fields["location"], end
        before, behind = comment(self._visibility)
        return self._values.put(
            fields["args"][0], spans[0], outer, (before, behind), "", priced=comment(None)[0]
        )

    def _arguments(self, fields: Fields) -> tuple[tuple[tuple[int, int], ...], int]:
        spans, end = self._edits.arguments(fields["location"])
        if len(spans) != len(fields.get("args", [])):
            raise self._refused(fields, str(own_name(fields["funcname"])), "Give its arguments by place.")
        return spans, end

    def _refused(self, fields: Fields, name: str, hint: str) -> Refusal:
        message = f"Function pg_catalog.{name} is not allowed unless catalogs are open"
        return Refusal(
            FUNCTIONS_RULE,
            f"{message}: it could name any object" if name in _NAMING else message,
            hint,
            self._edits.position_of(fields),
            f"pg_catalog.{name}",
        )


def _constant(node: Node) -> str | None:
    """The text of a string constant."""
    if not isinstance(node, Mapping):
        return None
    if "TypeCast" in node:
        return _constant(node["TypeCast"]["arg"])
    value = node.get("A_Const", {}).get("sval")
    return None if value is None else str(value.get("sval", ""))
