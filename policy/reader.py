"""A value of a YAML file, read as the type it should have or reported.

Owns types, units and key checks, with the wording of what was expected; shared by policies and by the
server's configuration. Knows no key of either.

A reader method returns None once it has reported a fault: the caller goes on, so that every fault of a file
is found in one go, and raises at the end (``Report.raise_if_any``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TypeVar

from policy import yaml_source
from policy.diagnostics import join_path, nearest
from policy.yaml_source import Broken, Mark, Node, Report, Scalar

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

MS_OF_UNIT: Mapping[str, int] = MappingProxyType(
    {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
)
BYTES_OF_UNIT: Mapping[str, int] = MappingProxyType(
    {
        "B": 1,
        "kB": 10**3,
        "KB": 10**3,
        "MB": 10**6,
        "GB": 10**9,
        "KiB": 2**10,
        "MiB": 2**20,
        "GiB": 2**30,
    }
)
MAX_MS = 2**31 - 1
"""PostgreSQL's largest timeout: its settings are 32-bit integers of milliseconds."""
MAX_SIZE = 2**50

_QUANTITY = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s?([A-Za-z]+)")
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Place:
    """One value with its key path. A fault is shown at ``mark``; ``line`` is the line of its key."""

    node: Node
    path: str
    report: Report
    line: int

    @classmethod
    def root(cls, document: yaml_source.Document) -> Place:
        return cls(document.root, "", document.report, document.root.mark.line)

    @property
    def mark(self) -> Mark:
        return self.node.mark

    def fault(self, message: str, near: str | None = None) -> None:
        """Reports ``message`` at this value."""
        self.report.add(self.mark, self.path, message, near)

    def expected(self, wanted: str, advice: str = "") -> None:
        """Reports that the value is not what ``wanted`` says; quiet where a fault is reported already."""
        if not isinstance(self.node, Broken):
            self.fault(f"expected {wanted}, found {_found(self.node)}{advice and '; ' + advice}")

    # Collections

    def fields(
        self,
        known: Iterable[str],
        *,
        required: Iterable[str] = (),
        unless: str | None = None,
        refused: Mapping[str, str] | None = None,
        kind: str = "key",
    ) -> Fields:
        """The entries of a mapping whose keys are a closed set.

        ``unless`` is the key that makes up for those ``required``.
        ``refused`` gives, for keys that somebody may well try, the sentence that says why not. ``kind`` is
        the word for a key in the fault of an unknown one. Anything but a mapping reads as an empty one.
        """
        known = tuple(known)
        entries = self.entries()
        found: dict[str, Place] = {}
        for entry in entries or ():
            if entry.key in known:
                found[entry.key] = entry.value
            elif refused is not None and entry.key in refused:
                entry.fault(refused[entry.key])
            else:
                near = nearest(entry.key, known)
                entry.fault(f"unknown {kind}{'' if near else '; expected ' + _one_of(known)}", near)
        given = {entry.key for entry in entries or ()}
        for key in required if entries is not None and unless not in given else ():
            if key not in given:
                self.report.add(self.mark, join_path(self.path, key), "missing: this key is required")
        return Fields(found)

    def entries(self) -> list[KeyedPlace] | None:
        """The entries of a mapping whose keys are names, in order."""
        if not isinstance(self.node, yaml_source.Mapping):
            self.expected("a mapping")
            return None
        return [
            KeyedPlace(
                entry.key,
                Place(Scalar(entry.key, entry.key, entry.mark), path, self.report, entry.mark.line),
                Place(entry.value, path, self.report, entry.mark.line),
            )
            for entry in self.node.entries
            for path in (join_path(self.path, entry.key),)
        ]

    def items(self) -> list[Place]:
        """The items of a list; anything but a list is reported and reads as an empty one."""
        if not isinstance(self.node, yaml_source.Sequence):
            self.expected("a list, as in [a, b]")
            return []
        return [
            Place(item, join_path(self.path, n), self.report, item.mark.line)
            for n, item in enumerate(self.node.items)
        ]

    # Scalars

    def string(self) -> str | None:
        """A text that is not empty."""
        if not isinstance(self.node, Scalar) or not isinstance(self.node.value, str):
            number = isinstance(self.node, Scalar) and self.node.value is not None
            self.expected("a text", "put it in quotes" if number else "")
            return None
        if not self.node.value.strip():
            self.fault("expected a text, found an empty one")
            return None
        return self.node.value

    def written(self) -> str | None:
        """A scalar as it is written, whatever it would mean: for codes that may look like numbers."""
        if isinstance(self.node, Scalar) and self.node.value is not None:
            return self.node.text
        self.expected("a text")
        return None

    def word(self, kind: type[E]) -> E | None:
        """One word of a closed set."""
        return self.choice({member.value: member for member in kind})

    def choice(self, choices: Mapping[str, T], refused: Mapping[str, str] | None = None) -> T | None:
        """What ``choices`` gives for the word that stands here."""
        value = self.node.value if isinstance(self.node, Scalar) else None
        if isinstance(value, str) and value in choices:
            return choices[value]
        if isinstance(value, str) and refused is not None and value in refused:
            self.fault(refused[value])
        elif isinstance(value, str):
            self.fault(f"unknown value; expected {_one_of(choices)}", nearest(value, choices))
        elif isinstance(value, bool):
            self.expected(_one_of(choices), "true and false are no words here")
        else:
            self.expected(_one_of(choices))
        return None

    def boolean(self) -> bool | None:
        if isinstance(self.node, Scalar) and isinstance(self.node.value, bool):
            return self.node.value
        self.expected("true or false")
        return None

    def integer(self, least: int, most: int) -> int | None:
        """A whole number within bounds, both included."""
        value = self.node.value if isinstance(self.node, Scalar) else None
        if isinstance(value, bool) or not isinstance(value, int):
            self.expected("a whole number")
            return None
        return self._within(value, least, most, str)

    def number(self, least: float, most: float) -> float | None:
        """A finite number within bounds, both included."""
        value = self.node.value if isinstance(self.node, Scalar) else None
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.expected("a number")
            return None
        if not math.isfinite(value):
            self.expected("a finite number")
            return None
        return self._within(float(value), least, most, lambda bound: f"{bound:g}")

    def duration_ms(self, least: int = 0, most: int = MAX_MS) -> int | None:
        """A duration in milliseconds, written with its unit (``500ms 30s 10m 1h``); 0 needs none."""
        value = self._quantity(MS_OF_UNIT, "a duration with its unit, as in 500ms, 30s, 10m or 1h")
        return None if value is None else self._within(value, least, most, shown_ms)

    def size(self, least: int = 0, most: int = MAX_SIZE) -> int | None:
        """A size in bytes: a whole number of bytes, or with a unit (``1KiB 50MiB``; ``MB`` is 10^6)."""
        if isinstance(self.node, Scalar) and type(self.node.value) is int:
            return self._within(self.node.value, least, most, shown_bytes)
        value = self._quantity(BYTES_OF_UNIT, "a size, as in 64KiB, 50MiB or a number of bytes")
        return None if value is None else self._within(value, least, most, shown_bytes)

    def environment_name(self) -> str | None:
        """The name of an environment variable."""
        name = self.string()
        if name is not None and not _ENVIRONMENT_NAME.fullmatch(name):
            self.fault("expected the name of an environment variable: letters, digits and _")
            return None
        return name

    def _quantity(self, units: Mapping[str, int], wanted: str) -> int | None:
        value = self.node.value if isinstance(self.node, Scalar) else None
        if type(value) is int and value == 0:
            return 0
        if isinstance(value, int | float) and not isinstance(value, bool):
            self.fault(f"a unit is missing; expected {wanted}")
            return None
        matched = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
        if matched is None:
            self.expected(wanted)
            return None
        amount, unit = matched.groups()
        if unit not in units:
            self.fault(f"unknown unit {unit!r}; expected {_one_of(units)}", nearest(unit, units))
            return None
        exact = float(amount) * units[unit] if "." in amount else int(amount) * units[unit]
        if exact != int(exact):
            self.fault(f"expected {wanted}, found a fraction of the smallest unit")
            return None
        return int(exact)

    def _within(
        self, value: _Number, least: _Number, most: _Number, shown: Callable[[_Number], str]
    ) -> _Number | None:
        if least <= value <= most:
            return value
        self.fault(f"out of range: expected {shown(least)} to {shown(most)}")
        return None


_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True)
class KeyedPlace:
    """An entry of a mapping: ``at`` is the key's own place, for faults of the key."""

    key: str
    at: Place
    value: Place

    def fault(self, message: str, near: str | None = None) -> None:
        self.at.fault(message, near)


@dataclass(frozen=True, slots=True)
class Fields:
    """Entries by key, each to be read by the reader its key calls for."""

    found: Mapping[str, Place]

    def __contains__(self, key: str) -> bool:
        return key in self.found

    def __getitem__(self, key: str) -> Place:
        return self.found[key]

    def get(self, key: str, reader: Callable[[Place], T | None], default: T) -> T:
        """``key``'s value by ``reader``; ``default`` where it is absent, or at fault and reported."""
        value = reader(self.found[key]) if key in self.found else None
        return default if value is None else value

    def maybe(self, key: str, reader: Callable[[Place], T | None]) -> T | None:
        """``key``'s value by ``reader``, None where it is absent, or at fault and reported."""
        return reader(self.found[key]) if key in self.found else None


def _found(node: Node) -> str:
    """What stands there, by kind alone: a value may be a secret."""
    match node:
        case yaml_source.Mapping():
            return "a mapping"
        case yaml_source.Sequence():
            return "a list"
        case Scalar(value=None):
            return "nothing"
        case Scalar(value=bool()):
            return "true or false"
        case Scalar(value=str()):
            return "a text"
        case _:
            return "a number"


def _one_of(words: Iterable[str]) -> str:
    """``a``, ``a or b``, ``a, b or c``."""
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def shown_ms(ms: int) -> str:
    unit = next((u for u in ("h", "m", "s") if ms and ms % MS_OF_UNIT[u] == 0), "ms")
    return f"{ms // MS_OF_UNIT[unit]}{unit}"


def shown_bytes(size: int) -> str:
    unit = next((u for u in ("GiB", "MiB", "KiB") if size and size % BYTES_OF_UNIT[u] == 0), "B")
    return f"{size // BYTES_OF_UNIT[unit]}{unit}"
