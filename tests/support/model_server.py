"""A small faithful PostgreSQL: the protocol's states, and statements of a toy language.

It reads frontend bytes in any split and gives the bytes a server would have sent by then, its buffer flushed
when a server flushes. As the judge of what an agent is to see it can hold a gate of its own, which fails the
statements that the policy refuses where they stand.

Source: PostgreSQL documentation, "Message Flow"; src/backend/tcop/postgres.c (PostgresMain,
exec_simple_query, exec_parse_message, exec_bind_message, exec_execute_message),
src/backend/commands/copyfromparse.c.

The language, one statement a string: ``select N``, ``rows N`` (N rows), ``fail``, ``begin``, ``commit``,
``rollback``, ``path`` (sets search_path), ``prepare NAME``, ``execute NAME``, ``deallocate NAME``,
``copy in``, ``copy out``, ``notice``, and the empty one. Anything else is a syntax error.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from proxy.wire import backend as wire

PATH_QUESTION = b"current_schemas"
SETTING_QUESTION = b"SHOW search_path"
_ENDS = ("commit", "rollback")


class _Failure(Exception):  # noqa: N818 - of a statement, not of the model
    def __init__(self, sqlstate: str) -> None:
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


class ModelServer:
    """``refuses`` names texts that fail with 42501 whatever state the server is in."""

    def __init__(self, refuses: Callable[[bytes], bool] = lambda _text: False) -> None:
        self.ran: list[str] = []
        """What was executed, in order, the proxy's own question left out."""
        self.read: list[bytes] = []
        """Every text of a Query or Parse."""
        self._refuses = refuses
        self._input = b""
        self._buffer = b""
        self._status = "I"
        self._skipping = False
        self._statements: dict[bytes, str] = {}
        self._portals: dict[bytes, list[str | int]] = {}
        self._copying: str | None = None
        self._messages: dict[str, Callable[[bytes], None]] = {
            "Q": self._simple,
            "P": self._parse,
            "B": self._bind,
            "D": self._describe,
            "E": self._execute,
            "C": self._close,
            "F": self._function_call,
        }

    def receive(self, chunk: bytes) -> bytes:
        self._input += chunk
        sent = b""
        while len(self._input) >= 5:
            (length,) = struct.unpack_from("!I", self._input, 1)
            if len(self._input) < length + 1:
                break
            kind, body = chr(self._input[0]), self._input[5 : length + 1]
            self._input = self._input[length + 1 :]
            if self._handle(kind, body):
                sent += self._buffer
                self._buffer = b""
        return sent

    def _handle(self, kind: str, body: bytes) -> bool:
        """Act on one message; True where the server flushes."""
        if self._copying is not None:
            return self._copy(kind, body)
        if kind in "dcf" or (self._skipping and kind not in "SX"):
            return False
        if kind == "S":
            self._end_implicit()
            self._skipping = False
            return self._ready()
        if kind in "HX":
            return kind == "H"
        try:
            self._messages[kind](body)
        except _Failure as failure:
            self._fail(failure.sqlstate)
            self._skipping = kind not in "QF"
            if not self._skipping:
                self._ready()
            return True
        return self._after(kind)

    def _after(self, kind: str) -> bool:
        if self._copying is not None:
            self._copying = kind
            return True
        return self._ready() if kind == "Q" else False

    def _say(self, kind: str, body: bytes = b"") -> None:
        self._buffer += wire.frame(kind.encode(), body)

    def _ready(self) -> bool:
        self._say("Z", self._status.encode())
        return True

    def _fail(self, sqlstate: str) -> None:
        self._buffer += wire.encode_error({"sqlstate": sqlstate, "message": "failed"})
        if self._status == "T":
            self._status = "E"
        if self._status == "I":
            self._portals.clear()

    def _end_implicit(self) -> None:
        if self._status == "I":
            self._portals.clear()

    # --- messages ---

    def _function_call(self, _body: bytes) -> None:
        """Never offered. The gate fails it by a Query, which drops the unnamed statement."""
        self._statements.pop(b"", None)
        raise _Failure("0A000")

    def _simple(self, body: bytes) -> None:
        text = body[:-1]
        self._statements.pop(b"", None)
        self._judge(text)
        if text.strip():
            self._run(text.decode(), limit=0, described=True)
        else:
            self._say("I")
        self._end_implicit()

    def _parse(self, body: bytes) -> None:
        name, text, _ = body.split(b"\0", 2)
        if not name:
            self._statements.pop(name, None)
        self._judge(text)
        if PATH_QUESTION not in text:
            self._check_aborted(text.decode())
        if name in self._statements:
            raise _Failure("42P05")
        self._statements[name] = text.decode()
        self._say("1")

    def _bind(self, body: bytes) -> None:
        portal, name, _ = body.split(b"\0", 2)
        if name not in self._statements:
            raise _Failure("26000")
        text = self._statements[name]
        self._check_aborted(text)
        if portal and portal in self._portals:
            raise _Failure("42P03")
        self._portals[portal] = [text, 0]
        self._say("2")

    def _describe(self, body: bytes) -> None:
        names = self._statements if body[:1] == b"S" else self._portals
        if body[1:-1] not in names:
            raise _Failure("26000" if body[:1] == b"S" else "34000")
        if self._status == "E":
            raise _Failure("25P02")
        if body[:1] == b"S":
            self._say("t", b"\0\0")
        self._say("n")

    def _execute(self, body: bytes) -> None:
        name, _, rest = body.partition(b"\0")
        if name not in self._portals:
            raise _Failure("34000")
        text, done = self._portals[name]
        assert isinstance(text, str)
        assert isinstance(done, int)
        if not text:
            self._say("I")
            return
        (limit,) = struct.unpack("!i", rest)
        self._check_aborted(text)
        if text.startswith("rows ") and limit:
            total = int(text[5:])
            upto = min(total, done + limit)
            self._rows(upto - done)
            self._portals[name][1] = upto
            self.ran.append(text)
            if upto - done == limit:
                self._say("s")
            else:
                self._complete(f"SELECT {upto - done}")
            return
        if done == -1:
            raise _Failure("55000")
        self._portals[name][1] = -1 if not text.startswith(("rows", "select")) else done
        self._run(text, limit, described=False)

    def _close(self, body: bytes) -> None:
        (self._statements if body[:1] == b"S" else self._portals).pop(body[1:-1], None)
        self._say("3")

    # --- statements ---

    def _judge(self, text: bytes) -> None:
        self.read.append(text)
        if self._refuses(text):
            raise _Failure("42501")
        if b"pgturnstile_refused" in text:
            raise _Failure("42601")

    def _check_aborted(self, text: str) -> None:
        if self._status == "E" and text not in _ENDS:
            raise _Failure("25P02")

    def _run(self, text: str, limit: int, *, described: bool) -> None:
        self._check_aborted(text)
        if PATH_QUESTION.decode() in text:
            self._say("D", struct.pack("!HI", 2, 8) + b"{public}" + struct.pack("!I", 6) + b"public")
            self._complete("SELECT 1")
            return
        if text.startswith(SETTING_QUESTION.decode()):
            self._say("D", struct.pack("!HI", 1, 6) + b"public")
            self._complete("SHOW")
            return
        verb, _, name = text.partition(" ")
        if verb == "execute":
            if name.encode() not in self._statements:
                raise _Failure("26000")
            inner = self._statements[name.encode()]
            if inner.startswith("copy"):
                raise _Failure("0A000")
            self._run(inner, limit, described=described)
            return
        self.ran.append(text)
        if verb in ("select", "rows"):
            if described:
                self._say("T", b"\0\0")
            count = int(name) if verb == "rows" else 1
            self._rows(count)
            self._complete(f"SELECT {count}")
        elif verb == "copy":
            self._begin_copy(name)
        else:
            {"fail": self._divide, "prepare": self._prepare, "deallocate": self._deallocate}.get(
                verb, self._other
            )(verb, name.encode())

    def _divide(self, verb: str, name: bytes) -> None:
        raise _Failure("22012")

    def _prepare(self, verb: str, name: bytes) -> None:
        if name in self._statements:
            raise _Failure("42P05")
        self._statements[name] = f"select {name.decode()}"
        self._complete("PREPARE")

    def _deallocate(self, verb: str, name: bytes) -> None:
        if self._statements.pop(name, None) is None:
            raise _Failure("26000")
        self._complete("DEALLOCATE")

    def _other(self, verb: str, name: bytes) -> None:
        if verb == "notice":
            self._buffer += wire.encode_notice({"message": "n"})
        elif verb == "begin":
            self._status = "T"
        elif verb in _ENDS:
            verb = "rollback" if self._status != "T" else verb
            self._status = "I"
            self._portals.clear()
        self._complete(verb.upper())

    def _begin_copy(self, direction: str) -> None:
        if direction == "in":
            self._say("G", b"\0\0\0")
            self._copying = "?"
            return
        self._say("H", b"\0\0\0")
        self._say("d", b"1\n")
        self._say("c")
        self._complete("COPY 1")

    def _rows(self, count: int) -> None:
        for _ in range(count):
            self._say("D", struct.pack("!HI", 1, 1) + b"x")

    def _complete(self, tag: str) -> None:
        self._say("C", tag.encode() + b"\0")

    def _copy(self, kind: str, body: bytes) -> bool:
        if kind in "SH" or (kind == "d" and b"bad" not in body):
            return False
        simple, self._copying = self._copying == "Q", None
        if kind == "c":
            self._complete("COPY 1")
            if simple:
                self._end_implicit()
                self._ready()
            return simple
        self._fail("22P02" if kind == "d" else "57014" if kind == "f" else "08P01")
        self._skipping = not simple
        if simple:
            self._ready()
        return True
