"""The frozen values of the gate: a policy, a violation, a decision.

Owns the vocabulary every other module of ``policy`` speaks. Knows nothing of YAML (``loader``), of the
parser (``parse``, ``facts``) or of how a rejection is worded (``rejection``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

EMPTY: Mapping[Any, Any] = MappingProxyType({})


def _empty() -> Mapping[Any, Any]:
    """A mapping field's default: Python 3.11 takes a default that cannot be hashed for a mutable one."""
    return EMPTY


class StatementClass(StrEnum):
    """The classes of the contract, the most dangerous last: ``max_danger`` relies on the order."""

    SHOW = "show"
    TRANSACTION = "transaction"
    SET = "set"
    EXPLAIN = "explain"
    PREPARE = "prepare"
    CURSOR = "cursor"
    SELECT = "select"
    COPY_OUT = "copy_out"
    LOCK = "lock"
    NOTIFY = "notify"
    INSERT = "insert"
    COPY_IN = "copy_in"
    MERGE = "merge"
    UPDATE = "update"
    DELETE = "delete"
    CALL = "call"
    DO = "do"
    MAINTENANCE = "maintenance"
    ROLE = "role"
    DDL = "ddl"
    REPLICATION = "replication"
    OTHER = "other"


DANGER: Mapping[StatementClass, int] = MappingProxyType({c: n for n, c in enumerate(StatementClass)})
WRITES = frozenset(
    {
        StatementClass.INSERT,
        StatementClass.UPDATE,
        StatementClass.DELETE,
        StatementClass.MERGE,
        StatementClass.COPY_IN,
        StatementClass.DO,
        StatementClass.LOCK,
        StatementClass.DDL,
        StatementClass.ROLE,
        StatementClass.MAINTENANCE,
        StatementClass.REPLICATION,
    }
)
"""Classes that a ``read_only`` policy never lets through, whatever its rows say; but of LOCK, what reading
takes as well (``Facts.locks_as_reading``). A DO block may end its transaction and begin one that writes."""


class Mode(StrEnum):
    ENFORCE = "enforce"
    OBSERVE = "observe"


class Access(StrEnum):
    READ_ONLY = "read_only"
    READ_WRITE = "read_write"


class Multiple(StrEnum):
    """What becomes of a query string with more than one statement."""

    DRIVER_SETUP = "driver_setup"
    NEVER = "never"
    JUDGED = "judged"


class Catalogs(StrEnum):
    """Whether agents may read pg_catalog and information_schema."""

    OFF = "off"
    FILTERED = "filtered"
    ON = "on"


class Views(StrEnum):
    """What a view must be allowed for."""

    EXPAND = "expand"
    """Itself and everything that reading it reads and calls."""
    OWN = "own"
    """Itself alone: whoever made it answers for the rest."""


class Verdict(StrEnum):
    ALLOW = "allow"
    REJECT = "reject"


class Needs(StrEnum):
    """What a person must do before a class the policy rejects may run, outside this gate."""

    APPROVAL = "approval"
    RUNBOOK = "runbook"


class RuleLevel(StrEnum):
    REJECT = "reject"
    WARN = "warn"
    OFF = "off"


class RepairScope(StrEnum):
    """How far the answers to a repairable rejection are looked for."""

    CONNECTION = "connection"
    APPLICATION = "application"
    """Connections of the agent that gave the same application_name at start-up."""
    AGENT = "agent"


class Halt(StrEnum):
    """Why no repair is open (contract §4)."""

    CLASS_NOT_REPAIRABLE = "class_not_repairable"
    REPAIR_BUDGET_EXHAUSTED = "repair_budget_exhausted"
    UNCHANGED = "unchanged"
    CLASS_CHANGED = "class_changed"
    RELATIONS_CHANGED = "relations_changed"
    PREDICATE_REMOVED = "predicate_removed"
    PREDICATE_WEAKENED = "predicate_weakened"
    TAUTOLOGY = "tautology"
    DISTINCT_FOR_LIMIT = "distinct_for_limit"
    DUMMY_LITERAL = "dummy_literal"
    APPROVAL_REQUIRED = "approval_required"
    RUNBOOK_REQUIRED = "runbook_required"
    SANDBOX_STALE = "sandbox_stale"


@dataclass(frozen=True, slots=True)
class ClassRow:
    """One row of ``statements:``. ``line`` is its line in the policy file, 0 where no row decided."""

    decide: Verdict
    repair_once: bool = False
    needs: Needs | None = None
    line: int = 0


_NO_ROW: Final = ClassRow(Verdict.REJECT)


@dataclass(frozen=True, slots=True)
class Pattern:
    """``schema.name``, either part with ``*`` wildcards; exact, case-sensitive, after PostgreSQL's folding.

    ``matches`` and ``covers_schema`` are the only readers of the two parts.
    """

    schema: str
    name: str
    line: int = 0

    def matches(self, schema: str, name: str) -> bool:
        return glob_match(self.schema, schema) and glob_match(self.name, name)

    def covers_schema(self, schema: str) -> bool:
        """True when the pattern stands for every name of ``schema``."""
        return self.name == "*" and glob_match(self.schema, schema)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


def glob_match(pattern: str, text: str) -> bool:
    """``*`` matches any run of characters; nothing else is special."""
    head, *rest = pattern.split("*")
    if not rest:
        return pattern == text
    if not text.startswith(head):
        return False
    at = len(head)
    for part in rest[:-1]:
        found = text.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return len(text) - at >= len(rest[-1]) and text.endswith(rest[-1])


@dataclass(frozen=True, slots=True)
class RelationRules:
    """``relations:``; deny wins over allow."""

    allow: tuple[Pattern, ...] = ()
    deny: tuple[Pattern, ...] = ()
    catalogs: Catalogs = Catalogs.OFF
    views: Views = Views.EXPAND
    line: int = 0


@dataclass(frozen=True, slots=True)
class ColumnRule:
    """``columns:`` of one relation: an agent may use ``allow`` (None = every column) less ``deny``."""

    relation: Pattern
    allow: frozenset[str] | None = None
    deny: frozenset[str] = frozenset()
    line: int = 0

    def hides(self, column: str) -> bool:
        return column in self.deny or (self.allow is not None and column not in self.allow)


@dataclass(frozen=True, slots=True)
class FunctionKind:
    """An entry of ``functions.allow`` that tells functions by what they are, which takes a catalog to know.

    None asks nothing of that part. ``volatility`` holds the contract's words: immutable, stable, volatile.
    Never stands for a function of a system schema.
    """

    pattern: Pattern
    volatility: frozenset[str] | None = None
    language: frozenset[str] | None = None
    security_definer: bool | None = None
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class FunctionRules:
    """``functions:``; ``builtin_safe`` stands for the reviewed list of ``policy.builtin``; deny wins."""

    builtin_safe: bool = False
    allow: tuple[Pattern, ...] = ()
    kinds: tuple[FunctionKind, ...] = ()
    deny: tuple[Pattern, ...] = ()
    line: int = 0


@dataclass(frozen=True, slots=True)
class SettingRules:
    """``settings.allow``: names an agent may set beside the base set (``settings.BASE``), lower case."""

    allow: frozenset[str] = frozenset()
    line: int = 0


@dataclass(frozen=True, slots=True)
class Allowance:
    """A statement (constants lifted, names exact) with a price ceiling of its own until a day."""

    name: str
    statement: str
    max_total_cost: float
    expires: str
    line: int = 0


@dataclass(frozen=True, slots=True)
class CostLimits:
    """``cost:``. Costs in planner units, rows in rows, sizes in bytes; None = no limit."""

    max_total_cost: float | None = None
    max_rows: float | None = None
    max_scan_rows: float | None = None
    max_result_bytes: int | None = None
    max_modified_rows: float | None = None
    unpriceable: RuleLevel = RuleLevel.REJECT
    under_limit_full: bool = False
    allowances: tuple[Allowance, ...] = ()
    line: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """``limits:``. Times in milliseconds, sizes in bytes; None = not limited.

    A time of None leaves the backend role's own setting; 0 switches it off, as it does in PostgreSQL.
    """

    statement_timeout_ms: int | None = None
    lock_timeout_ms: int | None = None
    idle_in_transaction_timeout_ms: int | None = None
    result_rows: int | None = None
    result_bytes: int | None = None
    affected_rows: int | None = None
    line: int = 0


@dataclass(frozen=True, slots=True)
class RepairRules:
    """``repair:``. ``window_s`` in seconds."""

    turns: int = 1
    window_s: float = 600.0
    scope: RepairScope = RepairScope.AGENT
    line: int = 0


class OnStale(StrEnum):
    """``sandbox.on_stale``: what becomes of a statement that the clone cannot speak for."""

    REJECT = "reject"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Sandbox:
    """``sandbox:``. ``dsn_env`` names the environment variable that holds the clone's DSN, ``timeout_ms`` is
    how long a statement may take there."""

    dsn_env: str
    classes: frozenset[StatementClass]
    on_stale: OnStale = OnStale.REJECT
    timeout_ms: int = 30_000
    line: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One statement of a test, and what is expected of its decision.

    None, or nothing in a tuple, asks nothing of that part. ``fails`` is the SQLSTATE that PostgreSQL is taken
    to answer an allowed statement with, None for success; ``position`` the character of ``sql``, from 1, that
    the error points at. ``connection`` is a name for the one it is sent on.
    """

    sql: str
    expect: Verdict
    rule: str | None = None
    sqlstate: str | None = None
    hint_contains: tuple[str, ...] = ()
    message_contains: tuple[str, ...] = ()
    halt: Halt | None = None
    fails: str | None = None
    position: int | None = None
    connection: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class PolicyTest:
    """One entry of ``tests:``: a statement, or a dialogue of several. ``source`` is the file it stands in."""

    steps: tuple[Step, ...]
    name: str | None = None
    agent: str = ""
    source: str = ""
    line: int = 0

    @property
    def sql(self) -> str:
        """Its statement, of a dialogue the first."""
        return self.steps[0].sql if self.steps else ""


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy file, loaded whole or not at all (``loader.load``).

    ``sha256`` is over the bytes of the file and of those it extends; ``source`` its path as the DBA gave it,
    and the first of ``files``. ``rules`` holds the effective level of every rule that has one. ``lines``
    tells the line of each section that there is. Which file it stands in ``inheritance.place_of`` says.
    """

    name: str
    source: str
    sha256: str
    mode: Mode = Mode.ENFORCE
    multiple: Multiple = Multiple.DRIVER_SETUP
    access: Access = Access.READ_ONLY
    statements: Mapping[StatementClass, ClassRow] = field(default_factory=_empty)
    relations: RelationRules = RelationRules()
    columns: tuple[ColumnRule, ...] = ()
    functions: FunctionRules = FunctionRules()
    settings: SettingRules = SettingRules()
    rules: Mapping[str, RuleLevel] = field(default_factory=_empty)
    rule_lines: Mapping[str, int] = field(default_factory=_empty)
    cost: CostLimits | None = None
    limits: Limits = Limits()
    repair: RepairRules = RepairRules()
    sandbox: Sandbox | None = None
    tests: tuple[PolicyTest, ...] = ()
    lines: Mapping[str, int] = field(default_factory=_empty)
    files: tuple[str, ...] = ()

    def row(self, statement_class: StatementClass) -> ClassRow:
        """The row that decides ``statement_class``; a class with no row is rejected."""
        return self.statements.get(statement_class, _NO_ROW)

    def level(self, rule: str, default: RuleLevel) -> RuleLevel:
        return self.rules.get(rule, default)

    @property
    def counts_repairs(self) -> bool:
        """Whether an answer to a refusal is ever looked for: else there is nothing to ask a ledger."""
        repairable = any(row.repair_once for row in self.statements.values())
        return self.mode is Mode.ENFORCE and self.repair.turns >= 1 and repairable


@dataclass(frozen=True, slots=True)
class Violation:
    """One rule's objection to one place of one statement.

    ``message`` says what is wrong in a sentence without a full stop's worth of advice; ``hint`` is the next
    step in the imperative; ``suggestion`` a ready replacement for the name at fault. ``position`` counts
    characters of the statement as sent, from 1. ``line`` is the policy line that decided (0: a default).
    ``repairable`` says whether the rule's fault is one that the decision table lets an agent repair once
    (the class's row must allow it too). ``sqlstate`` None means the rule's own default. ``routine`` is the
    function of PostgreSQL's source whose error this stands in for, told in that error's words alone: drivers
    know it by them.
    """

    rule: str
    message: str
    hint: str
    object: str | None = None
    position: int | None = None
    suggestion: str | None = None
    sqlstate: str | None = None
    halt: Halt | None = None
    repairable: bool = False
    line: int = 0
    schema: str | None = None
    table: str | None = None
    column: str | None = None
    level: RuleLevel = RuleLevel.REJECT
    routine: str | None = None


@dataclass(frozen=True, slots=True)
class RepairTerms:
    """What the rejection tells the agent of its repair (contract §4 ``repair``)."""

    allowed: bool = False
    turns_left: int = 0
    keep_relations: tuple[str, ...] = ()
    keep_predicates: tuple[str, ...] = ()
