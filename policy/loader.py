"""A policy file -> a frozen ``Policy``, or every fault of it at once.

Owns what the keys of a policy mean and which values they take (contract: policy). Knows no environment, no
database and no server configuration; ``yaml_source`` knows YAML, ``patterns`` how names are written.

Nothing is half loaded: faults are collected, and one is enough to refuse the file.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Protocol, TypeVar

from policy import inheritance, setting_names, trial_reader, yaml_source
from policy.diagnostics import Diagnostic, PolicyError, nearest
from policy.inheritance import Layers, shown_line
from policy.levels import GOVERNED_ELSEWHERE, default_levels
from policy.model import (
    Access,
    Allowance,
    Catalogs,
    ClassRow,
    ColumnRule,
    CostLimits,
    FunctionKind,
    FunctionRules,
    Limits,
    Mode,
    Multiple,
    Needs,
    OnStale,
    Pattern,
    Policy,
    PolicyTest,
    RelationRules,
    RepairRules,
    RepairScope,
    RuleLevel,
    Sandbox,
    SettingRules,
    StatementClass,
    Verdict,
    Views,
)
from policy.patterns import (
    ANY,
    BUILTIN_SAFE,
    BadNameError,
    allowed_function,
    column_name,
    denied_function,
    name_part,
    relation_pattern,
)
from policy.reader import KeyedPlace, Place

VERSION = 1
TESTS_SUFFIX = ".tests.yaml"
"""How the name of a file of tests ends."""
MAX_TURNS = 2
"""Repairs that a refusal may leave: an agent that needs a third is guessing."""
MAX_COST = 1e18
MAX_ROWS = 1e15

T = TypeVar("T")


def load(text: bytes | str, source: str) -> Policy:
    """Reads one policy, and those that it extends. ``source`` is its path as the DBA gave it.

    Raises ``PolicyError`` with every fault, in the file's order; nothing else, whatever ``text`` holds.
    """
    policy, _ = _load(text, source, ())
    return policy


def layers(text: bytes | str, source: str) -> Layers:
    """What a policy that loads says together with its bases. Raises as ``load``."""
    _, found = _load(text, source, ())
    return found


def _load(text: bytes | str, source: str, above: tuple[Path, ...]) -> tuple[Policy, Layers]:
    """``above`` are the files that extend this one."""
    document = yaml_source.read(text, source)
    found = Layers(document.root, (source,), (_sha256(text),))
    below: list[Diagnostic] = []
    path = inheritance.base_of(document, source)
    if path is not None:
        try:
            found = inheritance.extend(_base(path, source, above), document.root, source, _sha256(text))
        except PolicyError as error:
            document.report.add(inheritance.mark_of_base(document), inheritance.KEY, f"{path} cannot be used")
            below = list(error.diagnostics)
    policy = read_policy(Place(found.root, "", document.report, document.root.mark.line), source, found)
    faults = [*(_placed(each, found.files) for each in document.report.in_order()), *below]
    if faults:
        raise PolicyError(faults)
    return policy, found


def _base(path: Path, source: str, above: tuple[Path, ...]) -> Layers:
    """The layers of the base at ``path``, which has to be a policy by itself. Raises ``PolicyError``."""
    files = (*above, Path(source).resolve())
    wrong = None
    if path.resolve() in files:
        wrong = "a policy cannot extend itself, nor what extends it"
    elif len(files) > inheritance.MAX_DEPTH:
        wrong = f"more than {inheritance.MAX_DEPTH} policies upon each other"
    if wrong is not None:
        raise PolicyError([Diagnostic(str(path), 0, 0, inheritance.KEY, wrong)])
    _, found = _load(_bytes(path, str(path)), str(path), files)
    return found


def _placed(diagnostic: Diagnostic, files: tuple[str, ...]) -> Diagnostic:
    """``diagnostic`` with the file and line that its line tells."""
    source, line = inheritance.place_of(diagnostic.line, files)
    return replace(diagnostic, source=source, line=line)


def load_file(path: Path, source: str | None = None) -> Policy:
    """``load`` of a file; one that cannot be read is a ``PolicyError`` as well."""
    source = str(path) if source is None else source
    return load(_bytes(path, source), source)


def _bytes(path: Path, source: str) -> bytes:
    """The content, one byte more than is taken at most. Raises ``PolicyError``."""
    try:
        with path.open("rb") as file:
            return file.read(yaml_source.MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise PolicyError([Diagnostic(source, 0, 0, "", f"cannot be read: {reason}")]) from error


@dataclass(frozen=True, slots=True)
class TrialFile:
    """Tests beside a policy. ``catalog`` is the file of the snapshot that names are looked up in."""

    tests: tuple[PolicyTest, ...]
    catalog: Path | None = None


def load_tests(path: Path) -> TrialFile:
    """Tests of a file of their own, as ``read-only.tests.yaml`` beside ``read-only.yaml``.

    Raises ``PolicyError`` with every fault.
    """
    source = str(path)
    document = yaml_source.read(_bytes(path, source), source)
    fields = Place.root(document).fields(("version", "catalog", "tests"), required=("version", "tests"))
    fields.maybe("version", _version)
    catalog = fields.maybe("catalog", lambda p: p.string())
    no_tests: tuple[PolicyTest, ...] = ()
    tests = fields.get("tests", trial_reader.tests, no_tests)
    document.report.raise_if_any(PolicyError)
    return TrialFile(tests, None if catalog is None else path.parent / catalog)


def tests_beside(policy: Path) -> Path:
    """Where the tests beside ``policy`` would be."""
    return policy.with_name(policy.name.removesuffix(".yaml") + TESTS_SUFFIX)


def _sha256(text: bytes | str) -> str:
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return hashlib.sha256(data).hexdigest()


def read_policy(root: Place, source: str, layers: Layers) -> Policy:
    """The policy that ``layers`` say, read from ``root``; faults are reported there."""
    fields = root.fields(_SECTIONS, required=("version",))
    fields.maybe("version", _version)
    fields.maybe(inheritance.KEY, lambda p: p.string())
    no_lines: dict[str, int] = {}
    levels, rule_lines = fields.get("rules", _rules, (default_levels(), no_lines))
    limits = fields.get("limits", _limits, Limits())
    return Policy(
        name=fields.get("name", trial_reader.one_line, Path(source).stem),
        source=source,
        sha256=layers.hashes[0] if len(layers.hashes) == 1 else _sha256("\n".join(layers.hashes)),
        files=layers.files,
        mode=fields.get("mode", lambda place: place.word(Mode), Mode.ENFORCE),
        multiple=fields.get("multiple", lambda place: place.word(Multiple), Multiple.DRIVER_SETUP),
        access=fields.get("access", lambda place: place.word(Access), Access.READ_ONLY),
        statements=MappingProxyType(fields.get("statements", _statements, {})),
        relations=fields.get("relations", _relations, RelationRules()),
        columns=fields.get("columns", _columns, ()),
        functions=fields.get("functions", _functions, FunctionRules()),
        settings=fields.get("settings", partial(_settings, limits=limits), SettingRules()),
        rules=MappingProxyType(levels),
        rule_lines=MappingProxyType(rule_lines),
        cost=fields.maybe("cost", _cost),
        limits=limits,
        repair=fields.get("repair", _repair, RepairRules()),
        sandbox=fields.maybe("sandbox", _sandbox),
        tests=fields.get("tests", trial_reader.tests, ()),
        lines=MappingProxyType({key: place.line for key, place in fields.found.items()}),
    )


_SECTIONS = (
    "version",
    "extends",
    "name",
    "mode",
    "multiple",
    "access",
    "statements",
    "relations",
    "columns",
    "functions",
    "settings",
    "rules",
    "cost",
    "limits",
    "repair",
    "sandbox",
    "tests",
)


def _version(place: Place) -> int | None:
    version = place.integer(0, 10**9)
    if version is not None and version != VERSION:
        place.fault(f"this program reads version {VERSION} of the format")
    return version


# The decision table


def _statements(place: Place) -> dict[StatementClass, ClassRow]:
    found = place.fields([c.value for c in StatementClass], kind="statement class").found
    rows = {StatementClass(key): _row(value) for key, value in found.items()}
    return {statement_class: row for statement_class, row in rows.items() if row is not None}


def _row(place: Place) -> ClassRow | None:
    if not isinstance(place.node, yaml_source.Mapping):
        decide = place.choice({v.value: v for v in Verdict}, _ROW_WORDS)
        return None if decide is None else ClassRow(decide, line=place.line)
    fields = place.fields(("decide", "repair", "needs"), required=("decide",))
    decide = fields.get(
        "decide", lambda p: p.choice({v.value: v for v in Verdict}, _ROW_WORDS), Verdict.REJECT
    )
    repair_once = fields.get("repair", lambda p: p.choice({"once": True, "none": False}), False)
    needs = fields.maybe("needs", lambda p: p.word(Needs))
    if "needs" in fields and decide is Verdict.ALLOW:
        fields["needs"].fault("goes with decide: reject; the gate cannot ask a person and then allow")
    if repair_once and "decide" in fields and decide is Verdict.REJECT:
        fields["repair"].fault("a class that is rejected has nothing to repair; use none, or decide: allow")
    return ClassRow(decide, repair_once, needs, place.line)


_ROW_WORDS = {
    "warn": "a class is allowed or rejected; warn is a level of rules:",
    "deny": "write reject",
    "observe": "observe is a mode of the whole policy",
}


# What may be named


def _relations(place: Place) -> RelationRules:
    fields = place.fields(("allow", "deny", "catalogs", "views"))
    return RelationRules(
        allow=fields.get("allow", _patterns(relation_pattern), ()),
        deny=fields.get("deny", _patterns(relation_pattern), ()),
        catalogs=fields.get("catalogs", lambda p: p.word(Catalogs), Catalogs.OFF),
        views=fields.get("views", lambda p: p.word(Views), Views.EXPAND),
        line=place.line,
    )


def _columns(place: Place) -> tuple[ColumnRule, ...]:
    rules = [_column_rule(entry) for entry in place.entries() or ()]
    return tuple(rule for rule in rules if rule is not None)


def _column_rule(entry: KeyedPlace) -> ColumnRule | None:
    relation = _named(entry.at, partial(relation_pattern, line=entry.at.line))
    fields = entry.value.fields(("allow", "deny"))
    if isinstance(entry.value.node, yaml_source.Mapping) and not fields.found:
        entry.value.fault("says nothing; give deny: [column, …] or allow: [column, …]")
    if relation is None:
        return None
    return ColumnRule(
        relation,
        allow=fields.maybe("allow", _column_names),
        deny=fields.get("deny", _column_names, frozenset()),
        line=entry.at.line,
    )


def _column_names(place: Place) -> frozenset[str]:
    return frozenset(name for item in place.items() if (name := _named(item, column_name)) is not None)


def _functions(place: Place) -> FunctionRules:
    fields = place.fields(("allow", "deny"))
    entries = fields["allow"].items() if "allow" in fields else []
    kinds = [item for item in entries if isinstance(item.node, yaml_source.Mapping)]
    allowed, safe = _apart(item for item in entries if item not in kinds)
    denied, misplaced = _apart(fields["deny"].items() if "deny" in fields else [])
    for item in misplaced:
        item.fault(f"{BUILTIN_SAFE} belongs under allow; leave it out there to do without it")
    return FunctionRules(
        builtin_safe=bool(safe),
        allow=_patterns_of(allowed, allowed_function),
        kinds=tuple(_function_kind(item) for item in kinds),
        deny=_patterns_of(denied, denied_function),
        line=place.line,
    )


def _function_kind(place: Place) -> FunctionKind:
    fields = place.fields(("schema", "name", "volatility", "language", "security_definer", "owner"))
    if not fields.found:
        place.fault("says nothing; every function would be allowed")
    return FunctionKind(
        pattern=Pattern(
            fields.get("schema", _name_glob, ANY), fields.get("name", _name_glob, ANY), place.mark.line
        ),
        volatility=fields.maybe("volatility", _volatilities),
        language=fields.maybe("language", lambda p: frozenset(trial_reader.texts(p))),
        security_definer=fields.maybe("security_definer", lambda p: p.boolean()),
        owner=fields.maybe("owner", lambda p: p.string()),
    )


def _name_glob(place: Place) -> str | None:
    return _named(place, name_part)


def _volatilities(place: Place) -> frozenset[str] | None:
    items = place.items() if isinstance(place.node, yaml_source.Sequence) else [place]
    words = {item.choice({word: word for word in _VOLATILITIES}) for item in items}
    return frozenset(word for word in words if word is not None)


_VOLATILITIES = ("immutable", "stable", "volatile")


def _apart(items: Iterable[Place]) -> tuple[list[Place], list[Place]]:
    """Names of functions, and the word that stands for a reviewed list of them."""
    words: tuple[list[Place], list[Place]] = ([], [])
    for item in items:
        is_word = isinstance(item.node, yaml_source.Scalar) and item.node.value == BUILTIN_SAFE
        words[is_word].append(item)
    return words


def _settings(place: Place, limits: Limits) -> SettingRules:
    fields = place.fields(("allow",))
    items = fields["allow"].items() if "allow" in fields else []
    names = [name for item in items if (name := _setting(item, limits)) is not None]
    return SettingRules(frozenset(names), place.line)


def _setting(place: Place, limits: Limits) -> str | None:
    text = place.string()
    if text is None:
        return None
    name = text.lower()
    limit = next((key for key, pinned in _TIMEOUTS.items() if pinned == name), None)
    if not _SETTING_NAME.fullmatch(name):
        place.fault("expected the name of one setting, as in datestyle or shop.tenant")
    elif name in _IDENTITY:
        place.fault("can never be allowed: the session would leave the backend role that the agent was given")
    elif limit is not None and getattr(limits, f"{limit}_ms") is not None:
        place.fault(f"the agent could lift limits.{limit}; allow the setting or set the limit, not both")
    elif "." not in name and name not in setting_names.KNOWN:
        place.fault(
            "PostgreSQL has no such setting that a session may change", nearest(name, setting_names.KNOWN)
        )
    return name


_IDENTITY = frozenset({"role", "session_authorization"})
_SETTING_NAME = re.compile(r"[a-z_][a-z0-9_$]*(?:\.[a-z_][a-z0-9_$]*)*")


class _ReadsPattern(Protocol):
    def __call__(self, text: str, line: int) -> Pattern: ...


def _patterns(read_one: _ReadsPattern) -> Callable[[Place], tuple[Pattern, ...]]:
    return lambda place: _patterns_of(place.items(), read_one)


def _patterns_of(items: Iterable[Place], read_one: _ReadsPattern) -> tuple[Pattern, ...]:
    found = [_named(item, partial(read_one, line=item.mark.line)) for item in items]
    return tuple(pattern for pattern in found if pattern is not None)


def _named(place: Place, read_one: Callable[[str], T]) -> T | None:
    """The name at ``place`` by ``read_one``, whose ``BadNameError`` is reported there."""
    text = place.string()
    if text is None:
        return None
    try:
        return read_one(text)
    except BadNameError as error:
        place.fault(str(error), error.near)
        return None


# Levels, ceilings and turns


def _rules(place: Place) -> tuple[dict[str, RuleLevel], dict[str, int]]:
    refused = {name: f"this rule {sentence}" for name, sentence in GOVERNED_ELSEWHERE.items()}
    levels = default_levels()
    fields = place.fields(tuple(levels), refused=refused, kind="rule")
    for name, value in fields.found.items():
        levels[name] = value.word(RuleLevel) or levels[name]
    return levels, {name: value.line for name, value in fields.found.items()}


def _cost(place: Place) -> CostLimits:
    fields = place.fields(
        (*_COST_CEILINGS, "max_result_bytes", "unpriceable", "under_limit", "allowances"),
    )
    ceilings = {key: fields.maybe(key, _positive(most)) for key, most in _COST_CEILINGS.items()}
    return CostLimits(
        **ceilings,
        max_result_bytes=fields.maybe("max_result_bytes", lambda p: p.size(1)),
        unpriceable=fields.get("unpriceable", lambda p: p.word(RuleLevel), RuleLevel.REJECT),
        under_limit_full=fields.get("under_limit", lambda p: p.choice({"share": False, "full": True}), False),
        allowances=fields.get("allowances", _allowances, ()),
        line=place.line,
    )


_COST_CEILINGS = {
    "max_total_cost": MAX_COST,
    "max_rows": MAX_ROWS,
    "max_scan_rows": MAX_ROWS,
    "max_modified_rows": MAX_ROWS,
}


def _positive(most: float) -> Callable[[Place], float | None]:
    return lambda place: place.number(0, most)


def _allowances(place: Place) -> tuple[Allowance, ...]:
    found: dict[str, Allowance] = {}
    for item in place.items():
        allowance = _allowance(item)
        if allowance.name in found:
            item.fault(f"named like the allowance on line {shown_line(found[allowance.name].line)}")
        found.setdefault(allowance.name, allowance)
    return tuple(found.values())


def _allowance(place: Place) -> Allowance:
    keys = ("name", "statement", "max_total_cost", "expires")
    fields = place.fields(keys, required=keys)
    return Allowance(
        name=fields.get("name", trial_reader.one_line, ""),
        statement=fields.get("statement", lambda p: p.string(), ""),
        max_total_cost=fields.get("max_total_cost", _positive(MAX_COST), 0.0),
        expires=fields.get("expires", _day, ""),
        line=place.line,
    )


def _day(place: Place) -> str | None:
    day = place.string()
    if day is None:
        return None
    try:
        if not _DAY.fullmatch(day):
            raise ValueError
        date.fromisoformat(day)
    except ValueError:
        place.fault("expected a day, as in 2027-03-01")
        return None
    return day


_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def _limits(place: Place) -> Limits:
    fields = place.fields(
        (*_TIMEOUTS, "result_rows", "result_bytes", "affected_rows"), refused=_SERVER_LIMITS
    )
    times = {f"{key}_ms": fields.maybe(key, lambda p: p.duration_ms()) for key in _TIMEOUTS}
    return Limits(
        **times,
        result_rows=fields.maybe("result_rows", lambda p: p.integer(0, 10**15)),
        result_bytes=fields.maybe("result_bytes", lambda p: p.size()),
        affected_rows=fields.maybe("affected_rows", lambda p: p.integer(0, 10**15)),
        line=place.line,
    )


_TIMEOUTS = {
    "statement_timeout": "statement_timeout",
    "lock_timeout": "lock_timeout",
    "idle_in_transaction_timeout": "idle_in_transaction_session_timeout",
}
"""Keys under ``limits``, with the setting of PostgreSQL that each is pinned by."""
_SERVER_LIMITS = dict.fromkeys(
    ("connections", "connections_per_agent", "startup_timeout", "message_bytes", "statement_bytes"),
    "is a limit of the server's configuration, not of a policy",
)


def _repair(place: Place) -> RepairRules:
    fields = place.fields(("turns", "window", "scope"))
    window_ms = fields.get("window", lambda p: p.duration_ms(1000), 600_000)
    return RepairRules(
        turns=fields.get("turns", lambda p: p.integer(0, MAX_TURNS), 1),
        window_s=window_ms / 1000,
        scope=fields.get("scope", lambda p: p.word(RepairScope), RepairScope.AGENT),
        line=place.line,
    )


def _sandbox(place: Place) -> Sandbox:
    refused = {"dsn": "a DSN holds a secret; put it in the environment and name the variable with dsn_env"}
    keys = ("dsn_env", "classes", "on_stale", "timeout")
    fields = place.fields(keys, required=("dsn_env", "classes"), refused=refused)
    classes = fields["classes"].items() if "classes" in fields else []
    named = {item.word(StatementClass) for item in classes}
    return Sandbox(
        dsn_env=fields.get("dsn_env", lambda p: p.environment_name(), ""),
        classes=frozenset(c for c in named if c is not None),
        on_stale=fields.get("on_stale", lambda p: p.word(OnStale), OnStale.REJECT),
        timeout_ms=fields.get("timeout", lambda p: p.duration_ms(1), 30_000),
        line=place.line,
    )
