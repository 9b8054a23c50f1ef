"""What is fuzzed: functions that take any bytes and state what must hold of them, and what each begins with.

An AssertionError, or any exception at all, is a finding. Owns the targets and their seeds; how inputs are
made is ``run``'s. Bytes that were a finding once stay as files under ``found/``, which the quick suite reads.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from policy.loader import load
from policy.names import PathNames
from policy.parse import canonical, fingerprint, masked, normalize, parse
from proxy.conversation import Identity
from proxy.effects import Close, Consult, Decide, Effect, Tell, ToBackend, ToFrontend
from proxy.gate import Gate
from proxy.ruling import Ruling
from proxy.session import Session
from proxy.wire import authentication, backend, client_hello, frontend, startup
from proxy.wire.frames import COPY_DATA, BackendFrames, FramingError, FrontendFrames
from proxy.wire.frontend import MalformedMessage
from tests.fuzz.texts import EXCHANGES, TEXTS, exchanges, texts

_POLICY: Final = """
version: 1
name: fuzzed
access: read_write
multiple: judged
statements: {select: allow, insert: allow, update: allow, transaction: allow, set: allow, show: allow,
  prepare: allow, cursor: allow, copy_in: allow, copy_out: allow, explain: allow}
relations: {allow: ["public.*"], deny: [public.secrets]}
functions: {allow: [builtin-safe]}
"""
_LIMITED: Final = _POLICY + "limits: {affected_rows: 3, result_rows: 2}\n"
_MESSAGE_BYTES: Final = 1 << 16
_OURS: Final = b"pgturnstile"


@functools.cache
def _gate(policy: str) -> Gate:
    return Gate(load(policy, "fuzzed.yaml"), "agent", 1 << 16)


def _pieces(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The input as pieces: a byte that says whose and how long, then the piece."""
    at = 0
    while at < len(data):
        side, size = data[at] & 1, (data[at] >> 1) + 1
        yield side, data[at + 1 : at + 1 + size]
        at += 1 + size


def as_pieces(*pieces: tuple[int, bytes]) -> bytes:
    """The input that ``_pieces`` reads as these."""
    parts = []
    for side, data in pieces:
        for at in range(0, len(data), 128):
            piece = data[at : at + 128]
            parts.append(bytes(((len(piece) - 1) << 1 | side,)) + piece)
    return b"".join(parts)


def frames(data: bytes) -> None:
    """Frames are cut alike whatever the split, lie in the data, and leave nothing out."""
    sizes = [len(piece) for _, piece in _pieces(data)] or [1]
    for cut in (_agent_frames, _server_frames):
        whole = cut(data, [len(data)])
        assert cut(data, sizes) == whole
        assert cut(data, [1] * len(data)) == whole


Cut = tuple[list[tuple[int, bytes]], str]


def _agent_frames(data: bytes, sizes: list[int]) -> Cut:
    buffer, cut, copied = FrontendFrames(_MESSAGE_BYTES), list[tuple[int, bytes]](), b""
    try:
        for piece in _sized(data, sizes):
            buffer.feed(piece)
            while kind := buffer.next_frame():
                assert buffer.start < buffer.end <= len(buffer.data)
                body = buffer.data[buffer.body : buffer.end]
                if kind == COPY_DATA:
                    copied += body
                else:
                    cut.append((kind, body))
    except FramingError as error:
        return [*cut, (0, copied)], str(error)
    return [*cut, (0, copied)], ""


def _server_frames(data: bytes, sizes: list[int]) -> Cut:
    buffer, cut = BackendFrames(), list[tuple[int, bytes]]()
    buffer.capture = True
    try:
        for piece in _sized(data, sizes):
            buffer.feed(piece)
            while kind := buffer.next_frame():
                assert buffer.end <= len(buffer.data)
                cut.append((kind, buffer.data[buffer.body : buffer.end]))
            assert buffer.tail <= len(buffer.data)
    except FramingError as error:
        return cut, str(error)
    return cut, ""


def _sized(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    at = 0
    for size in sizes:
        yield data[at : at + size]
        at += size
    yield data[at:]


_DECODERS: Final[tuple[Callable[[bytes], object], ...]] = (
    frontend.decode_query,
    frontend.decode_parse,
    lambda body: frontend.decode_bind(body, 0, len(body)),
    frontend.decode_target,
    lambda body: frontend.check_target(body, 0, len(body)),
    lambda body: frontend.decode_execute(body, 0, len(body)),
    frontend.decode_copy_fail,
    lambda body: frontend.check_empty(0, len(body)),
    backend.decode_fields,
    backend.decode_row,
    backend.decode_parameter_status,
    lambda body: startup.decode(body.ljust(4, b"\0")),
    authentication.decode_authentication,
    authentication.decode_backend_key,
    authentication.decode_password,
    authentication.decode_sasl_initial,
    client_hello.offered_protocols,
)
_DOCUMENTED: Final = (MalformedMessage, startup.StartupError, startup.NotPostgresError)


def messages(data: bytes) -> None:
    """Every decoder gives a value or its documented error."""
    for decode in _DECODERS:
        with contextlib.suppress(*_DOCUMENTED):
            decode(data)
    with contextlib.suppress(UnicodeDecodeError, *_DOCUMENTED):
        startup.decode_options(data.decode())


def facts(data: bytes) -> None:
    """Any text is read, the same each time, and is decided; what cannot be read is refused."""
    query = parse(data, 1 << 16)
    again = parse(data, 1 << 16)
    assert repr(query.failure) == repr(again.failure)
    assert [f.statement_class for f in query.statements] == [f.statement_class for f in again.statements]
    ruling = _gate(_POLICY).rule_slowly(data, PathNames((("public",),)))
    assert not (query.failure and ruling.allowed)
    if query.failure is None:
        for advise in (canonical, fingerprint, normalize, masked):
            advise(query.sql)


def session(data: bytes) -> None:
    """Whatever both sides say in whatever pieces: nothing undecided reaches the server, nothing passes behind
    the end, and no exception leaves."""
    for policy in (_POLICY, _LIMITED):
        _converse(data, _gate(policy))


def _converse(data: bytes, gate: Gate) -> None:
    subject = Session(
        gate,
        Identity("c1", "shop"),
        ("public",),
        nonce="nonce",
        clock=lambda: 1.0,
        message_bytes=_MESSAGE_BYTES,
    )
    reached = FrontendFrames(_MESSAGE_BYTES)
    rulings: dict[bytes, Ruling] = {}
    for side, piece in _pieces(data):
        was_closed = subject.closed
        effects = subject.from_backend(piece) if side else subject.from_frontend(piece)
        assert not (was_closed and effects)
        _carry_out(subject, gate, effects, reached, rulings)
    _carry_out(subject, gate, subject.lost(), reached, rulings)
    assert not subject.busy


def _carry_out(
    subject: Session,
    gate: Gate,
    effects: list[Effect],
    reached: FrontendFrames,
    rulings: dict[bytes, Ruling],
) -> None:
    ended = False
    for effect in effects:
        match effect:
            case ToBackend():
                assert not ended
                _assert_decided(effect.data, gate, reached)
            case ToFrontend():
                assert effect.data
            case Close():
                ended = True
            case Decide():
                ruling = gate.rule_slowly(effect.text, effect.names)
                _carry_out(subject, gate, subject.decided(ruling), reached, rulings)
            case Consult():
                _carry_out(subject, gate, subject.consulted(effect.ask()), reached, rulings)
            case Tell():
                effect.tell()
            case _:
                pass


def _assert_decided(sent: bytes, gate: Gate, reached: FrontendFrames) -> None:
    """Every text that the server is sent is one that the gate lets through, or of the proxy's own."""
    reached.feed(sent)
    while kind := reached.next_frame():
        body = reached.data[reached.body : reached.end]
        if kind == ord("Q"):
            text = frontend.decode_query(body)
        elif kind == ord("P"):
            text = frontend.decode_parse(body).text
        else:
            continue
        assert _OURS in text or gate.rule_slowly(text, PathNames((("public",),))).allowed, text


_SQL: Final = (
    "SELECT id, body FROM items WHERE id = $1 AND n IN (1, 2, 3) ORDER BY n DESC LIMIT 5",
    "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 9) SELECT * FROM t",
    "WITH gone AS (DELETE FROM orders RETURNING id) SELECT count(*) FROM gone",
    "INSERT INTO a (x, y) VALUES (1, DEFAULT) ON CONFLICT (x) DO UPDATE SET y = excluded.y WHERE a.y < 3",
    "UPDATE a SET (x, y) = (SELECT 1, 2) FROM b WHERE a.id = b.id RETURNING a.*",
    "MERGE INTO o USING u ON o.c = u.id WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN DO NOTHING",
    "COPY (SELECT 1) TO STDOUT WITH (FORMAT csv)",
    "COPY a FROM PROGRAM 'x'",
    "DECLARE c CURSOR WITH HOLD FOR SELECT 1",
    "FETCH 10 FROM c; CLOSE c",
    "PREPARE p (int) AS SELECT $1; EXECUTE p(1); DEALLOCATE ALL",
    "SET LOCAL search_path = a, \"B\"; SELECT set_config('role', $1, true)",
    "SELECT U&\"pg\\005fsleep\"(5), E'it\\'s', $tag$ ; $tag$, B'101', X'ff', 1e5, 'a' 'b'",
    "SELECT x -> 'a' #>> '{b}', y::numeric(3, 1)[], z COLLATE \"C\" FROM t (x, y, z) TABLESAMPLE system (1)",
    "EXPLAIN (ANALYZE, FORMAT json) TABLE secrets",
    "DO $$BEGIN EXECUTE 'x'; END$$",
    "CREATE TEMP TABLE t AS SELECT 1; ALTER TABLE t ADD COLUMN x int DEFAULT 5; DROP TABLE t CASCADE",
    "GRANT ALL ON ALL TABLES IN SCHEMA public TO PUBLIC; LOCK TABLE a; VACUUM; NOTIFY x; LISTEN x",
    "SELECT count(*) FILTER (WHERE x) OVER (PARTITION BY y ROWS 3 PRECEDING) FROM t GROUP BY CUBE (x)",
    "SELECT * FROM ROWS FROM (f(1), g(2)) WITH ORDINALITY, LATERAL (SELECT 1) s",
    "SELECT * FROM XMLTABLE('/a' PASSING b COLUMNS c int), JSON_TABLE(j, '$' COLUMNS (d int))",
    "-- nothing\n/* /* at */ all */ ;",
)


_ROW: Final = backend.frame(b"D", b"\0\1\0\0\0\1x")
_READY: Final = backend.encode_ready(b"I")
_DONE: Final = backend.frame(b"C", b"SELECT 1\0")
_PIPELINE: Final = (
    backend.parse_message(b"s", b"SELECT id FROM items WHERE id = $1", (23,))
    + backend.frame(b"B", b"p\0s\0\0\0\0\1\0\0\0\0011\0\0")
    + backend.describe_portal(b"p")
    + backend.execute_message(b"p")
    + backend.close_message(b"P", b"p")
    + backend.SYNC
)
_ANSWER: Final = (
    backend.frame(b"1", b"")
    + backend.frame(b"2", b"")
    + backend.frame(b"T", b"\0\0")
    + _ROW
    + _DONE
    + backend.frame(b"3", b"")
    + _READY
)
_ERROR: Final = backend.encode_error({"sqlstate": "22012", "message": "division by zero"})
_CONVERSATIONS: Final[tuple[tuple[tuple[int, bytes], ...], ...]] = (
    ((0, backend.simple_query(b"SELECT 1")), (1, backend.frame(b"T", b"\0\0") + _ROW + _DONE + _READY)),
    ((0, _PIPELINE), (1, _ANSWER)),
    ((0, _PIPELINE), (1, _ERROR + _READY)),
    ((0, backend.simple_query(b"DELETE FROM secrets")), (1, _ERROR + _READY)),
    ((0, backend.parse_message(b"", b"TABLE secrets") + backend.SYNC), (1, _ERROR + _READY)),
    (
        (0, backend.simple_query(b"COPY a FROM STDIN")),
        (1, backend.frame(b"G", b"\0\0\0")),
        (0, backend.frame(b"d", b"1\n") + backend.frame(b"c", b"")),
        (1, backend.frame(b"C", b"COPY 1\0") + _READY),
    ),
    (
        (0, backend.simple_query(b"COPY a TO STDOUT")),
        (1, backend.frame(b"H", b"\0\0\0") + backend.frame(b"d", b"1\n") + backend.frame(b"c", b"")),
        (1, backend.frame(b"C", b"COPY 1\0") + _READY),
    ),
    (
        (0, backend.simple_query(b"SET search_path = x")),
        (1, backend.frame(b"C", b"SET\0") + backend.frame(b"S", b"search_path\0x\0") + _READY),
    ),
    ((0, backend.simple_query(b"PREPARE p AS SELECT 1") + backend.simple_query(b"EXECUTE p")),),
    ((0, backend.simple_query(b"UPDATE a SET x = 1 WHERE y = 2")), (1, _ANSWER)),
)


@dataclass(frozen=True, slots=True)
class Target:
    """``check`` takes any bytes; ``seeds`` are what an input may grow from."""

    check: Callable[[bytes], None]
    seeds: tuple[bytes, ...]


_WIRE: Final = tuple(b"".join(piece for _, piece in talk) for talk in _CONVERSATIONS)
TARGETS: Final[Mapping[str, Target]] = {
    "frames": Target(frames, _WIRE),
    "messages": Target(
        messages,
        (
            *(message[5:] for message in _WIRE),
            startup.encode_startup({"user": "a", "database": "b", "options": "-c a=b --c-d=e\\ f"}),
            startup.encode_ssl_request()[4:],
            startup.encode_cancel(1, b"1234")[4:],
            _ERROR[5:],
        ),
    ),
    "facts": Target(facts, tuple(sql.encode() for sql in _SQL)),
    "session": Target(session, tuple(as_pieces(*talk) for talk in _CONVERSATIONS)),
    "scram": Target(exchanges, EXCHANGES),
    "texts": Target(texts, TEXTS),
}

FOUND: Final = Path(__file__).parent / "found"


def found(name: str) -> list[bytes]:
    """The inputs on which the target of that name failed once."""
    return [path.read_bytes() for path in sorted((FOUND / name).glob("*"))]
