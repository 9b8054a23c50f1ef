"""Is this the refused statement spelt anew, or other work on the same tables?

Owns the measure by which a later statement is taken for a repair where nothing else tells: on another
connection, and for reads everywhere. Agents look around between a rejection and its repair, and work in
parallel; taking such a statement for a repair would refuse it for what it never meant to keep. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

from policy.expressions import TooLarge
from policy.implication import MAX_STEPS, Reasoning, contradict, joins
from policy.model import StatementClass
from policy.normal import Level
from policy.repair import Attempt, Finding, assigned, readings, replacements
from policy.signatures import Index
from policy.terms import Form

ALIKE: Final = 0.8
"""The mean likeness of relations, conditions and items from which a statement is taken for the same one."""
ALIKE_EACH: Final = 0.5
"""What each of them must reach as well."""
MAX_FEATURES: Final = 64
"""Select items, assignments or conditions of a statement that are compared."""
MAX_LIKELY: Final = 8
"""Ways to read its faulty names that are tried."""


_READING: Final = 300
"""Steps that one way to read a statement counts as, beside the comparing."""


class Effort:
    """What may still be spent on finding out what one statement answers: ``steps`` of reasoning.

    Once it is spent nothing more is recognised, as of statements that are too large to compare.
    """

    __slots__ = ("left",)

    def __init__(self, steps: int = 8 * MAX_STEPS) -> None:
        self.left = steps

    @property
    def spent(self) -> bool:
        return self.left <= 0


def recognisable(first: Attempt, finding: Finding, second: Attempt, effort: Effort | None = None) -> bool:
    """True when ``second`` is ``first`` spelt anew, mended or not, rather than other work on its tables.

    Three overlaps are taken: of relations, of conditions (less those that only join), of what is selected,
    assigned or inserted. Each is the share of common members in the larger set, and says nothing where both
    are empty. The faulty names count as whatever stands for them, in the select list only if that was offered
    or is like them. Recognised is what reaches ``ALIKE_EACH`` in each and ``ALIKE`` in their mean, and holds
    no expression to constants that the first does not have: the same statement about another row is another
    statement.
    """
    if not first.readable:
        return _share_words(first.words, second.words) >= ALIKE_EACH
    if not first.decided or not first.levels or not second.levels:
        # Nothing to measure: BEGIN, EXECUTE, or too large a statement.
        return first.digest == second.digest
    return _does_the_same(first, second) and _reads_alike(first, finding, second, effort or Effort())


def drops_its_conditions(first: Attempt, finding: Finding, second: Attempt) -> bool:
    """True when ``second`` asks for the very columns of the very relations that ``first`` asked for, and for
    every row of them: no look around, which is at every column, at a number of rows, or at a count."""
    if not (first.readable and first.decided and first.levels and second.levels) or second.limited:
        return False
    its = _items(second.levels)
    looks = _conditions(second.levels) or any(level.distinct for level in second.levels)
    if looks or not _does_the_same(first, second) or not any(map(_shows_a_column, its)):
        return False
    likely = islice(readings(first, finding, second), MAX_LIKELY)
    try:
        return any(
            _conditions(reading)
            and _named_alike(first, finding, second) == 1
            and _share(Reasoning(), _items(reading), its) == 1
            for reading in likely
        )
    except (TooLarge, RecursionError):
        return False


def _shows_a_column(item: Form) -> bool:
    return item[0] == "col" and not _is_star(item)


def _does_the_same(first: Attempt, second: Attempt) -> bool:
    return second.decided and second.readable and second.runs is first.runs and second.writes is first.writes


def _share_words(ours: Sequence[str], theirs: Sequence[str]) -> float:
    mine, its = set(ours), set(theirs)
    return len(mine & its) / max(len(mine | its), 1)


def _reads_alike(first: Attempt, finding: Finding, second: Attempt, effort: Effort) -> bool:
    named_alike = _named_alike(first, finding, second)
    if named_alike is not None and named_alike < ALIKE_EACH:
        return False
    for reading in islice(readings(first, finding, second), MAX_LIKELY):
        if effort.spent:
            return False
        reasoning = Reasoning(min(MAX_STEPS, effort.left))
        try:
            if _alike(reasoning, reading, first, second, named_alike):
                return True
        except (TooLarge, RecursionError):
            return False
        finally:
            effort.left -= _READING + reasoning.taken
    return False


def _alike(
    reasoning: Reasoning, reading: Sequence[Level], first: Attempt, second: Attempt, named_alike: float | None
) -> bool:
    ours, theirs = _conditions(reading), _conditions(second.levels)
    mine, its = _items(reading), _items(second.levels)
    inserts = first.statement_class is StatementClass.INSERT
    # An UPDATE that comes back as a DELETE assigns nothing.
    other_write = first.writes and second.statement_class is not first.statement_class
    measured = [] if named_alike is None else [named_alike]
    measured += [_share(reasoning, ours, theirs)] if ours or theirs else []
    measured += [_share(reasoning, mine, its)] if (mine or its) and not other_write else []
    return (
        len(measured) > 1
        and min(measured) >= ALIKE_EACH
        and sum(measured) / len(measured) >= ALIKE
        and not contradict(reasoning, ours, theirs)
        and not (inserts and _other_values(reasoning, mine, its))
    )


def _named_alike(first: Attempt, finding: Finding, second: Attempt) -> float | None:
    """The share of relations that both name; None where neither names one."""
    replaced = replacements(first, finding, second) or {}
    before = {replaced.get(name, name) for name, _ in first.relations}
    after = {name for name, _ in second.relations}
    return len(before & after) / max(len(before), len(after)) if before or after else None


def _conditions(forms: Sequence[Level]) -> list[Form]:
    """What filters; what joins is as good as said by the relations."""
    every = (
        condition
        for level in _read_from(forms)
        for conditions in (level.where, level.having, *(joined[2] for joined in level.outer))
        for condition in conditions
    )
    return [condition for condition in every if not joins(condition)][:MAX_FEATURES]


def _read_from(forms: Sequence[Any]) -> Iterator[Level]:
    """Levels, and those of the sub-selects and CTEs that they read from."""
    for form in forms:
        if isinstance(form, Level):
            yield form
            yield from _read_from(form.sources)
        elif form[:1] == ("rows",) and form[2][0] == "cte":
            yield from _read_from(form[2][1:2])


def filters(made: Attempt) -> bool:
    """Whether a statement picks out rows by what they hold."""
    return bool(_conditions(made.levels))


def _items(forms: Sequence[Level]) -> list[Form]:
    return [item for lvl in forms for item in (*lvl.items, *_selected(lvl))][:MAX_FEATURES]


def _selected(level: Level) -> Iterator[Form]:
    if level.action == "insert":
        yield from (item for item in assigned(level) if item not in level.items)
    elif level.action.startswith("SETOP"):
        yield from level.sources


def _share(reasoning: Reasoning, ours: Sequence[Form], theirs: Sequence[Form]) -> float:
    """The share of common members; below ``ALIKE_EACH`` it is not counted to its end."""
    larger = max(len(ours), len(theirs))
    stars = Index(filter(_is_star, theirs), reasoning.same)
    others = Index((form for form in theirs if not _is_star(form)), reasoning.same)
    common = 0
    for place, form in enumerate(ours):
        if common + len(ours) - place < ALIKE_EACH * larger:
            break
        common += (stars if _is_star(form) else others).take(form)
    return common / larger


def _is_star(form: Form) -> bool:
    """Whether ``form`` is ``*``: to look at every column is not to ask for one of them."""
    return bool(form[0] == "col" and form[-1] == "*")


def _other_values(reasoning: Reasoning, ours: Sequence[Form], theirs: Sequence[Form]) -> bool:
    """Whether two INSERTs give one column other constants: then they are about other rows."""
    values: dict[Any, list[Form]] = {}
    for item in ours:
        values.setdefault(item[1], []).append(item[2])
    return any(
        item[1] in values and not any(reasoning.same(one, item[2]) for one in values[item[1]])
        for item in theirs
    )
