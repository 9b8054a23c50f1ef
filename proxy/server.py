"""The listening side: accept, count, hand shakes, hand over to a relay, and end in good order.

Owns every live connection of one process and the limits on their number. A connection's life reads top-down
in ``_serve``. Knows no message of the protocol and no rule.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, Protocol

import structlog

from policy.ledger import Ledger, LedgerUnavailableError, MemoryLedger, Store
from policy.lineage import CloseOut
from policy.model import Policy, RepairScope
from proxy import handshake, renewal
from proxy.audit_line import ConnectionIdentity
from proxy.backend import TAKES_NONE, BackendError, BackendSession, Endpoint
from proxy.cancel import CancelRegistry
from proxy.carrier import AuditSink
from proxy.catalogs import CatalogLogin, Catalogs, WatchedCatalog
from proxy.config import Config
from proxy.conversation import Identity
from proxy.credentials import NAMES
from proxy.handshake import Proven, RefusedError
from proxy.health import TurnedAway
from proxy.judges import Judges
from proxy.ledgers import LedgerStore, ledger_of
from proxy.logins import Logins
from proxy.meters import Meters
from proxy.peers import Alone, Peers
from proxy.relay import ADMIN_SHUTDOWN, BackendKey, Parting, Relay
from proxy.session import Session
from proxy.stream import StreamClosedError, TLSFailedError, TransportStream, peer_network
from proxy.terms import Terms, connections_of, most_connections
from proxy.turns import Turns
from proxy.wire.startup import CancelRequest, NotPostgresError

BACKLOG: Final = 512
_SPARE_SOCKETS: Final = 64
"""Accepted beyond ``limits.connections``: for cancel requests, and to refuse the rest in words."""
_STORES: Final = 8
"""Connections that may wait for the store of repairs at a time."""
_SWEEP_S: Final = 15.0
"""How often lineages are looked for whose window is over, in seconds."""
_FIRST_CATALOG_S: Final = 8.0
"""The longest that a handshake waits for the first reading of a catalog."""
_SHAKING_S: Final = 2.0
"""How long one that hands over waits for handshakes that have begun."""
_LAST_WORDS_S: Final = 2.0
"""How long a stopping server waits for its last messages to leave."""

log = structlog.get_logger("pgturnstile.server")


class Sink(AuditSink, Protocol):
    """Where a server's records go."""

    def closed(self, record: CloseOut) -> None:
        """Take the record of a refusal whose repair is over; never raises."""
        ...


class NoAudit:
    """The sink of a server that keeps no records."""

    def record(self, entry: object, identity: object) -> None:
        pass

    def closed(self, record: object) -> None:
        pass


class Server:
    """Connections and what they come from. ``start``, then ``drain`` or ``stop``; ``config`` may be replaced.

    ``peers`` None where this process is the whole proxy.
    """

    def __init__(
        self,
        config: Config,
        audit: Sink | None = None,
        meters: Meters | None = None,
        peers: Peers | None = None,
    ) -> None:
        self._audit: Sink = audit or NoAudit()
        self._meters = Meters() if meters is None else meters
        self._cancels = CancelRegistry()
        self._peers = Alone(self._cancels.request) if peers is None else peers
        self._logins = Logins(self._peers)
        self._own_ledger: Store = MemoryLedger()
        self._store, self._ledger = LedgerStore(), ledger_of(LedgerStore())
        """Outlives every reload that names the same store: turns that are spent stay so."""
        self._live: dict[Relay, _Live] = {}
        self._shaking: set[asyncio.Task[bool]] = set()
        self._sockets = 0
        self._agents: Counter[str] = Counter()
        self._draining = False
        self._suspended: str | None = None
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._judges = Judges(config.limits.judge_timeout_ms / 1000)
        self._stores = ThreadPoolExecutor(_STORES, thread_name_prefix="ledger")
        self._turns = Turns()
        self._listeners: list[asyncio.Server] = []
        self._listening: Sequence[socket.socket] = ()
        self._repair_closed: Callable[[CloseOut], None] | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._catalogs = Catalogs()
        self._turned_away: TurnedAway | None = None
        self._terms = Terms.of(config)
        self.replace_config(config)

    @property
    def config(self) -> Config:
        """What new connections are served by."""
        return self._terms.config

    @property
    def endpoint(self) -> Endpoint:
        """The database server that new connections get."""
        return self._terms.endpoint

    @property
    def draining(self) -> bool:
        return self._draining

    @property
    def connections(self) -> dict[str, int]:
        """Open connections by agent."""
        return dict(self._agents)

    @property
    def catalogs(self) -> dict[str, bool]:
        """The databases in use, and whether the schema of each can be read."""
        return self._catalogs.readable

    @property
    def turned_away(self) -> TurnedAway | None:
        """The login to ask whether the database server takes sessions again."""
        return self._turned_away

    def replace_config(self, config: Config) -> None:
        """Serve by ``config`` from here on, live connections too as far as may be (``renewal``). The listener
        keeps its address.

        Raises OSError or ssl.SSLError where its certificates have become unusable; nothing has changed then.
        """
        self.adopt(self.terms_of(config))

    async def take(self, config: Config) -> None:
        """As ``replace_config``."""
        self.replace_config(config)

    def terms_of(self, config: Config) -> Terms:
        """What ``adopt`` takes, and nothing can fail any more. Raises as ``replace_config``."""
        return self._terms.replaced_by(renewal.keep_unchanged(self._terms.config, config))

    def adopt(self, terms: Terms) -> None:
        """Serve by ``terms``, the newest that ``terms_of`` gave."""
        config, self._terms = terms.config, terms
        if self._terms.config.ledger != self._store:
            _forget_own(self._ledger)
            self._store, self._ledger = self._terms.config.ledger, ledger_of(self._terms.config.ledger)
            self._tell_of_endings()
        self._meters.know(config.agents)
        self._judges.seconds = config.limits.judge_timeout_ms / 1000
        self._peers.allow_logins(most_connections(config))
        for relay, live in list(self._live.items()):
            self._renew(relay, live)

    def _renew(self, relay: Relay, live: _Live) -> None:
        """Bring a live connection to the terms of now."""
        config, proven = self._terms.config, live.proven
        dismissal = renewal.dismissal(proven, live.policy, config, has_altered=relay.has_altered)
        agent = config.agent_for(proven.user)
        if agent is not None and (dismissal is None or not dismissal.at_once):
            self._live[relay] = replace(live, policy=agent.policy)
            ledger = self._ledger_for(agent.policy)
            gate = self._terms.gate(agent, proven.user, live.catalog, ledger, self._meters.gate)
            relay.adopt(gate)
        if dismissal is not None:
            relay.dismiss(dismissal.reason, at_once=dismissal.at_once)

    async def start(self, listening: Sequence[socket.socket] = ()) -> tuple[str, int]:
        """Listen; returns the host and the port, which the system chose where the config says 0.

        ``listening`` are sockets that do so already, or are bound to, in the place of the config's address.
        """
        listen = self._terms.config.listen
        loop = asyncio.get_running_loop()
        self._repair_closed = functools.partial(_put_off, loop, self._audit.closed)
        self._tell_of_endings()
        self._sweeping = loop.create_task(self._sweep())
        self._listening = listening
        if listening:
            for each in listening:
                self._listeners.append(
                    await loop.create_server(lambda: _Accepted(self._accept), sock=each, backlog=BACKLOG)
                )
        else:
            self._listeners.append(
                await loop.create_server(
                    lambda: _Accepted(self._accept), listen.host, listen.port, backlog=BACKLOG
                )
            )
        host, port = self._listeners[0].sockets[0].getsockname()[:2]
        return (host if listening else listen.host), port

    async def drain(self, within_s: float) -> None:
        """Accept nothing more, end what is idle, let what is under way finish, then ``stop``."""
        self._refuse_new()
        await self._drain(within_s)

    async def hand_over(self, within_s: float) -> None:
        """As ``drain``, for a process whose address others listen at as well: whoever has connected to this
        one is let in, and then ended with a word that has drivers connect again."""
        await self._let_in_who_waits()
        self._stop_listening()
        if self._shaking:
            await asyncio.wait(self._shaking, timeout=min(within_s, _SHAKING_S))
        self._refuse_new()
        await self._drain(within_s)

    async def _drain(self, within_s: float) -> None:
        for relay in list(self._live):
            relay.drain()
        await self._wait_until_quiet(within_s)
        await self.stop()

    async def stop(self) -> None:
        """End everything at once; what an agent has not read within moments is lost."""
        self._refuse_new()
        for relay in list(self._live):
            relay.end(ADMIN_SHUTDOWN.message, ADMIN_SHUTDOWN.sqlstate)
        await self._wait_until_quiet(_LAST_WORDS_S)
        for relay in list(self._live):
            relay.abort()
        await self._catalogs.close()
        self._judges.close()
        if self._sweeping is not None:
            self._sweeping.cancel()
        for ledger in (self._own_ledger, self._ledger):
            _forget_own(ledger)
        # Their records were put off to the loop's next turn.
        await asyncio.sleep(0)
        # What a store is still to be told, it is told.
        self._stores.shutdown(wait=False)

    def holds(self, pid: int, secret: bytes) -> bool:
        """Whether a connection here is named so in a CancelRequest."""
        return self._cancels.find(pid, secret) is not None

    async def cancel(self, pid: int, secret: bytes) -> None:
        """Cancel what runs on the connection that is named so, if there is one."""
        found = self._cancels.find(pid, secret)
        if found is not None:
            await found.cancel()

    def suspend(self, reason: str | None) -> None:
        """Carry no statement from here on, because of ``reason``; None: serve again.

        What PostgreSQL works at may finish, the connections end with it, and new ones are refused.
        """
        self._suspended = reason
        if reason is not None:
            for relay in list(self._live):
                relay.drain(Parting(reason, "58030", at_once=True))

    def _tell_of_endings(self) -> None:
        """Have the ledgers say how lineages ended. Before ``start`` there are none."""
        self._own_ledger.on_closed = self._ledger.on_closed = self._repair_closed

    async def _sweep(self) -> None:
        """Find the lineages whose window is over, which nobody may ever ask about again."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            for ledger in (self._own_ledger, self._ledger):
                try:
                    if ledger.waits:
                        await asyncio.get_running_loop().run_in_executor(
                            self._stores, ledger.sweep, time.time()
                        )
                    else:
                        ledger.sweep(time.time())
                except LedgerUnavailableError as error:
                    # Whoever stands before the store says so in the log; what is over waits.
                    log.debug("lineages not swept", reason=str(error))

    async def _let_in_who_waits(self) -> None:
        """Accept what the kernel has accepted for this process alone: it would be cut off with the listener.
        What waits in a socket that others have as well is theirs."""
        loop = asyncio.get_running_loop()
        for each in self._listening:
            with contextlib.suppress(OSError):
                for _ in range(BACKLOG if each.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT) else 0):
                    accepted, _address = each.accept()
                    await loop.connect_accepted_socket(lambda: _Accepted(self._accept), accepted)

    def _stop_listening(self) -> None:
        for listener in self._listeners:
            listener.close()

    def _refuse_new(self) -> None:
        self._draining = True
        self._stop_listening()
        for task in list(self._shaking):
            task.cancel()

    async def _wait_until_quiet(self, within_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._quiet.wait()

    # --- one connection ---

    def _accept(self, stream: _Accepted) -> None:
        if self._draining or self._sockets >= self._terms.config.limits.connections + _SPARE_SOCKETS:
            self._dropped(stream, "no more sockets")
            stream.abort()
            return
        self._sockets += 1
        self._peers.entered()
        self._quiet.clear()
        task = asyncio.get_running_loop().create_task(self._serve(stream))
        self._shaking.add(task)
        task.add_done_callback(functools.partial(self._served, stream))

    def _served(self, stream: _Accepted, task: asyncio.Task[bool]) -> None:
        self._shaking.discard(task)
        # A task that is cancelled before its first step has run none of _serve.
        if task.cancelled() or not task.result():
            stream.close()
            self._socket_gone()

    async def _serve(self, stream: _Accepted) -> bool:
        """A connection from its first byte until a relay has it (True), or until it is refused."""
        try:
            return await self._shake_hands(stream)
        except RefusedError as refusal:
            self._refuse(stream, refusal)
        except (NotPostgresError, TLSFailedError) as error:
            self._dropped(stream, str(error))
        except StreamClosedError as error:
            # Probes connect and close, clients go away to ask for a password: nothing to report.
            log.debug("connection ended early", client=stream.client, reason=str(error))
        except TimeoutError:
            self._dropped(stream, "the handshake took too long")
        except asyncio.CancelledError:
            self._refuse(stream, RefusedError("the proxy is shutting down", "57P03"))
        except Exception:
            log.exception("handshake failed", client=stream.client)
            self._refuse(stream, RefusedError("the proxy failed; the connection is closed", "XX000"))
        return False

    async def _shake_hands(self, stream: _Accepted) -> bool:
        """True when a relay has taken the connection over."""
        terms = self._terms
        config, listen_tls = terms.config, terms.config.listen.tls
        deadline = asyncio.get_running_loop().time() + config.limits.startup_timeout_ms / 1000
        async with asyncio.timeout_at(deadline):
            first = await handshake.read_first(
                stream, terms.tls, tls_required=listen_tls is not None and listen_tls.required
            )
            if isinstance(first, CancelRequest):
                await self._peers.cancel(first.pid, first.secret, stream.source)
                return False
            if await self._peers.crowded(config.limits.connections):
                raise RefusedError("sorry, too many clients already", "53300")
        async with self._logins.attempt(stream.source, first.parameters.get("user", "")):
            async with asyncio.timeout_at(deadline):
                proven = await handshake.authenticate(stream, first, config, NAMES.secret, terms.tls)
            self._refuse_while_suspended()
            if not await self._peers.take_place(proven.user, connections_of(proven.agent, config)):
                raise RefusedError(f'too many connections for role "{proven.user}"', "53300")
            self._agents[proven.user] += 1
            try:
                await self._open(stream, proven, terms, deadline)
            except BaseException:
                self._leave_place(proven.user)
                raise
        return True

    async def _open(self, stream: _Accepted, proven: Proven, terms: Terms, deadline: float) -> None:
        """The backend's leg, then the steady state."""
        try:
            async with asyncio.timeout_at(deadline):
                backend_stream, opened = await handshake.open_backend(proven, terms.endpoint)
        except TimeoutError:
            self._failed(proven)
            raise RefusedError("the database server did not answer in time", TAKES_NONE) from None
        except RefusedError as refusal:
            if isinstance(refusal.__cause__, BackendError):
                self._failed(proven, refusal.__cause__.sqlstate)
            raise
        self._turned_away = None
        catalog: WatchedCatalog | None = None
        try:
            catalog = await self._take_catalog(proven, terms, deadline)
            self._hand_over(stream, proven, terms, _Leg(backend_stream, opened, catalog))
        except BaseException:
            if catalog is not None:
                self._catalogs.give_back(catalog)
            backend_stream.abort()
            raise

    def _failed(self, proven: Proven, sqlstate: str = TAKES_NONE) -> None:
        self._meters.backend_failures += 1
        # A role that an agent names itself is nobody's word that there is one.
        if sqlstate == TAKES_NONE and proven.agent.login is not None:
            self._turned_away = TurnedAway(proven.role, proven.database)

    async def _take_catalog(self, proven: Proven, terms: Terms, deadline: float) -> WatchedCatalog:
        """The catalog of the agent's database. Its first reading is waited for, but not for ever: what needs
        a catalog is refused until there is one."""
        login = terms.config.catalog_login or proven.agent.login
        reader = (
            CatalogLogin(login.user, login.password)
            if login is not None
            else CatalogLogin(proven.user, lambda: proven.password)
        )
        left_s = deadline - asyncio.get_running_loop().time()
        return await self._catalogs.take(
            proven.database, terms.endpoint, reader, within_s=max(0.0, min(_FIRST_CATALOG_S, left_s / 2))
        )

    def _hand_over(
        self,
        stream: _Accepted,
        proven: Proven,
        terms: Terms,
        leg: _Leg,
    ) -> None:
        policy, opened = proven.agent.policy, leg.opened
        connection = secrets.token_hex(8)
        gate = terms.gate(proven.agent, proven.user, leg.catalog, self._ledger_for(policy), self._meters.gate)
        session = Session(
            gate,
            Identity(
                connection,
                proven.role,
                proven.database,
                proven.packet.parameters.get("application_name", ""),
            ),
            opened.search_path,
            nonce=secrets.token_hex(16),
            clock=time.monotonic,
            message_bytes=terms.config.limits.message_bytes,
            listed=opened.listed,
            reports_path="search_path" in opened.parameters,
        )
        relay = Relay(
            session,
            gate=gate,
            audit=self._audit,
            identity=_identity(proven, stream.client, connection),
            key=BackendKey(terms.endpoint, opened.pid, opened.secret),
            judges=self._judges,
            stores=self._stores,
            turns=self._turns,
            on_ended=self._ended,
        )
        # The last moment: whoever is in _live is told of what comes later.
        self._refuse_while_suspended()
        secret = self._cancels.register(opened.pid, proven.packet.version, relay)
        live = self._live[relay] = _Live(proven, policy, opened.pid, secret, leg.catalog)
        try:
            relay.start(stream, leg.stream, handshake.greeting(proven, opened, secret))
        except BaseException:
            # The catalog is the caller's to give back.
            self._forget(relay)
            raise
        self._meters.of(proven.user).opened += 1
        log.info(
            "connection opened",
            connection=connection,
            agent=proven.user,
            client=stream.client,
            policy=policy.name,
        )
        if terms is not self._terms:
            # The configuration was replaced during the handshake.
            self._renew(relay, live)

    def _ledger_for(self, policy: Policy) -> Ledger:
        """No other process has a part in what a connection keeps to itself."""
        return self._own_ledger if policy.repair.scope is RepairScope.CONNECTION else self._ledger

    def _refuse(self, stream: _Accepted, refusal: RefusedError) -> None:
        self._meters.refused[refusal.fields["sqlstate"]] += 1
        more = self._logins.to_tell(stream.source, refusal)
        if more is not None:
            log.info(
                "connection refused",
                client=stream.client,
                sqlstate=refusal.fields["sqlstate"],
                reason=refusal.reason,
                **more,
            )
        stream.write(refusal.message)

    def _dropped(self, stream: _Accepted, reason: str) -> None:
        more = self._logins.to_tell(stream.source)
        if more is not None:
            log.info("connection dropped", client=stream.client, reason=reason, **more)

    # --- counting ---

    def _refuse_while_suspended(self) -> None:
        if self._suspended is not None:
            raise RefusedError(self._suspended, "57P03")

    def _leave_place(self, agent: str) -> None:
        self._agents[agent] -= 1
        if not self._agents[agent]:
            del self._agents[agent]
        self._peers.leave_place(agent)

    def _ended(self, relay: Relay) -> None:
        """Both transports of a relay are gone."""
        live = self._forget(relay)
        self._catalogs.give_back(live.catalog)
        self._leave_place(live.proven.user)
        self._socket_gone()

    def _forget(self, relay: Relay) -> _Live:
        live = self._live.pop(relay)
        self._cancels.forget(live.pid, live.secret)
        return live

    def _socket_gone(self) -> None:
        self._sockets -= 1
        self._peers.left()
        if not self._sockets:
            self._quiet.set()


def _put_off(loop: asyncio.AbstractEventLoop, sink: Callable[[CloseOut], None], record: CloseOut) -> None:
    """Hand ``record`` to a sink that is for the event loop's thread, from any thread."""
    try:
        loop.call_soon_threadsafe(sink, record)
    except RuntimeError:
        # A store was told after the loop had ended: the log is all that is left.
        log.error("repair closed after the end", lineage=record.lineage, outcome=record.ending)


def _forget_own(ledger: Store) -> None:
    """End what only this process knows of."""
    if isinstance(ledger, MemoryLedger):
        ledger.forget(time.time())


@dataclass(frozen=True, slots=True)
class _Live:
    """What a server keeps of a relay; ``policy`` is what it was last told to judge by."""

    proven: Proven
    policy: Policy
    pid: int
    secret: bytes
    catalog: WatchedCatalog


class _Leg(NamedTuple):
    """What a connection has on the backend's side."""

    stream: TransportStream
    opened: BackendSession
    catalog: WatchedCatalog


def _identity(proven: Proven, client: str, connection: str) -> ConnectionIdentity:
    return ConnectionIdentity(
        agent=proven.user,
        database=proven.database,
        backend_user=proven.role,
        application_name=proven.packet.parameters.get("application_name"),
        client=client,
        connection=connection,
        policy_name=proven.agent.policy.name,
        policy_sha256=proven.agent.policy.sha256,
    )


class _Accepted(TransportStream):
    """An agent's connection from the moment it is accepted."""

    def __init__(self, on_accepted: Callable[[_Accepted], None]) -> None:
        super().__init__()
        self._on_accepted = on_accepted

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        peer: Any = transport.get_extra_info("peername")
        self.source = peer_network(peer)
        address = str(peer[0]) if isinstance(peer, tuple) and peer else "local"
        host = f"[{address}]" if ":" in address else address
        self.client = f"{host}:{peer[1]}" if isinstance(peer, tuple) and len(peer) > 1 else "local"
        self._on_accepted(self)
