"""Random SELECTs over ``tests/support/rich_schema.sql``: nested, joined, aliased, few names at every level.

Made to bring names near each other that PostgreSQL keeps apart. Most names are drawn from what seems to be in
sight, so that a good part of the statements is accepted; what is in sight is only roughly kept.
"""

from __future__ import annotations

from random import Random
from typing import Final

_RELATIONS: Final = {
    "people": ("id", "name", "salary", "boss_id", "email"),
    "stock": ("product_id", "place", "on_hand", "keeper_id"),
    "kept": ("place", "s"),
    "public.pay": ("pay_id", "salary"),
    "app.note": ("id", "tenant", "body"),
    "names": ("id", "called"),
    "public.people": ("id", "nickname"),
}
_ANY_NAME: Final = ("id", "name", "salary", "place", "p", "x", "s", "ctid")
_ALIASES: Final = ("p", "q", "s", "x", "salary", "t", "u", "v")
_JOINS: Final = ("JOIN", "LEFT JOIN", "FULL JOIN", "CROSS JOIN", "NATURAL JOIN")

Names = list[tuple[str, tuple[str, ...]]]
"""What qualifies, and the columns it has."""


class RandomSelects:
    """Gives statement after statement; the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._free: list[str] = []

    def select(self) -> str:
        return self._select(2, [])[0]

    def _select(self, depth: int, outer: Names) -> tuple[str, tuple[str, ...]]:
        """A SELECT and the names of its columns."""
        free, self._free = self._free, self._random.sample(_ALIASES, len(_ALIASES))
        source, names = self._from(depth, outer)
        sight = names * 3 + outer
        items, outputs = [], []
        for _ in range(self._random.randint(1, 2)):
            item, output = self._item(depth, sight)
            items.append(item)
            outputs.append(output)
        text = f"SELECT {', '.join(items)} FROM {source}"
        if self._chance(0.4):
            text += f" WHERE {self._condition(depth, sight)}"
        if self._chance(0.3):
            text += f" ORDER BY {self._pick(*outputs) if self._chance(0.4) else self._name(sight)}"
        self._free = free
        return text, tuple(outputs)

    def _chance(self, share: float) -> bool:
        return self._random.random() < share

    def _pick(self, *values: str) -> str:
        return self._random.choice(values)

    def _name(self, sight: Names) -> str:
        if not sight or self._chance(0.03):
            return self._pick(*_ANY_NAME)
        alias, columns = self._random.choice(sight)
        column = self._pick(*columns)
        if self._chance(0.1):
            return alias
        return f"{alias}.{column}" if self._chance(0.75) else column

    def _item(self, depth: int, sight: Names) -> tuple[str, str]:
        if depth and self._chance(0.4):
            source, names = self._from(depth - 1, sight)
            condition = self._condition(depth - 1, names * 3 + sight)
            return f"(SELECT count(*) FROM {source} WHERE {condition})", "count"
        if self._chance(0.1):
            return "*", self._pick(*_ANY_NAME)
        name = self._name(sight)
        if self._chance(0.3):
            output = self._pick(*_ANY_NAME[:-1])
            return f"{name} AS {output}", output
        return name, name.rpartition(".")[2]

    def _condition(self, depth: int, sight: Names) -> str:
        if depth and self._chance(0.4):
            return f"EXISTS ({self._select(depth - 1, sight)[0]})"
        return f"{self._name(sight)} IS NOT NULL"

    def _from(self, depth: int, outer: Names) -> tuple[str, Names]:
        text, names = self._source(depth, outer)
        if self._chance(0.4):
            more, more_names = self._source(depth, outer + names)
            return f"{text}, {more}", names + more_names
        return text, names

    def _alias(self) -> str:
        return self._free.pop() if self._free else "z"

    def _source(self, depth: int, outer: Names) -> tuple[str, Names]:
        if depth and self._chance(0.35):
            return self._join(depth, outer)
        alias = self._alias()
        if depth and self._chance(0.3):
            lateral = self._chance(0.5)
            inner, columns = self._select(depth - 1, outer if lateral else [])
            return self._renamed(f"{'LATERAL ' if lateral else ''}({inner})", alias, columns)
        if self._chance(0.1):
            return f"generate_series(1, {self._name(outer)}::text::int) {alias}", [(alias, (alias,))]
        if self._chance(0.1):
            return self._renamed("(VALUES (1, 'a'))", alias, ("column1", "column2"))
        relation = self._pick(*_RELATIONS)
        if self._chance(0.3):
            return relation, [(relation.rpartition(".")[2], _RELATIONS[relation])]
        return self._renamed(relation, alias, _RELATIONS[relation])

    def _renamed(self, text: str, alias: str, columns: tuple[str, ...]) -> tuple[str, Names]:
        if not self._chance(0.25):
            return f"{text} {alias}", [(alias, columns)]
        first = self._pick(*_ANY_NAME[:-1])
        return f"{text} {alias}({first})", [(alias, (first, *columns[1:]))]

    def _join(self, depth: int, outer: Names) -> tuple[str, Names]:
        left, names = self._source(depth - 1, outer)
        right, more = self._source(depth - 1, outer + names)
        kind = self._pick(*_JOINS)
        text = f"{left} {kind} {right}"
        names = names + more
        if kind in ("JOIN", "LEFT JOIN", "FULL JOIN"):
            common = sorted(set(names[0][1]) & set(more[0][1]))
            if common and self._chance(0.7):
                text += f" USING ({common[0]})"
                if self._chance(0.3):
                    alias = self._alias()
                    text += f" AS {alias}"
                    names.append((alias, (common[0],)))
            else:
                text += f" ON {self._condition(depth - 1, names * 2 + outer)}"
        if self._chance(0.2):
            alias = self._alias()
            columns = tuple(column for _, each in names for column in each)
            return self._renamed(f"({text})", alias, columns)
        return text, names
