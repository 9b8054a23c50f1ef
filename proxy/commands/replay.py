"""``pgturnstile replay``: what another policy would have made of what was recorded."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from policy.catalog import Catalog
from policy.loader import load_file
from policy.model import Policy
from policy.replay import Again, CannotReplay, decide_again, recorded
from proxy.audit_lines import AuditLineError, Line, read_lines
from proxy.commands.sources import add_names, named_catalog
from proxy.commands.terminal import Exit, Subcommands, UsageError, add_format, command, one_line

_SHOWN = 10
"""Statements shown for one kind of change."""


class _Change(NamedTuple):
    line: Line
    before: Again
    now: Again

    @property
    def kind(self) -> str:
        return f"{_shown(self.before)} -> {_shown(self.now)}"


def register(commands: Subcommands) -> None:
    """Add the command to ``commands``."""
    replay = command(
        commands,
        "replay",
        _replay,
        [
            "replay --audit audit.jsonl --policy policies/analytics.yaml --catalog shop.json",
            "replay --audit audit.*.jsonl --policy policies/stricter.yaml --dsn postgresql://localhost/shop",
        ],
    )
    replay.add_argument("--audit", required=True, nargs="+", type=Path, metavar="FILE", help="audit files")
    replay.add_argument("--policy", required=True, type=Path, metavar="FILE", help="the policy to decide by")
    replay.add_argument("--agent", metavar="NAME", help="this agent's statements alone")
    add_names(replay)
    add_format(replay, "what changed, or one JSON object a change and one with the sums")


def _replay(options: argparse.Namespace) -> Exit:
    """Decide recorded statements again, and print what would change.

    Under the policy and the catalog of the record every decision comes out the
    same. Prices and outcomes are those that were recorded, and so are the turns
    of repairs. What cannot be decided again, for want of its text or its catalog,
    is counted. Exit code 1 when a decision changes.
    """
    policy, catalog = load_file(options.policy), named_catalog(options)
    same, skipped = 0, Counter[str]()
    changes: list[_Change] = []
    for line, answer in _decided_again(options, policy, catalog):
        before = recorded(line.body)
        if isinstance(answer, CannotReplay):
            skipped[answer.value] += 1
        elif answer == before:
            same += 1
        else:
            changes.append(_Change(line, before, answer))
    if options.format == "json":
        _print_json(same, skipped, changes)
    else:
        _print(same, skipped, changes)
    return Exit.REJECTED if changes else Exit.DONE


def _decided_again(
    options: argparse.Namespace, policy: Policy, catalog: Catalog | None
) -> Iterator[tuple[Line, Again | CannotReplay]]:
    try:
        for line in read_lines(options.audit):
            if line.is_decision and options.agent in (None, line.body.get("agent")):
                yield line, decide_again(line.body, policy, catalog)
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}.") from error
    except (AuditLineError, UnicodeDecodeError) as error:
        raise UsageError(f"{error}.") from error


def _shown(decision: Again) -> str:
    return decision.decision if decision.rule is None else f"{decision.decision} ({decision.rule})"


def _print(same: int, skipped: Counter[str], changes: list[_Change]) -> None:
    kinds = Counter(change.kind for change in changes)
    for kind, count in kinds.most_common():
        print(f"{kind}: {count:,}")
        for change in [change for change in changes if change.kind == kind][:_SHOWN]:
            print(f"    {change.line.place}: {one_line(str(change.line.body.get('statement')))}")
    for why, count in skipped.most_common():
        print(f"not decided again: {count:,}, {why}")
    print(f"{same:,} the same, {len(changes):,} changed, {skipped.total():,} not decided again")


def _print_json(same: int, skipped: Counter[str], changes: list[_Change]) -> None:
    for change in changes:
        print(json.dumps(_change_as_json(change)))
    print(json.dumps({"same": same, "changed": len(changes), "not_decided_again": dict(skipped)}))


def _change_as_json(change: _Change) -> dict[str, Any]:
    body = change.line.body
    return {
        "place": change.line.place,
        "id": body["id"],
        "agent": body.get("agent"),
        "statement": body.get("statement"),
        "before": {"decision": change.before.decision, "rule": change.before.rule},
        "now": {"decision": change.now.decision, "rule": change.now.rule},
    }
