"""Bytes to frames, both directions, over any split of the stream.

Owns lengths and nothing else: a frame is a type byte and two offsets into the bytes at hand, so that a run of
frames that may pass leaves as the slice that came in. Caps hold before anything is allocated. Written plainly
and fully typed so that mypyc can compile it as it stands.

Source: PostgreSQL documentation, "Message Flow"; limits as in src/backend/tcop/postgres.c (SocketBackend) and
src/include/libpq/libpq.h (PQ_SMALL_MESSAGE_LIMIT, PQ_LARGE_MESSAGE_LIMIT).
"""

from __future__ import annotations

from typing import Final

HEADER: Final = 5
"""Type byte and length."""
SMALL_MESSAGE: Final = 10_000
"""What PostgreSQL allows a message without a text or a value, in bytes."""
LARGEST: Final = (1 << 30) - 1
"""What PostgreSQL allows any message, in bytes."""
HELD_LIMIT: Final = 1 << 25
"""The longest backend message that is kept back to be read whole, in bytes: errors quote bound values."""

COPY_DATA: Final = 0x64
DATA_ROW: Final = 0x44

_LARGE: Final = b"QPBF"
_SMALL: Final = b"DCEHSXcf"
_HELD: Final = frozenset(b"EZCS")
"""Backend messages whose body the session reads: error, status, tag, parameter."""
_UNCAPPED: Final = 1 << 62


class FramingError(Exception):
    """The stream cannot be cut into frames any more: the connection has to end.

    ``sqlstate`` is 08P01 for an impossible length or an unknown type, 54000 for a frame over the cap.
    """

    def __init__(self, message: str, sqlstate: str = "08P01") -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


def _limits(message_bytes: int) -> list[int]:
    """The longest length of a message, by its type; 0 where there is no such type."""
    limits = [0] * 256
    for kind in _LARGE:
        limits[kind] = message_bytes
    for kind in _SMALL:
        limits[kind] = SMALL_MESSAGE
    limits[COPY_DATA] = LARGEST
    return limits


class FrontendFrames:
    """Frames from the agent. ``message_bytes`` caps every message with a text or values, in bytes.

    ``feed`` takes a chunk; ``next_frame`` then gives one frame a call as ``start``, ``body`` and ``end``
    offsets into ``data``. CopyData alone is given piece by piece as it arrives: a piece that continues an
    earlier frame has ``body == start``.
    """

    def __init__(self, message_bytes: int) -> None:
        self.data: bytes = b""
        self.start: int = 0
        self.body: int = 0
        self.end: int = 0
        self._limits = _limits(message_bytes)
        self._parts: list[bytes] = []
        self._waiting: int = 0
        self._missing: int = 0
        self._copy_left: int = 0

    def feed(self, chunk: bytes) -> None:
        """Take ``chunk``. Frames not yet taken with ``next_frame`` stay in front of it."""
        if self._missing > 0:
            # A long frame arrives in many chunks: joined once, when it is whole.
            self._parts.append(chunk)
            self._missing -= len(chunk)
            if self._missing > 0:
                return
            self.data = b"".join(self._parts)
            self._parts = []
            self._missing = 0
            self.end = 0
        elif self.end < len(self.data):
            self.data = self.data[self.end :] + chunk
            self.end = 0
        else:
            self.data = chunk
            self.end = 0

    def next_frame(self) -> int:
        """The type byte of the next frame, or 0 when more bytes are needed. Raises FramingError."""
        data = self.data
        start = self.end
        have = len(data) - start
        if have == 0:
            self.release()
            return 0
        if self._copy_left > 0:
            return self._copy_piece(start, start, min(have, self._copy_left))
        kind = data[start]
        limit = self._limits[kind]
        if limit == 0:
            # At its first byte: the rest may never come.
            raise FramingError(f"invalid frontend message type {kind}")
        if have < HEADER:
            return 0
        # Most messages are shorter than 64 KiB: two bytes tell their length.
        length = data[start + 3] << 8 | data[start + 4]
        if data[start + 2] or data[start + 1]:
            length |= data[start + 1] << 24 | data[start + 2] << 16
        if length < 4:
            raise FramingError(f"invalid message length {length}")
        if length > limit:
            raise FramingError(f"message of {length} bytes is over the limit", "54000")
        if kind == COPY_DATA:
            self._copy_left = length + 1
            return self._copy_piece(start, start + HEADER, min(have, length + 1))
        if have <= length:
            self._wait_for(start, length + 1 - have)
            return 0
        self.start = start
        self.body = start + HEADER
        self.end = start + 1 + length
        return kind

    @property
    def pending(self) -> bool:
        """True while bytes are left that have not been given as frames."""
        return self._missing > 0 or self.end < len(self.data)

    def release(self) -> None:
        """Let go of frames that were all given: an idle connection must not keep its last message, however
        long, in memory."""
        self.data, self.end = b"", 0

    def put_back(self) -> None:
        """Have the frame given last be given again by the next call of ``next_frame``."""
        self.end = self.start

    @property
    def expected(self) -> int:
        """Bytes that a message still lacks whose beginning is at hand, or was given."""
        return self._missing + self._copy_left

    @property
    def mid_copy_data(self) -> bool:
        """True while the rest of a CopyData frame whose beginning was given is still to come.

        What is written to the server now would be taken for data, and the agent's data for a message.
        """
        return self._copy_left > 0

    def _copy_piece(self, start: int, body: int, size: int) -> int:
        self.start = start
        self.body = min(body, start + size)
        self.end = start + size
        self._copy_left -= size
        return COPY_DATA

    def _wait_for(self, start: int, missing: int) -> None:
        self._parts = [self.data[start:]]
        self._missing = missing
        self.data = b""
        self.end = 0


class BackendFrames:
    """Frames from PostgreSQL. Rows are counted and passed over; what the session reads is held whole.

    After ``feed``, ``next_frame`` gives frames as ``start``, ``body`` and ``end`` offsets into ``data``.
    ``end`` may lie beyond the data for a message that is not held: its rest is passed over in later chunks.
    When it returns 0, everything before ``tail`` may be sent on and the bytes from ``tail`` wait for more.
    ``rows_of`` is the type of the messages that pass unseen, DATA_ROW or COPY_DATA; any others are given.
    ``capture`` makes every message, rows too, be given whole (for answers to our own questions). ``watch``
    bounds what passes unseen: the row that makes ``rows`` or ``row_bytes`` exceed its cap is given,
    and so is every one behind it.
    """

    def __init__(self) -> None:
        self.data: bytes = b""
        self.start: int = 0
        self.body: int = 0
        self.end: int = 0
        self.tail: int = 0
        self.rows: int = 0
        self.row_bytes: int = 0
        self.rows_of: int = -1
        self.capture: bool = False
        self.row_cap: int = _UNCAPPED
        self.byte_cap: int = _UNCAPPED
        self._skip: int = 0
        self._parts: list[bytes] = []
        self._missing: int = 0

    def watch(self, row_cap: int | None, byte_cap: int | None) -> None:
        """Give rows once ``rows`` or ``row_bytes`` exceeds its cap; None for no cap."""
        self.row_cap = _UNCAPPED if row_cap is None else row_cap
        self.byte_cap = _UNCAPPED if byte_cap is None else byte_cap

    def feed(self, chunk: bytes) -> None:
        if self._missing > 0:
            # A long message that is held arrives in many chunks: joined once, when it is whole.
            self._parts.append(chunk)
            self._missing -= len(chunk)
            chunk = b"" if self._missing > 0 else b"".join(self._parts)
            if self._missing <= 0:
                self._parts = []
        elif self.tail < len(self.data):
            chunk = self.data[self.tail :] + chunk
        self.data = chunk
        self.end = 0
        self.tail = len(chunk)
        if self._skip > 0:
            step = min(self._skip, len(chunk))
            self._skip -= step
            self.end = step

    def next_frame(self) -> int:
        """The type byte of the next frame, or 0 when the rest of the data holds none. Raises FramingError."""
        data = self.data
        size = len(data)
        start = self.end
        passing = -1 if self.capture else self.rows_of
        rows, row_bytes = self.rows, self.row_bytes
        row_cap, byte_cap = self.row_cap, self.byte_cap
        while size - start >= HEADER:
            kind = data[start]
            # Most messages are shorter than 64 KiB: two bytes tell their length.
            length = data[start + 3] << 8 | data[start + 4]
            if data[start + 2] or data[start + 1]:
                length |= data[start + 1] << 24 | data[start + 2] << 16
            if length < 4 or length > LARGEST + 4:
                self.rows, self.row_bytes = rows, row_bytes
                raise FramingError(f"invalid message length {length} from the backend")
            end = start + 1 + length
            if kind == passing:
                rows += 1
                row_bytes += length - 4
                if rows <= row_cap and row_bytes <= byte_cap:
                    start = end
                    continue
            self.rows, self.row_bytes = rows, row_bytes
            if end > size or kind == 0:
                return self._cut_short(kind, start, end)
            self.start = start
            self.body = start + HEADER
            self.end = end
            return kind
        self.rows, self.row_bytes = rows, row_bytes
        if start < size:
            return self._keep(start, 0)
        self._skip += start - size
        self.end = size
        self.tail = size
        return 0

    def _cut_short(self, kind: int, start: int, end: int) -> int:
        """Give the message, whose end is yet to come, or wait for that where it must be whole."""
        if kind == 0:
            # There is no such message, and it would be taken for the want of one.
            raise FramingError("invalid backend message type 0")
        if self.capture or kind in _HELD:
            if end - start - 1 > HELD_LIMIT:
                raise FramingError(f"{end - start - 1} bytes in a message the proxy must read", "54000")
            return self._keep(start, end - len(self.data))
        self.start = start
        self.body = start + HEADER
        self.end = end
        return kind

    @property
    def mid_frame(self) -> bool:
        """True while the rest of a message already begun is still to pass: nothing may be put in between."""
        return self._skip > 0

    def _keep(self, start: int, missing: int) -> int:
        """Hold what begins at ``start``, until ``missing`` more bytes are there where that many are known."""
        self.end = start
        self.tail = start
        if missing > 0:
            self._parts = [self.data[start:]]
            self._missing = missing
        return 0
