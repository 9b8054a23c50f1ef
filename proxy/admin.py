"""The admin port: a few pages over HTTP for probes, collectors and people.

Owns the little of HTTP/1.1 (RFC 9112) that this takes: one GET or HEAD a connection, bounded in bytes, time
and number. Nothing can be changed through it. What the pages say is ``health``'s, ``metrics``'s and
``recent``'s.

Without a token only loopback is listened on, and only names of this machine are answered to, so that a web
page in somebody's browser cannot read it through a name of its own (DNS rebinding). With a token, the two
probes tell a stranger nothing but yes or no.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from ipaddress import ip_address
from typing import Final, NamedTuple
from urllib.parse import parse_qs

import structlog

from proxy.config import Admin
from proxy.health import Health

MAX_REQUEST_BYTES: Final = 8192
_REQUEST_S: Final = 5.0
_SEND_S: Final = 10.0
_CONNECTIONS: Final = 32
MAX_DECISIONS: Final = 1000
_DECISIONS: Final = 100

_JSON: Final = "application/json"
_TEXT: Final = "text/plain; charset=utf-8"

log = structlog.get_logger("pgturnstile.admin")


class Answer(NamedTuple):
    status: HTTPStatus
    body: bytes
    content_type: str = _TEXT


class Request(NamedTuple):
    """``trusted`` where the token was given, or none is asked for."""

    target: str
    query: dict[str, list[str]]
    trusted: bool


class _BadRequestError(Exception):
    """What was sent is answered with ``status``."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Pages(NamedTuple):
    """What is behind the pages. ``metrics`` gives the page with its content type, ``decisions`` that many
    lines of JSON, the newest first."""

    health: Health
    metrics: Callable[[], Awaitable[tuple[bytes, str]]]
    decisions: Callable[[int], Awaitable[list[str]]]


class AdminPort:
    """Listens from ``start`` to ``close``; ``shared`` at an address where others may as well, so that a proxy
    that is to take this one's place may begin before it ends."""

    def __init__(self, config: Admin, pages: Pages, *, shared: bool = False) -> None:
        self._config = config
        self._shared = shared
        self._pages = pages
        self._open = 0
        self._listener: asyncio.Server | None = None
        self._routes: dict[str, Callable[[Request], Awaitable[Answer]]] = {
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/metrics": self._metrics,
            "/decisions": self._decisions,
        }

    async def start(self) -> tuple[str, int]:
        """Listen; returns host and port. Raises OSError where the address cannot be had."""
        self._listener = await asyncio.start_server(
            self._serve,
            self._config.host,
            self._config.port,
            limit=MAX_REQUEST_BYTES,
            reuse_port=self._shared or None,
        )
        port: int = self._listener.sockets[0].getsockname()[1]
        log.info("admin port", host=self._config.host, port=port, token=self._config.token is not None)
        return self._config.host, port

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()

    # --- one connection ---

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= _CONNECTIONS:
                await self._exchange(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            # Probes come and go, and who says nothing gets no answer.
            log.debug("admin connection ended early", reason=str(error))
        except Exception:
            log.exception("admin request failed")
        finally:
            self._open -= 1
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with_body = True
        try:
            async with asyncio.timeout(_REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
            with_body = not head.startswith(b"HEAD ")
            answer = await self.answer(head)
        except asyncio.LimitOverrunError:
            answer = _plain(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        writer.write(_encode(answer, with_body=with_body))
        async with asyncio.timeout(_SEND_S):
            await writer.drain()

    async def answer(self, head: bytes) -> Answer:
        """What a request gets; ``head`` is all of it up to its empty line."""
        try:
            request = self._read(head)
            page = self._routes.get(request.target)
            return _plain(HTTPStatus.NOT_FOUND) if page is None else await page(request)
        except _BadRequestError as error:
            return Answer(error.status, f"{error}\n".encode())

    def _read(self, head: bytes) -> Request:
        first, *lines = head.decode("latin-1").split("\r\n")
        words = first.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1.") or not words[1].startswith("/"):
            raise _BadRequestError(HTTPStatus.BAD_REQUEST, "not a request of HTTP/1.1")
        if words[0] not in ("GET", "HEAD"):
            raise _BadRequestError(HTTPStatus.METHOD_NOT_ALLOWED, "nothing can be changed here")
        headers: dict[str, str] = {}
        for line in filter(None, lines):
            name, colon, value = line.partition(":")
            if not colon or name.lower() in headers:
                raise _BadRequestError(HTTPStatus.BAD_REQUEST, "a header that is none, or twice")
            headers[name.lower()] = value.strip()
        trusted = self._trusts(headers)
        path, _, query = words[1].partition("?")
        return Request(path, parse_qs(query), trusted)

    def _trusts(self, headers: dict[str, str]) -> bool:
        token = self._config.token
        if token is not None:
            given = headers.get("authorization", "")
            return hmac.compare_digest(given.encode("latin-1"), f"Bearer {token}".encode())
        if not _is_this_machine(headers.get("host", "localhost"), self._config.host):
            raise _BadRequestError(HTTPStatus.MISDIRECTED_REQUEST, "this is not the host you asked for")
        return True

    # --- the pages ---

    async def _healthz(self, request: Request) -> Answer:  # noqa: ARG002 - every page takes one
        return Answer(HTTPStatus.OK, b"ok\n")

    async def _readyz(self, request: Request) -> Answer:
        found = await self._pages.health.readiness()
        status = HTTPStatus.OK if found.ready else HTTPStatus.SERVICE_UNAVAILABLE
        told: dict[str, object] = {"ready": found.ready}
        if request.trusted:
            told |= {"problems": found.problems, **found.detail}
        return Answer(status, json.dumps(told).encode() + b"\n", _JSON)

    async def _metrics(self, request: Request) -> Answer:
        if not request.trusted:
            return _plain(HTTPStatus.UNAUTHORIZED)
        body, content_type = await self._pages.metrics()
        return Answer(HTTPStatus.OK, body, content_type)

    async def _decisions(self, request: Request) -> Answer:
        if not request.trusted:
            return _plain(HTTPStatus.UNAUTHORIZED)
        limit = _limit(request.query)
        lines = ",\n".join(await self._pages.decisions(limit))
        return Answer(HTTPStatus.OK, f"[{lines}]\n".encode(), _JSON)


def _limit(query: dict[str, list[str]]) -> int:
    given = query.get("limit", [str(_DECISIONS)])[-1]
    if not (given.isascii() and given.isdigit() and len(given) < 9 and 1 <= int(given) <= MAX_DECISIONS):
        raise _BadRequestError(HTTPStatus.BAD_REQUEST, f"limit is a number from 1 to {MAX_DECISIONS}")
    return int(given)


def _is_this_machine(host: str, listening: str) -> bool:
    """Whether a Host header names loopback or the very host that is listened on, whatever its port."""
    name = host.rpartition("]")[0].lstrip("[") or host.partition(":")[0]
    if name in ("localhost", listening):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def _plain(status: HTTPStatus) -> Answer:
    return Answer(status, f"{status.phrase}\n".encode())


def _encode(answer: Answer, *, with_body: bool) -> bytes:
    lines = [
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.body)}",
        "Connection: close",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
    ]
    if answer.status is HTTPStatus.UNAUTHORIZED:
        lines.append("WWW-Authenticate: Bearer")
    if answer.status is HTTPStatus.METHOD_NOT_ALLOWED:
        lines.append("Allow: GET, HEAD")
    head = "\r\n".join(lines) + "\r\n\r\n"
    return head.encode("latin-1") + (answer.body if with_body else b"")
