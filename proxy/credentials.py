"""Passwords that are had from outside the configuration, and files of them that may be replaced meanwhile.

Owns what text can be a password and when a file is read anew. Knows neither agents nor PostgreSQL. Nothing
here quotes a password: not an error, not a ``repr``.
"""

from __future__ import annotations

import hmac
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from proxy.scram import SALT_BYTES, Verifier

MAX_SECRET_BYTES: Final = 4096


class _Names:
    """``secret`` makes the salts of agents and of names that are none."""

    def __init__(self) -> None:
        self.secret = secrets.token_bytes(32)


NAMES: Final = _Names()
"""Stays as it is when a configuration is loaded anew, and a supervisor's is that of all its workers, so that
no difference tells who is an agent."""


class SecretError(Exception):
    """A password that cannot be had, or can be none. The text says why and never quotes it."""


def checked(text: str) -> str:
    """``text`` where it can be a password. Raises SecretError."""
    if not text or len(text.encode("utf-8", "surrogateescape")) > MAX_SECRET_BYTES:
        raise SecretError(f"expected a password of 1 to {MAX_SECRET_BYTES} bytes there")
    if any(c in "\0\n\r" or "\ud800" <= c <= "\udfff" for c in text):
        raise SecretError("the password there is not one line of UTF-8")
    return text


def derive(password: str, name: str) -> Verifier:
    """The verifier by which ``name`` proves ``password``."""
    salt = hmac.digest(NAMES.secret, name.encode("utf-8"), "sha256")[:SALT_BYTES]
    return Verifier.derive(password, salt)


class _Read(NamedTuple):
    """A file's content, and by what a later version is told from it."""

    mark: tuple[int, int, int]
    password: str


@dataclass(eq=False, slots=True)
class PasswordFile:
    """A file with one line: a password. It is looked at each time, and read anew once it has changed.

    A file is to be replaced by renaming another over it: one that is half written is read as it stands.
    """

    path: Path
    _read: _Read | None = field(default=None, repr=False)

    def password(self) -> str:
        """What the file holds now. Raises SecretError."""
        try:
            if self._read is None or self._read.mark != _mark(self.path.stat()):
                self._read = None
                self._read = self._fresh()
        except (OSError, ValueError) as error:
            words = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise SecretError(f"the file cannot be read: {words or 'not usable'}") from None
        return self._read.password

    def _fresh(self) -> _Read:
        with self.path.open("rb") as file:
            mark = _mark(os.fstat(file.fileno()))
            data = file.read(MAX_SECRET_BYTES + 2)
        return _Read(mark, checked(data.decode("utf-8").removesuffix("\n").removesuffix("\r")))


def _mark(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_mtime_ns, status.st_size, status.st_ino


@dataclass(eq=False, slots=True)
class VerifierFile:
    """The verifier of the password in a file, for the agent ``name``; derived anew once it has changed."""

    file: PasswordFile
    name: str
    _derived: tuple[str, Verifier] | None = field(default=None, repr=False)

    def verifier(self) -> Verifier:
        """Takes some milliseconds where the password is another one. Raises SecretError."""
        password = self.file.password()
        if self._derived is None or not hmac.compare_digest(
            self._derived[0].encode("utf-8"), password.encode("utf-8")
        ):
            self._derived = (password, derive(password, self.name))
        return self._derived[1]
