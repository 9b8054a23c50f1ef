"""Hidden columns where a catalog says what every name means: the exact half of column-not-allowed.

Owns which columns of the snapshot a policy hides, and how each road to one is told. What a reference reads is
``resolve``'s to say. A column that a policy hides is named to the agent only where the agent named it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Final

from policy.calls import Via, find_calls
from policy.catalog_names import CatalogNames
from policy.catalog_values import ColumnId, Function, Relation, RelationKind
from policy.facts import ColumnRef, Facts, FunctionRef, RelationRef, Use
from policy.model import Catalogs, ColumnRule, Pattern, Policy, StatementClass, Views, Violation
from policy.names import QualifiedName
from policy.reg_types import naming_columns
from policy.resolve import Answer, ColumnAnswer, Resolution
from policy.resolve_scope import SYSTEM_COLUMNS
from policy.rules.relation_not_allowed import EVENTS
from policy.value_types import made_of

_MOST_NAMES = 30


class HiddenColumns:
    """Which columns ``policy`` hides, by the names of the snapshot: those it names, generated columns that
    are made of one (unless an ``allow`` list names them), and under ``views: expand`` those of views whose
    values tell of one.

    ``naming``: unless catalogs are open those too whose values would make a name of any number. They are
    no secret themselves, and stand in the catalogs.
    """

    def __init__(self, names: CatalogNames, policy: Policy, *, naming: bool = True) -> None:
        self._catalog = names.catalog
        self._policy = policy
        self._closes_naming = naming and policy.relations.catalogs is not Catalogs.ON
        self._rules: dict[QualifiedName, tuple[ColumnRule, ...]] = {}
        self._naming: dict[QualifiedName, ColumnRule] = {}
        self._behind: dict[ColumnId, ColumnRule | None] = {}
        self._computed: dict[QualifiedName, Mapping[str, tuple[ColumnId, ...]]] = {}
        self._expands = policy.relations.views is Views.EXPAND

    def rules(self, name: QualifiedName) -> tuple[ColumnRule, ...]:
        """The rules on the columns of relation ``name``, of the tables it is a part of and of its parts."""
        known = self._rules.get(name)
        if known is None:
            known = self._rules[name] = tuple(self._find(name))
        return known

    def _find(self, name: QualifiedName) -> Iterator[ColumnRule]:
        for each in self._family(name):
            yield from (rule for rule in self._policy.columns if rule.relation.matches(*each))

    def _family(self, name: QualifiedName) -> tuple[QualifiedName, ...]:
        """``name``, the tables that it is a part of, and its parts."""
        relation = self._catalog.relation(*name)
        if relation is None:
            return (name,)
        return (name, *sorted(self._catalog.ancestors(relation) | self._catalog.descendants(relation)))

    def rule(self, column: ColumnId) -> ColumnRule | None:
        """The rule that hides ``column``, if one does."""
        if column.column is None or column.column in SYSTEM_COLUMNS:
            return None
        name = QualifiedName(column.schema, column.relation)
        rules = self.rules(name)
        named = next((rule for rule in rules if rule.hides(column.column)), None)
        if named is None and self._closes_naming and self._rule_on_names(name).hides(column.column):
            return self._rule_on_names(name)
        return named if named is not None else self._rule_behind(column, column.column)

    def _rule_on_names(self, name: QualifiedName) -> ColumnRule:
        """The rule that hides the columns of ``name`` whose values would make a name of any number."""
        known = self._naming.get(name)
        if known is None:
            relation = self._catalog.relation(*name)
            found = frozenset() if relation is None else naming_columns(relation, self._catalog)
            known = ColumnRule(Pattern(*name), deny=found, line=self._policy.relations.line)
            self._naming[name] = known
        return known

    def _rule_behind(self, column: ColumnId, name: str) -> ColumnRule | None:
        """The rule that hides something which ``column`` of a view, or a generated one, tells of."""
        if column not in self._behind:
            self._behind[column] = None
            relation = self._catalog.relation(column.schema, column.relation)
            if relation is not None:
                self._behind[column] = self.first_rule(self._told_by(relation, name))
        return self._behind[column]

    def _told_by(self, relation: Relation, name: str) -> Iterable[ColumnId]:
        sources = self._catalog.view_sources(relation)
        if sources is not None:
            return sources.columns.get(name, ()) if self._expands else ()
        allowed = (rule.allow for rule in self.rules(relation.qualified) if rule.allow is not None)
        return () if any(name in each for each in allowed) else self.computed(relation).get(name, ())

    def computed(self, relation: Relation) -> Mapping[str, tuple[ColumnId, ...]]:
        """The columns that each generated column of ``relation`` is made of, in it or in a part of it."""
        known = self._computed.get(relation.qualified)
        if known is None:
            members = filter(
                None, (self._catalog.relation(*name) for name in self._family(relation.qualified))
            )
            known = self._computed[relation.qualified] = _made_by_expressions(members)
        return known

    def first_rule(self, columns: Iterable[ColumnId]) -> ColumnRule | None:
        """The rule that hides the first, by name, of those of ``columns`` that are hidden."""
        named = sorted(column for column in columns if column.column is not None)
        return next(filter(None, map(self.rule, named)), None)

    def rule_on_rows(self, view: Relation) -> ColumnRule | None:
        """The rule that hides something which any read of ``view`` tells of, whatever its columns."""
        if not self._expands:
            return None
        sources = self._catalog.view_sources(view)
        return self.first_rule(self._catalog.reach(view) if sources is None else sources.rows)

    def shown(self, relation: Relation) -> list[str]:
        """The columns of ``relation`` that an agent may use, in order."""
        ids = ((c.name, ColumnId(relation.schema, relation.name, c.name)) for c in relation.columns)
        return [name for name, column in ids if self.rule(column) is None]


_ROW_NAMES: Final = ("old", "new")
"""What a rule or trigger calls the row that is written."""
_DEFINITIONS: Final = frozenset(
    (
        *("AlterPolicyStmt", "AlterPublicationStmt", "AlterTableStmt", "CreatePolicyStmt"),
        *("CreatePublicationStmt", "CreateStatsStmt", "CreateTrigStmt", "IndexStmt", "RuleStmt"),
    )
)
"""Statements that define something over the rows of a table that is there."""


def _made_by_expressions(family: Iterable[Relation]) -> Mapping[str, tuple[ColumnId, ...]]:
    """A part of a table may compute its own column in its own way."""
    found: dict[str, tuple[ColumnId, ...]] = {}
    for each in family:
        for expression in each.expressions:
            if expression.reads and expression.column is not None:
                reads = tuple(ColumnId(each.schema, each.name, read) for read in expression.reads)
                found[expression.column] = (*found.get(expression.column, ()), *reads)
    return found


class Reader:
    """Every use of a hidden column in one statement; ``rule`` is what the violations are called."""

    def __init__(self, facts: Facts, names: CatalogNames, policy: Policy, rule: str) -> None:
        self._facts = facts
        self._names = names
        self._policy = policy
        self._rule = rule
        self._hidden = HiddenColumns(names, policy)
        self._resolution: Resolution = names.resolve(facts)

    def violations(self) -> Iterator[Violation]:
        for answer in self._resolution.columns:
            yield from self._column(answer)
        for read, rule in self._refused(self._resolution.implicit):
            yield self._everything(read, "NATURAL JOIN", None, rule)
        yield from self._unnamed_inserts()
        yield from self._copies()
        yield from self._rows_of_functions()
        yield from self._row_types()
        yield from self._explained()
        yield from self._definitions()
        yield from self._renames()
        if self._policy.relations.views is Views.EXPAND:
            yield from self._views()

    def _refused(self, reads: Iterable[ColumnId]) -> list[tuple[ColumnId, ColumnRule]]:
        """Those of ``reads`` that are hidden, in a fixed order, each with the rule that hides it."""
        found = [(read, rule) for read in reads if (rule := self._hidden.rule(read)) is not None]
        return sorted(found, key=lambda each: each[0])

    def _column(self, answer: ColumnAnswer) -> Iterator[Violation]:
        ref = answer.ref
        for read, rule in self._refused(answer.reads) if answer.reads else ():
            if read.column in (ref.name, *ref.fields):
                yield self._named(read, ref.position, rule)
            elif ref.name is None:
                star = ".".join((*ref.qualifier, "*"))
                yield self._everything(read, star, ref.position, rule)
            elif len(answer.reads) == 1:
                yield self._everything(read, f"{ref.name}, a name given to one of them,", ref.position, rule)
            else:
                yield self._everything(read, f"the whole row {ref.name}", ref.position, rule)

    def _unnamed_inserts(self) -> Iterator[Violation]:
        for write in self._facts.writes:
            if write.source in ("values", "select") and not write.has_columns:
                what = "an INSERT without a column list"
                yield from self._whole(write.target, what, write.position)

    def _copies(self) -> Iterator[Violation]:
        for copy in self._facts.copies:
            if copy.relation is None:
                continue
            if not copy.columns:
                yield from self._whole(copy.relation, "a COPY of the whole table", None)
            for relation in self._resolution.relations[copy.relation].relations:
                named = (ColumnId(relation.schema, relation.name, column) for column in copy.columns)
                for read, rule in self._refused(named):
                    yield self._named(read, None, rule)

    def _whole(self, mention: int, what: str, position: int | None) -> Iterator[Violation]:
        for relation in self._resolution.relations[mention].relations:
            columns = (ColumnId(relation.schema, relation.name, column.name) for column in relation.columns)
            for read, rule in self._refused(columns):
                yield self._everything(read, what, position, rule)

    def _rows_of_functions(self) -> Iterator[Violation]:
        """Rows of a table that somebody's function gives: ``f()``, ``(f()).ssn``. Of a function that is an
        item of FROM by itself ``resolve`` knows the columns."""
        if not self._policy.columns and self._policy.relations.catalogs is Catalogs.ON:
            return
        resolved = {call.position for call in self._facts.functions if self._is_item_of_from(call)}
        for call in self._names.shared(self._facts, find_calls).calls:
            if call.via is Via.VIEW or call.position in resolved:
                continue
            given = self._names.catalog.functions(*call.name) if call.overload is None else (call.overload,)
            read = next(chain.from_iterable(map(self._hidden_in_result, given)), None)
            if read is not None:
                yield self._everything(read[0], f"a row from {call.name}", call.position, read[1])

    def _row_types(self) -> Iterator[Violation]:
        """``NULL::t``: no value is read, but what is made of it tells what all columns are called."""
        for name, position in self._names.shared(self._facts, find_calls).rows:
            relation = self._names.catalog.relation(*name)
            columns = relation.columns if relation is not None else ()
            for read, rule in self._refused(ColumnId(*name, column.name) for column in columns):
                yield self._everything(read, "a value of its row type", position, rule)

    def _is_item_of_from(self, call: FunctionRef) -> bool:
        if not call.in_from or call.query is None:
            return False
        level = self._resolution.scopes.level(call.query)
        spelt = call.name if call.schema is None else f"{call.schema}.{call.name}"
        items = [
            (source, item)
            for source, item in zip(level.query.sources, level.items, strict=False)
            if spelt in source.functions
        ]
        return all(source.functions == (spelt,) and not item.offer.open for source, item in items)

    def _hidden_in_result(self, function: Function) -> list[tuple[ColumnId, ColumnRule]]:
        types = {function.result, *(column.type for column in function.columns)}
        parts = {part for each in types for part in made_of(each, self._names.catalog)}
        relations = (self._names.catalog.relation(*part) for part in sorted(parts))
        return self._refused(
            ColumnId(relation.schema, relation.name, column.name)
            for relation in relations
            if relation is not None
            for column in relation.columns
        )

    def _explained(self) -> Iterator[Violation]:
        """A plan tells the conditions of the views in it, and with VERBOSE which columns a scan gives: often
        all there are (use_physical_tlist in createplan.c)."""
        if self._facts.node != "ExplainStmt":
            return
        for answer in self._resolution.relations:
            for relation in answer.relations:
                reached = self._names.catalog.reach(relation)
                behind = self._hidden.first_rule(reached)
                if self._facts.explain_verbose:
                    yield from self._scanned(answer.ref, relation, reached)
                elif behind is not None and relation.kind is RelationKind.VIEW:
                    what = "EXPLAIN tells how {} is made, which reads"
                    yield self._through(answer.ref, relation, behind, what, "Run the query itself instead.")

    def _scanned(self, ref: RelationRef, top: Relation, reached: Iterable[ColumnId]) -> Iterator[Violation]:
        """Of the tables that a scan for ``top`` is of, the first with a hidden column."""
        below = sorted({QualifiedName(read.schema, read.relation) for read in reached} - {top.qualified})
        tables = (top, *filter(None, (self._names.catalog.relation(*name) for name in below)))
        for table in tables:
            columns = (ColumnId(table.schema, table.name, column.name) for column in table.columns)
            for _, rule in self._refused(columns)[:1]:
                hint = "Leave VERBOSE out; or run the query itself instead."
                yield self._through(ref, top, rule, "EXPLAIN VERBOSE of {} may tell of", hint)
                return

    def _definitions(self) -> Iterator[Violation]:
        """What a definition computes of rows that are there: a check, an index, the condition of a policy or
        rule. No query says whose its names are: what its sub-selects do not offer is the table's."""
        if StatementClass.DDL not in self._facts.classes:
            return
        defines = self._facts.node in _DEFINITIONS
        refs = [
            answer.ref
            for answer in self._resolution.columns
            if answer.ref.clause == "references" or (defines and answer.answer is not Answer.RESOLVED)
        ]
        for mention in self._resolution.relations if refs else ():
            for relation in mention.relations if mention.ref.use is Use.DEFINE else ():
                yield from self._defined(relation, refs)

    def _defined(self, relation: Relation, refs: Iterable[ColumnRef]) -> Iterator[Violation]:
        columns = (ColumnId(relation.schema, relation.name, column.name) for column in relation.columns)
        hidden = {read.column: (read, rule) for read, rule in self._refused(columns)}
        rows = {relation.name, *_ROW_NAMES} - {column.name for column in relation.columns}
        for ref in refs if hidden else ():
            named = next((hidden[name] for name in (ref.name, *ref.fields) if name in hidden), None)
            is_star = ref.name is None and (ref.query is None or not rows.isdisjoint(ref.qualifier))
            if named is not None:
                yield self._named(named[0], ref.position, named[1])
            elif is_star or ref.name in rows:
                read, rule = next(iter(hidden.values()))
                yield self._everything(read, "a whole row in a definition", ref.position, rule)

    def _renames(self) -> Iterator[Violation]:
        for rename in self._facts.renames:
            for relation in self._resolution.relations[rename.relation].relations:
                if rename.column is not None:
                    column = ColumnId(relation.schema, relation.name, rename.column)
                    for read, rule in self._refused([column]):
                        yield self._named(read, None, rule)
                else:
                    new = QualifiedName(rename.schema or relation.schema, rename.name or relation.name)
                    yield from self._uncovered(relation, new, "another name")
        for schema in self._facts.schemas:
            for relation in self._names.catalog.content.relations if schema.renamed is not None else ():
                if relation.schema == schema.name:
                    new = QualifiedName(schema.renamed or relation.schema, relation.name)
                    yield from self._uncovered(relation, new, "another name of its schema")

    def _uncovered(self, relation: Relation, new: QualifiedName, what: str) -> Iterator[Violation]:
        """Where ``relation`` is to be called ``new``: a column that this name would no longer hide."""
        rules = [rule for rule in self._policy.columns if rule.relation.matches(*relation.qualified)]
        still = [rule for rule in self._policy.columns if rule.relation.matches(*new)]
        for column in relation.columns:
            rule = next((each for each in rules if each.hides(column.name)), None)
            if rule is not None and not any(each.hides(column.name) for each in still):
                read = ColumnId(relation.schema, relation.name, column.name)
                yield self._everything(read, what, None, rule)
                return

    def _views(self) -> Iterator[Violation]:
        for answer in self._resolution.relations:
            event = EVENTS.get(answer.ref.use)
            for relation in answer.relations:
                rule = self._hidden.rule_on_rows(relation)
                if rule is None and event is not None:
                    rule = self._hidden.first_rule(self._names.catalog.reach_of_writing(relation, event))
                if rule is not None:
                    yield self._through(answer.ref, relation, rule)

    # Wording --------------------------------------------------------------------------------------------

    def _named(self, read: ColumnId, position: int | None, rule: ColumnRule) -> Violation:
        name = QualifiedName(read.schema, read.relation)
        return self._violation(
            read,
            f"Column {read.column} of {name} is hidden by policy {self._policy.name}",
            f"Leave it out. {self._usable(name)}",
            rule,
            position,
            column=read.column,
        )

    def _everything(self, read: ColumnId, what: str, position: int | None, rule: ColumnRule) -> Violation:
        name = QualifiedName(read.schema, read.relation)
        return self._violation(
            read,
            f"Policy {self._policy.name} hides columns of {name}, and {what} takes in some of them",
            f"Name the columns you need instead. {self._usable(name)}",
            rule,
            position,
        )

    def _through(
        self,
        ref: RelationRef,
        view: Relation,
        rule: ColumnRule,
        what: str = "Relation {} reads",
        hint: str = "Leave it out, or read what you may of the tables below it.",
    ) -> Violation:
        return Violation(
            rule=self._rule,
            message=f"{what.format(view.qualified)} columns that policy {self._policy.name} hides",
            hint=hint,
            object=str(view.qualified),
            position=ref.position or self._facts.start,
            line=rule.line,
            schema=view.schema,
            table=view.name,
        )

    def _usable(self, name: QualifiedName) -> str:
        relation = self._names.catalog.relation(*name)
        shown = self._hidden.shown(relation) if relation is not None else []
        if not shown:
            return f"No column of {name} is open to you."
        more = ", …" if len(shown) > _MOST_NAMES else ""
        return f"Columns of {name} that you may use: {', '.join(shown[:_MOST_NAMES])}{more}."

    def _violation(
        self,
        read: ColumnId,
        message: str,
        hint: str,
        rule: ColumnRule,
        position: int | None,
        *,
        column: str | None = None,
    ) -> Violation:
        name = QualifiedName(read.schema, read.relation)
        return Violation(
            rule=self._rule,
            message=message,
            hint=hint,
            object=str(name) if column is None else f"{name}.{column}",
            position=position or self._facts.start,
            line=rule.line,
            schema=read.schema,
            table=read.relation,
            column=column,
        )
