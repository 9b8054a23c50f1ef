"""``pgturnstile audit …``: what audit files say."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from policy.diagnostics import printable
from proxy.audit_lines import AuditLineError, read_lines
from proxy.audit_summary import Summary, summarize
from proxy.commands.terminal import (
    Exit,
    Subcommands,
    UsageError,
    add_format,
    command,
    group,
    one_line,
    whole_number,
)


def register(commands: Subcommands) -> None:
    """Add the commands to ``commands``."""
    audit = group(commands, "audit", "Look back on what was decided.")
    summary = command(
        audit, "summary", _summary, ["audit summary audit.jsonl", "audit summary --top 20 audit*.jsonl"]
    )
    summary.add_argument(
        "--top",
        type=lambda text: whole_number(text, 1, 1000),
        default=5,
        metavar="N",
        help="statements to show for each rule (default: 5)",
    )
    add_format(summary, "text to read, or one JSON object")
    summary.add_argument("files", nargs="+", type=Path, metavar="FILE", help="audit files, the oldest first")


def _summary(options: argparse.Namespace) -> Exit:
    """Count what was refused, or would have been.

    By rule, agent and statement. A policy under `mode: observe` refuses nothing;
    its lines say what enforcing it would have refused.
    """
    try:
        summary = summarize(read_lines(options.files))
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}.") from error
    except (AuditLineError, UnicodeDecodeError) as error:
        raise UsageError(f"{error}.") from error
    if options.format == "json":
        print(json.dumps(summary.as_json(options.top)))
    else:
        _print(summary, options.top)
    return Exit.DONE


def _print(summary: Summary, most: int) -> None:
    print(
        f"{summary.decisions:,} decisions: {summary.refused:,} refused, {summary.observed:,} that enforcing "
        f"would refuse, {summary.failed:,} let through and failed in PostgreSQL"
    )
    for refusals in summary.rules:
        agents = ", ".join(f"{printable(agent)} {count:,}" for agent, count in refusals.agents.most_common())
        print(f"\n{refusals.rule}: {refusals.refused:,} refused, {refusals.observed:,} would be ({agents})")
        for shape in refusals.dearest(most):
            text = "(text not kept)" if shape.example is None else one_line(shape.example)
            print(f"  {shape.count:>7,}  {shape.fingerprint}  {text}")
        hidden = len(refusals.shapes) - most
        if hidden > 0:
            print(f"           and {hidden:,} more")
