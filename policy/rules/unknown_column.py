"""unknown-column: a column, or a table name before one, that does not exist.

What it refuses
    A column that none of the tables it could belong to has, and ``x.column`` where nothing in the query is
    called x, where the server is certain to refuse the statement.
Why
    The agent learns where the column does exist, before the database is asked: in the query already, in a
    table that could be joined, under a name that is near. Nothing that the policy hides is named, and a
    statement that mentions a hidden relation is told nothing of its columns.
Refused
    ``SELECT custmer_id FROM orders`` · ``SELECT c.id FROM orders o``
Allowed
    ``SELECT customer_id FROM orders`` · ``SELECT sum(total) AS revenue FROM orders ORDER BY revenue``
Settings
    None of its own: ``relations`` and ``columns`` say what a hint may name. Works with a catalog alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from policy.catalog_names import CatalogNames
from policy.facts import ColumnRef, Facts
from policy.model import Policy, RuleLevel, Violation
from policy.names import Names
from policy.resolve import Answer, ColumnAnswer, Fault, Resolution
from policy.rules.showing import Showing
from policy.suggest import ColumnSuggestions, Neighbour, Place, Suggestions

NAME = "unknown-column"
DEFAULT = RuleLevel.REJECT
SQLSTATE = "42703"
GOVERNED_BY = "columns"

_UNDEFINED_TABLE = "42P01"
_MOST = 3


def check(facts: Facts, names: Names, policy: Policy) -> Iterator[Violation]:
    if not isinstance(names, CatalogNames):
        return
    resolution = names.resolve(facts)
    unknown = [answer for answer in resolution.columns if answer.answer is Answer.UNKNOWN]
    if not unknown:
        return
    showing = Showing(names, policy)
    if not all(_is_shown(resolution, showing)):
        return
    suggestions = ColumnSuggestions(resolution, showing, _MOST)
    told: set[str] = set()
    for answer in unknown:
        violation = _violation(answer, suggestions.of(answer), showing, policy)
        if violation.message not in told:
            told.add(violation.message)
            yield violation


def _is_shown(resolution: Resolution, showing: Showing) -> Iterator[bool]:
    for answer in resolution.relations:
        yield bool(answer.relations) and all(showing.relation(r.qualified) for r in answer.relations)


def _violation(answer: ColumnAnswer, found: Suggestions, showing: Showing, policy: Policy) -> Violation:
    ref = answer.ref
    missing_source = answer.fault is Fault.SOURCE
    return Violation(
        rule=NAME,
        message=_message(ref, missing_source=missing_source),
        hint=hint(found, showing) or "Look up the columns of the tables in the query, and use one of them.",
        object=_spelt(ref),
        position=ref.position,
        suggestion=_suggestion(ref, found),
        sqlstate=_UNDEFINED_TABLE if missing_source else SQLSTATE,
        repairable=True,
        line=policy.relations.line,
        column=ref.name,
    )


def _message(ref: ColumnRef, *, missing_source: bool) -> str:
    if missing_source:
        return f"Nothing in the query's FROM is called {'.'.join(ref.qualifier)}"
    return f"Column {_spelt(ref)} does not exist"


def _spelt(ref: ColumnRef) -> str:
    return ".".join((*ref.qualifier, ref.name or "*"))


def hint(found: Suggestions, showing: Showing) -> str:
    """Where the column does exist, the surest first; empty where nothing is known."""
    sentences = [_place(place, showing) for place in found.present]
    if not sentences and found.sources:
        sentences = [f"Write {' or '.join(found.sources)} before the column."]
    if not sentences and found.nearest:
        near = dict.fromkeys(_qualified(place) for place in found.nearest)
        sentences = [f"Use {' or '.join(near)} instead."]
    if not found.present:
        sentences += [_neighbour(neighbour, showing) for neighbour in found.neighbours]
        if not found.neighbours:
            sentences += [
                f"{place.column} exists on {showing.spelt(place.relation)}."
                for place in found.elsewhere
                if place.relation is not None
            ]
    return " ".join(sentences[:_MOST])


def _place(place: Place, showing: Showing) -> str:
    written = _qualified(place)
    if place.relation is None:
        return (
            f"{place.column} is a column of {place.source}, which is already in the query: write {written}."
        )
    alias = f" (alias {place.source})" if place.source not in (None, place.relation.name) else ""
    relation = showing.spelt(place.relation)
    return f"{place.column} exists on {relation}{alias}, which is already in the query: write {written}."


def _neighbour(neighbour: Neighbour, showing: Showing) -> str:
    other = neighbour.relation.name
    on = " AND ".join(f"{other}.{theirs} = {neighbour.source}.{mine}" for mine, theirs in neighbour.pairs)
    return f"{neighbour.column} exists on {showing.spelt(neighbour.relation)}: join it on {on}."


def _qualified(place: Place) -> str:
    return place.column if place.source is None else f"{place.source}.{place.column}"


def _suggestion(ref: ColumnRef, found: Suggestions) -> str | None:
    for place in (*found.present, *found.nearest):
        return _qualified(place)
    if found.sources:
        return f"{found.sources[0]}.{ref.name or '*'}"
    return None
