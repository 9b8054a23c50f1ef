"""The session between random agents and a model of PostgreSQL: what each side sees, in any timing and split.

The judge is the model itself. An agent's messages are given, in order and at once, to a model that refuses
what the policy refuses; what that one answers is what the agent has to read through the session, message for
message, however the bytes of both directions are cut and interleaved.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterable

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

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
)
from policy.model import Policy, RepairTerms, StatementClass, Violation
from policy.names import PathNames
from proxy.conversation import Identity
from proxy.effects import AuditEntry, Close, Decide, Effect, Record, ToBackend, ToFrontend
from proxy.gate import Gate
from proxy.ruling import Ruling
from proxy.session import Session
from proxy.wire.backend import decode_fields
from tests.support.model_server import PATH_QUESTION, SETTING_QUESTION, ModelServer
from tests.support.wire import (
    COPY_DONE,
    FLUSH,
    SYNC,
    bind,
    close,
    copy_data,
    copy_fail,
    describe,
    execute,
    message,
    parse,
    query,
)

POLICY = Policy(name="test", source="test.yaml", sha256="0" * 64)
SUBSTITUTE = b"pgturnstile_refused_nonce"
_ACTIONS = {
    "prepare": SessionAction.PREPARE,
    "execute": SessionAction.EXECUTE,
    "deallocate": SessionAction.DEALLOCATE,
}


def refused(text: bytes) -> bool:
    return b"bad" in text


def facts(sql: str) -> Facts:
    verb, _, name = sql.partition(" ")
    session = (SessionRef(_ACTIONS[verb], name),) if verb in _ACTIONS else ()
    copies = (CopyRef(CopyEnd.STDIN if name == "in" else CopyEnd.STDOUT),) if verb == "copy" else ()
    changes = (SettingRef("search_path", SettingHow.SET, ("public",)),) if verb == "path" else ()
    select = StatementClass.SELECT
    return Facts(
        sql,
        1,
        "SelectStmt",
        frozenset({select}),
        select,
        {},
        session=session,
        copies=copies,
        settings=changes,
    )


class ToyGate(Gate):
    """Refuses what ``refused`` says; a text with ``slow`` is judged later."""

    def __init__(self) -> None:
        super().__init__(POLICY, "agent", 1 << 20)

    def rule(self, text: bytes, names: PathNames) -> Ruling | None:
        return None if b"slow" in text else self.rule_slowly(text, names)

    def rule_slowly(self, text: bytes, names: PathNames) -> Ruling:
        sql = text.decode()
        judged = QueryString(sql, (facts(sql),) if sql.strip() else ())
        decision: Decision = Allow(judged, StatementClass.SELECT)
        if refused(text):
            violation = Violation("relation-not-allowed", "no", "Leave it out.")
            decision = Reject(judged, StatementClass.SELECT, (violation,), RepairTerms(), None)
        return Ruling(decision, POLICY, text, names)


class Table:
    """An agent, a session and a server, and the bytes on their way between them."""

    def __init__(self, seed: int) -> None:
        self.gate = ToyGate()
        self.session = Session(
            self.gate,
            Identity("c1", "role"),
            ("public",),
            nonce="nonce",
            clock=lambda: 1.0,
            message_bytes=1 << 20,
        )
        self.server = ModelServer()
        self.to_session, self.to_server, self.to_agent = b"", b"", b""
        self.read = b""
        self.forwarded = b""
        self.decides: list[Decide] = []
        self.records: list[AuditEntry] = []
        self.closes: list[Close] = []
        self.random = random.Random(seed)

    def play(self, sent: bytes) -> None:
        """The agent sends, and waits: bytes move at random until nothing moves any more."""
        self.to_session += sent
        while moves := [move for move, there in self._moves() if there]:
            self.random.choice(moves)()

    def _moves(self) -> Iterable[tuple[Callable[[], None], bool]]:
        yield self._from_agent, bool(self.to_session)
        yield self._into_server, bool(self.to_server)
        yield self._from_server, bool(self.to_agent)
        yield self._decide, bool(self.decides)

    def _cut(self, data: bytes) -> tuple[bytes, bytes]:
        size = len(data) if self.random.random() < 0.3 else self.random.randint(1, min(len(data), 60))
        return data[:size], data[size:]

    def _from_agent(self) -> None:
        chunk, self.to_session = self._cut(self.to_session)
        self._carry_out(self.session.from_frontend(chunk))

    def _into_server(self) -> None:
        chunk, self.to_server = self._cut(self.to_server)
        self.to_agent += self.server.receive(chunk)

    def _from_server(self) -> None:
        chunk, self.to_agent = self._cut(self.to_agent)
        self._carry_out(self.session.from_backend(chunk))

    def _decide(self) -> None:
        asked = self.decides.pop(0)
        self._carry_out(self.session.decided(self.gate.rule_slowly(asked.text, asked.names)))

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case ToBackend(data=data):
                    self.to_server += data
                    self.forwarded += data
                case ToFrontend(data=data):
                    self.read += data
                case Record(entry=entry):
                    self.records.append(entry)
                case Decide():
                    self.decides.append(effect)
                case Close():
                    self.closes.append(effect)


def cut(data: bytes) -> list[bytes]:
    frames = []
    while data:
        (length,) = struct.unpack_from("!I", data, 1)
        frames.append(data[: length + 1])
        data = data[length + 1 :]
    return frames


_NOT_THERE = {"26000", "25P02"}
"""Which of the two a statement fails with that names what does not exist is the gate's affair."""


def seen(data: bytes) -> list[tuple[str, bytes | str]]:
    """What an agent can tell of a stream: types, bodies, and of errors the code."""
    told: list[tuple[str, bytes | str]] = []
    for frame in cut(data):
        kind = chr(frame[0])
        if kind == "E":
            sqlstate = decode_fields(frame[5:])["sqlstate"]
            told.append((kind, "not there" if sqlstate in _NOT_THERE else sqlstate))
        else:
            told.append((kind, frame[5:]))
    return told


# --- what agents send ---

Part = list[bytes]

TEXTS = st.sampled_from(
    [
        "select 1",
        "select 2 slow",
        "select bad",
        "select bad slow",
        "rows 3",
        "fail",
        "begin",
        "begin",
        "commit",
        "rollback",
        "path",
        "prepare s",
        "deallocate s",
        "prepare t",
        "notice",
        "copy out",
        "",
        "sintax",
    ]
)
NAMES = st.sampled_from(["", "s", "t"])
PORTALS = st.sampled_from(["", "p"])

simple = st.builds(query, st.one_of(TEXTS, st.sampled_from(["execute s", "execute t"])))
single = st.one_of(
    st.builds(parse, TEXTS, NAMES),
    st.builds(bind, NAMES, PORTALS),
    st.builds(describe, st.sampled_from("SP"), st.sampled_from(["", "s", "p"])),
    st.builds(execute, PORTALS, st.sampled_from([0, 0, 1, 2])),
    st.builds(close, st.sampled_from("SP"), st.sampled_from(["", "s", "p"])),
    st.sampled_from([SYNC, SYNC, FLUSH, message("F", b"\0\0\0\1\0\0\0\0\0\0")]),
)
whole = st.builds(
    lambda text, name, portal, rows, end: (
        parse(text, name) + bind(name, portal) + describe("P", portal) + execute(portal, rows) + end
    ),
    TEXTS,
    NAMES,
    PORTALS,
    st.sampled_from([0, 2]),
    st.sampled_from([b"", SYNC, SYNC, FLUSH]),
)
COPY_BY_NAME = close("S", "c") + parse("copy in", "c") + bind("c", "c") + execute("c")
"""Under a name that no other message uses: nobody sends queries into a copy that he did not expect."""
good_rows = st.lists(st.sampled_from([copy_data(b"1\n"), copy_data(b"x" * 90)]), max_size=3).map(b"".join)
endings: st.SearchStrategy[Part] = st.one_of(
    st.builds(lambda rows, end: [rows + end], good_rows, st.sampled_from([COPY_DONE, copy_fail()])),
    st.builds(
        lambda rows, stray: [rows + copy_data(b"bad\n") + stray],
        good_rows,
        st.sampled_from([COPY_DONE, copy_fail(), copy_data(b"2\n") + COPY_DONE]),
    ),
    # Behind the row that fails a copy, a Sync is answered. Nothing but Syncs may follow unasked.
    st.builds(
        lambda rows, syncs: [rows + copy_data(b"bad\n") + SYNC * syncs, b""], good_rows, st.integers(1, 2)
    ),
)
copies: st.SearchStrategy[Part] = st.one_of(
    st.builds(lambda end: [query("copy in") + end[0], *end[1:]], endings),
    st.builds(
        lambda early, end: [COPY_BY_NAME + early + end[0], *(end[1:] or [SYNC])],
        st.sampled_from([b"", FLUSH, SYNC, SYNC + FLUSH + SYNC]),
        endings,
    ),
)
messages: st.SearchStrategy[Part] = st.one_of(simple, simple, single, single, whole).flatmap(
    lambda sent: st.sampled_from([[sent], [sent], [sent], [sent, b""]])
)
steps_of_one_name = st.lists(
    st.sampled_from(
        [
            query("rollback"),
            query("rollback"),
            query("prepare s"),
            query("deallocate s"),
            query("execute s"),
            parse("select 9", "s") + SYNC,
            bind("s", "p") + execute("p") + SYNC,
            execute("p") + SYNC,
            close("S", "s") + SYNC,
        ]
    ),
    min_size=2,
    max_size=7,
).map(b"".join)
one_name: st.SearchStrategy[Part] = st.builds(
    lambda first, failed, steps: [first, failed + steps],
    st.sampled_from([b"", parse("path", "s") + SYNC]),
    st.sampled_from([b"", query("begin") + query("fail"), query("begin") + bind("s", "p") + SYNC]),
    steps_of_one_name,
)
"""Every way to make and to lose one name, in a row, in transactions that fail."""
scripts = st.lists(
    st.one_of(messages, messages, messages, copies, one_name, one_name), min_size=1, max_size=14
)
"""Parts of one inner list are sent in a row; between two of them, and nowhere else, the agent waits."""


def turns(script: list[Part]) -> list[bytes]:
    """What the agent sends before it waits, each time."""
    sent = [b""]
    for part in script:
        sent[-1] += part[0]
        sent += part[1:]
    sent[-1] += SYNC
    return sent


PORTAL_GONE = describe("P") + SYNC
"""A Query has dropped the unnamed portal, and no question of ours may leave another in its place."""


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(script=scripts.map(turns), seed=st.integers(0, 2**32))
@example(script=[parse("begin") + bind("", "p") + execute("p") + query("path"), PORTAL_GONE], seed=0)
def test_an_agent_sees_what_postgresql_would_say(script: list[bytes], seed: int) -> None:
    judge = ModelServer(refused)
    expected = judge.receive(b"".join(script))

    table = Table(seed)
    for turn in script:
        table.play(turn)

    assert table.closes == []
    assert not table.session.held
    assert seen(table.read) == seen(expected)
    assert table.server.ran == judge.ran
    # Nothing undecided and nothing refused was ever read by the server, not even as a text.
    assert not any(refused(text) for text in table.server.read)
    own = (PATH_QUESTION, SETTING_QUESTION)
    strangers = {t for t in table.server.read if t not in judge.read and not any(q in t for q in own)}
    assert strangers <= {SUBSTITUTE}
    # Every decision is recorded, once.
    assert sorted(int(r.id.rpartition("-")[2]) for r in table.records) == [
        n + 1 for n in range(len(table.records))
    ]
    statuses = [frame[5:] for frame in cut(expected) if frame[:1] == b"Z"]
    assert table.session.status == statuses[-1]
    assert not table.session.in_flight
