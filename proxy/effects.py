"""What a Session wants done, as data.

Owns the effects that ``Session.from_frontend``, ``from_backend``, ``decided`` and ``tried`` return, in the
order in which they are to be carried out. Plain slotted classes, because the hot path makes one or two a
message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from policy.catalog_names import SessionNames
from policy.decision import Decision
from policy.dialogue import Judged
from policy.lineage import Part, Repair
from policy.model import Policy
from policy.sandbox import Session, Tried
from proxy.dsn import CloneTarget
from proxy.ruling import Priced
from proxy.wire.frontend import Bind


class ToFrontend:
    """Write ``data`` to the agent's connection."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


class ToBackend:
    """Write ``data`` to PostgreSQL's connection."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


class Decide:
    """Have ``text`` judged away from the event loop (``Gate.rule_surely``) and call ``Session.decided`` with
    the ruling. With ``renew``, its names are first looked up in the schema as it is by now; ``temporary`` as
    in ``Gate.names``.

    Until then the session is ``held``: the agent's messages wait.
    """

    __slots__ = ("names", "renew", "temporary", "text")

    def __init__(
        self, text: bytes, names: SessionNames, *, renew: bool = False, temporary: bool = False
    ) -> None:
        self.text = text
        self.names = names
        self.renew = renew
        self.temporary = temporary


class Consult:
    """Call ``ask``, which waits for the store of repairs, away from the event loop, and ``Session.consulted``
    with what it returns. Until then the session is ``held``."""

    __slots__ = ("ask",)

    def __init__(self, ask: Callable[[], Judged]) -> None:
        self.ask = ask


class Weigh:
    """Call ``weigh``, which reads a long plan or words the refusal of a long statement, away from the event
    loop, and ``Session.weighed`` with what it returns. Until then the session is ``held``."""

    __slots__ = ("weigh",)

    def __init__(self, weigh: Callable[[], Priced]) -> None:
        self.weigh = weigh


class Tell:
    """Call ``tell``, which waits for the store of repairs, away from the event loop; every later effect of
    the connection waits for it. So nobody reads an answer before the store knows what it was."""

    __slots__ = ("tell",)

    def __init__(self, tell: Callable[[], object]) -> None:
        self.tell = tell


class Trial(NamedTuple):
    """A statement to try.

    ``text`` and ``types`` as its Parse had them; ``values`` is the part of its Bind behind the names, None
    for a Query; ``formats`` the Bind's format codes. ``question`` and ``session`` are what the database was
    asked and said. ``commits``: nothing follows it in its transaction, so that deferred constraints hold now.
    """

    text: bytes
    types: tuple[int, ...]
    values: bytes | None
    formats: tuple[int, ...]
    question: str
    session: Session
    policy: Policy
    commits: bool


class TryOut:
    """Have ``trial`` run on ``target`` and call ``Session.tried`` with what came of it. Until then the
    session is ``held``."""

    __slots__ = ("target", "trial")

    def __init__(self, target: CloneTarget | None, trial: Trial) -> None:
        self.target = target
        self.trial = trial


class Record:
    """A decision whose outcome is known: write its audit line."""

    __slots__ = ("entry",)

    def __init__(self, entry: AuditEntry) -> None:
        self.entry = entry


class Close:
    """Close both connections once what was written has left. ``reason`` is for the log.

    ``abandoned`` is True where what still runs in the server should be cancelled, nobody being left to take
    the answer.
    """

    __slots__ = ("abandoned", "reason")

    def __init__(self, reason: str, abandoned: bool = False) -> None:
        self.reason = reason
        self.abandoned = abandoned


class CancelRunning:
    """Cancel what the server runs. Until ``Session.cancelled`` is called, once the server has dealt with the
    request, the agent's messages wait: it must hit nothing else."""

    __slots__ = ()


class JudgedAnew:
    """From here on the session judges by the gate that ``Session.adopt`` gave: what is to be recorded before
    this effect was decided by the one before, and all that follows by this one."""

    __slots__ = ()


Effect = (
    ToFrontend
    | ToBackend
    | Decide
    | Consult
    | Weigh
    | Tell
    | TryOut
    | Record
    | Close
    | CancelRunning
    | JudgedAnew
)


class Values:
    """What a statement was bound to: the Bind, and the OIDs of its parameters as far as they are known."""

    __slots__ = ("message", "types")

    def __init__(self, message: Bind, types: Sequence[int]) -> None:
        self.message = message
        self.types = types


class AuditEntry:
    """One decision and what came of it. Filled by the session, read by ``audit``.

    ``protocol`` is simple, extended or copy. ``started`` is the session clock's reading in seconds when the
    statement arrived, ``ms`` the milliseconds until its outcome. ``sqlstate`` is the error that ended it, the
    gate's own for a rejection; ``outcome_known`` is False where the connection ended first or an earlier
    failure in its pipeline kept PostgreSQL from running it. ``cost`` is the plan's price where one was asked,
    ``sandbox`` what came of trying it on a clone, where that was to be,
    ``repair`` the repair of an earlier refusal that the statement is, ``settled`` whether the ledger has
    heard what came of it; ``part`` is the statement's place in the lineage of that refusal, also where it was
    halted, or in the one it opened; ``values`` are those bound, until the ledger needs them no more.
    """

    __slots__ = (
        "bytes",
        "command_tag",
        "cost",
        "decision",
        "id",
        "ms",
        "outcome_known",
        "part",
        "protocol",
        "repair",
        "rows",
        "sandbox",
        "settled",
        "sqlstate",
        "started",
        "values",
    )

    def __init__(self, entry_id: str, decision: Decision, protocol: str, started: float) -> None:
        self.id = entry_id
        self.decision = decision
        self.protocol = protocol
        self.started = started
        self.command_tag: str | None = None
        self.cost: Mapping[str, Any] | None = None
        self.repair: Repair | None = None
        self.part: Part | None = None
        self.sandbox: Tried | None = None
        self.values: Values | None = None
        self.settled = False
        self.rows = 0
        self.bytes = 0
        self.sqlstate: str | None = None
        self.ms = 0.0
        self.outcome_known = False

    def answers(self, repair: Repair | None) -> None:
        """The statement is ``repair``; None: it stands for itself."""
        self.repair = repair
        self.part = None if repair is None else repair.part
