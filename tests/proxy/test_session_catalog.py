"""The session keeps up with the catalog: its own changes, others', and errors told by it."""

from __future__ import annotations

from policy.model import Policy
from proxy.conversation import Identity
from proxy.effects import Decide, Effect, Record, ToBackend, ToFrontend
from proxy.gate import Gate
from proxy.session import Session
from proxy.wire import backend as wire
from tests.policy.rules.schema import CATALOG, reader, writer
from tests.proxy.test_gate_catalog import PATHS, WITH_FRESH, View
from tests.proxy.test_session import SYNC, bind, complete, error, execute, parse, query, ready

DDL = "CREATE TABLE made (id int)"
SELECT = "SELECT id FROM orders LIMIT 1"
BUILDER = writer(statements="{select: allow, ddl: allow, transaction: allow}")


def session_of(view: View, policy: Policy = BUILDER) -> tuple[Session, Gate]:
    gate = Gate(policy, "agent", 1_000_000, view)
    session = Session(
        gate, Identity("c", "role"), PATHS[0], nonce="nonce", clock=lambda: 0.0, message_bytes=1_000_000
    )
    return session, gate


def sent(effects: list[Effect]) -> bytes:
    return b"".join(effect.data for effect in effects if isinstance(effect, ToBackend))


def told(effects: list[Effect]) -> bytes:
    return b"".join(effect.data for effect in effects if isinstance(effect, ToFrontend))


def decides(effects: list[Effect]) -> list[tuple[bytes, bool]]:
    return [(effect.text, effect.renew) for effect in effects if isinstance(effect, Decide)]


def run_ddl(session: Session, status: str = "I") -> None:
    assert sent(session.from_frontend(query(DDL))) == query(DDL)
    session.from_backend(complete("CREATE TABLE") + ready(status))


def test_a_catalog_read_anew_is_what_the_next_statement_is_judged_by() -> None:
    view = View()
    session, _ = session_of(view, reader())
    text = "SELECT id FROM fresh LIMIT 1"
    assert decides(session.from_frontend(query(text))) == [(text.encode(), False)]
    other, _ = session_of(view, reader())
    assert sent(other.from_frontend(query(SELECT))) == query(SELECT)
    other.from_backend(complete("SELECT 0") + ready())
    view.current = WITH_FRESH
    assert sent(other.from_frontend(query(text))) == query(text)


def test_a_prepared_statement_is_judged_again_when_the_schema_has_changed() -> None:
    view = View(current=WITH_FRESH)
    session, _ = session_of(view, reader())
    text = "SELECT id FROM fresh LIMIT 1"
    assert sent(session.from_frontend(parse(text, "s") + SYNC))
    session.from_backend(wire.frame(b"1", b"") + ready())
    view.current = CATALOG
    assert decides(session.from_frontend(bind("s") + execute() + SYNC)) == [(text.encode(), False)]


def test_after_its_own_ddl_the_catalog_is_asked_again_once() -> None:
    session, gate = session_of(View())
    run_ddl(session)
    held = session.from_frontend(query(SELECT))
    assert decides(held) == [(SELECT.encode(), True)]
    assert sent(held) == b""
    assert sent(session.decided(gate.rule_slowly(SELECT.encode(), gate.names(PATHS)))) == query(SELECT)
    session.from_backend(complete("SELECT 0") + ready())
    assert sent(session.from_frontend(query(SELECT))) == query(SELECT)


def test_a_chain_of_ddl_asks_for_no_reading_between() -> None:
    session, gate = session_of(View())
    for _ in range(3):
        run_ddl(session)
    alter = "ALTER TABLE made ADD name text"
    assert sent(session.from_frontend(parse(alter) + bind() + execute() + SYNC)) != b""
    session.from_backend(
        wire.frame(b"1", b"") + wire.frame(b"2", b"") + complete("ALTER TABLE") + ready(),
    )
    # What the schema is matters to this one.
    assert decides(session.from_frontend(query(SELECT))) == [(SELECT.encode(), True)]
    assert sent(session.decided(gate.rule_slowly(SELECT.encode(), gate.names(PATHS)))) == query(SELECT)


def test_a_refusal_in_a_chain_of_ddl_rests_on_a_new_reading() -> None:
    session, _ = session_of(View())
    run_ddl(session)
    taken = "CREATE TABLE taken AS SELECT * FROM other.secrets"
    assert decides(session.from_frontend(query(taken))) == [(taken.encode(), True)]


def test_what_execute_runs_is_judged_by_the_schema_asked_for() -> None:
    view = View(current=WITH_FRESH)
    policy = writer(statements="{select: allow, prepare: allow, ddl: allow, transaction: allow}")
    session, gate = session_of(view, policy)
    prepare, run = "PREPARE p AS SELECT id FROM public.fresh LIMIT 1", "EXECUTE p"
    assert sent(session.from_frontend(query(prepare))) == query(prepare)
    session.from_backend(complete("PREPARE") + ready())
    run_ddl(session)
    assert decides(session.from_frontend(query(run))) == [(run.encode(), True)]
    view.current = CATALOG
    passed = sent(session.decided(gate.rule_slowly(run.encode(), gate.names(PATHS))))
    assert query(run) not in passed
    assert b"pgturnstile_refused" in passed


def test_it_is_asked_until_it_has_answered() -> None:
    view = View()
    session, gate = session_of(view)
    run_ddl(session)
    assert decides(session.from_frontend(query(SELECT))) == [(SELECT.encode(), True)]
    view.current = None
    unread = gate.rule_slowly(SELECT.encode(), gate.names(PATHS))
    assert not unread.allowed
    session.decided(unread)
    session.from_backend(error("42601") + ready())
    view.current = CATALOG
    assert decides(session.from_frontend(query(SELECT))) == [(SELECT.encode(), True)]


def test_within_a_transaction_it_is_asked_once_that_has_ended() -> None:
    session, gate = session_of(View())
    run_ddl(session, "T")
    for sql, status in ((SELECT, "T"), ("COMMIT", "I")):
        assert sent(session.from_frontend(query(sql))) == query(sql)
        session.from_backend(complete("x") + ready(status))
    assert decides(session.from_frontend(query(SELECT))) == [(SELECT.encode(), True)]
    assert sent(session.decided(gate.rule_slowly(SELECT.encode(), gate.names(PATHS)))) == query(SELECT)
    session.from_backend(complete("SELECT 0") + ready())
    assert sent(session.from_frontend(query(SELECT))) == query(SELECT)


def test_an_error_of_the_agent_s_own_statement_is_told_by_the_catalog() -> None:
    session, _ = session_of(View(), reader())
    session.from_frontend(query("SELECT id FROM orders JOIN customers ON true LIMIT 1"))
    fields = {"sqlstate": "42702", "message": "ambiguous", "position": "8"}
    answer = told(session.from_backend(wire.encode_error(fields) + ready()))
    assert b"Write orders.id or customers.id." in answer
    assert b'"decision":"engine_error"' in answer
    assert answer.endswith(ready())


def test_so_is_one_of_the_extended_protocol_at_each_step() -> None:
    text = "SELECT id FROM orders JOIN customers ON true LIMIT 1"
    fields = {"sqlstate": "42702", "message": "ambiguous", "position": "8"}
    answers = {0: b"", 1: wire.frame(b"1", b""), 2: wire.frame(b"1", b"") + wire.frame(b"2", b"")}
    for before in answers.values():
        session, _ = session_of(View(), reader())
        session.from_frontend(parse(text) + bind() + execute() + SYNC)
        effects = session.from_backend(before + wire.encode_error(fields) + ready())
        answer = told(effects)
        assert b"Write orders.id or customers.id." in answer
        recorded = [effect.entry for effect in effects if isinstance(effect, Record)]
        (told_of,) = (entry for entry in recorded if f'"id":"{entry.id}"'.encode() in answer)
        assert (told_of.sqlstate, bool(told_of.id)) == ("42702", True)


def test_the_server_s_own_end_is_told_as_it_is() -> None:
    session, _ = session_of(View(), reader())
    session.from_frontend(query(SELECT))
    fatal = error("42702", severity="FATAL")
    assert told(session.from_backend(fatal)) == fatal
