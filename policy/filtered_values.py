"""The values of a statement that PostgreSQL would make names of, one by one: the half of ``filtered`` that
reads expressions.

Owns which expressions those are, but for calls (``filtered_calls``), where each of them goes, and what takes
its place. A value of ``regclass`` and its like is wanted as a name (it is a column of the result, or cast to
text at once), as a number (it is compared), or as a text: everywhere else. Knows no FROM clause, which is
``filtered``'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from policy.builtin_symbols import TYPES as BUILTIN_TYPES
from policy.catalog import Catalog
from policy.column_names import SURE, column_name
from policy.expressions import PLACES
from policy.facts import Facts
from policy.filtered_calls import ANCESTORS, TREE, Calls
from policy.filtered_columns import CatalogColumns
from policy.filtered_pieces import (
    FUNCTIONS_RULE,
    Fields,
    Node,
    Wanted,
    cast_to,
    filled,
    is_value,
    own_name,
    own_type,
)
from policy.name_givers import (
    ARGUMENT_TYPES,
    LOOK_UP_FUNCTIONS,
    TRUSTED,
    TYPES,
    Thing,
    look_up,
    look_up_all,
    look_up_texts,
)
from policy.names import QualifiedName
from policy.reg_types import CLOSED_TYPES, OPEN_TYPES
from policy.text_edits import Edits, Refusal, quoted
from policy.visibility import Visibility

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
_NUMBERS: Final = frozenset({"oid", "_oid", "oidvector", "int4", "_int4", "int8", "_int8"})
"""Types of which a name's OID can be a value, and arrays of them, of which several can."""


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
        self.in_range = self.range_names_columns = False
        self._calls = Calls(self, self._edits, visibility)
        self._handlers: Mapping[str, Callable[[Fields, Wanted, str], Node]] = {
            "A_ArrayExpr": self._array,
            "A_Expr": self._operation,
            "CaseExpr": self._case,
            "CoalesceExpr": self._common("CoalesceExpr"),
            "ColumnRef": self._column,
            "FuncCall": self._calls.of,
            "MinMaxExpr": self._common("MinMaxExpr"),
            "SubLink": self._sub_select,
            "TypeCast": self._cast,
            "TypeName": self._type,
        }

    def of(self, kind: str, fields: Fields) -> Node | None:
        """What ``{kind: fields}`` is to be, where it is looked at here."""
        handler = self._handlers.get(kind)
        return None if handler is None else handler(fields, Wanted.TEXT, "")

    def value(self, node: Node, wanted: Wanted, label: str = "") -> Node:
        """What ``node`` is to be, where it goes to ``wanted`` and its column is called ``label``."""
        if isinstance(node, Mapping) and len(node) == 1:
            ((kind, fields),) = node.items()
            handler = self._handlers.get(kind)
            if handler is not None:
                return handler(fields, wanted, label)
        return self._host.walk(node)

    def walk(self, node: Node) -> Node:
        """What ``node`` is to be, whatever it is."""
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
                told[key] = [self.value(item, goes) for item in value]
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
        return {"List": {"items": [self.value(item, goes) for item in row["List"]["items"]]}}

    def _target(self, item: Node, goes: Wanted) -> Node:
        fields = item["ResTarget"]
        label = "" if "name" in fields else column_name(fields.get("val"))[0]
        return {
            "ResTarget": {
                key: self.value(value, goes, label) if key == "val" else self._host.walk(value)
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
        yield self.value(item, goes)

    def _sorted(self, item: Node, goes: Wanted) -> Node:
        return {
            "SortBy": {
                key: self.value(value, goes) if key == "node" else self._host.walk(value)
                for key, value in item["SortBy"].items()
                if key not in PLACES
            }
        }

    def of_range(self, fields: Fields) -> Node:
        """A function in FROM."""
        items = fields["functions"][0].get("List", {}).get("items", [{}])
        call = items[0].get("FuncCall")
        named = None if call is None else own_name(call["funcname"])
        if named == TREE and fields.keys() <= {"functions", "alias", "lateral"} and not any(items[1:]):
            return self._tree(fields, call)
        before = self.in_range, self.range_names_columns
        bare = "alias" not in fields and not fields.get("ordinality")
        self.in_range = True
        self.range_names_columns = bare or bool(fields.get("alias", {}).get("colnames"))
        told = {key: self._host.walk(value) for key, value in fields.items() if key not in PLACES}
        self.in_range, self.range_names_columns = before
        if bare and named == ANCESTORS:
            # What takes its place has neither its name nor its column's.
            _, end = self._edits.arguments(call["location"])
            self._edits.replace(end, end, f" AS {ANCESTORS}(relid)")
            told["alias"] = {"aliasname": ANCESTORS, "colnames": [{"String": {"sval": "relid"}}]}
        return {"RangeFunction": told}

    def _tree(self, fields: Fields, call: Fields) -> Node:
        """pg_partition_tree alone in FROM: a sub-select of the same columns, called as it is."""
        alias = fields.get("alias")
        query = self._calls.tree_in_range(call, "" if alias is not None else f" AS {TREE}")
        return {
            "RangeSubselect": {
                "lateral": True,
                "subquery": query["SubLink"]["subselect"],
                "alias": {"aliasname": TREE} if alias is None else self._host.walk(alias),
            }
        }

    def _operation(self, fields: Fields, wanted: Wanted, _label: str) -> Node:
        kind, symbol = fields["kind"], fields["name"][-1].get("String", {}).get("sval")
        compares = kind in _COMPARES or (kind in _BY_SYMBOL and symbol in _COMPARING)
        passes_on = kind == "AEXPR_NULLIF" and wanted is Wanted.NUMBER
        goes = Wanted.NUMBER if compares or passes_on else Wanted.TEXT
        reg = self._compared_with(fields) if compares else None

        def side(value: Node) -> Node:
            if isinstance(value, Mapping) and set(value) == {"List"}:
                return {"List": {"items": [side(item) for item in value["List"]["items"]]}}
            if compares and isinstance(value, Mapping) and set(value) == {"RowExpr"}:
                return {"RowExpr": self._each(value["RowExpr"], "args", lambda item: self.value(item, goes))}
            if reg is not None and kind not in ("AEXPR_OP_ANY", "AEXPR_OP_ALL"):
                return self._read_as(value, reg)
            return self.value(value, goes)

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
            name = own_name(node["TypeCast"]["typeName"].get("names", ()))
            return name if name in TYPES and "arrayBounds" not in node["TypeCast"]["typeName"] else None
        if "FuncCall" in node:
            return LOOK_UP_FUNCTIONS.get(own_name(node["FuncCall"].get("funcname", ())) or "")
        return "regproc" if self.columns.is_function(node) else self.columns.derived(node)

    def _read_as(self, node: Node, reg: str) -> Node:
        """A value beside others: a text without a type is looked up as of theirs."""
        if isinstance(node, Mapping):
            constant = node.get("A_Const")
            if (constant is not None and "sval" in constant) or "ParamRef" in node:
                at = (node.get("A_Const") or node["ParamRef"])["location"]
                span = at, self._edits.end_of_token(at)
                return self.looked_up(node, TYPES[reg], span, span, tail=cast_to(reg, Wanted.NUMBER))
        return self.value(node, Wanted.NUMBER)

    def _case(self, fields: Fields, wanted: Wanted, _label: str) -> Node:
        results = [item["CaseWhen"]["result"] for item in fields["args"]]
        become = self._together([*results, fields.get("defresult")], wanted)
        compare: Callable[[Node], Node] = self._host.walk
        if "arg" in fields:
            # CASE x WHEN y asks whether x = y.
            asked = [fields["arg"], *(item["CaseWhen"]["expr"] for item in fields["args"])]
            compare = self._together(asked, Wanted.NUMBER)
        told: dict[str, Node] = {}
        for key, value in fields.items():
            if key == "args":
                told[key] = [
                    {
                        "CaseWhen": {
                            part: become(each) if part == "result" else compare(each)
                            for part, each in item["CaseWhen"].items()
                            if part not in PLACES
                        }
                    }
                    for item in value
                ]
            elif key == "defresult":
                told[key] = become(value)
            elif key == "arg":
                told[key] = compare(value)
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
        return self._each(fields, listed, self._together(fields.get(listed, []), wanted))

    def _each(self, fields: Fields, listed: str, become: Callable[[Node], Node]) -> Node:
        return {
            key: [become(item) for item in value] if key == listed else self._host.walk(value)
            for key, value in fields.items()
            if key not in PLACES
        }

    def _together(self, nodes: Sequence[Node], wanted: Wanted) -> Callable[[Node], Node]:
        """What becomes of each of several values that PostgreSQL gives one type."""
        if wanted is not Wanted.NUMBER:
            return lambda node: self.value(node, Wanted.TEXT)
        reg = next(filter(None, map(self._reg_of, nodes)), None)
        return lambda node: self.value(node, wanted) if reg is None else self._read_as(node, reg)

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
                told[key] = self.value(value, Wanted.NUMBER if compared else Wanted.TEXT)
            elif key not in PLACES:
                told[key] = self._host.walk(value)
        return {"SubLink": told}

    # Values that are names ----------------------------------------------------------------------------------

    def _column(self, fields: Fields, wanted: Wanted, _label: str, *, is_looked_up: bool = False) -> Node:
        parts = [self._host.walk(part) for part in fields["fields"]]
        names = [part.get("String", {}).get("sval") for part in parts]
        at = fields["location"]
        if len(names) > 2 and QualifiedName(str(names[-3]), str(names[-2])) in self._names:
            # The sub-select has the catalog's name, and is in no schema.
            parts = parts[-2:]
            self._edits.replace(at, self._edits.part_of_name(at, len(names) - 2), "")
        told: Node = {"ColumnRef": {"fields": parts}}
        reg = self.columns.derived({"ColumnRef": fields}) if wanted is Wanted.NUMBER else None
        if reg is not None and not is_looked_up:
            at_name = at, self._edits.end_of_name(at)
            return self.looked_up(
                {"ColumnRef": fields}, TYPES[reg], at_name, at_name, tail=cast_to(reg, wanted)
            )
        if wanted is Wanted.NUMBER or not self.columns.is_function({"ColumnRef": fields}):
            return told
        end = self._edits.end_of_name(at)
        self._edits.replace(end, end, cast_to("regproc", wanted))
        told = {"TypeCast": {"arg": told, "typeName": own_type("regproc")}}
        return told if wanted is Wanted.NAME else {"TypeCast": {"arg": told, "typeName": own_type("text")}}

    def check_type(self, type_name: Fields) -> None:
        """Refuse a type of names where it is no cast: what is put into it cannot be seen."""
        name = own_name(type_name.get("names", ()))
        if name is not None and _bare(name) in CLOSED_TYPES:
            raise Refusal(
                FUNCTIONS_RULE,
                f"Type {name} cannot be used here: it would name any object",
                "Use text or oid in its place.",
                self._edits.position_of(type_name),
                name,
            )

    def _type(self, fields: Fields, _wanted: Wanted, _label: str) -> Node:
        self.check_type(fields)
        return {"TypeName": {k: self._host.walk(v) for k, v in fields.items() if k not in PLACES}}

    def _cast(self, fields: Fields, wanted: Wanted, label: str) -> Node:
        type_name = fields["typeName"]
        name = own_name(type_name.get("names", ()))
        if name is None or _bare(name) not in CLOSED_TYPES:
            at_once = name is not None and (name in BUILTIN_TYPES or name in OPEN_TYPES)
            goes = Wanted.NAME if at_once and "arrayBounds" not in type_name else Wanted.TEXT
            goes = Wanted.NUMBER if name in _NUMBERS else goes
            return {
                "TypeCast": {
                    "arg": self.value(fields["arg"], goes, label),
                    "typeName": {k: self._host.walk(v) for k, v in type_name.items() if k not in PLACES},
                }
            }
        if name in TYPES and "arrayBounds" in type_name and fields["location"] >= 0:
            return self._reg_array(fields, name, wanted, label)
        if name not in TYPES or "arrayBounds" in type_name:
            raise Refusal(
                FUNCTIONS_RULE,
                f"A cast to {name}{'[]' if 'arrayBounds' in type_name else ''} would name any object",
                "Join pg_catalog.pg_class, pg_type or pg_proc for the names instead.",
                self._edits.position_of(type_name),
                name,
            )
        return self._reg_cast(fields, name, wanted, label)

    def _reg_array(self, fields: Fields, name: str, wanted: Wanted, label: str) -> Node:
        """A cast of many OIDs to names, or of the names that a constant or a parameter holds."""
        arg = fields["arg"]
        inner, outer = self._cast_spans(fields)
        tail = cast_to(name, wanted, "[]")
        direct = self.columns.direct(arg)
        if direct is None or direct[0] not in ARGUMENT_TYPES:
            own, sure = column_name({"TypeCast": fields})
            label = label if label and sure < SURE else own
            look = look_up_texts if "A_Const" in arg or "ParamRef" in arg else look_up_all
            round_it = look(TYPES[name], self._visibility, label)
            priced = look(TYPES[name], None, label)[0]
            return self.put(arg, inner, outer, round_it, tail, priced=priced)
        self._edits.replace(inner[0], inner[0], "(")
        told = self.value(arg, Wanted.NUMBER)
        self._edits.replace(inner[1], outer[1], ")" + tail)
        return filled("(", ")" + tail, told)

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
        tail = cast_to(name, wanted)
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
        return self.looked_up(arg, TYPES[name], inner, outer, tail=tail, label=label, named=named)

    def looked_up(
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
        return self.put(node, inner, outer, (before, behind), tail, priced=priced)

    def put(
        self,
        node: Node,
        inner: tuple[int, int],
        outer: tuple[int, int],
        round_it: tuple[str, str],
        tail: str,
        *,
        priced: str | None = None,
        priced_behind: str | None = None,
        function: bool = False,
    ) -> Node:
        """Put ``round_it`` round ``node``, and ``tail`` behind; a ``function`` is a call of one. ``priced``
        is what is priced for the first part of it, ``priced_behind`` for the last, None that itself."""
        before, behind = round_it
        if not is_value(before, behind):
            raise ValueError("a look-up is no value")
        number = self._edits.next_sketch()
        first, last = (f"f{number}((", "))") if function else (f"(SELECT {number}, (", "))")
        self._edits.replace(outer[0], inner[0], before, first, priced)
        if isinstance(node, Mapping) and "ColumnRef" in node:
            value = self._column(node["ColumnRef"], Wanted.NUMBER, "", is_looked_up=True)
        else:
            value = self.value(node, Wanted.NUMBER)
        told = None if priced_behind is None else priced_behind + tail
        self._edits.replace(inner[1], outer[1], behind + tail, last + tail, told)
        return filled(first, last + tail, value)


def _bare(name: str) -> str:
    """The element type of an array's."""
    return name[1:] if name.startswith("_") else name
