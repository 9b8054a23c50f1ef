"""What a new configuration is to what the old one began: policies that stayed the same, open sessions.

Owns which sessions may live on under the new configuration and which have to end, because what they began
with cannot be taken back from outside: their backend role, what is pinned at their start, what they may have
set since. How a session changes over is ``succession``'s. Knows no sockets.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from types import MappingProxyType
from typing import Final, NamedTuple

from policy.model import Policy, StatementClass, Verdict
from proxy.config import Config
from proxy.handshake import Proven, RefusedError, pins, session_settings

_ENDING: Final = "terminating connection due to a change of the configuration: "


class Dismissal(NamedTuple):
    """Why a session has to end, as its agent is told; ``at_once`` even inside a transaction."""

    reason: str
    at_once: bool


def keep_unchanged(before: Config, after: Config) -> Config:
    """``after`` with the very policies of ``before`` where they say the same: what was decided by them
    holds."""
    known = {policy.source: policy for policy in before.policies}
    kept = {
        policy.source: known[policy.source]
        for policy in after.policies
        if policy.source in known and known[policy.source] == policy
    }
    agents = {
        name: replace(agent, policy=kept.get(agent.policy.source, agent.policy))
        for name, agent in after.agents.items()
    }
    return replace(after, agents=MappingProxyType(agents))


def dismissal(proven: Proven, policy: Policy, config: Config, *, has_altered: bool) -> Dismissal | None:
    """Why the session that ``proven`` began, and that ``policy`` judged last, has to end; None where it lives
    on, judged by what ``config`` says of its agent. ``has_altered``: it may hold temporary views and tables.

    An agent that may no longer be there, or no longer as that role, is not waited for. Where only the start
    of a session would be another now, a transaction may end, judged by the new policy. What a temporary view
    reads no policy can judge later: with other names allowed its session ends.
    """
    agent = config.agent_for(proven.user)
    if agent is None or agent.name != proven.agent.name:
        return _at_once("the agent is not in it any more")
    if not agent.may_use(proven.database):
        return _at_once("the agent may no longer use this database")
    if replace(proven, agent=agent).role != proven.role:
        return _at_once("the agent works as another role")
    if has_altered and _reach(policy) != _reach(agent.policy):
        return _at_once("it may hold temporary relations made of what is not allowed any more")
    if _starts_otherwise(proven, policy, agent.policy):
        return Dismissal(_ENDING + "connect anew", at_once=False)
    return None


def _at_once(reason: str) -> Dismissal:
    return Dismissal(_ENDING + reason, at_once=True)


def _starts_otherwise(proven: Proven, before: Policy, after: Policy) -> bool:
    """True where a session under ``after`` would have other pins, or could not be as this one may be now."""
    if before is after:
        return False
    if before.mode is not after.mode or pins(before) != pins(after):
        return True
    if not before.settings.allow <= after.settings.allow:
        return True
    if _may_change_role(before) and not _may_change_role(after):
        return True
    try:
        session_settings(proven.packet, after)
    except RefusedError:
        return True
    return False


def _reach(policy: Policy) -> object:
    """What names a statement may use, wherever in the file that stands."""
    return _unplaced((policy.relations, policy.columns, policy.functions))


def _unplaced(value: object) -> object:
    """``value`` without the lines it stands in."""
    if isinstance(value, tuple):
        return tuple(_unplaced(each) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        return tuple((f.name, _unplaced(getattr(value, f.name))) for f in fields(value) if f.name != "line")
    return value


def _may_change_role(policy: Policy) -> bool:
    return policy.row(StatementClass.ROLE).decide is Verdict.ALLOW
