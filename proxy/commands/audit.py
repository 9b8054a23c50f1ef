"""``pgturnstile audit …``: what audit files say."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from policy.diagnostics import printable
from proxy.audit_chain import Verdict, verify
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
    verify = command(
        audit,
        "verify",
        _verify,
        ["audit verify audit.jsonl", "audit verify audit.jsonl.2 audit.jsonl.1 audit.jsonl --head SHA256"],
    )
    verify.add_argument(
        "--head",
        action="append",
        default=[],
        type=_sha256,
        metavar="SHA256",
        help="a line that must be met: a head that was printed or logged earlier; may be given several times",
    )
    add_format(verify, "text to read, or one JSON object")
    verify.add_argument("files", nargs="+", type=Path, metavar="FILE", help="audit files, the oldest first")


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


def _verify(options: argparse.Namespace) -> Exit:
    """Follow the chain through audit files.

    Says of every line that was changed, taken out, put in or moved where that
    was. Files that were rotated are given together, the oldest first. What was
    cut off at the end shows only by a head that was kept elsewhere: one is
    printed for each run of the proxy, and logged when it closes the file.
    """
    try:
        verdict = verify(options.files, options.head)
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}.") from error
    if options.format == "json":
        print(json.dumps(_verdict_as_json(verdict)))
    else:
        _print_verdict(verdict)
    return Exit.DONE if verdict.holds else Exit.REJECTED


def _verdict_as_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "holds": verdict.holds,
        "lines": verdict.lines,
        "breaks": [{"file": str(b.path), "line": b.number, "reason": b.reason} for b in verdict.breaks],
        "continues": verdict.since,
        "anew": [str(path) for path in verdict.anew],
        "missing_heads": verdict.missing,
        "heads": verdict.heads,
    }


def _print_verdict(verdict: Verdict) -> None:
    for at in verdict.breaks:
        print(f"{at.path}:{at.number}: {at.reason}")
    for head in verdict.missing:
        print(f"head {head} is nowhere: lines are missing at the end, or were written anew")
    for first in verdict.since:
        print(f"note: line {first} is the first of its run here; what came before was not given")
    for path in verdict.anew:
        print(f"note: nothing links {path} to what was before it: the proxy began there when it was started")
    word = "holds" if verdict.holds else "is broken"
    print(f"{verdict.lines:,} lines: the chain {word}")
    for run, head in verdict.heads.items():
        print(f"head of run {run}: {head}")


def _sha256(text: str) -> str:
    if re.fullmatch("[0-9a-f]{64}", text) is None:
        raise argparse.ArgumentTypeError("expected 64 hexadecimal digits")
    return text


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
