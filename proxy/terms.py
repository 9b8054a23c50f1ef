"""A configuration with what is made of it before anybody connects: certificates, the gates, numbers.

Owns what a connection is served by from end to end; whose connection that is, is ``server``'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from policy.ledger import Ledger
from proxy import tls
from proxy.agents import AgentConfig
from proxy.backend import Endpoint
from proxy.catalogs import WatchedCatalog
from proxy.config import Config
from proxy.gate import Gate
from proxy.meters import GateMeter


def most_connections(config: Config) -> int:
    """The most connections that any one agent may have."""
    return max(connections_of(agent, config) for agent in config.agents.values())


def connections_of(agent: AgentConfig, config: Config) -> int:
    """The most connections that ``agent`` may have."""
    return agent.connections or config.limits.connections_per_agent


@dataclass(frozen=True, slots=True)
class Terms:
    """A config with what was made of it."""

    config: Config
    tls: tls.AgentTls | None
    endpoint: Endpoint
    gates: dict[tuple[str, str, str], Gate]

    @classmethod
    def of(cls, config: Config) -> Self:
        listen_tls = config.listen.tls
        served = (
            tls.agent_tls(listen_tls.cert, listen_tls.key, listen_tls.client_ca)
            if listen_tls is not None
            else None
        )
        return cls(config, served, Endpoint.of(config.backend), {})

    def replaced_by(self, config: Config) -> Terms:
        """The terms of ``config``, with the gates that judge alike."""
        terms = Terms.of(config)
        if config.limits.statement_bytes == self.config.limits.statement_bytes:
            policies = {id(policy) for policy in config.policies}
            terms.gates.update({k: gate for k, gate in self.gates.items() if id(gate.policy) in policies})
        return terms

    def gate(
        self, agent: AgentConfig, name: str, catalog: WatchedCatalog, ledger: Ledger, meter: GateMeter
    ) -> Gate:
        policy, clone = agent.policy, agent.clone
        key = (policy.source, name, catalog.database)
        gate = self.gates.get(key)
        outdated = gate is None or gate.catalog is not catalog or gate.policy is not policy
        if gate is None or outdated or gate.ledger is not ledger or gate.clone != clone:
            limit = self.config.limits.statement_bytes
            gate = self.gates[key] = Gate(policy, name, limit, catalog, ledger, meter=meter, clone=clone)
        return gate
