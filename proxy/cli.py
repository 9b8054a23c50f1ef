"""The command line: ``pgturnstile COMMAND``, also ``python -m proxy``.

Owns the parser and how a mistake is told; each command is a file in ``proxy.commands``. Human
output goes to stdout, logs to stderr. A mistake of the person at the terminal gets one sentence and exit code
2, never a traceback.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import TextIO, cast

from policy.diagnostics import InvalidFileError, render
from proxy import commands
from proxy.audit import AuditError
from proxy.commands.terminal import PROGRAM, Exit, UsageError
from proxy.compiled import StaleBuildError
from proxy.demo import DemoError
from proxy.logs import configure_logging
from proxy.systemd import SocketsError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    options = parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # SQL may hold any character, the terminal's encoding may not.
        sys.stdout.reconfigure(errors="backslashreplace")
    configure_logging(
        cast(TextIO, _StandardError()), as_json=options.log_format == "json", least=options.log_level
    )
    try:
        command: Callable[[argparse.Namespace], Exit] = options.command
        code = command(options)
        sys.stdout.flush()
    except (UsageError, AuditError, DemoError, SocketsError, StaleBuildError) as error:
        return _fail(str(error))
    except InvalidFileError as error:
        return _fail(render(error.diagnostics), prefix="")
    except KeyboardInterrupt:
        return _fail("interrupted")
    except BrokenPipeError:
        # The reader went away, so the answer did not arrive. Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.USAGE
    return code


class _StandardError(io.TextIOBase):
    """Standard error as it is when something is written: whoever calls ``main`` may replace and close it."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()

    def isatty(self) -> bool:
        return sys.stderr.isatty()


def parser() -> argparse.ArgumentParser:
    """Every command and its arguments."""
    parser_ = argparse.ArgumentParser(
        prog=PROGRAM,
        description="A PostgreSQL proxy and query firewall for agents that write SQL.",
        epilog="Exit codes: 0 done or allowed, 1 rejected or a check failed, 2 wrong usage or a bad file.",
        allow_abbrev=False,
    )
    parser_.add_argument("--version", action="version", version=_version())
    subcommands = parser_.add_subparsers(metavar="COMMAND", required=True)
    for command in commands.ALL:
        command.register(subcommands)
    return parser_


def _version() -> str:
    try:
        return f"{PROGRAM} {importlib.metadata.version(PROGRAM)}"
    except importlib.metadata.PackageNotFoundError:
        return f"{PROGRAM}, not installed: run from its source"


def _fail(message: str, prefix: str = f"{PROGRAM}: ") -> Exit:
    print(f"{prefix}{message}", file=sys.stderr)
    return Exit.USAGE
