"""One writer's run through the audit's chain: how a line is linked to the one before it.

Owns the form of a link. How links are followed when files are read back is ``audit_chain``'s.
"""

from __future__ import annotations

import hashlib
import secrets


def digest(line: bytes) -> str:
    """What the next line tells of ``line``, which has no line feed."""
    return hashlib.sha256(line).hexdigest()


class Links:
    """A run. ``head`` is the digest of the line to begin behind, None for the first of all."""

    __slots__ = ("_number", "_run", "head")

    def __init__(self, head: str | None = None) -> None:
        self._run = secrets.token_hex(4)
        self._number = 0
        self.head = head

    def link(self, line: str) -> bytes:
        """``line``, a JSON object in ASCII with its line feed, as the next one of the run."""
        self._number += 1
        before = "null" if self.head is None else f'"{self.head}"'
        linked = f'{line[:-2]},"chain":"{self._run}-{self._number}","prev":{before}}}'.encode("ascii")
        self.head = digest(linked)
        return linked + b"\n"
