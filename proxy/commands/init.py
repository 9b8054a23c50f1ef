"""``pgturnstile policy init``: a policy to start from."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from policy.narrowest import narrowest
from policy.starter import recorded, starter
from proxy.audit_lines import AuditLineError, read_lines
from proxy.commands.sources import add_names, named_catalog
from proxy.commands.terminal import Exit, Subcommands, UsageError, command


def register(policy_commands: Subcommands) -> None:
    """Add the command to those of ``policy``."""
    init = command(
        policy_commands,
        "init",
        _init,
        [
            "policy init --dsn postgresql://dba@localhost/shop > policies/shop.yaml",
            "policy init --dsn postgresql://dba@localhost/shop --from-audit audit.jsonl > policies/bot.yaml",
        ],
    )
    add_names(init)
    init.add_argument(
        "--from-audit",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="allow what these audit files recorded, and nothing else",
    )
    init.add_argument("--agent", metavar="NAME", help="of the audit files, this agent's statements alone")
    init.add_argument("--name", metavar="NAME", help="what the policy is called (default: recorded)")


def _init(options: argparse.Namespace) -> Exit:
    """Print a policy to start from, with comments.

    Of a database: reads of every schema, without the tables and columns whose
    names look secret, with limits for its size. From audit files, best those of
    a policy under `mode: observe`: the narrowest policy that allows what was
    recorded, with how often each line was used.
    """
    catalog = named_catalog(options)
    if options.from_audit is not None:
        name = options.name or "recorded"
        print(recorded(narrowest(_texts(options.from_audit, options.agent), name, catalog)), end="")
        return Exit.DONE
    if options.name or options.agent:
        raise UsageError("--name and --agent go with --from-audit.")
    if catalog is None:
        raise UsageError("Name a database (--dsn), what `catalog dump` wrote (--catalog), or audit files.")
    print(starter(catalog), end="")
    return Exit.DONE


def _texts(files: list[Path], agent: str | None) -> Counter[str]:
    """The statements that ran, by text; what PostgreSQL refused needs no allowing."""
    texts: Counter[str] = Counter()
    withheld = 0
    try:
        for line in read_lines(files):
            body = line.body
            if not line.is_decision or (agent is not None and body.get("agent") != agent):
                continue
            if (body.get("outcome") or {}).get("sqlstate") and body["decision"] == "allow":
                continue
            if body.get("statement") is None:
                withheld += 1
            else:
                texts[body["statement"]] += 1
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}.") from error
    except (AuditLineError, UnicodeDecodeError) as error:
        raise UsageError(f"{error}.") from error
    if withheld:
        raise UsageError(f"{withheld} statements have no text; it takes `audit: {{statements: full}}`.")
    return texts
