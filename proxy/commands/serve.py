"""``pgturnstile serve``."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from proxy.commands.terminal import Exit, Subcommands, UsageError, command
from proxy.config_reading import load_config
from proxy.logs import Logs
from proxy.process import CrewError, serve


def register(commands: Subcommands) -> None:
    """Add the command to ``commands``."""
    serve_ = command(
        commands,
        "serve",
        _serve,
        ["serve --config pgturnstile.yaml", "serve --config pgturnstile.yaml --log-format json"],
    )
    serve_.set_defaults(log_level=logging.INFO)
    serve_.add_argument("--config", required=True, type=Path, metavar="FILE", help="pgturnstile.yaml")
    serve_.add_argument(
        "--watch", action="store_true", help="reload whenever files of the configuration have changed"
    )
    serve_.add_argument(
        "--log-format", choices=("text", "json"), default="text", help="how log lines look on stderr"
    )


def _serve(options: argparse.Namespace) -> Exit:
    """Run the proxy.

    Prints one line, `ready host=… port=…`, once it accepts connections. SIGHUP
    reads configuration and policies again, and so does `pgturnstile reload`;
    SIGTERM drains, a second SIGTERM stops at once.
    """
    try:
        logs = Logs(as_json=options.log_format == "json", least=options.log_level)
        serve(lambda: load_config(options.config), logs, watch=options.watch)
    except CrewError as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(f"The proxy cannot start: {error.strerror or error}.") from error
    return Exit.DONE
