"""Policies and one-line judgements for the tests of rules."""

from __future__ import annotations

from policy.decision import Allow, Decision, Reject, Situation, decide
from policy.loader import load
from policy.model import Policy, Violation
from policy.names import PathNames
from policy.parse import parse

READER = """\
version: 1
name: reader
access: read_only
statements: {select: allow, explain: allow, show: allow, set: allow, transaction: allow,
             cursor: allow, prepare: allow, copy_out: allow,
             ddl: {decide: reject, needs: approval}, role: {decide: reject, needs: runbook}}
relations: {allow: ["public.*"], deny: ["billing.*", public.api_keys], catalogs: filtered}
columns:
  public.employees: {deny: [salary]}
  public.customers: {allow: [id, name]}
functions: {allow: [builtin-safe, public.order_total, public.order_status], deny: [pg_sleep, lower]}
settings: {allow: [shop.color]}
"""

WRITER = """\
version: 1
name: writer
access: read_write
statements:
  select: {decide: allow, repair: once}
  insert: {decide: allow, repair: once}
  update: {decide: allow, repair: once}
  delete: {decide: allow, repair: once}
  merge: {decide: allow, repair: once}
  explain: allow
  copy_in: allow
  prepare: allow
  set: allow
  show: allow
  transaction: allow
relations: {allow: ["public.*"]}
columns:
  public.employees: {deny: [salary]}
functions: {allow: [builtin-safe]}
rules: {unbounded-join: reject, unbounded-select: warn}
"""


def policy_of(text: str = READER, **sections: str) -> Policy:
    """The policy of ``text`` with whole sections (``relations="{…}"``) replaced."""
    kept = text
    for name, value in sections.items():
        kept = _without(kept, name) + f"{name}: {value}\n"
    return load(kept, "policies/test.yaml")


def _without(text: str, section: str) -> str:
    lines: list[str] = []
    inside = False
    for line in text.splitlines(keepends=True):
        if not line.startswith(" "):
            inside = line.startswith(f"{section}:")
        if not inside:
            lines.append(line)
    return "".join(lines)


def judge(sql: str, policy: Policy, path: tuple[str, ...] = ("public",)) -> Decision:
    return decide(policy, Situation("agent", PathNames((path,))), parse(sql))


def violations(sql: str, policy: Policy, rule: str, path: tuple[str, ...] = ("public",)) -> list[Violation]:
    """What ``rule`` says of ``sql``, whatever else is said."""
    decision = judge(sql, policy, path)
    assert decision.failures == ()
    told = decision.violations if isinstance(decision, Reject) else decision.warnings + decision.observed
    return [violation for violation in told if violation.rule == rule]


def passes(sql: str, policy: Policy, path: tuple[str, ...] = ("public",)) -> None:
    """Assert that ``sql`` is allowed without any objection."""
    decision = judge(sql, policy, path)
    told = decision.violations if isinstance(decision, Reject) else ()
    assert isinstance(decision, Allow), [f"{v.rule}: {v.message}" for v in told]
