"""What all commands share towards the person at the terminal: exit codes, mistakes, arguments, colour.

Knows no command, and nothing of policies and proxies.
"""

from __future__ import annotations

import argparse
import inspect
import logging
from collections.abc import Callable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Final, TextIO, TypeAlias

from policy.diagnostics import printable
from proxy.logs import wants_colour

PROGRAM: Final = "pgturnstile"

Subcommands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""Where a command adds itself."""


class Exit(IntEnum):
    """What a caller learns without reading: contract of every command."""

    DONE = 0
    REJECTED = 1
    """A statement was rejected, or a check failed."""
    USAGE = 2
    """Wrong usage, an unreadable or invalid file, or a start that failed."""


class UsageError(Exception):
    """Something the person at the terminal can put right; the message is all they see."""


def group(commands: Subcommands, name: str, what: str) -> Subcommands:
    """A command that only has commands of its own."""
    group = commands.add_parser(name, help=what, description=what, allow_abbrev=False)
    return group.add_subparsers(metavar="COMMAND", required=True)


def command(
    commands: Subcommands,
    name: str,
    run: Callable[[argparse.Namespace], Exit],
    examples: Sequence[str],
) -> argparse.ArgumentParser:
    """A command whose help is the docstring of the function that runs it."""
    help_text = inspect.getdoc(run) or ""
    command = commands.add_parser(
        name,
        help=help_text.splitlines()[0],
        description=help_text,
        epilog="\n".join(("examples:", *(f"  {PROGRAM} {example}" for example in examples))),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.set_defaults(command=run, log_format="text", log_level=logging.WARNING)
    return command


def add_format(command: argparse.ArgumentParser, what: str) -> None:
    """``--format text|json``, where a program may read the output."""
    command.add_argument("--format", choices=("text", "json"), default="text", help=f"{what} (default: text)")


def whole_number(text: str, least: int, most: int) -> int:
    """``text`` as an argument's number; raises what argparse shows the person."""
    if not (text.isascii() and text.isdigit() and least <= int(text[:9]) <= most and len(text) <= 9):
        raise argparse.ArgumentTypeError(f"expected a whole number from {least} to {most}, not {text!r}")
    return int(text)


def read(path: Path) -> bytes:
    """The content of a file that was named; raises UsageError where it cannot be had."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error


def one_line(sql: str, width: int = 100) -> str:
    """``sql`` cut to ``width`` characters of one line that is safe to print."""
    text = printable(" ".join(sql.split()))
    return text if len(text) <= width else text[: width - 1] + "…"


def painter(stream: TextIO) -> Callable[[str, str], str]:
    """A function of a text and an ANSI colour code; it colours only on a terminal that wants it."""
    if wants_colour(stream):
        return lambda text, code: f"\x1b[{code}m{text}\x1b[0m"
    return lambda text, _code: text
