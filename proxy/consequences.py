"""What a statement that goes its way does to what the session keeps account of: names and the search_path.

Owns the reading of a ruling's actions, its own and those of what it EXECUTEs or FETCHes. How long a change is
open is ``prepared``'s, which path holds ``paths``'s.
"""

from __future__ import annotations

from collections.abc import Sequence

from policy.facts import SessionAction, SessionRef
from proxy.conversation import Conversation
from proxy.in_force import InForce
from proxy.prepared import AnyChange, Prepared
from proxy.ruling import Price, Ruling


class Consequences:
    """Of the statements of one connection."""

    def __init__(self, conversation: Conversation, in_force: InForce) -> None:
        self._c = conversation
        self._in_force = in_force

    def of(self, ruling: Ruling, price: Price | None, *, opened: bool = False) -> list[AnyChange]:
        """What forwarding the statement, let through at ``price``, does to names and search_path; returns the
        former."""
        executed = [
            (name, found.ruling) for name, found in self._in_force.executed(ruling) if found is not None
        ]
        changes: list[AnyChange] = []
        places = ruling.places
        for name, run in [(None, ruling), *executed]:
            if run.alters:
                self._c.altered = self._c.has_altered = True
            if run.paths or run.resets_path:
                self._c.paths.widen(run)
            elif run.ends:
                self._c.paths.bring_back()
            if run.hides:
                self._c.paths.hide()
            for n, ref in enumerate(run.actions):
                # Running what PREPARE made does not make it again.
                if (ref.action, ref.name) == (SessionAction.PREPARE, name):
                    continue
                # Nor does an Execute of the cursor itself declare it.
                if ref.action is not SessionAction.DECLARE or not opened:
                    made = self._act(ref, run, price)
                    for change in made:
                        change.place = places[n] if run is ruling else None
                    changes += made
        for cursor in self._in_force.fetched(ruling):
            found = self._c.names.portal(cursor)
            if found is not None and (found.ruling.paths or found.ruling.resets_path):
                self._c.paths.widen(found.ruling)
            if found is not None and found.ruling.hides:
                self._c.paths.hide()
        return changes

    def _act(self, ref: SessionRef, ruling: Ruling, price: Price | None) -> Sequence[AnyChange]:
        name = (ref.name or "").encode()
        match ref.action:
            case SessionAction.PREPARE:
                return (self._c.names.prepare(name, Prepared(ruling)),)
            case SessionAction.DEALLOCATE:
                return (self._c.names.forget(name),)
            case SessionAction.CLOSE:
                return self._c.names.close(name)
            case SessionAction.DEALLOCATE_ALL | SessionAction.DISCARD_ALL:
                return self._c.names.forget_all()
            case SessionAction.DECLARE:
                return (*self._c.names.vacate(name), self._c.names.declare(name, ruling, ref.hold, price))
            case _:
                return ()
