"""``pgturnstile reload``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from policy import yaml_source
from policy.reader import Place
from proxy import control
from proxy.commands.terminal import Exit, Subcommands, UsageError, command, read
from proxy.config_reading import ConfigError

_WITHIN_S: Final = 60.0
"""How long reading everything and trying the policies' tests may take."""


def register(commands: Subcommands) -> None:
    """Add the command to ``commands``."""
    reload_ = command(commands, "reload", _reload, ["reload --config pgturnstile.yaml"])
    reload_.add_argument("--config", required=True, type=Path, metavar="FILE", help="pgturnstile.yaml")


def _reload(options: argparse.Namespace) -> Exit:
    """Have the running proxy read its configuration and policies again.

    Asks the process behind the `control:` socket of the configuration and waits
    for the outcome. Exit code 0 when everything was taken; 1 when nothing was,
    with the reasons: a fault in a file, or a policy that does not do what its
    own tests say. The proxy then goes on by what it had.
    """
    path = _socket_of(options.config)
    if path is None:
        raise UsageError(
            f"{options.config} names no control socket: add control: PATH and restart, or send SIGHUP to the "
            "proxy and look into its log."
        )
    try:
        answer = control.ask(path, "reload", _WITHIN_S)
    except control.ControlError as error:
        raise UsageError(str(error)) from error
    refused = answer.get("refused", answer.get("error"))
    if refused is not None:
        print(f"not reloaded; the proxy goes on as before\n{refused}")
        return Exit.REJECTED
    print("reloaded")
    return Exit.DONE


def _socket_of(config: Path) -> Path | None:
    """The control socket that the file names; what else may be wrong with it the proxy will find."""
    document = yaml_source.read(read(config), str(config), quotes_lines=False)
    document.report.raise_if_any(ConfigError)
    for entry in Place.root(document).entries() or ():
        if entry.key == "control":
            text = entry.value.string()
            return None if text is None else config.parent / text
    return None
