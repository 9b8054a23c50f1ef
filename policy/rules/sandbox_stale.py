"""sandbox-stale: the clone on which the statement is to be tried first cannot speak for the database.

What it refuses
    A statement of a class that ``sandbox.classes`` lists, while the clone does not answer, is busy, has other
    definitions of what the statement meets than the database, or knows the agent's role or settings
    differently; and one whose session's settings have changed since it was tried.
Why
    What an old clone says of a statement is no evidence, neither for it nor against it.
Refused
    while a column of orders is missing on the clone: ``UPDATE orders SET … WHERE id = …``
Allowed
    the same once the clone is made anew, or with ``on_stale: skip``
Repair
    None. The statement is not at fault, and its turn is not spent.
Settings
    ``sandbox: {dsn_env: …, classes: […], on_stale: reject | skip, timeout: 30s}``
"""

from __future__ import annotations

from policy.model import Halt, Policy, RuleLevel, Violation

NAME = "sandbox-stale"
DEFAULT = RuleLevel.REJECT
SQLSTATE = "42501"
GOVERNED_BY = "sandbox"


def stale(policy: Policy, reason: str) -> Violation:
    """The objection to a statement of which the clone can say nothing, for ``reason``."""
    return Violation(
        rule=NAME,
        message=f"The statement could not be tried on the clone, and was not run: {reason}",
        hint="Do not retry it as it is or otherwise. Tell whoever runs the gate that the clone is at fault.",
        halt=Halt.SANDBOX_STALE,
        line=0 if policy.sandbox is None else policy.sandbox.line,
    )


def changed(policy: Policy) -> Violation:
    """The objection to a statement that would run under other settings than it was tried under."""
    return Violation(
        rule=NAME,
        message="Settings of the session have changed since the statement was tried on the clone",
        hint="Bind the statement again, behind the change of settings, and run it then.",
        halt=Halt.SANDBOX_STALE,
        line=0 if policy.sandbox is None else policy.sandbox.line,
    )
