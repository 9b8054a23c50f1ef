"""What one connection's search_path is taken for, and how that is kept true.

Owns every way in which the path in force may come to be another than the one known: a statement sets it, a
transaction that set it ends, code that no text shows sets it, the schema changes beneath it. Until the server
has said which holds, names are judged along every path that may. What names mean along a path is the gate's.

The setting lists schemas; the server searches those of them that are there and that the role may use
(recomputeNamespacePath in namespace.c). A schema that is made, or opened to the role, while a session lives
is therefore searched from then on although nobody has set anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from policy.catalog_names import CatalogNames
from policy.names import SearchPath
from policy.settings import split_identifiers
from proxy.answers import Owed
from proxy.exchange import Answer, Exchange
from proxy.phase import Phase
from proxy.replies import Reply
from proxy.ruling import Ruling
from proxy.waiting import NotYetError, Unanswered
from proxy.wire import backend as wire

if TYPE_CHECKING:
    from proxy.conversation import Conversation

_ASK_USED: Final = (
    b"SELECT pg_catalog.current_schemas(false), pg_catalog.current_setting('search_path') /* pgturnstile */"
)
_ASK_LISTED: Final = b"SHOW search_path /* pgturnstile */"
_TEMPORARY: Final = "pg_temp"
_BUILT_IN: Final = "pg_catalog"
_CLOSED: Final = (Owed.CLOSE, Owed.CLOSE)


class Paths:
    """The search_path of ``conversation``: ``used`` is what the server searches at the start of the session,
    ``listed`` what its setting names, as far as it is known."""

    def __init__(
        self, conversation: Conversation, used: SearchPath, listed: SearchPath, *, reported: bool
    ) -> None:
        self._c = conversation
        self.unsettled = False
        """True until the server has been asked which path holds."""
        self.hidden = False
        """True from a statement that may set the path unseen until the server has said what it made of it."""
        self.failed = False
        """True from the server's word that the transaction has failed until what may end it, or a part of it,
        was forwarded."""
        self._reported = reported
        """True where the server says of itself whenever the setting changes, as it does from 18 on."""
        self._listed = listed
        self._first, self._first_listed = used, listed
        self._left: tuple[SearchPath, ...] = ()
        """Paths that the end of the open transaction, or of a part of it, may bring back."""
        self._narrowable = False
        """True where the server may say more exactly which of the schemas it searches."""

    # --- what may change it ---

    def widen(self, ruling: Ruling) -> None:
        """A statement that sets the path was forwarded."""
        set_to = [self._expand(path) for path in ruling.paths]
        if ruling.resets_path:
            set_to += [self._first, *self._others([self._first], self._first_listed)]
        self._may_be(set_to)

    def bring_back(self) -> None:
        """A transaction, or a part of one, ends: with it may end what it made of the path."""
        self.failed = False
        if self._left:
            self._c.use_paths(self._left)
            self.unsettled = True

    def hide(self) -> None:
        """A statement that may set the path unseen was forwarded."""
        self.hidden = True
        if not self._reported:
            self.unsettled = True

    def report(self, value: str) -> None:
        """The server says that the setting is ``value`` now."""
        listed = self._expand(split_identifiers(value) or ())
        if listed != self._listed:
            self._listed = listed
            self._may_be([listed])

    def schema_changed(self) -> None:
        """Names are looked up in another snapshot of the schema than before."""
        more = self._others(self._c.scope.paths, self._listed)
        if more:
            self._c.use_paths((*self._c.scope.paths, *more))
            self.unsettled = self._narrowable = True

    def transaction_ended(self) -> None:
        """The server is idle, and has answered everything."""
        if self._left and not self.unsettled:
            self.bring_back()

    def _may_be(self, paths: Sequence[SearchPath]) -> None:
        """Until the server says which path holds, names are judged along every path that may."""
        now = self._c.scope.paths
        self._left = _distinct([*self._left, *now, *paths])
        self._c.use_paths(_distinct([*now, *paths]))
        self.unsettled = True

    def _others(self, paths: Sequence[SearchPath], listed: SearchPath) -> tuple[SearchPath, ...]:
        """What must be added to ``paths`` so that a name is looked for in every schema that is ``listed`` and
        there: the server may pass over any that stands before it."""
        scope = self._c.scope
        if not isinstance(scope, CatalogNames):
            return ()
        there = [schema for schema in listed if schema in scope.catalog.content.schemas]
        return _alone(there, paths)

    @property
    def _may_be_temporary(self) -> bool:
        return any(_TEMPORARY in path for path in (self._listed, *self._c.scope.paths))

    def _expand(self, path: Iterable[str]) -> SearchPath:
        """``path`` as the server reads it; pg_catalog at its head stands where it is searched anyway."""
        named = (self._c.identity.role if schema == "$user" else schema for schema in path)
        expanded = tuple(schema for schema in named if schema)
        return expanded[1:] if expanded[:1] == (_BUILT_IN,) else expanded

    # --- what the server says of it ---

    def ready(self) -> None:
        """The server has answered everything, and waits."""
        self.failed = self._c.status == b"E"
        if self.failed:
            return
        self.hidden = self.hidden and self._c.unsynced
        if self.unsettled:
            self._ask(used=self._c.status == b"I")

    def uncover(self) -> None:
        """Have the server say what hidden code has made of the path, before a name is looked up along it.

        Raises NotYetError until it has. Behind what failed there is nothing to ask: the server reads past it,
        and in a transaction that has failed it looks no name up until that has ended (``adrift``).
        """
        conversation = self._c
        if not self.hidden or conversation.replies.discarding or self.failed:
            return
        queue = conversation.replies.queue
        if not queue:
            self._ask(used=False, sync=False)
            self.hidden = False
        raise NotYetError(Unanswered(queue, queue[-1]), flush=True)

    @property
    def adrift(self) -> bool:
        """True where the end of a failed transaction, or of a part of it, may bring back what hidden code has
        made of the path: nobody can tell along which path what stands behind it in one string would run."""
        return self.hidden and self.failed

    def narrow(self) -> None:
        """A statement is refused along one of the paths that may hold: have the server say whether it does.

        Raises NotYetError where it is asked. Not in the middle of a pipeline, which a Sync of ours would end,
        nor where the question would make the schema for temporary objects. Inside a transaction it takes a
        snapshot, as does all that looks names up, and the refusal would end it.
        """
        conversation = self._c
        queue = conversation.replies.queue
        if not self._narrowable or conversation.unsynced or conversation.replies.discarding:
            return
        if conversation.phase is not Phase.READY or conversation.agent_frames.mid_copy_data:
            return
        if not queue:
            if conversation.status == b"E" or self._may_be_temporary:
                return
            self._narrowable = False
            self._ask(used=True)
        raise NotYetError(Unanswered(queue, queue[-1]))

    def _ask(self, *, used: bool, sync: bool = True) -> None:
        """Have the server say which path holds; the agent waits for the answer.

        By names of our own, since a Query would drop the agent's unnamed statement, and an unnamed portal of
        ours take the place of the agent's. They are closed beforehand as well: a question that was cancelled
        has left them behind. Inside a transaction SHOW is asked, which takes no snapshot: the agent may still
        say SET TRANSACTION. So it is where temporary objects may come first: current_schemas would make the
        schema for them (fetch_search_path in namespace.c). A Sync ends the transaction of an open pipeline:
        there the question has none, or waits for the agent's.
        """
        conversation = self._c
        if conversation.agent_frames.mid_copy_data or (sync and conversation.unsynced):
            return
        used = used and not self._may_be_temporary
        self.unsettled = not sync
        text, learn = (_ASK_USED, self._learn_used) if used else (_ASK_LISTED, self._learn_listed)
        name = conversation.path_statement
        exchange = Exchange(learn if sync else self._learn_here)
        kinds = (*_CLOSED, Owed.PARSE, Owed.BIND, Owed.EXECUTE, *_CLOSED, *((Owed.SYNC,) if sync else ()))
        replies = conversation.replies
        for kind in kinds:
            replies.owe(Reply(kind, exchange=exchange))
        conversation.awaited = Unanswered(replies.queue, replies.queue[-1])
        close = wire.close_message(b"P", name) + wire.close_message(b"S", name)
        conversation.forward(
            close
            + wire.parse_message(name, text)
            + wire.bind_message(name, name)
            + wire.execute_message(name)
            + close
            + (wire.SYNC if sync else wire.FLUSH)
        )

    def _learn_used(self, answer: Answer) -> bytes:
        said = self._said(answer)
        if said is not None:
            used, listed = said
            self._listed = self._expand(split_identifiers(listed) or ())
            self._narrowable = False
            self._hold_to((wire.text_array(used or "{}"),))
        return b""

    def _learn_listed(self, answer: Answer) -> bytes:
        said = self._said(answer)
        if said is not None:
            self._listed = self._expand(split_identifiers(said[0]) or ())
            more = self._others([self._listed], self._listed)
            self._narrowable = bool(more)
            self._hold_to((self._listed, *more))
        return b""

    def _learn_here(self, answer: Answer) -> bytes:
        """The same inside a pipeline, at whose end the server is asked again.

        An error is the agent's: a timeout, a cancel, a transaction that has failed end what it has sent as
        well, up to its Sync.
        """
        if answer.error is not None:
            self.hidden = self.unsettled = True
            return wire.frame(b"E", answer.error)
        if answer.skipped or not answer.rows:
            self._c.surprised("the server does not say which search_path holds")
            return b""
        (said,) = wire.decode_row(answer.rows[0])
        self._listed = self._expand(split_identifiers((said or b"").decode()) or ())
        self._may_be([self._listed, *self._others([self._listed], self._listed)])
        return b""

    def _hold_to(self, paths: tuple[SearchPath, ...]) -> None:
        self._left = () if self._c.status == b"I" else _distinct([*self._left, *paths])
        self._c.use_paths(paths)

    def _said(self, answer: Answer) -> list[str] | None:
        """What the server says of the path; None where it does not, or the path may be another by now."""
        if answer.error is not None or not answer.rows:
            self.unsettled = True
        if self.unsettled:
            return None
        return [(value or b"").decode() for value in wire.decode_row(answer.rows[0])]


def _alone(schemas: Iterable[str], paths: Sequence[SearchPath]) -> tuple[SearchPath, ...]:
    """Each of ``schemas`` as a path of its own, but for those that one of ``paths`` begins with."""
    first = {path[0] for path in paths if path}
    return tuple((schema,) for schema in dict.fromkeys(schemas) if schema not in first)


def _distinct(paths: Iterable[SearchPath]) -> tuple[SearchPath, ...]:
    return tuple(dict.fromkeys(paths))
