"""The queue of replies that PostgreSQL owes, in order.

Each message that reached the server owes one reply: it is relayed, or swallowed where it answers an exchange
of ours, and a reply that carries a rejection has its error rewritten into it. Which error belongs to which
message is never guessed: it belongs to the head. Owns the order and what an error does to it; knows no
sockets and no policy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from policy.lineage import Repair
from proxy.answers import FIRST, Owed, Place
from proxy.effects import AuditEntry, Values
from proxy.exchange import Exchange
from proxy.limits import Meter
from proxy.prepared import AnyChange
from proxy.ruling import Ruling

if TYPE_CHECKING:
    from proxy.writes import HeldWrite


class Counted:
    """A result under a limit: the meters it adds to, and ``headers``, lines of it that are no rows.

    ``over`` is the ErrorResponse that ends it, empty while it is within the limits.
    """

    __slots__ = ("headers", "meters", "over")

    def __init__(self, meters: Sequence[Meter], headers: int) -> None:
        self.meters = meters
        self.headers = headers
        self.over = b""


class Reply:
    """One reply owed.

    ``ruling`` is what its statement was given, ``repair`` the repair of an earlier refusal that a Bind is,
    ``values`` what it binds;
    ``rejection`` the ErrorResponse to put in the place of the substitute's error; ``notice`` is sent before
    the reply's first message; ``name`` is the statement a Parse names; ``changes`` is what forwarding the
    message did to the session's names; ``exchange`` is the question of the proxy's own that it answers;
    ``must_fail`` a message that the server has to refuse, because the gate knows nothing of that name;
    ``at`` how far the answer has come, ``completed`` how many statements have ended well so far;
    ``counted`` is what its rows are counted against; ``write`` is the held write that it is part of.
    """

    __slots__ = (
        "at",
        "bytes_before",
        "changes",
        "completed",
        "counted",
        "entry",
        "exchange",
        "failed",
        "kind",
        "name",
        "notice",
        "rejection",
        "repair",
        "rows_before",
        "ruling",
        "values",
        "write",
    )

    def __init__(
        self,
        kind: Owed,
        entry: AuditEntry | None = None,
        *,
        ruling: Ruling | None = None,
        name: bytes = b"",
        notice: bytes = b"",
        rejection: bytes = b"",
        exchange: Exchange | None = None,
        must_fail: bool = False,
    ) -> None:
        self.kind = kind
        if must_fail or rejection:
            self.at = Place.REFUSED
        elif exchange is not None and kind is Owed.EXECUTE:
            self.at = Place.ASKED
        else:
            self.at = FIRST[kind]
        self.entry = entry
        self.ruling = ruling
        self.repair: Repair | None = None
        self.values: Values | None = None
        self.name = name
        self.notice = notice
        self.rejection = rejection
        self.changes: Sequence[AnyChange] = ()
        self.exchange = exchange
        self.failed = False
        self.completed = 0
        self.counted: Counted | None = None
        self.write: HeldWrite | None = None
        self.rows_before = -1
        self.bytes_before = -1


class Replies:
    """The queue. ``discarding`` is True while the server reads past everything up to the next Sync."""

    def __init__(self) -> None:
        self.queue: deque[Reply] = deque()
        self.discarding = False

    def owe(self, reply: Reply) -> bool:
        """Append ``reply``; False (and nothing owed) where the server will read past its message."""
        if self.discarding:
            if reply.kind is not Owed.SYNC:
                return False
            self.discarding = False
        self.queue.append(reply)
        return True

    def fail_head(self) -> list[Reply]:
        """An error answered the head, a message of the extended protocol: the server discards until Sync.

        Returns the replies that will not come, the head first.
        """
        dropped: list[Reply] = []
        while self.queue and self.queue[0].kind is not Owed.SYNC:
            dropped.append(self.queue.popleft())
        self.discarding = not self.queue
        return dropped
