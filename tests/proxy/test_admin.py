"""The admin port: what it answers whom, and that nothing sent to it does harm."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.admin import MAX_REQUEST_BYTES, AdminPort, Pages
from proxy.backend import BackendError, Endpoint
from proxy.config import Admin
from proxy.health import AuditState, Facts, Health, LastReload, TurnedAway

TOKEN = "a-token-of-many-characters"
FACTS = Facts(False, ("reports",), {"shop": True}, AuditState(None, True, 0, 0), None)
ENDPOINT = Endpoint("127.0.0.1", 5432)

AWAY = TurnedAway("shop_ro", "shop")

Ask = Callable[[bytes], Awaitable[bytes]]
Reach = Callable[[Endpoint, TurnedAway | None], Awaitable[None]]


async def reached(endpoint: Endpoint, _turned_away: TurnedAway | None) -> None:
    assert endpoint is ENDPOINT


async def unreached(_endpoint: Endpoint, _turned_away: TurnedAway | None) -> None:
    raise BackendError("the database server cannot be reached", "57P03")


async def starting(_endpoint: Endpoint, turned_away: TurnedAway | None) -> None:
    """A server that accepts connections and takes no session."""
    if turned_away is not None:
        assert turned_away is AWAY
        raise BackendError("the database system is starting up", "57P03")


def at_hand(value: Any) -> Callable[..., Awaitable[Any]]:
    """What answers ``value``, or what it makes of what is asked."""

    async def answer(*asked: Any) -> Any:
        return value(*asked) if callable(value) else value

    return answer


def health(facts: Facts = FACTS, reach: Reach = reached) -> Health:
    return Health(at_hand(facts), lambda: ENDPOINT, reach=reach)


def asking(use: Callable[[Ask], Awaitable[None]], token: str | None = None, **parts: Any) -> None:
    """``use`` with a function that sends bytes to a port and returns all that comes back."""

    async def run() -> None:
        pages = Pages(
            parts.get("health") or health(),
            at_hand((b"a_total 1\n", "text/plain; version=0.0.4")),
            at_hand(parts.get("decisions") or (lambda limit: [f'{{"n":{n}}}' for n in range(limit)])),
        )
        port = AdminPort(Admin("127.0.0.1", 0, token), pages)
        _, number = await port.start()

        async def ask(sent: bytes) -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", number)
            writer.write(sent)
            writer.write_eof()
            try:
                return await reader.read()
            finally:
                writer.close()

        try:
            await use(ask)
        finally:
            port.close()

    asyncio.run(run())


def request(target: str, *headers: str, method: str = "GET") -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: 127.0.0.1:6433", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def read(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), body.decode()


@pytest.mark.parametrize(
    ("target", "status", "body"),
    [
        ("/healthz", 200, "ok\n"),
        ("/metrics", 200, "a_total 1\n"),
        ("/decisions?limit=2", 200, '[{"n":0},\n{"n":1}]\n'),
        ("/decisions?limit=0", 400, "limit is a number from 1 to 1000\n"),
        ("/decisions?limit=1001", 400, "limit is a number from 1 to 1000\n"),
        ("/decisions?limit=\u0663".encode().decode("latin-1"), 400, "limit is a number from 1 to 1000\n"),
        ("/decisions?limit=" + "9" * 5000, 400, "limit is a number from 1 to 1000\n"),
        ("/", 404, "Not Found\n"),
        ("/metrics/../healthz", 404, "Not Found\n"),
        ("http://elsewhere/healthz", 400, "not a request of HTTP/1.1\n"),
    ],
)
def test_the_pages(target: str, status: int, body: str) -> None:
    async def use(ask: Ask) -> None:
        assert read(await ask(request(target))) == (status, body)

    asking(use)


def test_a_hundred_decisions_unasked() -> None:
    async def use(ask: Ask) -> None:
        assert len(json.loads(read(await ask(request("/decisions")))[1])) == 100

    asking(use)


def test_head_has_the_length_and_no_body() -> None:
    async def use(ask: Ask) -> None:
        answer = await ask(request("/healthz", method="HEAD"))
        assert b"\r\nContent-Length: 3\r\n" in answer
        assert read(answer) == (200, "")

    asking(use)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE"])
def test_nothing_can_be_changed(method: str) -> None:
    async def use(ask: Ask) -> None:
        answer = await ask(request("/decisions", method=method))
        assert read(answer)[0] == HTTPStatus.METHOD_NOT_ALLOWED
        assert b"\r\nAllow: GET, HEAD\r\n" in answer

    asking(use)


@pytest.mark.parametrize(
    ("facts", "reach", "problems"),
    [
        (FACTS, reached, []),
        (FACTS, unreached, ["backend: the database server cannot be reached"]),
        (FACTS, starting, []),
        (FACTS._replace(turned_away=AWAY), starting, ["backend: the database system is starting up"]),
        (FACTS._replace(turned_away=AWAY), reached, []),
        (FACTS._replace(draining=True), reached, ["draining"]),
        (FACTS._replace(audit=AuditState("No space left", True, 9, 0)), reached, ["audit: No space left"]),
        (FACTS._replace(audit=AuditState("No space left", False, 9, 3)), reached, []),
        (FACTS._replace(audit=None, catalogs={"shop": False}), reached, []),
        (FACTS._replace(reload=LastReload(1.0, "p.yaml:3:1: unknown key")), reached, []),
    ],
    ids=[
        "well",
        "no backend",
        "starts unseen",
        "starts",
        "has started",
        "draining",
        "audit refuses",
        "audit alarms",
        "no catalog",
        "bad reload",
    ],
)
def test_readiness(facts: Facts, reach: Reach, problems: list[str]) -> None:
    async def use(ask: Ask) -> None:
        status, body = read(await ask(request("/readyz")))
        told = json.loads(body)
        assert (status, told["ready"], told["problems"]) == (503 if problems else 200, not problems, problems)
        assert told["policies"] == ["reports"]
        assert told["catalogs"] == {
            name: "readable" if ok else "unreadable" for name, ok in facts.catalogs.items()
        }
        if facts.reload is not None:
            assert told["reload"] == {"at": 1.0, "taken": False, "error": "p.yaml:3:1: unknown key"}
        if facts.audit is not None and facts.audit.failing:
            assert told["audit"]["error"] == "No space left"

    asking(use, health=health(facts, reach))


def test_the_backend_is_not_asked_by_every_probe() -> None:
    asked = 0
    now = 10.0

    async def count(_endpoint: Endpoint, _turned_away: TurnedAway | None) -> None:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)

    async def run() -> None:
        nonlocal now
        held = Health(at_hand(FACTS), lambda: ENDPOINT, reach=count, clock=lambda: now)
        await asyncio.gather(*(held.readiness() for _ in range(20)))
        assert asked == 1
        now += 1
        await held.readiness()
        assert asked == 2

    asyncio.run(run())


@pytest.mark.parametrize("given_token", ["", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x"])
def test_without_the_token_a_probe_gets_yes_or_no_and_nothing_else_is_told(given_token: str) -> None:
    async def use(ask: Ask) -> None:
        header = (f"Authorization: {given_token}",) if given_token else ()
        for target in ("/metrics", "/decisions"):
            answer = await ask(request(target, *header))
            assert read(answer) == (401, "Unauthorized\n")
            assert b"\r\nWWW-Authenticate: Bearer\r\n" in answer
        assert read(await ask(request("/healthz", *header))) == (200, "ok\n")
        status, body = read(await ask(request("/readyz", *header)))
        assert (status, json.loads(body)) == (503, {"ready": False})

    asking(use, TOKEN, health=health(reach=unreached))


def test_with_the_token_everything_is_told() -> None:
    async def use(ask: Ask) -> None:
        header = f"authorization: Bearer {TOKEN}"
        assert read(await ask(request("/metrics", header)))[0] == 200
        assert "problems" in json.loads(read(await ask(request("/readyz", header)))[1])
        # Whoever has the token may come by any name.
        elsewhere = f"GET /decisions HTTP/1.1\r\nHost: proxy.example\r\n{header}\r\n\r\n"
        assert read(await ask(elsewhere.encode()))[0] == 200

    asking(use, TOKEN)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("127.0.0.1:6433", 200),
        ("localhost:1", 200),
        ("[::1]:6433", 200),
        ("rebound.example:6433", 421),
        ("127.0.0.1.example", 421),
        ("10.0.0.1", 421),
        ("", 421),
        ("[", 421),
    ],
)
def test_a_web_page_elsewhere_cannot_read_it_through_a_name_of_its_own(host: str, status: int) -> None:
    async def use(ask: Ask) -> None:
        answer = await ask(f"GET /decisions HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert read(answer)[0] == status

    asking(use)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /healthz\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nhost: evil\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nX: " + b"a" * MAX_REQUEST_BYTES + b"\r\n\r\n", 431),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400),
        (b"GET //[ HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
    ],
)
def test_what_is_no_request(sent: bytes, status: int) -> None:
    async def use(ask: Ask) -> None:
        assert read(await ask(sent))[0] == status

    asking(use)


def test_half_a_request_gets_no_answer_and_does_no_harm() -> None:
    async def use(ask: Ask) -> None:
        assert await ask(b"") == b""
        assert await ask(b"GET /healthz HTTP/1.1\r\n") == b""
        assert read(await ask(request("/healthz")))[0] == 200

    asking(use)


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_any_bytes_give_a_request_or_a_documented_answer(sent: bytes) -> None:
    port = AdminPort(Admin("127.0.0.1", 0, TOKEN), Pages(health(), at_hand((b"", "")), at_hand([])))
    answer = asyncio.run(port.answer(b"GET /metrics HTTP/1.1\r\n" + sent + b"\r\n\r\n"))
    assert answer.status in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED)
    answer = asyncio.run(port.answer(b"GET " + sent + b"\r\n\r\n"))
    assert answer.status < 500
