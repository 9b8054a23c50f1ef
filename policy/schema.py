"""The JSON Schema of policies, for editors: what the loader asks of a file, written down.

Owns the recording and the sentences shown beside each key. It describes nothing a second time: the loader
reads a file that is not there, through a place that notes every question put to it and answers with something
likely. Where the loader looks which kind of value stands there (a word or a mapping, a name or a list) it
reads again with each kind in that place.

The schema says what a file may look like; whether names, numbers and rows go together is the loader's to say.

Source: JSON Schema, draft-07, which editors' YAML servers read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, TypeVar

from policy import loader, yaml_source
from policy.inheritance import Layers
from policy.reader import (
    BYTES_OF_UNIT,
    MS_OF_UNIT,
    Fields,
    KeyedPlace,
    Place,
    shown_bytes,
    shown_ms,
)
from policy.yaml_source import Mark, Node, Report, Scalar

MODELINE: Final = "# yaml-language-server: $schema="
"""What an editor looks for in the first lines of a YAML file; the path or address of the schema follows."""

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)
_Path = tuple[str, ...]
_ANY_KEY: Final = "*"
_ITEM: Final = "[]"
_LIKELY: Final = "public.a"
"""A text that most readers take: they go on to their next question."""
_NOWHERE: Final = Mark(1, 1)
_MAPPING: Final = yaml_source.Mapping((), _NOWHERE)
_SCALAR: Final = Scalar(_LIKELY, _LIKELY, _NOWHERE)
_NO_LAYERS: Final = Layers(_MAPPING, ("policy.yaml",), ("",))
_OTHER_KINDS: Final[tuple[Node, ...]] = (_MAPPING, yaml_source.Sequence((), _NOWHERE))


def policy_schema() -> dict[str, Any]:
    """The schema of a policy file."""
    notes = asked(lambda place: loader.read_policy(place, "policy.yaml", _NO_LAYERS))
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A policy of pgturnstile",
        **notes.schema((), DESCRIPTIONS),
    }


def asked(read: Callable[[Place], object]) -> Notes:
    """What ``read`` asks of a file, from its root on."""
    notes = Notes()
    _read(read, notes, {(): _MAPPING})
    return notes


def _read(read: Callable[[Place], object], notes: Notes, kinds: Mapping[_Path, Node]) -> None:
    """Have ``read`` read, with ``kinds`` where it looks; again with every kind where else it looked."""
    looked: list[_Path] = []
    read(_Asked((), notes, kinds, looked))
    for path in dict.fromkeys(looked):
        if path not in kinds and path not in notes.looked:
            notes.looked.add(path)
            for kind in _OTHER_KINDS:
                _read(read, notes, {**kinds, path: kind})


def rendered() -> str:
    """The content of ``policy/schema.json``."""
    return json.dumps(policy_schema(), indent=2) + "\n"


@dataclass(slots=True)
class Notes:
    """What was asked, by key path."""

    scalars: dict[_Path, list[dict[str, Any]]] = field(default_factory=dict)
    objects: dict[_Path, tuple[tuple[str, ...], tuple[str, ...], str | None]] = field(default_factory=dict)
    maps: set[_Path] = field(default_factory=set)
    lists: set[_Path] = field(default_factory=set)
    defaults: dict[_Path, Any] = field(default_factory=dict)
    looked: set[_Path] = field(default_factory=set)

    def scalar(self, path: _Path, schema: dict[str, Any]) -> None:
        known = self.scalars.setdefault(path, [])
        if schema not in known:
            known.append(schema)

    def schema(self, path: _Path, descriptions: Mapping[str, str]) -> dict[str, Any]:
        """The JSON Schema of what stands at ``path``, with the sentences that ``descriptions`` has of it."""
        options = [*self.scalars.get(path, ())]
        if path in self.objects:
            options.append(self._object(path, descriptions))
        if path in self.maps:
            options.append(
                {"type": "object", "additionalProperties": self.schema((*path, _ANY_KEY), descriptions)}
            )
        if path in self.lists:
            options.append({"type": "array", "items": self.schema((*path, _ITEM), descriptions)})
        # A key that nothing reads, a comment of the DBA's, may hold anything.
        schema = dict(options[0]) if len(options) == 1 else {"anyOf": options} if options else {}
        described = descriptions.get(".".join(path))
        head = {"description": described} if described else {}
        default = {"default": self.defaults[path]} if path in self.defaults else {}
        return {**head, **schema, **default}

    def _object(self, path: _Path, descriptions: Mapping[str, str]) -> dict[str, Any]:
        known, required, unless = self.objects[path]
        properties = {key: self.schema((*path, key), descriptions) for key in known}
        for key in required:
            properties[key].pop("default", None)
        schema = {"type": "object", "additionalProperties": False, "properties": properties}
        if unless is not None:
            return {**schema, "anyOf": [{"required": [unless]}, {"required": list(required)}]}
        return {**schema, "required": list(required)} if required else schema


class _Asked(Place):
    """A place that holds nothing and notes what is asked of it."""

    __slots__ = ("keys", "kinds", "looked", "notes")

    keys: _Path
    notes: Notes
    kinds: Mapping[_Path, Node]
    looked: list[_Path]

    def __init__(self, keys: _Path, notes: Notes, kinds: Mapping[_Path, Node], looked: list[_Path]) -> None:
        for name, value in (
            ("path", ".".join(keys)),
            ("report", Report("")),
            ("line", 1),
            ("keys", keys),
            ("notes", notes),
            ("kinds", kinds),
            ("looked", looked),
        ):
            object.__setattr__(self, name, value)

    @property
    def node(self) -> Node:
        self.looked.append(self.keys)
        return self.kinds.get(self.keys, _SCALAR)

    @property
    def mark(self) -> Mark:
        return _NOWHERE

    def _at(self, key: str) -> _Asked:
        return _Asked((*self.keys, key), self.notes, self.kinds, self.looked)

    def fields(
        self,
        known: Iterable[str],
        *,
        required: Iterable[str] = (),
        unless: str | None = None,
        refused: Mapping[str, str] | None = None,  # noqa: ARG002 - the signature of Place
        kind: str = "key",  # noqa: ARG002 - Place's signature
    ) -> Fields:
        known = tuple(known)
        self.notes.objects[self.keys] = (known, tuple(required), unless)
        return _AskedFields({key: self._at(key) for key in known})

    def entries(self) -> list[KeyedPlace] | None:
        self.notes.maps.add(self.keys)
        # Not one of the keys asked about: the notes are of values.
        name = _Asked((*self.keys, "the name"), Notes(), self.kinds, [])
        return [KeyedPlace(_LIKELY, name, self._at(_ANY_KEY))]

    def items(self) -> list[Place]:
        self.notes.lists.add(self.keys)
        return [self._at(_ITEM)]

    def string(self) -> str | None:
        self.notes.scalar(self.keys, {"type": "string"})
        return _LIKELY

    def written(self) -> str | None:
        self.notes.scalar(self.keys, {"type": ["string", "number"]})
        return _LIKELY

    def word(self, kind: type[E]) -> E | None:
        return self.choice({member.value: member for member in kind})

    def choice(self, choices: Mapping[str, T], refused: Mapping[str, str] | None = None) -> T | None:  # noqa: ARG002 - Place's signature
        self.notes.scalar(self.keys, {"type": "string", "enum": list(choices)})
        return None

    def boolean(self) -> bool | None:
        self.notes.scalar(self.keys, {"type": "boolean"})
        return None

    def integer(self, least: int, most: int) -> int | None:
        self.notes.scalar(self.keys, {"type": "integer", "minimum": least, "maximum": most})
        return None

    def number(self, least: float, most: float) -> float | None:
        self.notes.scalar(self.keys, {"type": "number", "minimum": least, "maximum": most})
        return None

    def duration_ms(self, least: int = 0, most: int = 0) -> int | None:  # noqa: ARG002 - Place's signature
        self.notes.scalar(self.keys, {"type": ["string", "integer"], "pattern": _quantity(MS_OF_UNIT)})
        return None

    def size(self, least: int = 0, most: int = 0) -> int | None:  # noqa: ARG002 - Place's signature
        self.notes.scalar(self.keys, {"type": ["string", "integer"], "pattern": _quantity(BYTES_OF_UNIT)})
        return None

    def environment_name(self) -> str | None:
        self.notes.scalar(self.keys, {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$"})
        return _LIKELY


class _AskedFields(Fields):
    """Fields that are all there, and note what holds where one is not."""

    def get(self, key: str, reader: Callable[[Place], T | None], default: T) -> T:
        place = self.found[key]
        value = reader(place)
        if isinstance(place, _Asked):
            shown = _shown_default(default, place.notes.scalars.get(place.keys, []))
            if shown is not None:
                place.notes.defaults[place.keys] = shown
        return default if value is None else value


def _shown_default(default: object, asked: list[dict[str, Any]]) -> str | int | bool | None:
    """``default`` as a file would say it; None where it is no word or number, or would say nothing."""
    pattern = next((schema["pattern"] for schema in asked if "pattern" in schema), None)
    if isinstance(default, StrEnum):
        return default.value
    if {"type": "boolean"} in asked:
        return default if isinstance(default, bool) else None
    if type(default) is int and pattern == _quantity(MS_OF_UNIT):
        return shown_ms(default)
    if type(default) is int and pattern == _quantity(BYTES_OF_UNIT):
        return shown_bytes(default)
    return default if type(default) is int else None


def _quantity(units: Mapping[str, int]) -> str:
    return rf"^[0-9]+(\.[0-9]+)? ?({'|'.join(units)})$"


DESCRIPTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "version": "Version of the format.",
        "extends": "A policy to start from, by the name of one that ships or by its file. What is said here "
        "replaces what it says; denials are joined.",
        "name": "What agents and audit lines call the policy. Default: the file's name.",
        "mode": "enforce refuses; observe decides and records, and lets everything pass.",
        "multiple": "More than one statement in a string: only strings of SET and SHOW that drivers send to "
        "set up a session, never, or judged: all of them allowed, or none.",
        "access": "read_only refuses every write, and pins default_transaction_read_only on the session.",
        "statements": "The decision table. A class without a row is refused.",
        "relations": "Tables, views and sequences, as schema.name; * stands for any run of characters.",
        "relations.allow": "What agents may use.",
        "relations.deny": "What they may not, whatever allow says.",
        "relations.catalogs": "pg_catalog and information_schema: closed; names, types and keys; or open.",
        "relations.views": "expand: everything that a view reads and calls must be allowed; own: it alone.",
        "columns": "Hidden columns, by relation.",
        "columns.*.allow": "The only columns of the relation that agents may use.",
        "columns.*.deny": "Columns that are hidden however they are reached.",
        "functions": "What may be called. builtin-safe is the reviewed list of PostgreSQL's own.",
        "functions.allow": "Names as schema.name, builtin-safe, or functions by what they are.",
        "functions.deny": "Wins over allow. A bare name means every schema.",
        "settings": "Settings that agents may change beside those that every driver needs.",
        "settings.allow": "Names of settings.",
        "rules": "Levels of the rules that have one: reject, warn (a NOTICE) or off.",
        "cost": "Ceilings on what PostgreSQL's planner estimates before a statement runs.",
        "cost.max_total_cost": "Of any node of the plan, in the planner's units.",
        "cost.max_rows": "Rows out of any node.",
        "cost.max_scan_rows": "Rows of a table that is read whole.",
        "cost.max_modified_rows": "Rows that a statement would write.",
        "cost.max_result_bytes": "Rows times their width, at the top of the plan.",
        "cost.unpriceable": "Plans that say nothing of what the statement would take, as of recursion.",
        "cost.under_limit": "What lies below a LIMIT counts by the share PostgreSQL charges, or in full.",
        "cost.allowances": "Statements, whatever their constants, with a ceiling of their own until a day.",
        "limits": "What a statement may really take while it runs.",
        "limits.statement_timeout": "Pinned on the session in PostgreSQL.",
        "limits.lock_timeout": "Pinned on the session in PostgreSQL.",
        "limits.idle_in_transaction_timeout": "Pinned on the session in PostgreSQL.",
        "limits.result_rows": "A longer result ends in an error.",
        "limits.result_bytes": "A larger result ends in an error.",
        "limits.affected_rows": "A statement that wrote more rows is undone.",
        "repair": "The one correction that a refusal may be answered with.",
        "repair.turns": "Corrections that a refusal leaves.",
        "repair.window": "For how long a turn, open or spent, is remembered.",
        "repair.scope": "How far answers to a refusal are looked for.",
        "sandbox": "A clone on which listed classes are tried first.",
        "sandbox.dsn_env": "The environment variable that holds the clone's DSN.",
        "sandbox.classes": "Statement classes that are tried.",
        "sandbox.on_stale": "What becomes of a statement where the clone is unlike the database or away.",
        "sandbox.timeout": "How long a statement may take on the clone.",
        "tests": "What you expect of the policy; `policy test` runs them.",
        "tests.[].steps": "Statements in order, each judged in the light of what was refused before it.",
        "tests.[].steps.[].fails": "The SQLSTATE that PostgreSQL answers with; the statement is allowed.",
        "tests.[].steps.[].connection": "A name for the connection that the statement is sent on.",
    }
)
"""By key path; a path that is not here explains itself."""
