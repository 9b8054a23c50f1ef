"""The log: what its lines look like and where they go.

Owns their form. What is logged is everybody's; a process that another one starts has to be told (``Logs``).
"""

from __future__ import annotations

import contextlib
import logging
import os
from typing import NamedTuple, TextIO, cast

import structlog
from structlog.typing import EventDict


class Logs(NamedTuple):
    """How a process logs: JSON or text, and from which level on."""

    as_json: bool = False
    least: int = logging.INFO


def configure_logging(stream: TextIO, *, as_json: bool, least: int = logging.INFO, **fields: object) -> None:
    """Send log lines of level ``least`` and above to ``stream``: JSON for programs, else text for people, in
    colour only on a terminal that wants it. Each has ``fields`` beside its own.
    """

    def add_fields(_logger: object, _method: str, entry: EventDict) -> EventDict:
        return {**entry, **fields}

    renderer: structlog.typing.Processor
    if as_json:
        renderer = structlog.processors.JSONRenderer()
    else:
        # The default formatter shows local variables where rich is installed, and some of them are passwords.
        renderer = structlog.dev.ConsoleRenderer(
            colors=wants_colour(stream), exception_formatter=structlog.dev.plain_traceback
        )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            *([add_fields] if fields else []),
            *([structlog.processors.format_exc_info] if as_json else []),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", _Unfailing(stream))),
    )


class _Unfailing:
    """A stream for log lines: what cannot be written, on a full disk say, is lost and ends nothing.

    The audit's writer logs that its disk is full, and often to the same disk.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


def wants_colour(stream: TextIO) -> bool:
    """True for a terminal, unless ``NO_COLOR`` is set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
