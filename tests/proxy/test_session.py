"""The session over transcripts: what the backend and the agent get, whatever the split of the bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.catalog_names import SessionNames
from policy.decision import Allow, Decision, Reject
from policy.facts import (
    CopyEnd,
    CopyRef,
    Facts,
    QueryString,
    SessionAction,
    SessionRef,
    SettingHow,
    SettingRef,
    TransactionKind,
    TransactionRef,
)
from policy.model import Policy, RepairTerms, StatementClass, Violation
from policy.names import PathNames
from proxy.conversation import Identity
from proxy.effects import AuditEntry, Close, Decide, Effect, Record, ToBackend, ToFrontend
from proxy.gate import Gate
from proxy.pace import MOST_AT_ONCE
from proxy.ruling import Ruling
from proxy.session import Session
from proxy.wire import backend as wire

POLICY = Policy(name="test", source="test.yaml", sha256="0" * 64)
REFUSED = b"pgturnstile_refused_nonce"


def message(kind: str, body: bytes = b"") -> bytes:
    return kind.encode() + struct.pack("!I", len(body) + 4) + body


def query(sql: str) -> bytes:
    return message("Q", sql.encode() + b"\0")


def parse(sql: str, name: str = "") -> bytes:
    return wire.parse_message(name.encode(), sql.encode())


def bind(statement: str = "", portal: str = "") -> bytes:
    return wire.bind_message(portal.encode(), statement.encode())


def execute(portal: str = "", rows: int = 0) -> bytes:
    return message("E", portal.encode() + b"\0" + struct.pack("!i", rows))


def describe(kind: str, name: str = "") -> bytes:
    return message("D", kind.encode() + name.encode() + b"\0")


def close(kind: str, name: str = "") -> bytes:
    return message("C", kind.encode() + name.encode() + b"\0")


SYNC, FLUSH, TERMINATE, COPY_DONE = (message(kind) for kind in "SHXc")
PARSED, BOUND, CLOSED, NO_DATA = (message(kind) for kind in "123n")
COPY_IN = message("G", b"\0\0\0")
COPY_OUT = message("H", b"\0\0\0")
DESCRIPTION = message("T", b"\0\0")


def row(*values: bytes) -> bytes:
    fields = b"".join(struct.pack("!I", len(value)) + value for value in values)
    return message("D", struct.pack("!H", len(values)) + fields)


def complete(tag: str) -> bytes:
    return message("C", tag.encode() + b"\0")


def ready(status: str = "I") -> bytes:
    return message("Z", status.encode())


def error(sqlstate: str, text: str = "failed", severity: str = "ERROR") -> bytes:
    return wire.encode_error({"severity": severity, "sqlstate": sqlstate, "message": text})


def facts(
    sql: str,
    statement_class: StatementClass = StatementClass.SELECT,
    session: tuple[SessionRef, ...] = (),
    settings: tuple[SettingRef, ...] = (),
    transactions: tuple[TransactionRef, ...] = (),
) -> Facts:
    classes = frozenset({statement_class})
    copies = (CopyRef(CopyEnd.STDIN),) if sql.startswith("copy") else ()
    return Facts(
        sql,
        1,
        "SelectStmt",
        classes,
        statement_class,
        {},
        session=session,
        settings=settings,
        transactions=transactions,
        copies=copies,
    )


class ScriptedGate(Gate):
    """Refuses texts that contain ``bad``; other decisions may be given by text. ``slow`` texts are held."""

    def __init__(self, decisions: Mapping[str, Decision] | None = None) -> None:
        super().__init__(POLICY, "agent", 1 << 20)
        self.decisions = decisions or {}
        self.asked: list[tuple[bytes, SessionNames]] = []

    def rule(self, text: bytes, names: SessionNames) -> Ruling | None:
        return None if b"slow" in text else self.rule_slowly(text, names)

    def rule_slowly(self, text: bytes, names: SessionNames) -> Ruling:
        self.asked.append((text, names))
        sql = text.decode()
        decision = self.decisions.get(sql) or (refuse(sql) if "bad" in sql else allow(sql))
        return Ruling(decision, POLICY, text, names)


def allow(sql: str, *, warnings: tuple[Violation, ...] = (), facts_: Facts | None = None) -> Allow:
    return Allow(QueryString(sql, (facts_ or facts(sql),)), StatementClass.SELECT, warnings)


def ruling(decision: Decision) -> Ruling:
    return Ruling(decision, POLICY, decision.query.sql.encode(), PathNames((("public",),)))


def refuse(sql: str) -> Reject:
    violation = Violation(
        "relation-not-allowed", "public.secrets is not allowed", "Leave it out.", "public.secrets"
    )
    return Reject(QueryString(sql, (facts(sql),)), StatementClass.SELECT, (violation,), RepairTerms(), None)


@dataclass
class Played:
    to_backend: bytes = b""
    to_frontend: bytes = b""
    records: list[AuditEntry] = field(default_factory=list)
    closes: list[Close] = field(default_factory=list)
    decides: list[Decide] = field(default_factory=list)

    def take(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, ToBackend):
                self.to_backend += effect.data
            elif isinstance(effect, ToFrontend):
                self.to_frontend += effect.data
            elif isinstance(effect, Record):
                self.records.append(effect.entry)
            elif isinstance(effect, Close):
                self.closes.append(effect)
            else:
                assert isinstance(effect, Decide)
                self.decides.append(effect)

    def errors(self) -> list[dict[str, str]]:
        return [wire.decode_fields(body) for kind, body in cut(self.to_frontend) if kind == "E"]

    def kinds(self) -> str:
        return "".join(kind for kind, _ in cut(self.to_frontend))

    def sent(self) -> str:
        return "".join(kind for kind, _ in cut(self.to_backend))


def cut(data: bytes) -> list[tuple[str, bytes]]:
    out = []
    while data:
        (length,) = struct.unpack_from("!I", data, 1)
        out.append((chr(data[0]), data[5 : length + 1]))
        data = data[length + 1 :]
    return out


def session(decisions: Mapping[str, Decision] | None = None, message_bytes: int = 1 << 20) -> Session:
    gate = ScriptedGate(decisions)
    return Session(
        gate,
        Identity("c1", "shop_ro"),
        ("public",),
        nonce="nonce",
        clock=lambda: 1.0,
        message_bytes=message_bytes,
    )


def pieces(data: bytes, size: int) -> Iterable[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size)) if size else iter((data,))


Step = tuple[str, bytes]


def play(steps: Iterable[Step], size: int = 0, decisions: Mapping[str, Decision] | None = None) -> Played:
    """Feed ``F`` steps from the agent and ``B`` steps from the server, in pieces of ``size`` (0: whole)."""
    played, subject = Played(), session(decisions)
    for side, data in steps:
        for piece in pieces(data, size):
            played.take(subject.from_frontend(piece) if side == "F" else subject.from_backend(piece))
    return played


EXTENDED = [PARSED, BOUND, DESCRIPTION, row(b"1"), complete("SELECT 1")]

TRANSCRIPTS: dict[str, tuple[list[Step], str, str]] = {
    # name: steps, what the backend gets, what the agent gets (message types in order)
    "simple": (
        [("F", query("select 1")), ("B", DESCRIPTION + row(b"1") + complete("SELECT 1") + ready())],
        "Q",
        "TDCZ",
    ),
    "empty query": ([("F", query("")), ("B", message("I") + ready())], "Q", "IZ"),
    "simple refused": ([("F", query("bad")), ("B", error("42601") + ready())], "Q", "EZ"),
    "simple refused in a transaction": ([("F", query("bad")), ("B", error("42601") + ready("E"))], "Q", "EZ"),
    "extended": (
        [
            ("F", parse("select 1") + bind() + describe("P") + execute() + SYNC),
            ("B", b"".join([*EXTENDED, ready()])),
        ],
        "PBDES",
        "12TDCZ",
    ),
    "extended refused": (
        [("F", parse("bad") + bind() + describe("P") + execute() + SYNC), ("B", error("42601") + ready())],
        "PS",
        "EZ",
    ),
    "refused middle of a pipeline": (
        [
            (
                "F",
                parse("a")
                + bind()
                + execute()
                + parse("bad")
                + bind()
                + execute()
                + parse("c")
                + bind()
                + execute()
                + SYNC,
            ),
            ("B", PARSED + BOUND + complete("INSERT 0 1") + error("42601") + ready()),
        ],
        "PBEPS",
        "12CEZ",
    ),
    "queries after a refusal are dropped until Sync": (
        [
            ("F", parse("bad") + query("select 1") + FLUSH + SYNC + query("select 2")),
            ("B", error("42601") + ready() + message("I") + ready()),
        ],
        "PSQ",
        "EZIZ",
    ),
    "an earlier failure hides our substitute": (
        [
            ("F", parse("a") + bind() + execute() + parse("bad") + SYNC),
            ("B", PARSED + BOUND + error("23505") + ready()),
        ],
        "PBEPS",
        "12EZ",
    ),
    "flush": (
        [("F", parse("a") + describe("S") + FLUSH), ("B", PARSED + message("t", b"\0\0") + NO_DATA)],
        "PDH",
        "1tn",
    ),
    "five syncs": ([("F", SYNC * 5), ("B", ready() * 5)], "SSSSS", "ZZZZZ"),
    "suspended portal": (
        [
            ("F", parse("a") + bind() + execute(rows=1) + FLUSH + execute(rows=1) + SYNC),
            ("B", PARSED + BOUND + row(b"1") + message("s") + row(b"2") + complete("SELECT 1") + ready()),
        ],
        "PBEHES",
        "12DsDCZ",
    ),
    "function call": (
        [("F", message("F", b"\0\0\0\1\0\0\0\0\0\0")), ("B", error("42601") + ready())],
        "Q",
        "EZ",
    ),
    "copy in": (
        [
            ("F", query("copy")),
            ("B", COPY_IN),
            ("F", message("d", b"1\n") + SYNC + FLUSH + message("d", b"2\n") + COPY_DONE),
            ("B", complete("COPY 2") + ready()),
        ],
        "QdHdc",
        "GCZ",
    ),
    "copy in, sent ahead": (
        [
            ("F", query("copy") + message("d", b"1\n") + COPY_DONE + query("select 1")),
            ("B", COPY_IN),
            ("B", complete("COPY 1") + ready()),
            ("B", message("I") + ready()),
        ],
        "QdcQ",
        "GCZIZ",
    ),
    "copy in fails in the server": (
        [
            ("F", query("copy")),
            ("B", COPY_IN),
            ("F", message("d", b"x\n")),
            ("B", error("22P02") + ready()),
            ("F", message("d", b"y") + COPY_DONE + query("select 1")),
            ("B", message("I") + ready()),
        ],
        "QddcQ",
        "GEZIZ",
    ),
    "extended copy in, Sync sent ahead is read past": (
        [
            ("F", parse("copy") + bind() + execute() + SYNC),
            ("B", PARSED + BOUND + COPY_IN),
            ("F", message("d", b"1\n") + COPY_DONE + SYNC),
            ("B", complete("COPY 1") + ready()),
        ],
        "PBEHdcS",
        "12GCZ",
    ),
    "extended copy in that failed before a Sync": (
        [
            ("F", parse("copy") + bind() + execute()),
            ("B", PARSED + BOUND + COPY_IN),
            ("F", message("d", b"x\n") + SYNC),
            ("B", error("22P02") + ready()),
            ("F", query("select 1")),
            ("B", message("I") + ready()),
        ],
        "PBEHdSQ",
        "12GEZIZ",
    ),
    "copy out": (
        [
            ("F", query("copy")),
            ("B", COPY_OUT + message("d", b"1\n") + message("c") + complete("COPY 1") + ready()),
        ],
        "Q",
        "HdcCZ",
    ),
    "asynchronous messages": (
        [
            ("B", wire.encode_notice({"message": "n"}) + message("A", b"\0\0\0\1a\0b\0")),
            ("F", query("select 1")),
            ("B", message("S", b"TimeZone\0UTC\0") + message("I") + ready()),
        ],
        "Q",
        "NASIZ",
    ),
    "unknown statement": (
        [("F", bind("nobody") + execute() + SYNC), ("B", CLOSED + error("26000") + ready())],
        "CBCES",
        "EZ",
    ),
    "two queries, the first fails": (
        [("F", query("a") + query("b")), ("B", error("22012") + ready() + message("I") + ready())],
        "QQ",
        "EZIZ",
    ),
    "query in an open pipeline": (
        [
            ("F", parse("a") + bind() + execute() + query("b") + SYNC),
            ("B", PARSED + BOUND + complete("SELECT 0") + message("I") + ready() + ready()),
        ],
        "PBEQS",
        "12CIZZ",
    ),
}


@pytest.mark.parametrize("size", [0, 1, 3, 7])
@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_transcript(name: str, size: int) -> None:
    steps, to_backend, to_frontend = TRANSCRIPTS[name]
    played = play(steps, size)
    assert played.closes == []
    assert played.sent() == to_backend
    assert played.kinds() == to_frontend


ALTERED = {
    "function call": "is refused",
    "unknown statement": "closed before, and its portal",
    "copy in": "Syncs that a copying server reads past are left out",
    "extended copy in, Sync sent ahead is read past": "as above, and a Flush brings the server's answer",
    "extended copy in that failed before a Sync": "as above",
}


@pytest.mark.parametrize(
    "name", [name for name in TRANSCRIPTS if "refus" not in name and name not in ALTERED]
)
def test_allowed_traffic_is_byte_identical(name: str) -> None:
    steps, _, _ = TRANSCRIPTS[name]
    played = play(steps)
    if "hides" not in name:
        assert played.to_backend == b"".join(data for side, data in steps if side == "F")
    assert played.to_frontend == b"".join(data for side, data in steps if side == "B")


@settings(deadline=None)
@given(st.sampled_from(sorted(TRANSCRIPTS)), st.data())
def test_any_split_gives_the_same(name: str, data: st.DataObject) -> None:
    steps, _, _ = TRANSCRIPTS[name]
    whole, played, subject = play(steps), Played(), session()
    for side, stream in steps:
        cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(stream) - 1)), max_size=5)))
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            feed = subject.from_frontend if side == "F" else subject.from_backend
            played.take(feed(stream[start:end]))
    assert (played.to_backend, played.to_frontend) == (whole.to_backend, whole.to_frontend)
    assert [r.command_tag for r in played.records] == [r.command_tag for r in whole.records]


def test_an_unchanged_chunk_is_not_copied() -> None:
    subject = session()
    chunk = query("select 1")
    [effect] = subject.from_frontend(chunk)
    assert isinstance(effect, ToBackend)
    assert effect.data is chunk
    answer = DESCRIPTION + row(b"x" * 100) + complete("SELECT 1") + ready()
    first, *_ = subject.from_backend(answer)
    assert isinstance(first, ToFrontend)
    assert first.data is answer


def test_a_refusal_is_worded_as_the_rejection_and_keeps_the_servers_status() -> None:
    played = play([("F", query("bad")), ("B", error("42601", f"syntax error at {REFUSED!r}") + ready("E"))])
    [fields] = played.errors()
    assert fields["sqlstate"] == "42501"
    assert fields["routine"] == "relation-not-allowed"
    assert fields["severity"] == "ERROR"
    assert "nonce" not in str(played.to_frontend)
    assert played.to_frontend.endswith(ready("E"))
    assert REFUSED in played.to_backend
    assert b"bad" not in played.to_backend


def test_the_server_parses_a_refused_statement_under_its_own_name() -> None:
    played = play([("F", parse("bad", "s1") + SYNC)])
    assert played.to_backend == wire.parse_message(b"s1", REFUSED) + SYNC


def test_an_earlier_error_is_relayed_verbatim_and_both_decisions_are_recorded() -> None:
    played = play(TRANSCRIPTS["an earlier failure hides our substitute"][0])
    assert played.errors()[0]["sqlstate"] == "23505"
    assert [(r.sqlstate, r.outcome_known) for r in played.records] == [("42501", True), ("23505", True)]


def test_records_carry_outcome() -> None:
    played = play(
        [
            ("F", query("select 1")),
            ("B", DESCRIPTION + row(b"1") + row(b"22") + complete("SELECT 2") + ready()),
        ]
    )
    [record] = played.records
    assert (record.command_tag, record.rows, record.protocol, record.sqlstate) == (
        "SELECT 2",
        2,
        "simple",
        None,
    )
    assert record.bytes == len(row(b"1") + row(b"22")) - 10


def test_rows_belong_to_their_own_statement() -> None:
    step = PARSED + BOUND
    played = play(
        [
            ("F", (parse("a") + bind() + execute()) * 2 + SYNC),
            (
                "B",
                step
                + row(b"1") * 3
                + complete("SELECT 3")
                + step
                + row(b"1")
                + complete("SELECT 1")
                + ready(),
            ),
        ]
    )
    assert [(r.command_tag, r.rows) for r in played.records] == [("SELECT 3", 3), ("SELECT 1", 1)]


def test_statements_the_server_skipped_are_recorded_as_unknown() -> None:
    played = play(
        [
            ("F", (parse("a") + bind() + execute()) + (parse("b") + bind() + execute()) + SYNC),
            ("B", PARSED + BOUND + error("22012") + ready()),
        ]
    )
    assert [(r.sqlstate, r.outcome_known) for r in played.records] == [("22012", True), (None, False)]


SURPRISES = {
    "a substitute that ran": [("F", query("bad")), ("B", complete("SELECT 1"))],
    "a substitute that ended without error": [("F", query("bad")), ("B", ready())],
    "a statement the gate never saw": [("F", bind("nobody")), ("B", BOUND)],
    "an answer to nothing": [("B", complete("SELECT 1"))],
    "ready without Sync": [("F", parse("a")), ("B", ready())],
    "another answer": [("F", parse("a")), ("B", BOUND)],
    "copy both": [("F", query("a")), ("B", message("W", b"\0\0\0"))],
    "string syntax changed": [("F", query("a")), ("B", message("S", b"standard_conforming_strings\0off\0"))],
    "encoding changed": [("B", message("S", b"client_encoding\0SJIS\0"))],
    "impossible length": [("B", b"T\0\0\0\1")],
}


@pytest.mark.parametrize("name", SURPRISES)
def test_a_surprise_of_the_backend_closes(name: str) -> None:
    played = play(SURPRISES[name])
    assert len(played.closes) == 1


VIOLATIONS = {
    "unknown type": b"!\0\0\0\4",
    "length below four": b"Q\0\0\0\3",
    "length of zero": b"Q\0\0\0\0",
    "length of 2^31": b"Q\x80\0\0\0",
    "query without terminator": message("Q", b"select 1"),
    "NUL inside a query": message("Q", b"select\x001\0"),
    "parse with trailing bytes": parse("a")[:1] + struct.pack("!I", len(parse("a"))) + parse("a")[5:] + b"x",
    "bind with a count too high": message("B", b"\0\0\0\0\xff\xff\0\0"),
    "bind with a negative length": message("B", b"\0\0\0\0\0\1\xff\xff\xff\xfe\0\0"),
    "sync with a body": message("S", b"x"),
    "describe of neither": message("D", b"X\0"),
    "execute without limit": message("E", b"\0"),
    "password after the handshake": message("p", b"secret\0"),
}


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize("name", VIOLATIONS)
def test_a_malformed_message_is_fatal_and_reaches_nobody(name: str, size: int) -> None:
    played = play([("F", VIOLATIONS[name])], size)
    assert played.to_backend == b""
    [fields] = played.errors()
    assert (fields["severity"], fields["sqlstate"]) in {("FATAL", "08P01"), ("FATAL", "54000")}
    assert len(played.closes) == 1


def test_nothing_is_put_inside_a_message_on_its_way() -> None:
    subject, played = session(), Played()
    played.take(subject.from_frontend(query("a")))
    played.take(subject.from_backend(DESCRIPTION + row(b"x" * 1000)[:50]))
    played.take(subject.from_frontend(b"!\0\0\0\4"))
    assert played.to_frontend == DESCRIPTION + row(b"x" * 1000)[:50]
    assert len(played.closes) == 1


def test_a_message_over_the_cap_is_refused_at_its_header() -> None:
    subject, played = session(message_bytes=1000), Played()
    played.take(subject.from_frontend(b"Q" + struct.pack("!I", 1001)))
    [fields] = played.errors()
    assert fields["sqlstate"] == "54000"


def test_a_held_statement_waits_and_so_does_all_behind_it() -> None:
    subject, played = session(), Played()
    played.take(subject.from_frontend(query("select 1") + query("slow") + query("select 2")))
    assert played.to_backend == query("select 1")
    assert subject.held
    [decide] = played.decides
    assert decide.text == b"slow"
    played.take(subject.from_frontend(query("select 3")))
    assert played.to_backend == query("select 1")
    played.take(subject.decided(ruling(allow("slow"))))
    assert not subject.held
    assert played.to_backend == query("select 1") + query("slow") + query("select 2") + query("select 3")


def test_a_held_parse_that_is_refused_drops_what_follows() -> None:
    subject, played = session(), Played()
    played.take(subject.from_frontend(parse("slow") + bind() + execute() + SYNC))
    played.take(subject.decided(ruling(refuse("slow"))))
    assert played.sent() == "PS"
    played.take(subject.from_backend(error("42601") + ready()))
    assert played.kinds() == "EZ"


def test_a_warning_is_a_notice_before_the_answer() -> None:
    warned = allow("join", warnings=(Violation("unbounded-join", "joins without a LIMIT", "Add LIMIT."),))
    answer = DESCRIPTION + complete("SELECT 0") + ready()
    played = play([("F", query("a") + query("join")), ("B", answer + answer)], decisions={"join": warned})
    assert played.kinds() == "TCZNTCZ"
    played = play(
        [
            ("F", parse("join") + bind() + execute() + SYNC),
            ("B", PARSED + BOUND + complete("SELECT 0") + ready()),
        ],
        decisions={"join": warned},
    )
    assert played.kinds() == "N12CZ"


def named(action: SessionAction, name: str | None = None) -> Facts:
    return facts(action.value, StatementClass.PREPARE, session=(SessionRef(action, name),))


PREPARE = allow("prepare p", facts_=named(SessionAction.PREPARE, "p"))
EXECUTE = allow("execute p", facts_=named(SessionAction.EXECUTE, "p"))
DEALLOCATE = allow("deallocate p", facts_=named(SessionAction.DEALLOCATE, "p"))
DISCARD = allow("discard all", facts_=named(SessionAction.DISCARD_ALL))
SQL_NAMES = {d.query.sql: d for d in (PREPARE, EXECUTE, DEALLOCATE, DISCARD)}


def test_execute_of_a_name_that_was_not_prepared_is_refused() -> None:
    played = play([("F", query("execute p")), ("B", error("42601") + ready())], decisions=SQL_NAMES)
    [fields] = played.errors()
    assert (fields["sqlstate"], fields["routine"]) == ("26000", "not-understood")
    assert REFUSED in played.to_backend


DONE = complete("X") + ready()


def path_is(*values: bytes, status: str = "I") -> bytes:
    """The server's answer to our question which search_path holds: what it searches, and what is listed; or
    that alone."""
    closed = CLOSED + CLOSED
    return closed + PARSED + BOUND + row(*values) + complete("SELECT 1") + closed + ready(status)


PATH_IS_PUBLIC = path_is(b"{public}", b"public")


@pytest.mark.parametrize(
    ("steps", "refused"),
    [
        ([query("prepare p") + query("execute p")], False),
        ([query("prepare p"), DONE, query("deallocate p"), DONE, query("execute p")], True),
        ([query("prepare p"), DONE, query("discard all"), DONE, PATH_IS_PUBLIC, query("execute p")], True),
        ([query("prepare p"), error("42601") + ready(), query("execute p")], True),
        (
            [query("prepare p"), DONE, query("deallocate p"), error("25P02") + ready(), query("execute p")],
            False,
        ),
        ([query("prepare p"), DONE, close("S", "p") + SYNC, CLOSED + ready(), query("execute p")], True),
        ([parse("a", "p") + SYNC, PARSED + ready(), query("execute p")], False),
        ([parse("a", "p") + SYNC, error("42601") + ready(), query("execute p")], True),
        (
            [
                query("prepare p"),
                DONE,
                parse("bad", "p") + SYNC,
                error("42601") + ready(),
                query("execute p"),
            ],
            False,
        ),
    ],
)
def test_names_are_one_namespace_and_follow_what_the_server_did(steps: list[bytes], refused: bool) -> None:
    sides = [
        "F" if data[:1] in b"QPCS" and data[:5] != DONE[:5] and data[5:6] != b"X" else "B" for data in steps
    ]
    played = play(zip(sides, steps, strict=True), decisions=SQL_NAMES)
    assert (REFUSED in cut(played.to_backend)[-1][1]) is refused


def test_a_refused_unnamed_parse_drops_the_old_unnamed_statement() -> None:
    first = parse("a") + bind() + execute() + SYNC
    answer = PARSED + BOUND + complete("SELECT 0") + ready()
    played = play(
        [
            ("F", first),
            ("B", answer),
            ("F", parse("bad") + SYNC),
            ("B", error("42601") + ready()),
            ("F", bind() + SYNC),
        ]
    )
    # The server has no unnamed statement any more: if it bound one, that would be a surprise.
    played_on = play(
        [
            ("F", first),
            ("B", answer),
            ("F", parse("bad") + SYNC),
            ("B", error("42601") + ready()),
            ("F", bind() + SYNC),
            ("B", BOUND + ready()),
        ]
    )
    assert played.closes == []
    assert len(played_on.closes) == 1


def test_too_many_names_end_the_connection() -> None:
    subject, played = session(), Played()
    for n in range(10_001):
        played.take(subject.from_frontend(parse("a", f"s{n}")))
    assert played.errors()[-1]["sqlstate"] == "53400"
    assert len(played.closes) == 1


def path(*values: str) -> Allow:
    setting = SettingRef("search_path", SettingHow.SET, values)
    return allow("set path", facts_=facts("set path", StatementClass.SET, settings=(setting,)))


def test_search_path_is_both_until_the_server_says_which() -> None:
    gate = ScriptedGate({"set path": path("reporting", "$user")})
    subject = Session(
        gate, Identity("c1", "shop_ro"), ("public",), nonce="n", clock=lambda: 0.0, message_bytes=1 << 20
    )
    played = Played()
    played.take(subject.from_frontend(query("set path") + query("select 1")))
    assert gate.asked[-1][1].paths == (("public",), ("reporting", "shop_ro"))
    played.take(subject.from_backend(complete("SET") + ready()))
    assert played.sent() == "QQ"
    played.take(subject.from_backend(DESCRIPTION + complete("SELECT 0") + ready()))
    assert played.sent() == "QQCCPBECCS"
    assert b"current_schemas" in played.to_backend
    before, asked = played.to_frontend, len(gate.asked)
    played.take(subject.from_frontend(query("select 2")))
    assert len(gate.asked) == asked, "waits for the answer"
    played.take(subject.from_backend(path_is(b"{report}", b"reporting, report")))
    assert played.to_frontend == before
    assert gate.asked[-1][1].paths == (("report",),)
    assert played.sent() == "QQCCPBECCSQ"


@pytest.mark.parametrize("schemas", [("pg_temp",), ("nowhere", "pg_temp", "public")])
def test_asking_for_the_path_makes_no_schema_for_temporary_objects(schemas: tuple[str, ...]) -> None:
    """PREPARE TRANSACTION refuses where current_schema() makes it, and only in the transaction that does."""
    gate = ScriptedGate({"set path": path(*schemas)})
    subject, played = path_session(gate), Played()
    played.take(subject.from_frontend(query("set path")))
    played.take(subject.from_backend(complete("SET") + ready()))
    assert b"SHOW search_path" in played.to_backend
    assert b"current_schemas" not in played.to_backend
    played.take(subject.from_backend(path_is(b'pg_temp, "$user"')))
    played.take(subject.from_frontend(query("select 1")))
    assert gate.asked[-1][1].paths == (("pg_temp", "shop_ro"),)


def path_session(gate: ScriptedGate) -> Session:
    return Session(
        gate, Identity("c1", "shop_ro"), ("public",), nonce="n", clock=lambda: 0.0, message_bytes=1 << 20
    )


def ending(kind: TransactionKind) -> Allow:
    of = facts(kind.value, StatementClass.TRANSACTION, transactions=(TransactionRef(kind),))
    return allow(kind.value, facts_=of)


def test_inside_a_transaction_the_setting_is_asked_and_its_end_brings_the_old_path_back() -> None:
    gate = ScriptedGate({"set path": path("reporting"), "rollback_to": ending(TransactionKind.ROLLBACK_TO)})
    subject, played = path_session(gate), Played()
    played.take(subject.from_frontend(query("begin")))
    played.take(subject.from_backend(complete("BEGIN") + ready("T")))
    played.take(subject.from_frontend(query("set path")))
    played.take(subject.from_backend(complete("SET") + ready("T")))
    assert b"SHOW search_path" in played.to_backend
    assert b"current_schemas" not in played.to_backend, "it would take a snapshot"
    played.take(subject.from_backend(path_is(b'reporting, "$user"', status="T")))
    played.take(subject.from_frontend(query("select 1")))
    assert gate.asked[-1][1].paths == (("reporting", "shop_ro"),)
    played.take(subject.from_backend(complete("SELECT 0") + ready("T")))
    played.take(subject.from_frontend(query("rollback_to") + query("select 2")))
    assert set(gate.asked[-1][1].paths) == {("public",), ("reporting",), ("reporting", "shop_ro")}
    played.take(subject.from_backend(complete("ROLLBACK") + ready("T") + complete("SELECT 0") + ready("T")))
    played.take(subject.from_backend(path_is(b"public", status="T")))
    played.take(subject.from_frontend(query("select 3")))
    assert gate.asked[-1][1].paths == (("public",),)


def test_a_prepared_statement_is_judged_again_under_another_path() -> None:
    """The server plans a prepared statement anew once the path has changed."""
    gate = ScriptedGate({"set path": path("hidden")})
    subject = Session(
        gate, Identity("c1", "shop_ro"), ("public",), nonce="n", clock=lambda: 0.0, message_bytes=1 << 20
    )
    played = Played()
    played.take(subject.from_frontend(parse("a", "s") + SYNC))
    played.take(subject.from_backend(PARSED + ready()))
    gate.decisions = {"set path": path("hidden"), "a": refuse("a")}
    played.take(subject.from_frontend(bind("s") + SYNC))
    assert played.sent() == "PSBS"
    played.take(subject.from_backend(BOUND + ready()))
    played.take(subject.from_frontend(query("set path") + bind("s") + execute() + SYNC))
    assert played.sent() == "PSBSQBS"
    assert REFUSED_HERE in played.to_backend
    played.take(subject.from_backend(complete("SET") + ready() + error("26000") + ready()))
    assert played.errors()[-1]["routine"] == "relation-not-allowed"


REFUSED_HERE = b"pgturnstile_refused_n"


def test_a_lost_connection_records_what_was_owed() -> None:
    subject = session()
    subject.from_frontend(query("select 1"))
    assert subject.in_flight
    [effect] = subject.lost()
    assert isinstance(effect, Record)
    assert not effect.entry.outcome_known
    assert subject.from_frontend(query("select 2")) == []


@pytest.mark.parametrize(
    ("sent", "cancellable"),
    [
        (query("a"), True),
        (parse("a") + bind() + execute() + SYNC, True),
        (parse("a") + bind() + execute(), True),
        (query("a") + query("b"), False),
        (query("a") + parse("b"), False),
        ((parse("a") + bind() + execute() + SYNC) * 2, False),
        (b"", False),
    ],
)
def test_only_what_fails_as_one_may_be_cancelled(sent: bytes, cancellable: bool) -> None:
    subject = session()
    subject.from_frontend(sent)
    assert subject.cancellable is cancellable


def test_terminate_passes_and_closes() -> None:
    played = play([("F", query("a") + TERMINATE + query("b"))])
    assert played.to_backend == query("a") + TERMINATE
    assert len(played.closes) == 1
    assert played.to_frontend == b""


def test_a_fatal_error_is_relayed_once() -> None:
    fatal = error("57P01", "terminating", "FATAL")
    played = play([("F", query("bad")), ("B", fatal)])
    assert played.to_frontend == fatal


@given(st.binary(max_size=200), st.integers(0, 5))
def test_arbitrary_bytes_of_an_agent_never_raise(data: bytes, size: int) -> None:
    played = play([("F", query("select 1") + data)], size)
    assert played.sent()[:1] == "Q"


@given(st.binary(max_size=200), st.integers(0, 5))
def test_arbitrary_bytes_of_a_server_never_raise(data: bytes, size: int) -> None:
    play([("F", query("select 1")), ("B", data)], size)


def test_a_held_statement_is_judged_once_and_by_its_own_ruling() -> None:
    subject, played = session(), Played()
    played.take(subject.from_frontend(query("slow 1")))
    for byte in query("slow bad"):
        played.take(subject.from_frontend(bytes([byte])))
    assert [decide.text for decide in played.decides] == [b"slow 1"]
    played.take(subject.decided(ruling(allow("slow 1"))))
    assert [decide.text for decide in played.decides] == [b"slow 1", b"slow bad"]
    played.take(subject.decided(ruling(allow("slow 1"))))
    assert b"bad" not in played.to_backend
    assert len(played.closes) == 1


def waits(subject: Session) -> bool:
    return subject.held


def full(subject: Session) -> bool:
    return subject.overfull


PATH_MOVED = (("public",), ("reporting", "shop_ro"))


def moving(gate_decisions: Mapping[str, Decision]) -> tuple[Session, ScriptedGate]:
    gate = ScriptedGate({"set path": path("reporting", "$user"), **gate_decisions})
    subject = Session(
        gate, Identity("c1", "shop_ro"), ("public",), nonce="nonce", clock=lambda: 0.0, message_bytes=1 << 20
    )
    return subject, gate


def test_what_execute_runs_moves_the_path_as_if_it_were_sent() -> None:
    """PostgreSQL lets EXECUTE run any statement that Parse prepared, SET among them."""
    nested = Allow(QueryString("nested", (named(SessionAction.EXECUTE, "s"),)), StatementClass.PREPARE)
    outer = Allow(QueryString("outer", (named(SessionAction.EXECUTE, "n"),)), StatementClass.PREPARE)
    subject, gate = moving({"nested": nested, "outer": outer})
    subject.from_frontend(parse("set path", "s") + parse("nested", "n") + SYNC)
    subject.from_backend(PARSED + PARSED + ready())
    subject.from_frontend(query("outer") + query("select 1"))
    assert gate.asked[-1] == (b"select 1", PathNames(PATH_MOVED))


def test_what_execute_drops_is_dropped() -> None:
    subject, played = session({**SQL_NAMES, "run": EXECUTE_D}), Played()
    played.take(subject.from_frontend(query("prepare p") + parse("deallocate p", "d") + SYNC))
    played.take(subject.from_backend(DONE + PARSED + ready()))
    played.take(subject.from_frontend(query("run")))
    played.take(subject.from_backend(DONE))
    played.take(subject.from_frontend(query("execute p")))
    assert REFUSED in cut(played.to_backend)[-1][1]


EXECUTE_D = allow("run", facts_=named(SessionAction.EXECUTE, "d"))

BEGUN = query("begin")
FAILED = error("22012") + ready("E")


def test_a_name_prepared_over_a_removal_that_may_fail_is_not_run_before_it_is_certain() -> None:
    """In a failed transaction DEALLOCATE fails, and so does the PREPARE behind it: the old meaning stays."""
    harmless = allow("prepare s", facts_=named(SessionAction.PREPARE, "s"))
    removal = allow("deallocate s", facts_=named(SessionAction.DEALLOCATE, "s"))
    subject, gate = moving({"prepare s": harmless, "deallocate s": removal})
    played = Played()
    played.take(subject.from_frontend(parse("set path", "s") + SYNC))
    played.take(subject.from_backend(PARSED + ready()))
    pipelined = query("deallocate s") + query("rollback") + query("prepare s")
    played.take(subject.from_frontend(pipelined + bind("s") + execute() + SYNC + query("select 1")))
    assert waits(subject)
    assert played.sent() == "PSQQQ"
    played.take(subject.from_backend(error("25P02") + ready("E") + complete("ROLLBACK") + ready()))
    assert waits(subject)
    played.take(subject.from_backend(error("42P05") + ready()))
    assert played.sent() == "PSQQQBESQ"
    assert gate.asked[-1] == (b"select 1", PathNames(PATH_MOVED))


def test_a_portal_opened_over_another_is_not_run_before_it_is_certain() -> None:
    """The second Bind fails, and the first portal, from before the savepoint, is the one that runs."""
    subject, gate = moving({})
    played = Played()
    played.take(subject.from_frontend(BEGUN + parse("set path", "s") + bind("s", "p") + SYNC))
    played.take(subject.from_backend(complete("BEGIN") + ready("T") + PARSED + BOUND + ready("T")))
    played.take(subject.from_frontend(query("savepoint") + parse("select 2") + bind("", "p") + SYNC))
    played.take(subject.from_frontend(query("rollback to") + execute("p") + SYNC + query("select 1")))
    assert waits(subject)
    played.take(
        subject.from_backend(complete("SAVEPOINT") + ready("T") + PARSED + error("42P03") + ready("E"))
    )
    assert not waits(subject)
    assert gate.asked[-1] == (b"select 1", PathNames(PATH_MOVED))


def test_what_was_judged_elsewhere_waits_for_what_it_names_like_any_other() -> None:
    """The EXECUTE takes long to judge, and stands behind a PREPARE that may fail."""
    run = allow("execute slow s", facts_=named(SessionAction.EXECUTE, "s"))
    made = allow("prepare s", facts_=named(SessionAction.PREPARE, "s"))
    removal = allow("deallocate s", facts_=named(SessionAction.DEALLOCATE, "s"))
    subject, _ = moving({"prepare s": made, "deallocate s": removal})
    played = Played()
    played.take(subject.from_frontend(parse("select 7", "s") + SYNC))
    played.take(subject.from_backend(PARSED + ready()))
    played.to_backend = b""
    before = query("deallocate s") + query("prepare s")
    played.take(subject.from_frontend(before + query("execute slow s") + query("select 1")))
    played.take(subject.decided(ruling(run)))
    assert waits(subject)
    assert played.to_backend == before
    assert not subject.idle
    played.take(subject.from_backend(complete("DEALLOCATE") + ready() + complete("PREPARE") + ready()))
    # What its names mean is asked again: it may be another by now.
    assert [decide.text for decide in played.decides] == [b"execute slow s"] * 2
    played.take(subject.decided(ruling(run)))
    assert played.to_backend == before + query("execute slow s") + query("select 1")
    assert not waits(subject)


def test_texts_that_are_not_known_are_judged_elsewhere_once_there_were_some() -> None:
    subject, played = session(), Played()
    sent = [query(f"select {n}") for n in range(MOST_AT_ONCE + 2)]
    played.take(subject.from_frontend(b"".join(sent)))
    assert played.to_backend == b"".join(sent[:MOST_AT_ONCE])
    [decide] = played.decides
    assert decide.text == f"select {MOST_AT_ONCE}".encode()
    played.take(subject.decided(ruling(allow(decide.text.decode()))))
    assert played.to_backend == b"".join(sent)


def test_pipelines_over_the_unnamed_do_not_wait() -> None:
    subject, played = session(), Played()
    each = parse("a") + bind() + describe("P") + execute() + SYNC
    played.take(subject.from_frontend(each * MOST_AT_ONCE))
    assert played.to_backend == each * MOST_AT_ONCE


def test_a_statement_whose_removal_failed_is_there_still() -> None:
    played = play(
        [
            ("F", parse("a", "s") + SYNC),
            ("B", PARSED + ready()),
            ("F", query("fail") + query("deallocate s") + query("rollback") + bind("s") + SYNC),
            ("B", FAILED + error("25P02") + ready("E") + complete("ROLLBACK") + ready() + BOUND + ready()),
        ],
        decisions={"deallocate s": allow("x", facts_=named(SessionAction.DEALLOCATE, "s"))},
    )
    assert played.closes == []


def test_nothing_is_asked_inside_the_agents_copy_data() -> None:
    """The rest of the frame would reach the server as messages that nobody judged."""
    subject, _ = moving({})
    played = Played()
    half = message("d", b"x" * 100)[:50]
    played.take(subject.from_frontend(query("set path") + half))
    played.take(subject.from_backend(complete("SET") + ready()))
    assert played.to_backend == query("set path") + half
    played.take(subject.from_frontend(message("d", b"x" * 100)[50:] + query("select 1")))
    played.take(subject.from_backend(complete("SELECT 1") + ready()))
    assert b"current_schemas" in played.to_backend


def test_a_copy_that_fails_before_it_reads_leaves_its_sync_to_be_answered() -> None:
    """As COPY to a view does, which is refused after CopyInResponse."""
    played = play(
        [
            ("F", parse("copy") + bind() + execute() + SYNC),
            ("B", PARSED + BOUND + COPY_IN + error("42809")),
            ("B", ready()),
            ("F", query("select 1")),
            ("B", message("I") + ready()),
        ]
    )
    assert played.closes == []
    assert played.sent() == "PBEHSQ"
    assert played.kinds() == "12GEZIZ"


def test_statements_that_nobody_runs_are_recorded_too() -> None:
    played = play(
        [
            ("F", parse("a") + bind() + execute()),
            ("B", PARSED + BOUND + error("22012")),
            ("F", query("b") + parse("c") + SYNC),
            ("B", ready()),
        ]
    )
    assert [(r.sqlstate, r.outcome_known) for r in played.records] == [("22012", True), (None, False)]


def test_an_agent_that_is_owed_too_much_is_not_read() -> None:
    subject = session()
    subject.from_frontend(SYNC * 16_384)
    assert not full(subject)
    subject.from_frontend(SYNC)
    assert full(subject)
    subject.from_backend(ready())
    assert not full(subject)


def test_what_waits_behind_a_held_statement_is_bounded() -> None:
    subject = session()
    subject.from_frontend(query("slow") + query("x" * 60_000))
    assert not full(subject)
    subject.from_frontend(query("x" * 60_000))
    assert full(subject)


def test_an_error_of_megabytes_passes_whole_and_long_notices_as_they_come() -> None:
    long = error("22P02", "x" * 3_000_000)
    played = play([("F", query("a")), ("B", long + ready())], size=65_536)
    assert played.to_frontend == long + ready()
    assert played.records[0].sqlstate == "22P02"
    subject, told = session(), Played()
    told.take(subject.from_backend(wire.encode_notice({"message": "n" * 100_000})[:50_000]))
    assert len(told.to_frontend) == 50_000
