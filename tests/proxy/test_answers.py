"""Every message a server can send, at every place of every answer: it goes on, or both sides end in words.

The places are given by what has been said so far, and what may come next by hand, in the letters of the
protocol: the table in ``proxy.answers`` is not asked what it thinks of itself.
"""

from __future__ import annotations

import functools
import itertools
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pytest

from policy.catalog import Catalog
from policy.loader import load
from proxy.answers import NEXT, ROWS, Place
from proxy.conversation import Identity
from proxy.effects import Close, Effect, Record, ToBackend, ToFrontend
from proxy.gate import Gate
from proxy.session import Session
from proxy.wire import backend as wire
from tests.proxy import test_session_limits, test_session_prices
from tests.proxy.test_gate_catalog import PATHS, View
from tests.proxy.test_session import (
    BOUND,
    CLOSED,
    COPY_DONE,
    COPY_IN,
    COPY_OUT,
    DESCRIPTION,
    NO_DATA,
    PARSED,
    SYNC,
    bind,
    complete,
    cut,
    describe,
    error,
    execute,
    message,
    parse,
    query,
    ready,
    row,
    session,
)

ANY_TIME = "SNA"
"""ParameterStatus, NoticeResponse, NotificationResponse."""
COPIED, EMPTY, PARAMETERS, CALLED = (
    message("d", b"1\n"),
    message("I"),
    message("t", b"\0\0"),
    message("V", b"\0\0\0\0"),
)
CALL = message("F", b"\0\0\0\1\0\0\0\0\0\0")
RUN = parse("a") + bind() + execute()
WELL_FORMED: dict[str, bytes] = {
    "S": message("S", b"application_name\0x\0"),
    "N": wire.encode_notice({"sqlstate": "00000", "message": "x"}),
    "A": message("A", b"\0\0\0\1x\0\0"),
    "E": error("22012"),
    "Z": ready(),
    "C": complete("SELECT 1"),
    "D": row(b"1"),
    "d": COPIED,
    "T": DESCRIPTION,
    "t": PARAMETERS,
    "G": COPY_IN,
    "H": COPY_OUT,
    "V": CALLED,
    "R": message("R", b"\0\0\0\0"),
    "K": message("K", b"\0\0\0\1\0\0\0\2"),
    "W": message("W", b"\0\0\0"),
    "v": message("v", b"\0\3\0\0\0\0\0\0"),
}
KINDS = sorted({*WELL_FORMED, *"0123456789nscfpPBQFX", *"!@`{", "\0", "\x01", "\x7f", "\x80", "\xff"})
"""Every type there is, in either direction, and some that there are not."""


@dataclass(frozen=True)
class At:
    """A place: what the agent sent, what the server said to it, and which letters may follow."""

    sent: bytes
    said: bytes
    legal: str
    start: Callable[[], Session] = session


_days = itertools.count()


@functools.cache
def _gate(policy: str, catalog: Catalog | None = None) -> Gate:
    return Gate(load(policy, "answers.yaml"), "agent", 1 << 20, catalog and View(current=catalog))


def _start(gate: Gate) -> Session:
    """A session of its own day: no price that an earlier one was told holds any more."""
    now = next(_days) * 86_400.0
    return Session(
        gate, Identity("c1", "shop"), PATHS[0], nonce="nonce", clock=lambda: now, message_bytes=1 << 20
    )


def observing() -> Session:
    return _start(_gate(test_session_limits.POLICY + "mode: observe\n"))


def limited(sql: str, said: bytes, legal: str) -> At:
    return At(query(sql), said, legal, lambda: _start(_gate(test_session_limits.POLICY)))


_KEYED: Final = test_session_prices.keyed()


def priced(sent: bytes, said: bytes, legal: str) -> At:
    return At(sent, said, legal, lambda: _start(_gate(test_session_prices.POLICY, _KEYED)))


HELD = test_session_limits.WRITE
PRICED = test_session_prices.WRITE
PLAN = test_session_prices.plan()
PLACES: dict[str, At] = {
    "nothing owed": At(b"", b"", "E"),
    "query": At(query("a"), b"", "TCIHGE"),
    "query, described": At(query("a"), DESCRIPTION, "TDCE"),
    "query, in rows": At(query("a"), DESCRIPTION + row(b"1"), "TDCE"),
    "query, complete": At(query("a"), DESCRIPTION + complete("SELECT 0"), "TCHGZE"),
    "query, empty": At(query(""), EMPTY, "ZE"),
    "query, copies out": At(query("copy"), COPY_OUT, "dcE"),
    "query, in copied lines": At(query("copy"), COPY_OUT + COPIED, "dcE"),
    "query, copied out": At(query("copy"), COPY_OUT + COPIED + COPY_DONE, "CE"),
    "query, copies in": At(query("copy"), COPY_IN, "CE"),
    "query, failed": At(query("a"), error("22012"), "Z"),
    "query, refused": At(query("bad"), b"", "E"),
    "query, refused and failed": At(query("bad"), error("42601"), "Z"),
    "query, answered": At(query("a"), complete("UPDATE 1") + ready(), "E"),
    "query behind one": At(query("a") * 2, complete("UPDATE 1") + ready(), "TCIHGE"),
    "function call": At(CALL, b"", "VE", observing),
    "function call that ran": At(CALL, CALLED, "ZE", observing),
    "function call, failed": At(CALL, error("42883"), "Z", observing),
    "parse": At(RUN + SYNC, b"", "1E"),
    "bind": At(RUN + SYNC, PARSED, "2E"),
    "execute": At(RUN, PARSED + BOUND, "DCIsHGE"),
    # Behind what is no COPY the agent's Sync may stand already, which a server that copies would read past.
    "execute, with a message behind it": At(RUN + SYNC, PARSED + BOUND, "DCIsHE"),
    "execute, in rows": At(RUN, PARSED + BOUND + row(b"1"), "DCIsHGE"),
    "execute, copies out": At(RUN + SYNC, PARSED + BOUND + COPY_OUT, "dcE"),
    "execute, copied out": At(RUN + SYNC, PARSED + BOUND + COPY_OUT + COPIED + COPY_DONE, "CE"),
    "sync": At(RUN + SYNC, PARSED + BOUND + complete("UPDATE 1"), "ZE"),
    "sync, failed": At(RUN + SYNC, PARSED + BOUND + complete("UPDATE 1") + error("23505"), "Z"),
    "sync behind a failure": At(RUN + SYNC, error("22012"), "ZE"),
    "pipeline read past": At(RUN, error("22012"), "E"),
    "parse, refused": At(parse("bad") + SYNC, b"", "E"),
    "bind of nothing, closed before": At(bind("nobody") + SYNC, b"", "3E"),
    "bind of nothing": At(bind("nobody") + SYNC, CLOSED, "E"),
    "execute of nothing, closed before": At(execute("nobody") + SYNC, b"", "3E"),
    "execute of nothing": At(execute("nobody") + SYNC, CLOSED, "E"),
    "close": At(message("C", b"Sx\0") + SYNC, b"", "3E"),
    "describe of a statement": At(describe("S") + SYNC, b"", "tE"),
    "describe of a statement, parameters": At(describe("S") + SYNC, PARAMETERS, "TnE"),
    "describe of a portal": At(describe("P") + SYNC, b"", "TnE"),
    "execute that copies in": At(parse("copy") + bind() + execute(), PARSED + BOUND + COPY_IN, "CE"),
    # Questions of the proxy's own: a price, a count, the path.
    "price, parse": priced(query(PRICED), b"", "1E"),
    "price, bind": priced(query(PRICED), PARSED, "2E"),
    "price, execute": priced(query(PRICED), PARSED + BOUND, "DCE"),
    "price, sync": priced(query(PRICED), PARSED + BOUND + PLAN, "ZE"),
    "price, failed": priced(query(PRICED), error("42P01"), "ZE"),
    "price, failed twice": priced(query(PRICED), error("42P01") * 2, "Z"),
    "price of a bind": priced(parse(PRICED) + bind() + SYNC, PARSED, "3E"),
    "count, parse": priced(query(PRICED), test_session_prices.asked(PLAN), "1E"),
    "held, parse": limited(HELD, b"", "1E"),
    "held, describe": limited(HELD, PARSED + BOUND, "TnE"),
    "held, counters": limited(HELD, PARSED + BOUND + NO_DATA, "3E"),
    "held, counted before": limited(
        HELD, PARSED + BOUND + NO_DATA + test_session_limits.counts(1, 2, b"")[0], "DCIsHE"
    ),
    "held, executed": limited(
        HELD,
        PARSED
        + BOUND
        + NO_DATA
        + b"".join(test_session_limits.counts(1, 2, complete("UPDATE 1")))[:0]
        + test_session_limits.counts(1, 2, b"")[0]
        + complete("UPDATE 1"),
        "2E",
    ),
    "held, let go": limited(HELD, test_session_limits.carried_out(1, 2, complete("UPDATE 1")), "3E"),
    "held, commits": limited(
        HELD, test_session_limits.carried_out(1, 2, complete("UPDATE 1")) + CLOSED * 2, "ZE"
    ),
    "held, undone": limited(HELD, test_session_limits.carried_out(1, 9, complete("UPDATE 8")), "E"),
}


def run_to(at: At) -> Session:
    subject = at.start()
    effects: list[Effect] = subject.from_frontend(at.sent)
    if at.said:
        effects = subject.from_backend(at.said)
    assert not any(isinstance(effect, Close) for effect in effects), effects
    return subject


@pytest.mark.parametrize("name", PLACES)
def test_what_may_come_next_and_nothing_else(name: str) -> None:
    at = PLACES[name]
    for kind in KINDS:
        subject = run_to(at)
        said = WELL_FORMED.get(kind) or kind.encode("latin-1") + b"\0\0\0\4"
        effects = subject.from_backend(said)
        told = b"".join(effect.data for effect in effects if isinstance(effect, ToFrontend))
        if kind in at.legal + ANY_TIME:
            assert not subject.closed, kind
            continue
        assert subject.closed, kind
        assert [effect for effect in effects if isinstance(effect, Close)], kind
        assert not [effect for effect in effects if isinstance(effect, ToBackend)], kind
        ((letter, body),) = cut(told)
        fields = wire.decode_fields(body)
        assert (letter, fields["severity"], fields["sqlstate"]) == ("E", "FATAL", "08P01"), kind


@pytest.mark.parametrize("name", PLACES)
def test_a_fatal_error_may_come_at_any_place(name: str) -> None:
    subject = run_to(PLACES[name])
    effects = subject.from_backend(error("57P01", severity="FATAL"))
    assert [effect.data for effect in effects if isinstance(effect, ToFrontend)] == [
        error("57P01", severity="FATAL")
    ]
    assert subject.refuse("the server closed", "57P01")[-1:] != []
    assert subject.closed


JUDGED = {
    **dict.fromkeys(PLACES, 1),
    "query behind one": 2,
    **{name: 0 for name in PLACES if name.startswith(("nothing", "close", "describe"))},
    **{name: 0 for name in PLACES if "of nothing" in name},
}
"""How many statements were judged by then."""


@pytest.mark.parametrize("name", PLACES)
def test_whatever_was_judged_has_its_line_where_the_connection_is_lost(name: str) -> None:
    """Also what waits for an answer to a question of ours, and a write that is held: it may have run."""
    at = PLACES[name]
    subject = at.start()
    effects = subject.from_frontend(at.sent)
    effects += subject.from_backend(at.said) if at.said else []
    effects += subject.lost()
    entries = [effect.entry for effect in effects if isinstance(effect, Record)]
    assert len(entries) == len({entry.id for entry in entries}) == JUDGED[name]
    assert not subject.busy and not subject.held


@pytest.mark.parametrize("split", [False, True], ids=["at once", "one by one"])
@pytest.mark.parametrize("said", [error("42P01"), PARSED + error("22P02")], ids=["at Parse", "at Bind"])
def test_a_statement_that_fails_before_its_execute_has_one_line(said: bytes, split: bool) -> None:
    subject = session()
    effects: list[Effect] = []
    if split:
        effects += subject.from_frontend(parse("a") + bind()) + subject.from_backend(said)
        effects += subject.from_frontend(execute() + SYNC) + subject.from_backend(ready())
    else:
        effects += subject.from_frontend(RUN + SYNC) + subject.from_backend(said + ready())
    (line,) = [effect.entry for effect in effects if isinstance(effect, Record)]
    assert (line.id, line.decision.query.sql, line.outcome_known) == ("c1-1", "a", True)
    assert line.sqlstate == ("42P01" if said == error("42P01") else "22P02")
    assert not subject.closed


def test_what_stands_behind_a_failure_in_its_pipeline_has_a_line_of_its_own() -> None:
    subject = session()
    subject.from_frontend(RUN + parse("b") + bind() + execute() + SYNC)
    effects = subject.from_backend(PARSED + error("22P02") + ready())
    lines = [effect.entry for effect in effects if isinstance(effect, Record)]
    assert [(line.decision.query.sql, line.sqlstate, line.outcome_known) for line in lines] == [
        ("a", "22P02", True),
        ("b", None, False),
    ]


def test_a_held_write_whose_bind_fails_has_one_line() -> None:
    subject = limited(HELD, b"", "").start()
    effects = subject.from_frontend(parse(HELD) + bind() + execute() + SYNC)
    effects += subject.from_backend(PARSED + error("22P02") + ready())
    (line,) = [effect.entry for effect in effects if isinstance(effect, Record)]
    assert (line.sqlstate, line.outcome_known) == ("22P02", True)


def test_every_place_of_the_table_is_one_that_is_tested() -> None:
    """The legal letters above, taken together, are the table's own: none that no test knows."""
    by_hand = {frozenset(at.legal) - {"E"} for at in PLACES.values()}
    by_table = {
        frozenset(map(chr, NEXT[place])) | ({chr(ROWS[place])} if ROWS[place] > 0 else frozenset())
        for place in Place
    }
    assert by_hand - {frozenset("DCIsH")} == by_table


STATUSES = (b"", b"X", b"i", b"\0", b"II", b"I\0")


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("name", [name for name, at in PLACES.items() if "Z" in at.legal])
def test_a_status_that_there_is_not_ends_it_in_our_questions_too(name: str, status: bytes) -> None:
    subject = run_to(PLACES[name])
    subject.from_backend(message("Z", status))
    assert subject.closed


COUNTS: dict[str, bytes] = {
    "no row": complete("SELECT 0"),
    "two rows": row(b"1") * 2 + complete("SELECT 2"),
    "no column": message("D", b"\0\0") + complete("SELECT 1"),
    "no number": row(b"many") + complete("SELECT 1"),
    "less than nothing": row(b"-4") + complete("SELECT 1"),
    "too long to be read": row(b"9" * 5000) + complete("SELECT 1"),
}


@pytest.mark.parametrize("name", COUNTS)
def test_a_count_that_is_none_lets_nothing_run(name: str) -> None:
    at = PLACES["count, parse"]
    subject = run_to(at)
    effects = subject.from_backend(test_session_prices.asked(COUNTS[name]))
    assert subject.closed
    assert not [effect for effect in effects if isinstance(effect, ToBackend)]


def test_an_answer_without_end_to_a_question_of_ours_is_not_kept() -> None:
    subject = run_to(PLACES["price, execute"])
    piece = row(b"x" * 1_000_000)
    taken = 0
    while not subject.closed:
        taken += 1
        subject.from_backend(piece)
    assert taken == 34  # 32 MiB, and the one that is too much


def test_a_stream_without_end_is_not_kept() -> None:
    """Whatever may come in any number at a place passes, or is swallowed, and leaves nothing behind."""
    streams = []
    for name, at in PLACES.items():
        ours = name.startswith(("price", "count", "held, counted"))
        for kind in ANY_TIME + ("" if ours else "".join({"D", "d"} & set(at.legal))):
            streams.append((run_to(at), WELL_FORMED[kind] * 100))
    for subject, piece in streams:
        subject.from_backend(piece)
    tracemalloc.start()
    try:
        for subject, piece in streams:
            for _ in range(4):
                subject.from_backend(piece)
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not any(subject.closed for subject, _ in streams)
    assert grown < sum(len(piece) for _, piece in streams)  # of four times as much


def test_a_tag_of_any_length_is_kept_short() -> None:
    subject = run_to(PLACES["query"])
    subject.from_backend(complete("SELECT " + "x" * 100_000))
    (entry,) = [effect.entry for effect in subject.from_backend(ready()) if isinstance(effect, Record)]
    assert entry.command_tag is not None
    assert len(entry.command_tag) == 256
