"""column-not-allowed: a hidden column, by whatever road it is reached.

What it refuses
    Every use of a column that ``columns`` hides: in the select list, WHERE, ORDER BY, GROUP BY, ON, USING,
    RETURNING, SET, an INSERT's column list, COPY; and whatever takes columns without naming them: ``*``,
    ``t.*``, the whole row ``t`` (also ``to_jsonb(t)``, ``t.row_to_json``), TABLE, COPY t, INSERT without a
    column list, NATURAL JOIN, a list of column aliases over the relation. With a catalog also a value of its
    row type (``NULL::t``), of which all columns are told; EXPLAIN of a view that reads it, and with VERBOSE
    of whatever scans its relation; what DDL computes of stored rows (a check, an index, a policy, a rule, a
    foreign key to it), and a new name that ``columns`` does not hide it by.
Why
    A hidden value can be read out of an order, a count or a join as well as out of a select list. Without a
    catalog, a name without a qualifier counts as the hidden column wherever it could be one; with one, where
    it is. A column of a view is hidden where its values are made of a hidden column or are compared with one
    in the view's conditions; a view sorted or multiplied by one is hidden whole (``relations.views:
    expand``). Which rows a view leaves out is the business of whoever made it. A generated column that is
    made of a hidden one is hidden, unless an ``allow`` list names it. Columns of a partition are hidden as
    its table's are.
Refused
    ``SELECT * FROM employees`` · ``SELECT e FROM employees e`` · ``SELECT name FROM employees ORDER BY
    salary`` · ``SELECT x.b FROM (SELECT name, salary FROM employees) AS x(a, b)``
Allowed
    ``SELECT id, name FROM employees`` · ``SELECT total AS salary FROM orders ORDER BY salary``
Settings
    ``columns: {schema.relation: {deny: […]} | {allow: […]}}``. Under ``catalogs: filtered`` columns of the
    catalogs that hold more than structure are hidden too; with a catalog they are null instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from policy import builtin
from policy.catalog_names import CatalogNames
from policy.facts import ColumnRef, CopyRef, Facts, Join, Output, Query, Source, SourceKind, Use
from policy.model import Catalogs, ColumnRule, Pattern, Policy, RuleLevel, Violation
from policy.names import Names, QualifiedName
from policy.reg_types import naming_columns
from policy.rules import columns_by_catalog
from policy.rules.naming import display_name

NAME = "column-not-allowed"
DEFAULT = RuleLevel.REJECT
SQLSTATE = "42501"
GOVERNED_BY = "columns"

_SYSTEM_COLUMNS = frozenset({"ctid", "tableoid", "xmin", "xmax", "cmin", "cmax"})
_BY_QUALIFIER_ALONE = (SourceKind.EXCLUDED, SourceKind.OLD_NEW)
_NAME_THEM = "Name the columns you need instead of {what}."
_LEAVE_OUT = "Leave it out."
_QUALIFY = "Leave it out; or, if it belongs to another table, put that table's name before it."


@dataclass(frozen=True, slots=True)
class _Guarded:
    """A relation of the statement that has hidden columns."""

    name: QualifiedName
    rules: tuple[ColumnRule, ...]

    def hides(self, column: str) -> ColumnRule | None:
        if column in _SYSTEM_COLUMNS:
            return None
        return next((rule for rule in self.rules if rule.hides(column)), None)


def check(facts: Facts, names: Names, policy: Policy) -> Iterator[Violation]:
    if isinstance(names, CatalogNames):
        return _once(_by_catalog(facts, names, policy))
    guarded = _guarded(facts, names, policy, withheld=policy.relations.catalogs is Catalogs.FILTERED)
    if not guarded:
        return iter(())
    return _once(_Reader(facts, policy, guarded).violations())


def _by_catalog(facts: Facts, names: CatalogNames, policy: Policy) -> Iterator[Violation]:
    if not policy.columns and not _may_name(facts, names, policy):
        return
    yield from columns_by_catalog.Reader(facts, names, policy, NAME).violations()
    # What the snapshot does not hold, or may hold no more, is judged by name.
    guarded = _guarded(facts, names.by_path, policy, withheld=False)
    answers = names.resolve(facts).relations
    unheld = {
        index: relation
        for index, relation in guarded.items()
        if names.unsettled or not answers[index].relations
    }
    if unheld:
        yield from _Reader(facts, policy, unheld).violations()


def _may_name(facts: Facts, names: CatalogNames, policy: Policy) -> bool:
    """Whether the statement mentions a relation with columns that make a name of any number, which are closed
    unless catalogs are open. Types and functions that give rows of one are ``filtered``'s to refuse."""
    if policy.relations.catalogs is not Catalogs.OFF:
        return policy.relations.catalogs is Catalogs.FILTERED
    answers = names.resolve(facts).relations
    return any(naming_columns(each, names.catalog) for answer in answers for each in answer.relations)


def _guarded(facts: Facts, names: Names, policy: Policy, *, withheld: bool) -> dict[int, _Guarded]:
    """Index into ``facts.relations`` -> the rules on its columns, for those that have any; with ``withheld``
    those on the columns of catalogs that are null where a snapshot says which columns a catalog has."""
    found: dict[int, _Guarded] = {}
    if not policy.columns and not withheld:
        return found
    for index, ref in enumerate(facts.relations):
        candidates = names.relations(ref)
        rules = [r for r in policy.columns if any(r.relation.matches(*name) for name in candidates)]
        if withheld:
            rules.extend(
                ColumnRule(Pattern(*name), deny=columns, line=policy.relations.line)
                for name in candidates
                if (columns := builtin.withheld_columns(*name))
            )
        if rules:
            found[index] = _Guarded(display_name(ref, names), tuple(rules))
    return found


def _once(violations: Iterable[Violation]) -> Iterator[Violation]:
    """Each complaint about each column once, at its first place."""
    seen: set[tuple[str, str | None]] = set()
    for violation in violations:
        key = (violation.message, violation.column)
        if key not in seen:
            seen.add(key)
            yield violation


class _Reader:
    """Follows every reference of one statement to the relations it could take a column from."""

    def __init__(self, facts: Facts, policy: Policy, guarded: Mapping[int, _Guarded]) -> None:
        self._facts = facts
        self._policy = policy.name
        self._guarded = guarded
        self._joins: dict[int | None, list[Join]] = {}
        for join in facts.joins:
            self._joins.setdefault(join.query, []).append(join)

    def violations(self) -> Iterator[Violation]:
        return chain(
            chain.from_iterable(self._column(ref) for ref in self._facts.columns),
            chain.from_iterable(self._renamed(query) for query in self._facts.queries),
            chain.from_iterable(self._join(join) for join in self._facts.joins),
            self._unnamed_inserts(),
            chain.from_iterable(self._copy(copy) for copy in self._facts.copies),
        )

    # References ---------------------------------------------------------------------------------------------

    def _column(self, ref: ColumnRef) -> Iterator[Violation]:
        if ref.target is not None and ref.use is not Use.READ:
            relation = self._guarded.get(ref.target)
            if relation is not None and ref.name is not None:
                yield from self._named(relation, ref.name, ref.position)
        elif ref.query is None:
            # Utility statements, COPY: nothing is in scope, and what they name is judged with them.
            return
        elif ref.name is None and not ref.qualifier:
            for source in self._facts.queries[ref.query].sources:
                if source.kind not in _BY_QUALIFIER_ALONE:
                    yield from self._everything(source, "*", ref.position)
        elif ref.qualifier:
            yield from self._qualified(ref, ref.query)
        else:
            yield from self._unqualified(ref, ref.query)

    def _qualified(self, ref: ColumnRef, query: int) -> Iterator[Violation]:
        qualifier = ref.qualifier[-1]
        for scope in self._scopes(query):
            sources = self._called(scope, qualifier)
            if not sources:
                continue
            for source in sources:
                if ref.name is None:
                    yield from self._everything(source, f"{qualifier}.*", ref.position)
                elif builtin.takes_row(ref.name):
                    yield from self._everything(source, f"the whole row {qualifier}", ref.position)
                else:
                    yield from self._one(source, ref.name, ref.position)
            return

    def _unqualified(self, ref: ColumnRef, query: int) -> Iterator[Violation]:
        name = ref.name or ""
        outputs = self._facts.queries[query].outputs
        if ref.alone and ref.clause in ("order", "distinct") and any(o.name == name for o in outputs):
            # Both prefer an output's name to an input's (findTargetlistEntrySQL92 in parse_clause.c).
            return
        for scope in self._scopes(query):
            rows = [told for source in self._called(scope, name) for told in self._row(source, ref)]
            if rows:
                yield from rows
                return
            hint = _QUALIFY if len(scope.sources) > 1 else _LEAVE_OUT
            for source in scope.sources:
                if source.kind not in _BY_QUALIFIER_ALONE:
                    yield from self._one(source, name, ref.position, hint)
            if self._surely_has(scope, name):
                return

    def _row(self, source: Source, ref: ColumnRef) -> Iterator[Violation]:
        """The whole row of ``source``, of which ``(e).salary`` takes a field."""
        field = ref.fields[0] if ref.fields else None
        if field is not None and not builtin.takes_row(field):
            yield from self._one(source, field, ref.position)
        else:
            yield from self._everything(source, f"the whole row {ref.name}", ref.position)

    def _scopes(self, query: int | None) -> Iterator[Query]:
        while query is not None:
            scope = self._facts.queries[query]
            yield scope
            query = scope.parent

    def _called(self, scope: Query, name: str) -> Sequence[Source]:
        """What ``name`` qualifies in ``scope``: sources of that name, and those beneath a join of that
        alias."""
        found = [source for source in scope.sources if source.name == name]
        for join in self._joins.get(scope.index, ()):
            if join.alias == name:
                found.extend(scope.sources[join.first : join.last])
        return found

    def _surely_has(self, scope: Query, name: str) -> bool:
        """True where a source that is no relation has a column ``name``, so that no outer one can be
        meant."""
        return any(
            name in source.column_aliases or (source.query is not None and self._outputs(source.query, name))
            for source in scope.sources
            if source.kind is not SourceKind.RELATION and source.kind not in _BY_QUALIFIER_ALONE
        )

    def _outputs(self, query: int, name: str) -> bool:
        inner = self._facts.queries[query]
        outputs: Sequence[Output] = inner.outputs
        while not outputs and inner.arms:
            inner = self._facts.queries[inner.arms[0]]
            outputs = inner.outputs
        return any(output.name == name for output in outputs)

    # Roads that name no column ------------------------------------------------------------------------------

    def _renamed(self, query: Query) -> Iterator[Violation]:
        for source in query.sources:
            if source.column_aliases:
                yield from self._everything(source, "a list of column aliases", source.position)

    def _join(self, join: Join) -> Iterator[Violation]:
        if join.query is None:
            return
        for source in self._facts.queries[join.query].sources[join.first : join.last]:
            for column in join.using:
                yield from self._one(source, column, join.position)
            if join.natural:
                yield from self._everything(source, "NATURAL JOIN", join.position)
            if join.column_aliases:
                yield from self._everything(source, "a list of column aliases", join.position)

    def _unnamed_inserts(self) -> Iterator[Violation]:
        for write in self._facts.writes:
            relation = self._guarded.get(write.target)
            if relation is not None and write.source in ("values", "select") and not write.has_columns:
                yield self._hidden_among(relation, "an INSERT without a column list", write.position)

    def _copy(self, copy: CopyRef) -> Iterator[Violation]:
        relation = self._guarded.get(copy.relation) if copy.relation is not None else None
        if relation is None:
            return
        if not copy.columns:
            yield self._hidden_among(relation, "a COPY of the whole table", None)
        for column in copy.columns:
            yield from self._named(relation, column, None)

    # Violations ---------------------------------------------------------------------------------------------

    def _one(
        self, source: Source, column: str, position: int | None, hint: str = _LEAVE_OUT
    ) -> Iterator[Violation]:
        relation = self._of(source)
        if relation is not None:
            yield from self._named(relation, column, position, hint)

    def _everything(self, source: Source, what: str, position: int | None) -> Iterator[Violation]:
        relation = self._of(source)
        if relation is not None:
            yield self._hidden_among(relation, what, position)

    def _of(self, source: Source) -> _Guarded | None:
        return self._guarded.get(source.relation) if source.relation is not None else None

    def _named(
        self, relation: _Guarded, column: str, position: int | None, hint: str = _LEAVE_OUT
    ) -> Iterator[Violation]:
        rule = relation.hides(column)
        if rule is not None:
            yield self._violation(
                relation,
                f"Column {column} of {relation.name} is hidden by policy {self._policy}",
                hint,
                rule.line,
                position=position,
                column=column,
            )

    def _hidden_among(self, relation: _Guarded, what: str, position: int | None) -> Violation:
        return self._violation(
            relation,
            f"Policy {self._policy} hides columns of {relation.name}, and {what} takes in all of them",
            _NAME_THEM.format(what=what),
            relation.rules[0].line,
            position=position,
        )

    def _violation(
        self,
        relation: _Guarded,
        message: str,
        hint: str,
        line: int,
        *,
        position: int | None,
        column: str | None = None,
    ) -> Violation:
        return Violation(
            rule=NAME,
            message=message,
            hint=hint,
            object=str(relation.name) if column is None else f"{relation.name}.{column}",
            position=position or self._facts.start,
            line=line,
            schema=relation.name.schema,
            table=relation.name.name,
            column=column,
        )
