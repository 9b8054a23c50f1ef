"""What of a database's catalogs a policy shows, as conditions in SQL.

Owns the translation of a policy's relations, columns and functions into conditions over pg_class,
pg_attribute and pg_proc, from which ``catalog_filters`` builds the one of every catalog. Patterns become
conditions on names, so that what is made later is judged by them too. What no pattern can tell comes from the
snapshot, as names: the views that may be read with all that stands behind them, and tables closed for what
they are part of. A view that the snapshot lacks is not shown: its definition may name anything.

What is made of a hidden column or relation (an index, a constraint, a default, a trigger, a policy, a
function's signature) is hidden with it, which pg_depend tells.

Operators stand plain: pg_catalog comes first in every search_path the gate lets pass (``settings.HELD``), and
the operands are of pg_catalog's own types. Knows no statement.

Source: PostgreSQL documentation, "System Catalogs"; OIDs of catalogs in src/include/catalog/pg_*.h, which are
the same in every release.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Final

from policy.builtin import SYSTEM_SCHEMAS
from policy.catalog import Catalog
from policy.catalog_names import CatalogNames
from policy.catalog_values import Relation, RelationKind
from policy.model import ColumnRule, Pattern, Policy, Views
from policy.names import QualifiedName
from policy.rules.columns_by_catalog import HiddenColumns
from policy.rules.function_not_allowed import is_function_allowed
from policy.rules.relation_not_allowed import is_allowed, is_open

NEVER: Final = "false"
ALWAYS: Final = "true"

PG_CLASS: Final = 1259
PG_PROC: Final = 1255
PG_TYPE: Final = 1247
PG_ATTRDEF: Final = 2604
PG_CONSTRAINT: Final = 2606
PG_NAMESPACE: Final = 2615
PG_REWRITE: Final = 2618
PG_TRIGGER: Final = 2620
PG_POLICY: Final = 3256
PG_STATISTIC_EXT: Final = 3381

_VIEWS: Final = frozenset({RelationKind.VIEW, RelationKind.MATERIALIZED_VIEW})
_IS_SYSTEM: Final = "{} IN ('pg_catalog', 'information_schema')"


class Visibility:
    """The conditions of one policy over one schema; ``catalog`` None where only the policy is known.

    Every method gives a boolean expression. Its arguments are SQL too: an alias of a row (``c`` of pg_class,
    ``n`` of pg_namespace …), or an expression for a name or an OID.
    """

    def __init__(self, policy: Policy, catalog: Catalog | None) -> None:
        self._policy = policy
        self.catalog: Final = catalog

    # Relations ----------------------------------------------------------------------------------------------

    def relation(self, c: str, n: str) -> str:
        """Of a row of pg_class and its row of pg_namespace: any kind but an index or a TOAST table."""
        user = f"CASE WHEN {c}.relkind = 'S' THEN {self._sequence(c, n)} ELSE {self._user(c, n)} END"
        return any_of(_IS_SYSTEM.format(f"{n}.nspname"), f"{n}.oid = pg_catalog.pg_my_temp_schema()", user)

    def is_class(self, c: str, n: str) -> str:
        """The same of any row of pg_class: an index is shown with its table, unless it is on a hidden
        column; TOAST tables are not."""
        index = apart(
            "EXISTS (SELECT FROM pg_catalog.pg_index AS x "
            "JOIN pg_catalog.pg_class AS xc ON xc.oid = x.indrelid "
            "JOIN pg_catalog.pg_namespace AS xn ON xn.oid = xc.relnamespace "
            f"WHERE x.indexrelid = {c}.oid AND {all_of(self.table_row('xc', 'xn'), self.index('x'))})"
        )
        of_kind = f"CASE WHEN {c}.relkind IN ('i', 'I') THEN {index} ELSE {self.relation(c, n)} END"
        return all_of(f"{c}.relkind <> 't'", of_kind)

    def index(self, x: str) -> str:
        """Of a row of pg_index whose table is shown."""
        if not self._column_rules:
            return ALWAYS
        key = self._some_attribute(f"{x}.indrelid", f"a.attnum = ANY ({x}.indkey)")
        return all_of(not_(key), not_(self.depends(PG_CLASS, f"{x}.indexrelid", self_too=False)))

    def classes(self, *more: str) -> str:
        """A query for the OIDs of everything in pg_class that is shown; ``more`` narrows its ``c`` and
        ``n``."""
        return _OF_CLASSES.format(all_of(*more, self.is_class("c", "n")))

    def relations(self, *more: str) -> str:
        """The same of relations alone, without indexes."""
        kinds = "c.relkind NOT IN ('i', 'I', 't')"
        return _OF_CLASSES.format(all_of(*more, kinds, self.relation("c", "n")))

    def is_relation(self, oid: str) -> str:
        """Of the OID of a relation that is no sequence: that it is shown, looked up by itself."""
        return apart(_EXISTS_CLASS.format(all_of(f"c.oid = {oid}", self.table_row("c", "n"))))

    def is_any_class(self, oid: str) -> str:
        """The same of ``classes``."""
        return apart(_EXISTS_CLASS.format(all_of(f"c.oid = {oid}", self.is_class("c", "n"))))

    def is_constraint(self, oid: str) -> str:
        return _is_one_of("pg_constraint AS k", f"k.oid = {oid}", self.constraint("k"))

    def is_trigger(self, oid: str) -> str:
        return _is_one_of("pg_trigger AS g", f"g.oid = {oid}", self.trigger("g"))

    def is_rewrite(self, oid: str) -> str:
        return _is_one_of("pg_rewrite AS w", f"w.oid = {oid}", self.rewrite("w"))

    def is_default(self, oid: str) -> str:
        return _is_one_of("pg_attrdef AS d", f"d.oid = {oid}", self.default("d"))

    def is_row_policy(self, oid: str) -> str:
        return _is_one_of("pg_policy AS r", f"r.oid = {oid}", self.row_policy("r"))

    def is_statistic(self, oid: str) -> str:
        return _is_one_of("pg_statistic_ext AS s", f"s.oid = {oid}", self.statistic("s"))

    def is_function(self, oid: str) -> str:
        return _is_one_of("pg_proc AS p", f"p.oid = {oid}", self.function("p"))

    def is_type(self, oid: str) -> str:
        return _is_one_of("pg_type AS y", f"y.oid = {oid}", self.type("y"))

    @property
    def whole(self) -> str:
        """A query for the relations of which no column is hidden: what may be told of them by number."""
        rules = (_of_relation("n.nspname", "c.relname", [rule]) for rule in self._column_rules)
        return _OF_CLASSES.format(all_of(not_(any_of(*rules)), self.table_row("c", "n")))

    @property
    def defined(self) -> str:
        """A query for the relations whose definition as a view names nothing hidden."""
        rule = apart(
            "EXISTS (SELECT FROM pg_catalog.pg_rewrite AS w WHERE w.ev_class = c.oid AND "
            f"{self.depends(PG_REWRITE, 'w.oid')})"
        )
        return _OF_CLASSES.format(all_of(not_(rule), self.table_row("c", "n")))

    def table(self, schema: str, name: str, more: str = ALWAYS) -> str:
        """Of a relation, no sequence and no index, by its names."""
        return self._by_names(schema, name, self.table_row("c", "n"), more)

    def any_class(self, schema: str, name: str) -> str:
        """Of an index or a sequence by its names."""
        return self._by_names(schema, name, self.is_class("c", "n"))

    @staticmethod
    def _by_names(schema: str, name: str, shown: str, more: str = ALWAYS) -> str:
        of = all_of(f"n.nspname = {schema}", f"c.relname = {name}", more, shown)
        return apart(_EXISTS_CLASS.format(of))

    def definition(self, schema: str, name: str) -> str:
        """Whether the definition of a view, by its names, names nothing hidden."""
        return self.table(schema, name, f"c.oid IN ({self.defined})")

    def _named(self, schema: str, name: str, kind: str) -> str:
        """What the policy, and the snapshot where there is one, say of a name outside the system schemas."""
        allowed = any_of(*(_matches(pattern, schema, name) for pattern in self._policy.relations.allow))
        denied = any_of(*(_matches(pattern, schema, name) for pattern in self._policy.relations.deny))
        conditions = [not_(_IS_SYSTEM.format(schema)), f"{schema} NOT LIKE 'pg\\_%'", allowed, not_(denied)]
        if self._closed:
            conditions.append(not_(_one_of(self._closed, schema, name)))
        if self.catalog is not None and self._policy.relations.views is Views.EXPAND:
            known = _one_of(self._open_views, schema, name)
            conditions.append(any_of(f"{kind} NOT IN ('v', 'm')", known))
        return all_of(*conditions)

    def _sequence(self, c: str, n: str) -> str:
        """A sequence carries the name of its table and column as a rule, and is shown with them."""
        shown = all_of(self.table_row("oc", "oo"), self.numbered("od.refobjid", "od.refobjsubid"))
        owner = (
            f"(SELECT {shown} FROM pg_catalog.pg_depend AS od "
            "JOIN pg_catalog.pg_class AS oc ON oc.oid = od.refobjid "
            "JOIN pg_catalog.pg_namespace AS oo ON oo.oid = oc.relnamespace "
            f"WHERE od.classid = {PG_CLASS} AND od.objid = {c}.oid AND od.refclassid = {PG_CLASS} "
            "AND od.deptype IN ('a', 'i') LIMIT 1)"
        )
        denied = any_of(*(_matches(p, f"{n}.nspname", f"{c}.relname") for p in self._policy.relations.deny))
        return all_of(not_(denied), f"coalesce({owner}, {self._user(c, n)})")

    def _user(self, c: str, n: str) -> str:
        return self._named(f"{n}.nspname", f"{c}.relname", f"{c}.relkind")

    def table_row(self, c: str, n: str) -> str:
        """``relation`` of what is known to be no sequence."""
        own = f"{n}.oid = pg_catalog.pg_my_temp_schema()"
        return any_of(_IS_SYSTEM.format(f"{n}.nspname"), own, self._user(c, n))

    # Columns ------------------------------------------------------------------------------------------------

    def attribute(self, a: str) -> str:
        """Of a row of pg_attribute whose relation is shown."""
        if not self._column_rules:
            return ALWAYS
        of = f"c.oid = {a}.attrelid AND {self._hides('n.nspname', 'c.relname', f'{a}.attname')}"
        return any_of(f"{a}.attnum < 0", not_(apart(_EXISTS_CLASS.format(of))))

    def column(self, schema: str, table: str, name: str) -> str:
        """Of a column by its names: also that its relation is shown."""
        return all_of(self.table(schema, table), not_(self._hides(schema, table, name)))

    def numbered(self, relation: str, number: str) -> str:
        """Of a column by its relation's OID and its number, 0 for the relation itself."""
        return not_(self._some_attribute(relation, f"a.attnum = {number}"))

    def _hides(self, schema: str, table: str, column: str) -> str:
        return any_of(
            *(
                all_of(_of_relation(schema, table, [rule]), _hides_column(rule, column))
                for rule in self._column_rules
            )
        )

    def _some_attribute(self, relation: str, which: str) -> str:
        """Whether some column of the relation, ``which`` tells of ``a`` which, is hidden."""
        if not self._column_rules:
            return NEVER
        return apart(
            "EXISTS (SELECT FROM pg_catalog.pg_attribute AS a JOIN pg_catalog.pg_class AS ac "
            "ON ac.oid = a.attrelid "
            "JOIN pg_catalog.pg_namespace AS an ON an.oid = ac.relnamespace "
            f"WHERE a.attrelid = {relation} AND a.attnum > 0 AND {which} "
            f"AND {self._hides('an.nspname', 'ac.relname', 'a.attname')})"
        )

    # What depends on what is hidden -------------------------------------------------------------------------

    def depends(self, catalog: int, oid: str, *, self_too: bool = True) -> str:
        """Whether the object ``oid`` of the catalog with that OID is made of a hidden relation or column."""
        gone = [] if not self_too else [not_(self.table_row("dc", "dn"))]
        hidden = any_of(*gone, self._some_attribute("dp.refobjid", "a.attnum = dp.refobjsubid"))
        return apart(
            "EXISTS (SELECT FROM pg_catalog.pg_depend AS dp JOIN pg_catalog.pg_class AS dc "
            "ON dc.oid = dp.refobjid "
            "JOIN pg_catalog.pg_namespace AS dn ON dn.oid = dc.relnamespace "
            f"WHERE dp.classid = {catalog} AND dp.objid = {oid} AND dp.refclassid = {PG_CLASS} "
            f"AND dc.relkind NOT IN ('i', 'I') AND {hidden})"
        )

    def constraint(self, k: str) -> str:
        """Of a row of pg_constraint. A foreign key is hidden with either of its tables."""
        of_table = any_of(f"{k}.conrelid = 0", self.is_relation(f"{k}.conrelid"))
        of_type = any_of(f"{k}.contypid = 0", self.is_type(f"{k}.contypid"))
        key = self._some_attribute(f"{k}.conrelid", f"a.attnum = ANY ({k}.conkey)")
        return all_of(
            f"({of_table})", f"({of_type})", not_(key), not_(self.depends(PG_CONSTRAINT, f"{k}.oid"))
        )

    def trigger(self, t: str) -> str:
        """Of a row of pg_trigger: its function must be shown as well, which its definition names."""
        return all_of(
            self.is_relation(f"{t}.tgrelid"),
            any_of(f"{t}.tgconstraint = 0", self.is_constraint(f"{t}.tgconstraint")),
            self.is_function(f"{t}.tgfoid"),
            not_(self.depends(PG_TRIGGER, f"{t}.oid")),
        )

    def rewrite(self, w: str) -> str:
        """Of a row of pg_rewrite."""
        return all_of(self.is_relation(f"{w}.ev_class"), not_(self.depends(PG_REWRITE, f"{w}.oid")))

    def default(self, d: str) -> str:
        """Of a row of pg_attrdef."""
        return all_of(
            self.is_relation(f"{d}.adrelid"),
            self.numbered(f"{d}.adrelid", f"{d}.adnum"),
            not_(self.depends(PG_ATTRDEF, f"{d}.oid")),
        )

    def row_policy(self, p: str) -> str:
        """Of a row of pg_policy."""
        return all_of(self.is_relation(f"{p}.polrelid"), not_(self.depends(PG_POLICY, f"{p}.oid")))

    def statistic(self, s: str) -> str:
        """Of a row of pg_statistic_ext."""
        return all_of(self.is_relation(f"{s}.stxrelid"), not_(self.depends(PG_STATISTIC_EXT, f"{s}.oid")))

    @property
    def constraints(self) -> str:
        return f"SELECT k.oid FROM pg_catalog.pg_constraint AS k WHERE {self.constraint('k')}"

    @property
    def triggers(self) -> str:
        return f"SELECT g.oid FROM pg_catalog.pg_trigger AS g WHERE {self.trigger('g')}"

    @property
    def rewrites(self) -> str:
        return f"SELECT w.oid FROM pg_catalog.pg_rewrite AS w WHERE {self.rewrite('w')}"

    @property
    def statistics(self) -> str:
        return f"SELECT s.oid FROM pg_catalog.pg_statistic_ext AS s WHERE {self.statistic('s')}"

    # Functions, types, schemas ------------------------------------------------------------------------------

    def function(self, p: str) -> str:
        """Of a row of pg_proc: PostgreSQL's own, and what the policy allows to call where its signature
        names no hidden row type."""
        schema = "(SELECT fn.nspname FROM pg_catalog.pg_namespace AS fn WHERE fn.oid = {}.pronamespace)"
        named = any_of(
            *(
                self._function_matches(pattern, schema.format(p), f"{p}.proname")
                for pattern in self._functions
            ),
            _one_of(self._functions_of_kinds, schema.format(p), f"{p}.proname"),
        )
        denied = any_of(
            *(
                self._function_matches(pattern, schema.format(p), f"{p}.proname")
                for pattern in self._policy.functions.deny
            )
        )
        signature = apart(
            "EXISTS (SELECT FROM pg_catalog.pg_depend AS d JOIN pg_catalog.pg_type AS y "
            "ON y.oid = d.refobjid "
            "LEFT JOIN pg_catalog.pg_type AS ye ON ye.oid = y.typelem "
            f"WHERE d.classid = {PG_PROC} AND d.objid = {p}.oid AND d.refclassid = {PG_TYPE} AND NOT "
            f"{self._type_shown('y', 'ye')})"
        )
        return any_of(self.own_function(p), all_of(named, not_(denied), not_(signature)))

    @staticmethod
    def _function_matches(pattern: Pattern, schema: str, name: str) -> str:
        return _matches(pattern, schema, name)

    @property
    def functions(self) -> str:
        return f"SELECT p.oid FROM pg_catalog.pg_proc AS p WHERE {self.function('p')}"

    @staticmethod
    def own_function(p: str) -> str:
        """Of a row of pg_proc: PostgreSQL's own, whose body may be read. What another's names, nobody can
        tell."""
        own = _IS_SYSTEM.format("n.nspname")
        return f"{p}.pronamespace IN (SELECT n.oid FROM pg_catalog.pg_namespace AS n WHERE {own})"

    def type(self, y: str) -> str:
        """Of a row of pg_type: the row types of what is hidden, and arrays of them, are hidden with it."""
        element = apart(
            "EXISTS (SELECT FROM pg_catalog.pg_type AS e "
            f"WHERE e.oid = {y}.typelem AND e.typrelid <> 0 AND {not_(self.is_relation('e.typrelid'))})"
        )
        return all_of(
            f"{y}.typnamespace IN ({self.schemas})",
            any_of(f"{y}.typrelid = 0", self.is_relation(f"{y}.typrelid")),
            any_of(f"{y}.typelem = 0", not_(element)),
        )

    def _type_shown(self, y: str, element: str) -> str:
        return all_of(
            any_of(f"{y}.typrelid = 0", self.is_relation(f"{y}.typrelid")),
            any_of(
                f"{element}.oid IS NULL",
                f"{element}.typrelid = 0",
                self.is_relation(f"{element}.typrelid"),
            ),
        )

    @property
    def types(self) -> str:
        return f"SELECT y.oid FROM pg_catalog.pg_type AS y WHERE {self.type('y')}"

    @property
    def operators(self) -> str:
        """A query for the operators that are shown with the types of their operands."""
        sides = (any_of(f"z.{side} = 0", self.is_type(f"z.{side}")) for side in ("oprleft", "oprright"))
        shown = all_of(f"z.oprnamespace IN ({self.schemas})", *sides)
        return f"SELECT z.oid FROM pg_catalog.pg_operator AS z WHERE {shown}"

    def schema(self, name: str) -> str:
        """Of a schema by its name. With a snapshot: where something in it may be used, or nothing is in it
        that is hidden and a pattern covers it."""
        own = any_of(_IS_SYSTEM.format(name), f"{name} = 'pg_toast'")
        if self.catalog is not None:
            return any_of(own, _in(name, self._schemas))
        allowed = any_of(
            *(_glob(p.schema, name) for p in (*self._policy.relations.allow, *self._policy.functions.allow))
        )
        denied = any_of(*(_glob(p.schema, name) for p in self._policy.relations.deny if p.name == "*"))
        return any_of(own, all_of(allowed, not_(denied)))

    @property
    def schemas(self) -> str:
        temporary = "n.oid = pg_catalog.pg_my_temp_schema()"
        shown = any_of(self.schema("n.nspname"), temporary)
        return f"SELECT n.oid FROM pg_catalog.pg_namespace AS n WHERE {shown}"

    # What the snapshot tells --------------------------------------------------------------------------------

    @cached_property
    def _hidden_columns(self) -> HiddenColumns | None:
        if self.catalog is None:
            return None
        return HiddenColumns(CatalogNames(self.catalog, ()), self._policy, naming=False)

    @cached_property
    def _shown(self) -> frozenset[QualifiedName]:
        """Every relation of the snapshot, outside the system schemas, that the agent may name."""
        return frozenset(r.qualified for r in self._users() if self._is_shown(r))

    def _users(self) -> Iterator[Relation]:
        content = () if self.catalog is None else self.catalog.content.relations
        return (relation for relation in content if relation.schema not in SYSTEM_SCHEMAS)

    def _is_shown(self, relation: Relation) -> bool:
        if self.catalog is None or self._hidden_columns is None:
            return False
        if not is_open(relation.qualified, self.catalog, self._policy, only=True):
            return False
        return relation.kind not in _VIEWS or self._hidden_columns.rule_on_rows(relation) is None

    @cached_property
    def _closed(self) -> tuple[QualifiedName, ...]:
        """Relations, other than views, that patterns open and what they are part of closes."""
        return tuple(
            relation.qualified
            for relation in self._users()
            if relation.qualified not in self._shown
            and is_allowed(relation.qualified, self._policy)
            and (relation.kind not in _VIEWS or self._policy.relations.views is Views.OWN)
        )

    @cached_property
    def _open_views(self) -> tuple[QualifiedName, ...]:
        return tuple(r.qualified for r in self._users() if r.kind in _VIEWS and r.qualified in self._shown)

    @cached_property
    def _schemas(self) -> tuple[str, ...]:
        if self.catalog is None:
            return ()
        held: dict[str, bool] = {}
        for relation in self._users():
            held[relation.schema] = held.get(relation.schema, False) or relation.qualified in self._shown
        for function in self.catalog.content.functions:
            if not held.get(function.schema) and function.schema not in SYSTEM_SCHEMAS:
                shown = is_function_allowed(function.qualified, self.catalog, self._policy)
                held[function.schema] = held.get(function.schema, False) or shown
        patterns = (*self._policy.relations.allow, *self._policy.functions.allow)
        return tuple(
            schema
            for schema in self.catalog.content.schemas
            if held.get(schema, any(pattern.covers_schema(schema) for pattern in patterns))
        )

    @cached_property
    def _functions(self) -> tuple[Pattern, ...]:
        return self._policy.functions.allow

    @cached_property
    def _functions_of_kinds(self) -> tuple[QualifiedName, ...]:
        """Functions that the policy tells by what they are, which only the snapshot knows."""
        if self.catalog is None or not self._policy.functions.kinds:
            return ()
        names = dict.fromkeys(
            f.qualified for f in self.catalog.content.functions if f.schema not in SYSTEM_SCHEMAS
        )
        return tuple(n for n in names if is_function_allowed(n, self.catalog, self._policy))

    @cached_property
    def _column_rules(self) -> tuple[ColumnRule, ...]:
        """The policy's rules, and what they come to on tables that a table is a part of, on its parts, on
        generated columns and on views."""
        return (*self._policy.columns, *(self._reaching() if self._policy.columns else ()))

    def _reaching(self) -> Iterator[ColumnRule]:
        if self._hidden_columns is None:
            return
        for relation in self._users():
            pattern = Pattern(relation.schema, relation.name)
            for rule in self._hidden_columns.rules(relation.qualified):
                if not rule.relation.matches(*relation.qualified):
                    yield ColumnRule(pattern, rule.allow, rule.deny)
            if relation.kind in _VIEWS or self._hidden_columns.computed(relation):
                shown = self._hidden_columns.shown(relation)
                hidden = frozenset(column.name for column in relation.columns) - frozenset(shown)
                if hidden:
                    yield ColumnRule(pattern, deny=hidden)


_OF_CLASSES: Final = (
    "SELECT c.oid FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace "
    "WHERE {}"
)
_EXISTS_CLASS: Final = (
    "EXISTS (SELECT FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n "
    "ON n.oid = c.relnamespace "
    "WHERE {})"
)


def _is_one_of(source: str, which: str, condition: str) -> str:
    return apart(f"EXISTS (SELECT FROM pg_catalog.{source} WHERE {all_of(which, condition)})")


# SQL by pieces ----------------------------------------------------------------------------------------------


def all_of(*conditions: str) -> str:
    if NEVER in conditions:
        return NEVER
    told = [condition for condition in conditions if condition != ALWAYS]
    return ALWAYS if not told else told[0] if len(told) == 1 else f"({' AND '.join(told)})"


def any_of(*conditions: str) -> str:
    if ALWAYS in conditions:
        return ALWAYS
    told = [condition for condition in conditions if condition != NEVER]
    return NEVER if not told else told[0] if len(told) == 1 else f"({' OR '.join(told)})"


def not_(condition: str) -> str:
    return {ALWAYS: NEVER, NEVER: ALWAYS}.get(condition, f"NOT ({condition})")


def apart(exists: str) -> str:
    """``exists``, an EXISTS, looked up row by row: never made a join of the query that it is put into, nor
    planned a second time for that. The planner has no statistics on what views of information_schema give,
    and was seen to join them a row at a time."""
    return f"{exists[:-1]} OFFSET 0)"


def literal(text: str) -> str:
    """A string constant. Backslashes stand for themselves: ``standard_conforming_strings`` is held on."""
    return "'" + text.replace("'", "''") + "'"


def _matches(pattern: Pattern, schema: str, name: str) -> str:
    return all_of(_glob(pattern.schema, schema), _glob(pattern.name, name))


def _glob(pattern: str, value: str) -> str:
    """``model.glob_match`` in SQL."""
    if pattern.strip("*") == "" and pattern:
        return ALWAYS
    if "*" not in pattern:
        return f"{value} = {literal(pattern)}"
    parts = (
        part.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") for part in pattern.split("*")
    )
    return f"{value} LIKE {literal('%'.join(parts))}"


def _of_relation(schema: str, name: str, rules: Iterable[ColumnRule]) -> str:
    return any_of(*(_matches(rule.relation, schema, name) for rule in rules))


def _hides_column(rule: ColumnRule, column: str) -> str:
    denied = _in(column, sorted(rule.deny))
    return denied if rule.allow is None else any_of(denied, not_(_in(column, sorted(rule.allow))))


def _in(value: str, names: Iterable[str]) -> str:
    listed = ", ".join(map(literal, names))
    return f"{value} IN ({listed})" if listed else NEVER


def _one_of(names: Iterable[QualifiedName], schema: str, name: str) -> str:
    by_schema: dict[str, list[str]] = {}
    for each in names:
        by_schema.setdefault(each.schema, []).append(each.name)
    return any_of(
        *(all_of(f"{schema} = {literal(of)}", _in(name, sorted(those))) for of, those in by_schema.items())
    )


_KEPT: Final = 16
_known: dict[tuple[str, str | None], Visibility] = {}


def visibility(policy: Policy, catalog: Catalog | None) -> Visibility:
    """The conditions of ``policy`` over ``catalog``, worked out once."""
    key = (policy.sha256, None if catalog is None else catalog.sha256)
    known = _known.get(key)
    if known is None:
        while len(_known) >= _KEPT:
            _known.pop(next(iter(_known)), None)
        known = _known[key] = Visibility(policy, catalog)
    return known


Masks = Mapping[str, str]
"""Column of a catalog -> the condition under which its value is shown."""
