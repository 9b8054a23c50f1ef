"""``pgturnstile hash-password``."""

from __future__ import annotations

import argparse
import getpass
import sys

from proxy.commands.terminal import Exit, Subcommands, UsageError, command, whole_number
from proxy.scram import DEFAULT_ITERATIONS, MAX_ITERATIONS, Verifier


def register(commands: Subcommands) -> None:
    """Add the command to ``commands``."""
    hash_password = command(
        commands,
        "hash-password",
        _hash_password,
        ["hash-password", "hash-password < password.txt"],
    )
    hash_password.add_argument(
        "--iterations",
        type=_iterations,
        default=DEFAULT_ITERATIONS,
        metavar="N",
        help=f"rounds of hashing; more slow down guessing, and logins (default: {DEFAULT_ITERATIONS})",
    )


def _hash_password(options: argparse.Namespace) -> Exit:
    """Turn a password into the verifier that the configuration takes.

    Reads a password from the terminal, twice and without echo, or one line of
    standard input, and prints a SCRAM-SHA-256 verifier for `auth: {scram: …}`.
    The password itself is not kept anywhere.
    """
    print(Verifier.derive(_read_password(), iterations=options.iterations))
    return Exit.DONE


def _read_password() -> str:
    if sys.stdin.isatty():
        password = getpass.getpass("Password: ")
        if password != getpass.getpass("Again: "):
            raise UsageError("The two passwords differ.")
    else:
        try:
            password = sys.stdin.buffer.readline().decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise UsageError("The password is not UTF-8.") from error
    if not password:
        raise UsageError("The password is empty.")
    if "\0" in password:
        raise UsageError("The password holds a NUL character, which no PostgreSQL client can send.")
    return password


def _iterations(text: str) -> int:
    return whole_number(text, DEFAULT_ITERATIONS, MAX_ITERATIONS)
