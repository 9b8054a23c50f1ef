"""Limits over transcripts: what passes, what is held and what is undone, whatever the split of the bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.loader import load
from proxy.conversation import Identity
from proxy.effects import AuditEntry, CancelRunning, Effect, Record, ToBackend, ToFrontend
from proxy.gate import Gate
from proxy.session import Session
from proxy.wire import backend as wire
from tests.proxy.test_session import (
    BOUND,
    CLOSED,
    COPY_DONE,
    COPY_IN,
    DESCRIPTION,
    FLUSH,
    NO_DATA,
    PARSED,
    SYNC,
    Step,
    bind,
    close,
    complete,
    cut,
    describe,
    error,
    execute,
    message,
    parse,
    pieces,
    query,
    ready,
    row,
)

POLICY = """
version: 1
name: limited
access: read_write
multiple: judged
statements: {select: allow, insert: allow, update: allow, transaction: allow, cursor: allow, copy_in: allow,
  prepare: allow, explain: allow, show: allow}
relations: {allow: ["public.*"]}
functions: {allow: [builtin-safe]}
rules: {unbounded-select: "off"}
limits: {result_rows: 2, result_bytes: 1000, affected_rows: 3}
"""
READ = "SELECT id FROM orders"
WRITE = "UPDATE orders SET n = 1 WHERE id < 9"
REFUSED = b"pgturnstile_refused_nonce"
UNBINDABLE = wire.bind_message(b"", REFUSED)
UNPARSABLE = query(REFUSED.decode())
ROW, ROWS = row(b"1"), row(b"1") * 2
CANCELLED: Step = ("X", b"")
sizes = pytest.mark.parametrize("size", [0, 1, 3, 11])


@dataclass
class Played:
    to_backend: bytes = b""
    to_frontend: bytes = b""
    records: list[AuditEntry] = field(default_factory=list)
    cancels: int = 0

    def take(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, ToBackend):
                self.to_backend += effect.data
            elif isinstance(effect, ToFrontend):
                self.to_frontend += effect.data
            elif isinstance(effect, Record):
                self.records.append(effect.entry)
            else:
                assert isinstance(effect, CancelRunning), effect
                self.cancels += 1

    @property
    def kinds(self) -> str:
        return "".join(kind for kind, _ in cut(self.to_frontend))

    @property
    def sent(self) -> str:
        return "".join(kind for kind, _ in cut(self.to_backend))

    @property
    def statuses(self) -> str:
        return "".join(body.decode() for kind, body in cut(self.to_frontend) if kind == "Z")

    @property
    def rules(self) -> list[str | None]:
        fields = [wire.decode_fields(body) for kind, body in cut(self.to_frontend) if kind == "E"]
        return [said.get("routine") for said in fields]


def start(policy: str = POLICY) -> Session:
    gate = Gate(load(policy, "limited.yaml"), "agent", 1 << 20)
    return Session(
        gate,
        Identity("c1", "shop"),
        ("public",),
        nonce="nonce",
        clock=lambda: 1.0,
        message_bytes=1 << 20,
    )


def play(steps: Iterable[Step], size: int = 0, subject: Session | None = None) -> Played:
    """``F`` the agent sends, ``B`` the server, ``X`` the cancel request has been dealt with."""
    played, subject = Played(), subject or start()
    for side, data in steps:
        if side == "X":
            played.take(subject.cancelled())
        for piece in pieces(data, size) if data else ():
            played.take(subject.from_frontend(piece) if side == "F" else subject.from_backend(piece))
    return played


def run(sql: str) -> bytes:
    return parse(sql) + bind() + describe("P") + execute()


ANSWER = PARSED + BOUND + DESCRIPTION
ENDING = SYNC + close("S") + SYNC
"""What ends a Query that failed as other messages: no unnamed statement is left."""


def ended(status: str = "I") -> bytes:
    return ready(status) + CLOSED + ready(status)


# --- results ---


@sizes
@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        (query(READ), DESCRIPTION + ROWS + complete("SELECT 2") + ready()),
        (run(READ) + SYNC, ANSWER + ROWS + complete("SELECT 2") + ready()),
        (run(READ) + run(READ) + SYNC, (ANSWER + ROWS + complete("SELECT 2")) * 2 + ready()),
        (query("BEGIN"), complete("BEGIN") + ready("T")),
    ],
)
def test_what_is_within_the_limits_passes_as_it_is(asked: bytes, answered: bytes, size: int) -> None:
    played = play([("F", asked), ("B", answered)], size)
    assert (played.to_backend, played.to_frontend) == (asked, answered)
    assert (played.cancels, len(played.records)) == (0, played.sent.count("E") + played.sent.count("Q"))


@sizes
@pytest.mark.parametrize("asked", [query(READ), run(READ) + SYNC], ids=["simple", "extended"])
def test_the_servers_error_becomes_ours_and_what_follows_waits(asked: bytes, size: int) -> None:
    opening = DESCRIPTION if asked == query(READ) else ANSWER
    played = play(
        [
            ("F", asked),
            ("F", query("SELECT 1")),
            ("B", opening + ROWS + ROW * 3),
            ("B", error("57014", "canceling statement due to user request") + ready()),
        ],
        size,
    )
    assert played.to_frontend.startswith(opening + ROWS)
    assert (played.kinds[len(cut(opening + ROWS)) :], played.rules) == ("EZ", ["result-over-limit"])
    assert played.cancels == 1
    assert played.to_backend == asked
    (entry,) = played.records
    assert (entry.sqlstate, entry.command_tag) == ("57014", None)


def test_the_cancel_request_holds_what_follows() -> None:
    subject = start()
    play(
        [
            ("F", query(READ) + query("SELECT 1")),
            ("B", DESCRIPTION + ROW * 3 + error("57014") + ready()),
        ],
        subject=subject,
    )
    assert subject.held
    assert play([CANCELLED], subject=subject).to_backend == query("SELECT 1")
    assert subject.held  # for its result, which is limited too
    assert play([("B", DESCRIPTION + complete("SELECT 0") + ready())], subject=subject).kinds == "TCZ"
    assert not subject.held


@sizes
def test_a_long_row_is_cut_out_whole(size: int) -> None:
    wide = row(b"x" * 2000)
    played = play([("F", query(READ)), ("B", DESCRIPTION + wide + complete("SELECT 1") + ready())], size)
    assert played.kinds == "TEZ"
    assert b"xx" not in played.to_frontend


@sizes
def test_a_query_that_ended_first_outside_a_transaction(size: int) -> None:
    played = play(
        [("F", query(READ)), ("B", DESCRIPTION + ROW * 3 + complete("SELECT 3") + ready()), CANCELLED], size
    )
    assert (played.kinds, played.statuses, played.to_backend) == ("TDDEZ", "I", query(READ))


@sizes
def test_a_query_that_ended_first_in_a_transaction_is_made_to_fail_it(size: int) -> None:
    subject = start()
    played = play(
        [
            ("F", query(READ) + query("SELECT 1")),
            ("B", DESCRIPTION + ROW * 3 + complete("SELECT 3") + ready("T")),
            CANCELLED,
        ],
        size,
        subject,
    )
    assert (played.kinds, played.to_backend) == ("TDDE", query(READ) + UNPARSABLE)
    played = play([("B", error("42601") + ready("E"))], size, subject)
    assert (played.kinds, played.statuses) == ("Z", "E")
    assert played.to_backend == query("SELECT 1")


@sizes
def test_a_segment_whose_sync_was_sent_is_made_to_fail_the_transaction(size: int) -> None:
    played = play(
        [
            ("F", run(READ) + run("SELECT 2") + SYNC),
            ("B", ANSWER + ROW * 3 + complete("SELECT 3")),
            ("B", ANSWER + ROW + complete("SELECT 1") + ready("T")),
            CANCELLED,
            ("B", error("42601") + ready("E")),
        ],
        size,
    )
    assert (played.kinds, played.statuses) == ("12TDDEZ", "E")
    assert played.to_backend.endswith(SYNC + UNPARSABLE)


@sizes
def test_a_segment_that_is_open_yet_is_discarded(size: int) -> None:
    played = play(
        [
            ("F", run(READ) + FLUSH),
            ("B", ANSWER + ROW * 3 + complete("SELECT 3")),
            CANCELLED,
            ("F", run(WRITE) + SYNC),
            ("B", error("26000") + ready("E")),
        ],
        size,
    )
    assert (played.kinds, played.statuses) == ("12TDDEZ", "E")
    assert played.to_backend == run(READ) + FLUSH + UNBINDABLE + SYNC


@sizes
def test_executes_of_one_portal_add_up(size: int) -> None:
    opened = parse(READ) + bind(portal="p")
    played = play(
        [
            ("F", opened + execute("p", 1) + FLUSH),
            ("B", PARSED + BOUND + ROW + message("s")),
            ("F", execute("p", 1) + FLUSH),
            ("B", ROW + message("s")),
            ("F", execute("p", 1) + SYNC),
            ("B", ROW + error("57014") + ready()),
        ],
        size,
    )
    assert (played.kinds, played.cancels) == ("12DsDsEZ", 1)


def test_a_cursor_is_counted_over_all_fetches_and_a_new_one_afresh() -> None:
    declare = query("DECLARE c CURSOR FOR SELECT id FROM orders")
    declared = complete("DECLARE CURSOR") + ready("T")
    fetched = DESCRIPTION + ROWS + complete("FETCH 2") + ready("T")
    played = play(
        [
            *[("F", declare), ("B", declared), ("F", query("FETCH 2 FROM c")), ("B", fetched)],
            *[("F", query("CLOSE c")), ("B", complete("CLOSE CURSOR") + ready("T"))],
            *[("F", declare), ("B", declared), ("F", query("FETCH 2 FROM c")), ("B", fetched)],
            *[("F", query("FETCH 1 FROM c")), ("B", DESCRIPTION + ROW + error("57014") + ready("E"))],
        ]
    )
    assert played.kinds == "CZTDDCZCZCZTDDCZTEZ"


def test_a_write_waits_for_a_result_that_may_yet_go_over() -> None:
    subject = start()
    played = play([("F", run(READ) + parse(WRITE) + bind() + execute() + SYNC)], subject=subject)
    assert played.to_backend == run(READ) + parse(WRITE) + bind() + FLUSH
    played = play([("B", ANSWER + ROWS + complete("SELECT 2"))], subject=subject)
    assert execute() in played.to_backend


def test_a_sync_waits_where_its_segment_wrote() -> None:
    subject = start()
    write = "DECLARE c CURSOR WITH HOLD FOR SELECT 1"
    plain = play([("F", run(write) + run(READ) + SYNC)])
    assert plain.to_backend.endswith(SYNC)
    begin = "BEGIN"
    held = play([("F", parse(begin) + bind() + execute() + run(READ) + SYNC)], subject=subject)
    assert held.to_backend.endswith(execute() + FLUSH)
    answered = play(
        [("B", PARSED + BOUND + complete("BEGIN") + ANSWER + complete("SELECT 0"))], subject=subject
    )
    assert answered.to_backend == SYNC


@given(st.integers(0, 5), st.integers(1, 40), st.sampled_from(["simple", "extended"]))
def test_no_more_rows_than_the_limit_and_an_error_beyond_it(count: int, size: int, protocol: str) -> None:
    simple = protocol == "simple"
    steps: list[Step] = [
        ("F", query(READ) if simple else run(READ) + SYNC),
        ("B", (DESCRIPTION if simple else ANSWER) + ROW * count + complete(f"SELECT {count}") + ready()),
    ]
    played = play(steps, size)
    assert played.kinds == ("T" if simple else "12T") + "D" * min(count, 2) + ("CZ" if count <= 2 else "EZ")
    assert played.cancels == (count > 2)


# --- writes ---

TAG = complete("UPDATE 3")


def counts(before: int, after: int, answer: bytes) -> tuple[bytes, bytes]:
    """What the server says up to the statement's own ``answer``, and from it on."""
    asked_before = CLOSED + PARSED + BOUND + row(b"%d" % before) + complete("SELECT 1") + CLOSED
    asked_after = BOUND + row(b"%d" % after) + complete("SELECT 1") + CLOSED + CLOSED
    return asked_before, answer + asked_after


def recount(after: int, answer: bytes) -> bytes:
    """The same where the counters need not be asked before."""
    counted = CLOSED + PARSED + BOUND + row(b"%d" % after) + complete("SELECT 1") + CLOSED * 2
    return answer + counted


def carried_out(before: int, after: int, answer: bytes = TAG, described: bytes = NO_DATA) -> bytes:
    return PARSED + BOUND + described + b"".join(counts(before, after, answer))


@sizes
def test_a_query_that_writes_within_the_limit(size: int) -> None:
    subject = start()
    played = play([("F", query(WRITE) + query(READ)), ("B", carried_out(40, 43))], size, subject)
    assert played.kinds == ""
    assert played.sent == "PBD" + "CPBEC" + "E" + "BECC" + "H" + "CCS" + "Q"
    played = play([("B", CLOSED * 2 + ready("T"))], size, subject)
    assert played.to_frontend == TAG + ready("T")
    (entry,) = played.records
    assert (entry.command_tag, entry.sqlstate) == ("UPDATE 3", None)


@sizes
@pytest.mark.parametrize(
    ("answer", "after"),
    [(complete("UPDATE 4"), 0), (TAG, 4), (complete("SELECT 1"), 4)],
    ids=["by the tag", "by the counters", "in a CTE"],
)
def test_a_query_that_writes_too_much_is_undone(answer: bytes, after: int, size: int) -> None:
    subject = start()
    played = play([("F", query(WRITE) + query(READ)), ("B", carried_out(0, after, answer))], size, subject)
    assert played.to_backend.endswith(UNBINDABLE + ENDING + query(READ))
    played.take(subject.from_backend(error("26000") + ended()))
    assert (played.kinds, played.statuses, played.rules) == ("EZ", "I", ["affected-rows-over-limit"])
    (entry,) = played.records
    assert entry.sqlstate == "57014"


@sizes
def test_an_execute_that_writes_too_much_is_undone_with_its_segment(size: int) -> None:
    subject = start()
    write = parse(WRITE) + bind() + execute()
    played = play([("F", write + run(READ) + SYNC)], size, subject)
    assert played.sent == "PB" + "CPBEC" + "E" + "BECC" + "H"
    played.take(subject.from_backend(PARSED + BOUND + b"".join(counts(7, 11, complete("UPDATE 1")))))
    assert played.to_backend.endswith(UNBINDABLE + SYNC)
    assert played.kinds == "12"
    played.take(subject.from_backend(error("26000") + ready("E")))
    assert (played.kinds, played.statuses) == ("12EZ", "E")


@sizes
def test_an_execute_that_writes_within_the_limit(size: int) -> None:
    subject = start()
    write = parse(WRITE) + bind() + execute()
    played = play([("F", write + SYNC), ("B", PARSED + BOUND + b"".join(counts(7, 9, TAG)))], size, subject)
    assert played.to_backend.endswith(FLUSH + SYNC)
    played.take(subject.from_backend(ready()))
    assert played.to_frontend == PARSED + BOUND + TAG + ready()


def test_a_commit_that_fails_takes_the_place_of_the_completion() -> None:
    failed = error("23503", "violates foreign key constraint")
    played = play([("F", query(WRITE)), ("B", carried_out(0, 3)), ("B", CLOSED * 2 + failed + ready())])
    assert played.to_frontend == failed + ready()
    (entry,) = played.records
    assert entry.sqlstate == "23503"


@pytest.mark.parametrize("closed", [0, 1])
def test_so_does_what_is_cancelled_as_it_ends(closed: int) -> None:
    """Between its completion, which is withheld, and the commit: what it wrote is undone."""
    failed = error("57014", "canceling statement due to user request")
    played = play(
        [("F", query(WRITE) + query("SELECT 1")), ("B", carried_out(0, 3)), ("B", CLOSED * closed + failed)]
    )
    assert played.to_frontend == failed
    played = play([("F", query(WRITE)), ("B", carried_out(0, 3)), ("B", CLOSED * closed + failed + ready())])
    assert played.to_frontend == failed + ready()
    (entry,) = played.records
    assert (entry.sqlstate, entry.outcome_known) == ("57014", True)


EMPTY = message("I")
NOTHING = query("/* pgturnstile */")


@sizes
def test_behind_an_open_pipeline_a_query_ends_as_the_servers_own_would(size: int) -> None:
    """By a Query: PostgreSQL 18 keeps the transaction open behind it, where a Sync would commit it."""
    subject = start()
    play([("F", run(READ)), ("B", ANSWER + complete("SELECT 0"))], subject=subject)
    played = play([("F", query(WRITE) + run(READ) + SYNC), ("B", carried_out(0, 3))], size, subject)
    assert played.to_backend.endswith(FLUSH + close("S") + close("P") + NOTHING)
    played = play([("B", CLOSED * 2 + EMPTY + ready("T"))], size, subject)
    # Not committed yet, it is to be undone with what stands behind it: the Sync waits for that result.
    assert (played.to_frontend, played.to_backend) == (TAG + ready("T"), run(READ) + FLUSH)
    played = play([("B", ANSWER + complete("SELECT 0")), ("B", ready())], size, subject)
    assert (played.kinds, played.to_backend) == ("12TCZ", SYNC)


@sizes
def test_what_ends_it_there_may_fail_too(size: int) -> None:
    """The server then reads past the Query, up to a Sync."""
    failed = error("57014", "canceling statement due to user request")
    subject = start()
    play([("F", run(READ)), ("B", ANSWER + complete("SELECT 0"))], subject=subject)
    played = play([("F", query(WRITE) + query(READ)), ("B", carried_out(0, 3)), ("B", failed)], size, subject)
    assert (played.to_frontend, played.to_backend.endswith(NOTHING + SYNC + query(READ))) == (failed, True)
    played = play([("B", ready())], size, subject)
    assert played.to_frontend == ready()
    (entry,) = played.records
    assert (entry.sqlstate, entry.decision.query.sql) == ("57014", WRITE)


@sizes
def test_a_close_of_ours_that_fails_in_the_place_of_a_bind_fails_that(size: int) -> None:
    failed = error("57014", "canceling statement due to user request")
    played = play([("F", bind("nowhere") + execute() + SYNC), ("B", failed + ready())], size)
    assert played.to_frontend == failed + ready()


@pytest.mark.parametrize("asked", [query(WRITE), parse(WRITE) + bind() + execute() + SYNC])
@pytest.mark.parametrize(
    "answered",
    [b"", PARSED + BOUND, PARSED + BOUND + NO_DATA, carried_out(0, 3)],
    ids=["before all", "before it runs", "as it runs", "before it is committed"],
)
def test_a_write_whose_connection_is_lost_has_one_record(asked: bytes, answered: bytes) -> None:
    subject = start()
    played = play([("F", asked)], subject=subject)
    if asked[:1] == b"P" and answered not in (b"", PARSED + BOUND):
        answered = PARSED + BOUND + b"".join(counts(0, 3, TAG))
    played.take(subject.from_backend(answered))
    known = bool(played.records)
    played.take(subject.lost())
    (entry,) = played.records
    assert (entry.decision.query.sql, entry.outcome_known) == (WRITE, known)


@pytest.mark.parametrize(
    "answered",
    [b"", PARSED + BOUND + NO_DATA, PARSED + BOUND + NO_DATA + counts(0, 0, b"")[0]],
    ids=["as it is parsed", "at the first count", "as it runs"],
)
def test_an_error_is_the_querys_own_and_ends_with_our_sync(answered: bytes) -> None:
    failed = error("22012", "division by zero")
    played = play([("F", query(WRITE)), ("B", answered + failed), ("B", ended("E"))])
    assert played.to_frontend == failed + ready("E")
    assert played.to_backend.endswith(FLUSH + ENDING)
    (entry,) = played.records
    assert (entry.sqlstate, entry.outcome_known) == ("22012", True)


def test_behind_a_failure_of_the_pipeline_a_held_query_is_read_past() -> None:
    subject = start()
    played = play([("F", run(READ)), ("B", ANSWER + complete("SELECT 0"))], subject=subject)
    played.take(subject.from_frontend(parse("SELECT nope") + query(WRITE)))
    played.take(subject.from_backend(error("42703")))
    assert played.kinds == "12TCE"
    assert not subject.held
    played.take(subject.from_frontend(SYNC))
    played.take(subject.from_backend(ready()))
    assert played.statuses == "I"
    outcomes = [(entry.sqlstate, entry.outcome_known) for entry in played.records]
    assert outcomes == [(None, True), ("42703", True), (None, False)]


def test_rows_of_returning_pass_before_the_verdict() -> None:
    returning = WRITE + " RETURNING id"
    played = play(
        [("F", query(returning)), ("B", carried_out(0, 2, ROWS + complete("UPDATE 2"), DESCRIPTION))]
    )
    assert played.kinds == "TDD"


def test_a_suspended_write_that_shows_nowhere_is_undone() -> None:
    returning = WRITE + " RETURNING id"
    played = play(
        [
            ("F", parse(returning) + bind() + execute(rows=1)),
            ("B", PARSED + BOUND + b"".join(counts(0, 0, ROW + message("s")))),
            ("B", error("26000")),
        ]
    )
    assert (played.kinds, played.rules) == ("12DE", ["affected-rows-over-limit"])


def test_a_write_is_counted_once_however_its_rows_are_fetched() -> None:
    returning = WRITE + " RETURNING id"
    subject = start(POLICY.replace("result_rows: 2, result_bytes: 1000, ", ""))
    played = play(
        [
            ("F", parse(returning) + bind() + execute(rows=1)),
            ("B", PARSED + BOUND + b"".join(counts(5, 8, ROW + message("s")))),
            ("F", execute(rows=1)),
            ("B", recount(8, ROW + message("s"))),
            ("F", execute() + SYNC),
            ("B", recount(8, ROW + TAG)),
            ("B", ready()),
        ],
        subject=subject,
    )
    assert played.kinds == "12DsDsDCZ"


FIRST = "PBD" + "CPBEC" + "E" + "BECC" + "H" + "CCS"
AGAIN = "PBD" + "E" + "CPBECC" + "H" + "CCS"


@pytest.mark.parametrize(
    ("between", "answered", "status", "asked"),
    [
        (b"", b"", "T", AGAIN),
        (b"", b"", "I", FIRST),
        (query("SAVEPOINT s"), complete("SAVEPOINT") + ready("T"), "T", "Q" + FIRST),
        (query("SELECT 1"), DESCRIPTION + complete("SELECT 0") + ready("T"), "T", "Q" + FIRST),
        (query("SELECT nope"), error("42703") + ready("E"), "T", "Q" + FIRST),
        (run("SELECT 1") + SYNC, ANSWER + complete("SELECT 0") + ready("T"), "T", "PBDES" + FIRST),
    ],
)
def test_what_was_written_before_is_asked_where_it_is_not_known(
    between: bytes, answered: bytes, status: str, asked: str
) -> None:
    subject = start()
    play([("F", query(WRITE)), ("B", carried_out(40, 43) + CLOSED * 2 + ready(status))], subject=subject)
    played = play([("F", between), ("B", answered), ("F", query(WRITE))], subject=subject)
    carried = carried_out(50, 53) if asked.endswith(FIRST) else PARSED + BOUND + NO_DATA + recount(46, TAG)
    played.take(subject.from_backend(carried + CLOSED * 2 + ready(status)))
    assert played.sent == asked
    assert played.kinds.endswith("CZ")


def test_what_the_same_transaction_wrote_before_does_not_count() -> None:
    """Three rows of each statement's own, of a limit of three; then four."""
    subject = start()
    play([("F", query(WRITE)), ("B", carried_out(40, 43) + CLOSED * 2 + ready("T"))], subject=subject)
    again = PARSED + BOUND + NO_DATA
    played = play(
        [("F", query(WRITE)), ("B", again + recount(46, TAG) + CLOSED * 2 + ready("T"))], subject=subject
    )
    assert played.kinds == "CZ"
    played = play([("F", query(WRITE)), ("B", again + recount(50, TAG))], subject=subject)
    assert played.to_backend.endswith(UNBINDABLE + ENDING)


def test_behind_a_sync_that_is_not_answered_another_transaction_may_have_begun() -> None:
    subject = start()
    write = parse(WRITE) + bind() + execute() + SYNC
    played = play([("F", write + write), ("B", PARSED + BOUND + b"".join(counts(40, 43, TAG)))], 0, subject)
    assert played.sent == "PB" + "CPBEC" + "E" + "BECC" + "H" + "S" + "PB" + "CPBEC" + "E" + "BECC" + "H"
    played.take(subject.from_backend(ready() + PARSED + BOUND + b"".join(counts(0, 3, TAG))))
    played.take(subject.from_backend(ready()))
    assert played.kinds == "12CZ12CZ"


COPY = "COPY orders (id) FROM STDIN"
COPIED = carried_out(0, 0, b"").removesuffix(counts(0, 0, b"")[1])


def copy_data(data: bytes) -> bytes:
    return message("d", data)


@sizes
def test_copied_rows_are_counted_behind_the_end_of_the_data(size: int) -> None:
    subject = start()
    played = play(
        [
            ("F", query(COPY)),
            ("B", COPIED + COPY_IN),
            ("F", copy_data(b"1\n2\n3\n4\n") + COPY_DONE + query(READ)),
            ("B", counts(0, 4, complete("COPY 4"))[1]),
        ],
        size,
        subject,
    )
    assert played.sent == "PBD" + "CPBEC" + "EH" + "d" + "c" + "BECC" + "H" + "BSCS" + "Q"
    played.take(subject.from_backend(error("26000") + ended()))
    assert (played.kinds, played.rules) == ("GEZ", ["affected-rows-over-limit"])


def test_our_sync_is_not_put_into_the_agents_data() -> None:
    """The COPY fails while a CopyData frame is under way: its rest goes first."""
    subject = start()
    played = play([("F", query(COPY)), ("B", COPIED + COPY_IN)], subject=subject)
    data = copy_data(b"x" * 100)
    played.take(subject.from_frontend(data[:50]))
    played.take(subject.from_backend(error("22P02", "invalid input")))
    assert played.to_backend.endswith(data[:50])
    played.take(subject.from_frontend(data[50:] + COPY_DONE + query("SELECT 1")))
    assert played.to_backend.endswith(data + ENDING + COPY_DONE + query("SELECT 1"))
    played.take(subject.from_backend(ended() + DESCRIPTION + complete("SELECT 0") + ready()))
    assert played.kinds == "GEZTCZ"


def test_a_string_of_several_statements_must_not_write() -> None:
    played = play([("F", query(f"{WRITE}; {READ}")), ("B", error("42601") + ready())])
    assert played.rules == ["multiple-statements"]
    assert REFUSED in played.to_backend


def test_a_query_behind_a_write_in_an_open_pipeline_is_not_committed_before_its_verdict() -> None:
    subject = start()
    write = parse(WRITE) + bind() + execute()
    played = play(
        [("F", write), ("B", PARSED + BOUND + b"".join(counts(0, 1, complete("UPDATE 1"))))], 0, subject
    )
    played.take(subject.from_frontend(query(READ)))
    assert played.sent.endswith("PBD" + "E" + "CPBECC" + "H")
    played.take(subject.from_backend(ANSWER + ROW * 3 + complete("SELECT 3")))
    assert played.cancels == 1
    played.take(subject.from_backend(recount(1, b"")))
    assert played.to_backend.endswith(UNBINDABLE + ENDING)
    played.take(subject.from_backend(error("26000") + ended()))
    assert played.kinds == "12C" + "TDDEZ"


def test_a_policy_that_only_observes_counts_nothing() -> None:
    subject = start(POLICY + "mode: observe\n")
    answered = DESCRIPTION + ROW * 9 + complete("SELECT 9") + ready()
    played = play([("F", query(READ)), ("B", answered), ("F", query(WRITE))], subject=subject)
    assert played.to_frontend == answered
    assert played.to_backend == query(READ) + query(WRITE)


def test_a_name_whose_statement_is_closed_waits() -> None:
    played = play([("F", run(READ) + close("S", "s") + SYNC)])
    assert played.to_backend == run(READ) + FLUSH
