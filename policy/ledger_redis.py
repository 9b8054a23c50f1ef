"""The ledger of several machines: one Redis or Valkey server.

Owns the names of its keys, and that of two proxies one has the turn. A scope is one hash, of lineages by
their ids; a change reads it, and writes only if nobody has written meanwhile (WATCH), else begins anew. A
hash goes away by itself some time after the last of its lineages is over, which is told by the clocks of the
proxies: they should agree to within seconds. A sorted set has the time at which the next of each scope is
over, so that a sweep need not look for them. Statements are kept by their normal form with the constants they
hold.

The client library is the package's ``redis`` extra: whoever names no such store needs none.

Source: Redis documentation, "Transactions".
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from policy.ledger import Book, LedgerUnavailableError, Lineages, T, take_over
from policy.lineage import from_json, to_json

FORMAT: Final = 1
"""A part of every key: the lineages of another format are not seen."""
WAIT_S: Final = 1.0
"""How long the server may take to accept a connection or to answer, in seconds; 0.1 ms was measured."""
MAX_TRIES: Final = 64
"""Changes that may be begun anew. Of as many that meet, one at least succeeds at each try."""
_SPARE_S: Final = 600
"""How long a scope outlives its lineages, for a sweep to find how they ended."""
_SWEPT: Final = 1024
"""Scopes of one sweep."""
_DUE: Final = f"pgturnstile:ledger:{FORMAT}:due"


class _UnreadableError(LedgerUnavailableError):
    """The server answers, with something that is no lineage."""


class RedisLedger(Book):
    """Lineages in the server at ``url`` (``redis://``, or ``rediss://`` over TLS), under ``password``.

    Connections are made when they are first needed and kept. Raises ValueError for a URL that is none, and
    ModuleNotFoundError where the client library is not installed.
    """

    def __init__(self, url: str, password: str | None = None) -> None:
        import redis  # noqa: PLC0415 - an extra: see above
        from redis.backoff import NoBackoff  # noqa: PLC0415 - as redis
        from redis.retry import Retry  # noqa: PLC0415 - as redis

        self._errors: tuple[type[Exception], ...] = (redis.RedisError, OSError)
        self._raced = redis.WatchError
        self._client: Any = redis.Redis.from_url(
            url,
            **({} if password is None else {"password": password}),
            socket_timeout=WAIT_S,
            socket_connect_timeout=WAIT_S,
            # A connection that the server has closed meanwhile is made anew, once.
            retry=Retry(NoBackoff(), 1),
            retry_on_error=[redis.ConnectionError],
        )

    def has_open(self, scope: str) -> bool:
        with self._unavailable():
            return bool(self._client.exists(_key(scope)))

    def close(self) -> None:
        """Let go of the connections. The ledger may be used again."""
        self._client.close()

    def sweep(self, now: float) -> None:
        with self._unavailable():
            due = self._client.zrangebyscore(_DUE, "-inf", now, start=0, num=_SWEPT)
        for key in due:
            try:
                self._report(self._change_at(key.decode(), now, lambda lineages: take_over(lineages, now)))
            except _UnreadableError:
                # Whoever asks about this scope is told so; the others are not to wait for it.
                self._client.zrem(_DUE, key)

    def _change(self, scope: str, now: float, change: Callable[[Lineages], T]) -> T:
        return self._change_at(_key(scope), now, change)

    def _change_at(self, key: str, now: float, change: Callable[[Lineages], T]) -> T:
        with self._unavailable(), self._client.pipeline() as pipeline:
            for _ in range(MAX_TRIES):
                pipeline.watch(key)
                stored = pipeline.hgetall(key)
                known = _read(stored, key)
                lineages = dict(known)
                result = change(lineages)
                if lineages == known and lineages:
                    pipeline.unwatch()
                    return result
                pipeline.multi()
                self._write(pipeline, key, known, lineages, now)
                try:
                    pipeline.execute()
                except self._raced:
                    continue
                return result
        raise LedgerUnavailableError(f"the scope {key} is changed by others again and again")

    @staticmethod
    def _write(pipeline: Any, key: str, known: Lineages, lineages: Lineages, now: float) -> None:
        gone = [name for name in known if name not in lineages]
        changed = {name: _body(each) for name, each in lineages.items() if known.get(name) is not each}
        if gone:
            pipeline.hdel(key, *gone)
        if changed:
            pipeline.hset(key, mapping=changed)
        if lineages:
            last = max(each.until for each in lineages.values())
            pipeline.expire(key, math.ceil(last - now) + _SPARE_S)
            pipeline.zadd(_DUE, {key: min(each.until for each in lineages.values())})
        else:
            pipeline.zrem(_DUE, key)

    @contextmanager
    def _unavailable(self) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            raise LedgerUnavailableError(f"the ledger cannot be used: {error}") from error


def _key(scope: str) -> str:
    """A scope holds names that an agent may choose, of any length: the key does not."""
    return f"pgturnstile:ledger:{FORMAT}:{hashlib.sha256(scope.encode()).hexdigest()}"


def _read(stored: dict[bytes, bytes], key: str) -> Lineages:
    try:
        return {name.decode(): from_json(json.loads(body)) for name, body in stored.items()}
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise _UnreadableError(f"a lineage of the scope {key} cannot be read: {error}") from error


def _body(lineage: Any) -> str:
    return json.dumps(to_json(lineage), separators=(",", ":"))
