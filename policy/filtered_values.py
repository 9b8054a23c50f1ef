"""The values of a statement that PostgreSQL would make names of, one by one: the half of ``filtered`` that
reads expressions.

Owns which expressions those are, where each of them goes, and what takes its place. A value of ``regclass``
and its like is wanted as a name (it is a column of the result, or cast to text at once), as a number (it is
compared), or as a text: everywhere else. Knows no FROM clause (``filtered``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, Protocol

from policy.builtin import PG_CATALOG
from policy.builtin_symbols import TYPES as BUILTIN_TYPES
from policy.catalog import Catalog
from policy.column_names import SURE, column_name
from policy.expressions import PLACES
from policy.facts import Facts
from policy.filtered_columns import CatalogColumns
from policy.name_givers import (
    ARGUMENT_TYPES,
    BY_TEXT,
    COMMENTS,
    EXPRESSIONS,
    GIVERS,
    HOLE,
    LOOK_UP_FUNCTIONS,
    REFUSED,
    TRUSTED,
    TYPES,
    Thing,
    comment,
    look_up,
    look_up_all,
)
from policy.names import QualifiedName
from policy.parse import trees
from policy.reg_types import CLOSED_TYPES, OPEN_TYPES
from policy.text_edits import Edits, Refusal, quoted
from policy.visibility import Visibility

Node = Any
Fields = Mapping[str, Any]

_ANCESTORS: Final = "pg_partition_ancestors"
_DESCRIPTION: Final = "obj_description"
_TYPE_OF: Final = "pg_typeof"
_VECTOR: Final = "oidvectortypes"
SPECIAL: Final = (
    frozenset(GIVERS) | frozenset(REFUSED) | frozenset(LOOK_UP_FUNCTIONS) | {_DESCRIPTION, _TYPE_OF, _VECTOR}
)
"""Functions of pg_catalog that are looked at here."""

_OWN: Final = (None, PG_CATALOG)
_FUNCTIONS_RULE: Final = "function-not-allowed"
_COMPARING: Final = frozenset({"=", "<>", "<", ">", "<=", ">="})
_COMPARES: Final = frozenset(
    {
        "AEXPR_DISTINCT",
        "AEXPR_NOT_DISTINCT",
        "AEXPR_IN",
        "AEXPR_BETWEEN",
        "AEXPR_NOT_BETWEEN",
        "AEXPR_BETWEEN_SYM",
        "AEXPR_NOT_BETWEEN_SYM",
    }
)
_BY_SYMBOL: Final = frozenset({"AEXPR_OP", "AEXPR_OP_ANY", "AEXPR_OP_ALL"})
_TEXT: Final = "::pg_catalog.text"
_NUMBERS: Final = frozenset({"oid", "_oid", "oidvector", "int4", "_int4", "int8", "_int8"})
"""Types of which a name's OID can be a value, and arrays of them, of which several can."""


class Wanted(StrEnum):
    """What becomes of a value."""

    NAME = "name"
    NUMBER = "number"
    TEXT = "text"


class Host(Protocol):
    """Whoever walks the rest of the tree."""

    edits: Edits

    def walk(self, node: Node) -> Node: ...

    def select(self, fields: Fields, *, final: bool = False, wanted: str | None = None) -> Node: ...


class Values:
    """The expressions of one statement. ``catalogs``: position in the text -> the catalog read there."""

    def __init__(
        self,
        host: Host,
        facts: Sequence[Facts],
        catalogs: Mapping[int, QualifiedName],
        visibility: Visibility,
        snapshot: Catalog | None,
    ) -> None:
        self._host = host
        self._edits = host.edits
        self._names = frozenset(catalogs.values())
        self._visibility = visibility
        self.columns: Final = CatalogColumns(facts, catalogs, self._edits, snapshot)
        self._dependent = self.columns.dependent()
        self._in_range = self._range_names_columns = False
        self._handlers: Mapping[str, Callable[[Fields, Wanted, str], Node]] = {
            "A_ArrayExpr": self._array,
            "A_Expr": self._operation,
            "CaseExpr": self._case,
            "CoalesceExpr": self._common("CoalesceExpr"),
            "ColumnRef": self._column,
            "FuncCall": self._call,
            "MinMaxExpr": self._common("MinMaxExpr"),
            "SubLink": self._sub_select,
            "TypeCast": self._cast,
            "TypeName": self._type,
        }
        self._own_ways: Mapping[tuple[str, int], Callable[[Fields, Wanted], Node]] = {
            (_ANCESTORS, 1): self._ancestors,
            (_DESCRIPTION, 1): self._any_description,
            (_TYPE_OF, 1): self._type_of,
            (_VECTOR, 1): self._vector,
        }

    def of(self, kind: str, fields: Fields) -> Node | None:
        """What ``{kind: fields}`` is to be, where it is looked at here."""
        handler = self._handlers.get(kind)
        return None if handler is None else handler(fields, Wanted.TEXT, "")

    def _value(self, node: Node, wanted: Wanted, label: str = "") -> Node:
        if isinstance(node, Mapping) and len(node) == 1:
            ((kind, fields),) = node.items()
            handler = self._handlers.get(kind)
            if handler is not None:
                return handler(fields, wanted, label)
        return self._host.walk(node)

    # Where values go ----------------------------------------------------------------------------------------

    def of_select(self, fields: Fields, *, final: bool, wanted: str | None) -> Node:
        """A SELECT. What it sorts, groups and selects by must be spelt as what it selects."""
        goes = Wanted.NAME if final else Wanted(wanted) if wanted is not None else Wanted.TEXT
        # What becomes of the arms of a set operation together: numbers stay what they are.
        arms = Wanted.NUMBER if goes is Wanted.NUMBER else Wanted.TEXT
        told: dict[str, Node] = {}
        for key, value in fields.items():
            if key == "targetList":
                told[key] = [self._target(item, goes) for item in value]
            elif key == "groupClause":
                told[key] = [part for item in value for part in self._grouped(item, goes)]
            elif key == "distinctClause":
                told[key] = [self._value(item, goes) for item in value]
            elif key == "sortClause":
                told[key] = [self._sorted(item, goes) for item in value]
            elif key in ("larg", "rarg"):
                told[key] = self._host.select(value, wanted=arms)
            elif key == "valuesLists":
                told[key] = [self._row(row, arms) for row in value]
            else:
                told[key] = self._host.walk(value)
        return told

    def _row(self, row: Node, goes: Wanted) -> Node:
        return {"List": {"items": [self._value(item, goes) for item in row["List"]["items"]]}}

    def _target(self, item: Node, goes: Wanted) -> Node:
        fields = item["ResTarget"]
        label = "" if "name" in fields else column_name(fields.get("val"))[0]
        return {
            "ResTarget": {
                key: self._value(value, goes, label) if key == "val" else self._host.walk(value)
                for key, value in fields.items()
                if key not in PLACES
            }
        }

    def _grouped(self, item: Node, goes: Wanted) -> Iterator[Node]:
        at = item.get("ColumnRef", {}).get("location", -1)
        beside = () if at < 0 else self._dependent.get(self._edits.position(at), ())
        if beside and not self._edits.is_in_brackets(at):
            self._edits.replace(at, at, "".join(f"{quoted(s)}.{quoted(c)}, " for s, c in beside))
            for source, column in beside:
                yield {"ColumnRef": {"fields": [{"String": {"sval": name}} for name in (source, column)]}}
        yield self._value(item, goes)

    def _sorted(self, item: Node, goes: Wanted) -> Node:
        return {
            "SortBy": {
                key: self._value(value, goes) if key == "node" else self._host.walk(value)
                for key, value in item["SortBy"].items()
                if key not in PLACES
            }
        }

    def of_range(self, fields: Fields) -> Node:
        """A function in FROM."""
        before = self._in_range, self._range_names_columns
        bare = "alias" not in fields and not fields.get("ordinality")
        self._in_range = True
        self._range_names_columns = bare or bool(fields.get("alias", {}).get("colnames"))
        told = {key: self._host.walk(value) for key, value in fields.items() if key not in PLACES}
        self._in_range, self._range_names_columns = before
        call = fields["functions"][0].get("List", {}).get("items", [{}])[0].get("FuncCall")
        if bare and call is not None and _own_name(call["funcname"]) == _ANCESTORS:
            # What takes its place has neither its name nor its column's.
            _, end = self._edits.arguments(call["location"])
            self._edits.replace(end, end, f" AS {_ANCESTORS}(relid)")
            told["alias"] = {"aliasname": _ANCESTORS, "colnames": [{"String": {"sval": "relid"}}]}
        return told

    def _operation(self, fields: Fields, wanted: Wanted, _label: str) -> Node:
        kind, symbol = fields["kind"], fields["name"][-1].get("String", {}).get("sval")
        compares = kind in _COMPARES or (kind in _BY_SYMBOL and symbol in _COMPARING)
        passes_on = kind == "AEXPR_NULLIF" and wanted is Wanted.NUMBER
        goes = Wanted.NUMBER if compares or passes_on else Wanted.TEXT
        reg = self._compared_with(fields) if compares else None

        def side(value: Node) -> Node:
            if isinstance(value, Mapping) and set(value) == {"List"}:
                return {"List": {"items": [side(item) for item in value["List"]["items"]]}}
            if reg is not None and kind not in ("AEXPR_OP_ANY", "AEXPR_OP_ALL"):
                return self._read_as(value, reg)
            return self._value(value, goes)

        return {
            "A_Expr": {
                key: side(value) if key in ("lexpr", "rexpr") else self._host.walk(value)
                for key, value in fields.items()
                if key not in PLACES
            }
        }

    def _compared_with(self, fields: Fields) -> str | None:
        """The type, of those that look names up, which a constant beside the operator would be read as."""
        sides = [fields.get("lexpr"), fields.get("rexpr")]
        for each in sides:
            items = each["List"]["items"] if isinstance(each, Mapping) and "List" in each else [each]
            for item in items:
                found = self._reg_of(item)
                if found is not None:
                    return found
        return None

    def _reg_of(self, node: Node) -> str | None:
        """The type in ``TYPES`` that the expression is of, as far as its text tells."""
        if not isinstance(node, Mapping):
            return None
        if "TypeCast" in node:
            name = _own_name(node["TypeCast"]["typeName"].get("names", ()))
            return name if name in TYPES and "arrayBounds" not in node["TypeCast"]["typeName"] else None
        if "FuncCall" in node:
            return LOOK_UP_FUNCTIONS.get(_own_name(node["FuncCall"].get("funcname", ())) or "")
        return "regproc" if self.columns.is_function(node) else None

    def _read_as(self, node: Node, reg: str) -> Node:
        """A value beside others: a text without a type is looked up as of theirs."""
        if isinstance(node, Mapping):
            constant = node.get("A_Const")
            if (constant is not None and "sval" in constant) or "ParamRef" in node:
                at = (node.get("A_Const") or node["ParamRef"])["location"]
                span = at, self._edits.end_of_token(at)
                return self._looked_up(node, TYPES[reg], span, span, tail=_tail(reg, Wanted.NUMBER))
        return self._value(node, Wanted.NUMBER)

    def _case(self, fields: Fields, wanted: Wanted, _label: str) -> Node:
        results = [item["CaseWhen"]["result"] for item in fields["args"]]
        become = self._together([*results, fields.get("defresult")], wanted)
        told: dict[str, Node] = {}
        for key, value in fields.items():
            if key == "args":
                told[key] = [
                    {
                        "CaseWhen": {
                            part: become(each) if part == "result" else self._host.walk(each)
                            for part, each in item["CaseWhen"].items()
                            if part not in PLACES
                        }
                    }
                    for item in value
                ]
            elif key == "defresult":
                told[key] = become(value)
            elif key not in PLACES:
                told[key] = self._host.walk(value)
        return {"CaseExpr": told}

    def _common(self, kind: str) -> Callable[[Fields, Wanted, str], Node]:
        def handle(fields: Fields, wanted: Wanted, _label: str) -> Node:
            return {kind: self._items(fields, "args", wanted)}

        return handle

    def _array(self, fields: Fields, wanted: Wanted, _label: str) -> Node:
        return {"A_ArrayExpr": self._items(fields, "elements", wanted)}

    def _items(self, fields: Fields, listed: str, wanted: Wanted) -> Node:
        become = self._together(fields.get(listed, []), wanted)
        return {
            key: [become(item) for item in value] if key == listed else self._host.walk(value)
            for key, value in fields.items()
            if key not in PLACES
        }

    def _together(self, nodes: Sequence[Node], wanted: Wanted) -> Callable[[Node], Node]:
        """What becomes of each of several values that PostgreSQL gives one type."""
        if wanted is not Wanted.NUMBER:
            return lambda node: self._value(node, Wanted.TEXT)
        reg = next(filter(None, map(self._reg_of, nodes)), None)
        return lambda node: self._value(node, wanted) if reg is None else self._read_as(node, reg)

    def _sub_select(self, fields: Fields, wanted: Wanted, _label: str) -> Node:
        kind = fields["subLinkType"]
        compared = kind in ("ANY_SUBLINK", "ALL_SUBLINK")
        goes = Wanted.TEXT
        if compared or wanted is Wanted.NUMBER:
            goes = Wanted.NUMBER
        elif kind == "EXPR_SUBLINK":
            goes = wanted
        told: dict[str, Node] = {}
        for key, value in fields.items():
            if key == "subselect" and "SelectStmt" in value:
                told[key] = {"SelectStmt": self._host.select(value["SelectStmt"], wanted=goes)}
            elif key == "testexpr":
                told[key] = self._value(value, Wanted.NUMBER if compared else Wanted.TEXT)
            elif key not in PLACES:
                told[key] = self._host.walk(value)
        return {"SubLink": told}

    # Values that are names ----------------------------------------------------------------------------------

    def _column(self, fields: Fields, wanted: Wanted, _label: str) -> Node:
        parts = [self._host.walk(part) for part in fields["fields"]]
        names = [part.get("String", {}).get("sval") for part in parts]
        at = fields["location"]
        if len(names) > 2 and QualifiedName(str(names[-3]), str(names[-2])) in self._names:
            # The sub-select has the catalog's name, and is in no schema.
            parts = parts[-2:]
            self._edits.replace(at, self._edits.part_of_name(at, len(names) - 2), "")
        told: Node = {"ColumnRef": {"fields": parts}}
        if wanted is Wanted.NUMBER or not self.columns.is_function({"ColumnRef": fields}):
            return told
        end = self._edits.end_of_name(at)
        self._edits.replace(end, end, _tail("regproc", wanted))
        told = {"TypeCast": {"arg": told, "typeName": _own_type("regproc")}}
        return told if wanted is Wanted.NAME else {"TypeCast": {"arg": told, "typeName": _own_type("text")}}

    def check_type(self, type_name: Fields) -> None:
        """Refuse a type of names where it is no cast: what is put into it cannot be seen."""
        name = _own_name(type_name.get("names", ()))
        if name is not None and _bare(name) in CLOSED_TYPES:
            raise Refusal(
                _FUNCTIONS_RULE,
                f"Type {name} cannot be used here: it would name any object",
                "Use text or oid in its place.",
                self._position(type_name),
                name,
            )

    def _type(self, fields: Fields, _wanted: Wanted, _label: str) -> Node:
        self.check_type(fields)
        return {"TypeName": {k: self._host.walk(v) for k, v in fields.items() if k not in PLACES}}

    def _cast(self, fields: Fields, wanted: Wanted, label: str) -> Node:
        type_name = fields["typeName"]
        name = _own_name(type_name.get("names", ()))
        if name is None or _bare(name) not in CLOSED_TYPES:
            at_once = name is not None and (name in BUILTIN_TYPES or name in OPEN_TYPES)
            goes = Wanted.NAME if at_once and "arrayBounds" not in type_name else Wanted.TEXT
            goes = Wanted.NUMBER if name in _NUMBERS else goes
            return {
                "TypeCast": {
                    "arg": self._value(fields["arg"], goes, label),
                    "typeName": {k: self._host.walk(v) for k, v in type_name.items() if k not in PLACES},
                }
            }
        if name in TYPES and "arrayBounds" in type_name:
            told = self._reg_array(fields, name, wanted, label)
            if told is not None:
                return told
        if name not in TYPES or "arrayBounds" in type_name:
            raise Refusal(
                _FUNCTIONS_RULE,
                f"A cast to {name}{'[]' if 'arrayBounds' in type_name else ''} would name any object",
                "Join pg_catalog.pg_class, pg_type or pg_proc for the names instead.",
                self._position(type_name),
                name,
            )
        return self._reg_cast(fields, name, wanted, label)

    def _reg_array(self, fields: Fields, name: str, wanted: Wanted, label: str) -> Node | None:
        """A cast of many OIDs to names; None where it would look texts up."""
        arg, at = fields["arg"], fields["location"]
        if at < 0 or "A_Const" in arg or "ParamRef" in arg:
            return None
        inner, outer = self._cast_spans(fields)
        tail = _tail(name, wanted, "[]")
        direct = self.columns.direct(arg)
        if direct is None or direct[0] not in ARGUMENT_TYPES:
            own, sure = column_name({"TypeCast": fields})
            label = label if label and sure < SURE else own
            round_it = look_up_all(TYPES[name], self._visibility, label)
            priced = look_up_all(TYPES[name], None, label)[0]
            return self._put(arg, inner, outer, round_it, tail, priced=priced)
        self._edits.replace(inner[0], inner[0], "(")
        told = self._value(arg, Wanted.NUMBER)
        self._edits.replace(inner[1], outer[1], ")" + tail)
        return _filled("(", ")" + tail, told)

    def _cast_spans(self, fields: Fields) -> tuple[tuple[int, int], tuple[int, int]]:
        """The spans of what is cast, and of the cast."""
        type_at, at = fields["typeName"]["location"], fields["location"]
        if not self._edits.is_cast_sign(at):
            inner, end = self._edits.in_cast(at)
            return inner, (at, end)
        inner = self._edits.before_cast(at, fields["arg"])
        end = self._edits.end_of_name(type_at)
        if "arrayBounds" in fields["typeName"]:
            end = self._edits.end_of_bounds(end)
        return inner, (inner[0], end)

    def _reg_cast(self, fields: Fields, name: str, wanted: Wanted, label: str) -> Node:
        arg, type_at, at = fields["arg"], fields["typeName"]["location"], fields["location"]
        tail = _tail(name, wanted)
        if at < 0:  # regclass 'orders'
            constant = arg["A_Const"]["location"]
            inner = constant, self._edits.end_of_token(constant)
            outer = (type_at, inner[1])
        else:
            inner, outer = self._cast_spans(fields)
        # A name that a constant cast to regclass holds has been judged as a mention of the relation.
        text = arg.get("A_Const", {}).get("sval", {}).get("sval", "").strip()
        named = name == "regclass" and text != "" and not text.isdecimal() and text != "-"
        # GROUP BY finds what it groups by in the result only where both are called alike.
        own, sure = column_name({"TypeCast": fields})
        label = label if label and sure < SURE else own
        return self._looked_up(arg, TYPES[name], inner, outer, tail=tail, label=label, named=named)

    def _looked_up(
        self,
        node: Node,
        thing: Thing,
        inner: tuple[int, int],
        outer: tuple[int, int],
        *,
        tail: str,
        label: str = "",
        named: bool = False,
    ) -> Node:
        """Put a look-up round ``node``, at ``inner`` of the ``outer`` that it takes the place of."""
        before, behind = look_up(thing, self._visibility, label, named=named)
        priced = look_up(thing, None, label, named=named)[0]
        direct = self.columns.direct(node)
        if direct is not None and thing in TRUSTED.get(direct[0], ()):
            before = priced = "(SELECT ("
            behind = "))"
            if label:
                behind = f") AS {quoted(label)})"
        return self._put(node, inner, outer, (before, behind), tail, priced=priced)

    def _put(
        self,
        node: Node,
        inner: tuple[int, int],
        outer: tuple[int, int],
        round_it: tuple[str, str],
        tail: str,
        *,
        priced: str | None = None,
        function: bool = False,
    ) -> Node:
        """Put ``round_it`` round ``node``, and ``tail`` behind; a ``function`` is a call of one. ``priced``
        is what is priced for the first part of it, None that itself."""
        before, behind = round_it
        if not is_value(before, behind):
            raise ValueError("a look-up is no value")
        number = self._edits.next_sketch()
        first, last = (f"f{number}((", "))") if function else (f"(SELECT {number}, (", "))")
        self._edits.replace(outer[0], inner[0], before, first, priced)
        value = self._value(node, Wanted.NUMBER)
        self._edits.replace(inner[1], outer[1], behind + tail, last + tail)
        return _filled(first, last + tail, value)

    # Functions ----------------------------------------------------------------------------------------------

    def _call(self, fields: Fields, wanted: Wanted, _label: str) -> Node:
        name = _own_name(fields.get("funcname", ()))
        if name not in SPECIAL:
            return {"FuncCall": self._walked(fields)}
        args = fields.get("args", [])
        if name in REFUSED or any("NamedArgExpr" in arg for arg in args) or "func_variadic" in fields:
            raise self._refused(fields, name, REFUSED.get(name, "Give its arguments by place."))
        own_way = self._own_ways.get((name, len(args)))
        if own_way is not None:
            return own_way(fields, wanted)
        if name in LOOK_UP_FUNCTIONS and len(args) == 1:
            spans, end = self._arguments(fields)
            reg = LOOK_UP_FUNCTIONS[name]
            tail = _tail(reg, wanted)
            return self._looked_up(
                args[0], TYPES[reg], spans[0], (fields["location"], end), tail=tail, label=name
            )
        return self._giver(fields, self._places(name, fields))

    def _walked(self, fields: Fields, args: list[Node] | None = None) -> Node:
        return {
            key: args if key == "args" and args is not None else self._host.walk(value)
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
            (self.columns.direct(arg) or (None,))[0] in _SHOWN_COLUMNS for arg in args
        ):
            return dict.fromkeys(places, Thing.CLASS)
        return places

    def _giver(self, fields: Fields, places: Mapping[int, Thing]) -> Node:
        if not places:
            return {"FuncCall": self._walked(fields)}
        spans, _ = self._arguments(fields)
        name = _own_name(fields["funcname"])
        tail = "::pg_catalog.regclass::pg_catalog.text" if name in BY_TEXT else ""
        told: list[Node] = []
        for number, arg in enumerate(fields["args"]):
            thing = places.get(number)
            direct = self.columns.direct(arg)
            if thing is None:
                told.append(self._value(arg, Wanted.TEXT))
            elif not tail and direct is not None and thing in TRUSTED.get(direct[0], ()):
                told.append(self._value(arg, Wanted.NUMBER))
            else:
                told.append(self._looked_up(arg, thing, spans[number], spans[number], tail=tail))
        return {"FuncCall": self._walked(fields, told)}

    def _is_of_one_row(self, name: str, args: list[Node]) -> bool:
        """Whether what is told is told of one row of a filtered catalog."""
        found = [self.columns.direct(arg) for arg in args[:2]]
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
        if self._in_range and not self._range_names_columns:
            raise self._refused(fields, _ANCESTORS, "Read pg_catalog.pg_inherits instead.")
        spans, end = self._arguments(fields)
        before, behind = look_up(Thing.CLASS, self._visibility, "")
        first = f"pg_catalog.unnest(ARRAY(SELECT a.r::pg_catalog.oid FROM pg_catalog.{_ANCESTORS}("
        last = (
            ") WITH ORDINALITY AS a(r, i) WHERE a.r::pg_catalog.oid IN "
            f"({self._visibility.classes()}) ORDER BY a.i))"
        )
        tail = "" if self._in_range else _tail("regclass", wanted)
        outer = fields["location"], end
        return self._put(
            fields["args"][0], spans[0], outer, (first + before, behind + last), tail, function=True
        )

    def _type_of(self, fields: Fields, wanted: Wanted) -> Node:
        call = {"FuncCall": self._walked(fields)}
        if wanted is not Wanted.TEXT:
            return call
        _, end = self._arguments(fields)
        self._edits.replace(end, end, _TEXT)
        return {"TypeCast": {"arg": call, "typeName": _own_type("text")}}

    def _vector(self, fields: Fields, _wanted: Wanted) -> Node:
        (arg,) = fields["args"]
        found = self.columns.direct(arg)
        if found is None or found[0] not in ARGUMENT_TYPES:
            raise self._refused(fields, _VECTOR, "Give it proargtypes of pg_catalog.pg_proc.")
        return {"FuncCall": self._walked(fields)}

    def _any_description(self, fields: Fields, _wanted: Wanted) -> Node:
        """obj_description(oid): whichever catalog the object is of."""
        spans, end = self._arguments(fields)
        outer = fields["location"], end
        before, behind = comment(self._visibility)
        return self._put(fields["args"][0], spans[0], outer, (before, behind), "", priced=comment(None)[0])

    def _arguments(self, fields: Fields) -> tuple[tuple[tuple[int, int], ...], int]:
        spans, end = self._edits.arguments(fields["location"])
        if len(spans) != len(fields.get("args", [])):
            raise self._refused(fields, str(_own_name(fields["funcname"])), "Give its arguments by place.")
        return spans, end

    def _refused(self, fields: Fields, name: str, hint: str) -> Refusal:
        message = f"Function pg_catalog.{name} is not allowed while catalogs are filtered"
        return Refusal(
            _FUNCTIONS_RULE,
            f"{message}: it could name any object" if name in REFUSED else message,
            hint,
            self._position(fields),
            f"pg_catalog.{name}",
        )

    def _position(self, fields: Fields) -> int | None:
        at = fields.get("location", -1)
        return self._edits.position(at) if at >= 0 else None


_SHOWN_COLUMNS: Final = frozenset({("pg_attribute", "attname"), ("pg_attribute", "attnum")})
"""A column that is read from here is shown, so that it may be told of."""


def _own_type(name: str) -> Node:
    return {"names": [{"String": {"sval": "pg_catalog"}}, {"String": {"sval": name}}], "typemod": -1}


def _own_name(parts: Sequence[Node]) -> str | None:
    """The name, where it is one of pg_catalog's or could be."""
    names = [part.get("String", {}).get("sval") for part in parts]
    if not names or (len(names) > 1 and names[-2] != PG_CATALOG):
        return None
    return str(names[-1])


def _bare(name: str) -> str:
    """The element type of an array's."""
    return name[1:] if name.startswith("_") else name


def _tail(reg: str, wanted: Wanted, bounds: str = "") -> str:
    """``bounds`` are [] for an array."""
    if wanted is Wanted.NUMBER:
        # In brackets alone, as in IN (…), a sub-select would be read as one of many rows.
        return f"::pg_catalog.oid{bounds}"
    return f"::pg_catalog.{reg}{bounds}" + (f"{_TEXT}{bounds}" if wanted is Wanted.TEXT else "")


def _constant(node: Node) -> str | None:
    """The text of a string constant."""
    if not isinstance(node, Mapping):
        return None
    if "TypeCast" in node:
        return _constant(node["TypeCast"]["arg"])
    value = node.get("A_Const", {}).get("sval")
    return None if value is None else str(value.get("sval", ""))


@lru_cache(maxsize=512)
def is_select(text: str) -> bool:
    """Whether it is one SELECT, as may stand in brackets."""
    read = trees(text)
    return len(read) == 1 and "SelectStmt" in read[0] and text == text.strip()


@lru_cache(maxsize=512)
def is_value(before: str, behind: str) -> bool:
    """Whether the two make one value of whatever stands between them, in brackets of its own."""
    read = trees(f"SELECT {before}{HOLE}{behind}")
    if len(read) != 1 or not (before.endswith("(") and behind.startswith(")")):
        return False
    items = read[0].get("SelectStmt", {}).get("targetList", ())
    values = [item["ResTarget"]["val"] for item in items if "name" not in item["ResTarget"]]
    if len(items) != 1 or len(values) != 1 or not values[0].keys() <= {"SubLink", "FuncCall"}:
        return False
    return _holes(values[0]) == 1


def _holes(node: Node) -> int:
    """How often the tree holds the place of the value, by itself."""
    if isinstance(node, list):
        return sum(map(_holes, node))
    if not isinstance(node, Mapping):
        return 0
    if set(node) == {"ColumnRef"} and node["ColumnRef"]["fields"] == [{"String": {"sval": HOLE}}]:
        return 1
    return sum(map(_holes, node.values()))


def _filled(before: str, behind: str, value: Node) -> Node:
    """The tree of a sketch, with ``value`` in its hole."""

    def fill(node: Node) -> Node:
        if isinstance(node, list):
            return [fill(item) for item in node]
        if not isinstance(node, Mapping):
            return node
        if set(node) == {"ColumnRef"} and node["ColumnRef"]["fields"] == [{"String": {"sval": HOLE}}]:
            return value
        return {k: fill(v) for k, v in node.items() if k not in PLACES}

    (tree,) = trees(f"SELECT {before}{HOLE}{behind}")
    return fill(tree["SelectStmt"]["targetList"][0]["ResTarget"]["val"])
