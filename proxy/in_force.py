"""Which ruling holds now: on a text, on what was prepared or bound before, on what SQL EXECUTE and FETCH run.

Owns the judging anew of what an earlier policy, path or schema had judged, and the refusals that the session
makes itself. What becomes of a ruling, and every message, is ``agent_side``'s. Knows no bytes but texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from policy.decision import Allow, Decision, Reject, statement_class
from policy.facts import QueryString, SessionAction
from policy.filtered_parameters import named_parameters
from policy.model import RepairTerms, StatementClass, Violation
from policy.parse import parse_heavy
from policy.price import catalog_of
from policy.rules import insert_missing_not_null
from proxy.conversation import Conversation
from proxy.limits import Meter
from proxy.pace import MOST_AT_ONCE
from proxy.prepared import AnyChange, Portal, Prepared
from proxy.ruling import Ruling
from proxy.waiting import NotYetError


class InForce:
    """The rulings of one connection, as they are by the policy, the path and the schema of now."""

    def __init__(self, conversation: Conversation) -> None:
        self._c = conversation

    def rule(self, text: bytes) -> Ruling | None:
        """The ruling on ``text``, None where it has to be worked out away from here.

        Raises NotYetError where the server has to say first along which search_path names are looked up.
        """
        self._c.paths.uncover()
        ruling = self._rule(text)
        if ruling is None or not ruling.allowed:
            self._c.paths.narrow()
        return ruling

    def _rule(self, text: bytes) -> Ruling | None:
        conversation = self._c
        conversation.keep_up()
        if conversation.altered and conversation.schema_outdated:
            return self._rule_alteration(text)
        known = conversation.cache.get(text)
        if known is not None:
            return known
        conversation.judged += 1
        if conversation.judged > MOST_AT_ONCE:
            return None
        return conversation.gate.rule(text, conversation.scope)

    def _rule_alteration(self, text: bytes) -> Ruling | None:
        """The ruling on one more change of the schema, which needs no reading of the last one; else None.

        It is judged as in a transaction that is still open, where nothing the snapshot says is certain. So a
        migration does not read the catalog anew at each step: what is no such change asks for that.
        """
        gate = self._c.gate
        ruling = gate.rule(text, gate.names(self._c.scope.paths, unsettled=True))
        return ruling if ruling is not None and ruling.allowed and ruling.alters else None

    def again(self, ruling: Ruling) -> Ruling | None:
        """The ruling on a prepared statement now: on another path or schema its names may mean others."""
        conversation = self._c
        conversation.paths.uncover()
        conversation.keep_up()
        if not conversation.altered or not conversation.schema_outdated:
            known = ruling.names is conversation.scope and ruling.policy is conversation.gate.policy
            if known or self._in_force(ruling):
                return ruling
        return self.rule(ruling.text)

    def _in_force(self, ruling: Ruling) -> bool:
        """True where the policy and the names that ``ruling`` rests on are those of now."""
        return ruling.policy is self._c.gate.policy and ruling.names == self._c.scope

    def held_to(self, prepared: Prepared, ruling: Ruling) -> Ruling:
        """What is prepared, by the newest ruling on its text: the server has it as it was sent then."""
        if ruling is prepared.ruling or not ruling.allowed:
            return ruling
        if ruling.sent != prepared.ruling.sent:
            return self._outdated(ruling)
        checked = self.check_types(prepared.types, ruling)
        if checked is ruling:
            prepared.ruling = ruling
        return checked

    def _outdated(self, ruling: Ruling) -> Ruling:
        """What was prepared shows of the catalogs what the policy of then showed of the schema of then.

        Drivers prepare the statement anew where they know this for PostgreSQL's own error (plancache.c):
        asyncpg and pgjdbc by SQLSTATE and routine, pgx by the message.
        """
        violation = Violation(
            "relation-not-allowed",
            "cached plan must not change result type",
            "The policy or the schema has changed since this was prepared: prepare it again.",
            sqlstate="0A000",
            routine="RevalidateCachedQuery",
        )
        query = ruling.decision.query
        return self.objection(violation, statement_class(query), query)

    def check_types(self, types: tuple[int, ...], ruling: Ruling) -> Ruling:
        """A parameter of a type that names objects would name any, whatever the text says of it."""
        violation = named_parameters(types, self._c.gate.policy, catalog_of(ruling.names))
        if violation is None:
            return ruling
        return self.objection(violation, StatementClass.PREPARE, ruling.decision.query)

    def check_values(self, values: Sequence[bytes | None], ruling: Ruling) -> Ruling:
        """A NULL that is bound to what wants a value is judged as one that is written."""
        nulls = [number for number in ruling.wanted if values[number - 1 : number] == (None,)]
        if not nulls or not ruling.allowed:
            return ruling
        query = ruling.decision.query
        for facts in query.statements:
            violation = insert_missing_not_null.unbound(facts, ruling.names, self._c.gate.policy, nulls)
            if violation is not None:
                return self.objection(violation, statement_class(query), query)
        return ruling

    def judged_anew(self, portal: Portal) -> Ruling:
        """The ruling by the policy in force on what was bound or declared, maybe under another.

        Its names mean what they meant then, and its price is read from the plan of then.
        """
        ruling, gate = portal.ruling, self._c.gate
        if ruling.policy is gate.policy:
            return ruling
        names = gate.names(ruling.names.paths, unsettled=self._c.unsettled, temporary=self._c.temporary)
        text = ruling.text
        fresh = gate.cache(names).get(text) or gate.rule(text, names) or gate.rule_slowly(text, names)
        if fresh.allowed and fresh.sent != ruling.sent:
            fresh = self._outdated(fresh)
        elif fresh.allowed and fresh.priced and portal.price is None:
            fresh = gate.unasked(fresh)
        elif fresh.allowed and fresh.priced and portal.price is not None:
            weighed = gate.weighed(fresh, portal.price.plan, self._c.now)
            portal.price = weighed.price or portal.price
            fresh = weighed.refusal or fresh
        portal.ruling = fresh
        if portal.meter is None:
            portal.meter = Meter()
        return fresh

    def fetched(self, ruling: Ruling) -> list[bytes]:
        """The cursors that FETCH reads, by itself or in what EXECUTE runs."""
        cursors = fetched(ruling)
        for run in self.executed_rulings(ruling):
            cursors += fetched(run)
        return cursors

    def found_now(self, portal: Portal) -> Ruling:
        """The ruling on what was bound, whose names the server looks up only when it runs."""
        ruling, scope = portal.ruling, self._c.scope
        if not ruling.names_late or self._in_force(ruling):
            return ruling
        fresh = self.rule(ruling.text)
        if fresh is None and parse_heavy(ruling.text):
            return self._outdated(ruling)
        fresh = fresh or self._c.gate.rule_slowly(ruling.text, scope)
        if fresh.allowed and fresh.sent != ruling.sent:
            return self._outdated(fresh)
        if fresh.allowed and fresh.priced and ruling.names.paths != scope.paths:
            return self._c.gate.exchanged(fresh)
        return fresh

    def await_names(self, ruling: Ruling) -> None:
        """Wait until it is certain what the names stand for that ``ruling`` runs."""
        if ruling.plain:
            return
        for name in ruling.executes:
            wait_for(self._c.names.doubt(name.encode()))
        for cursor in self.fetched(ruling):
            wait_for(self._c.names.cursor_doubt(cursor))

    def check_named(self, ruling: Ruling) -> Ruling:
        """What SQL EXECUTE runs is judged as prepared here, under the names in force now, and what FETCH
        reads as it was opened."""
        if ruling.plain or not ruling.allowed:
            return ruling
        if ruling.statements > 1 and self._c.paths.adrift:
            return self._behind_failure(ruling)
        for cursor in self.fetched(ruling):
            opened = self._c.names.portal(cursor)
            if opened is not None and not self.judged_anew(opened).allowed:
                return opened.ruling
        for name, prepared in self.executed(ruling):
            if prepared is None or self._c.names.doubt(name.encode()) is not None:
                return self.objection(
                    Violation(
                        "not-understood",
                        f'prepared statement "{name}" does not exist',
                        "PREPARE it on this connection first. Do not retry this statement as it is.",
                        object=name,
                        sqlstate="26000",
                    ),
                    StatementClass.PREPARE,
                    ruling.decision.query,
                )
            inner = prepared.ruling
            if not self._in_force(inner):
                fresh = self._rule(inner.text)
                if fresh is None and parse_heavy(inner.text):
                    # To judge it here would keep everybody waiting.
                    fresh = self._outdated(inner)
                inner = fresh or self._c.gate.rule_slowly(inner.text, self._c.scope)
                inner = self.held_to(prepared, inner)
                if not inner.allowed:
                    return inner
        return ruling

    def _behind_failure(self, ruling: Ruling) -> Ruling:
        violation = Violation(
            "not-understood",
            "which search_path holds behind the end of this failed transaction is not known yet",
            "Send ROLLBACK, or ROLLBACK TO, as a statement of its own, and then the rest.",
            sqlstate="25P02",
        )
        return self.objection(violation, statement_class(ruling.decision.query), ruling.decision.query)

    def copies(self, ruling: Ruling) -> bool:
        """True where running it copies, by itself or by what it EXECUTEs."""
        return ruling.copies or any(run.copies for run in self.executed_rulings(ruling))

    def takes(self, ruling: Ruling) -> bool:
        """True where running it asks for copy data."""
        return ruling.running.takes or any(run.running.takes for run in self.executed_rulings(ruling))

    def unseen(self, portal: bytes) -> Ruling:
        """The ruling on what a portal runs that no message has made: a function may have opened it."""
        violation = Violation(
            "not-understood",
            f'what portal "{portal.decode(errors="replace")}" runs was not seen',
            "Bind a statement that was prepared on this connection. Do not retry this message.",
            sqlstate="34000",
        )
        return self.objection(violation, StatementClass.OTHER, QueryString(""))

    def executed_rulings(self, ruling: Ruling) -> Sequence[Ruling]:
        """What EXECUTE runs with ``ruling``, as it was prepared."""
        if not ruling.executes:
            return ()
        return [found.ruling for _, found in self.executed(ruling) if found is not None]

    def executed(self, ruling: Ruling) -> Iterable[tuple[str, Prepared | None]]:
        """Every name that runs with ``ruling``: what EXECUTE runs may EXECUTE in its turn."""
        names = list(ruling.executes)
        for name in names:
            prepared = self._c.names.statement(name.encode())
            if prepared is not None:
                names += [more for more in prepared.ruling.executes if more not in names]
            yield name, prepared

    def objection(self, violation: Violation, statement_class: StatementClass, query: QueryString) -> Ruling:
        """A ruling that the session itself makes: a refusal, unless the policy only observes."""
        decision: Decision = Reject(query, statement_class, (violation,), RepairTerms(), violation.halt)
        if self._c.observes:
            decision = Allow(query, statement_class, observed=(violation,))
        return Ruling(decision, self._c.gate.policy, query.sql.encode(), self._c.scope)


def wait_for(change: AnyChange | None) -> None:
    """Raises NotYetError where a name has two meanings until ``change`` is settled."""
    if change is not None:
        raise NotYetError(change)


def fetched(ruling: Ruling) -> list[bytes]:
    """The cursors that FETCH reads."""
    return [(ref.name or "").encode() for ref in ruling.actions if ref.action is SessionAction.FETCH]
