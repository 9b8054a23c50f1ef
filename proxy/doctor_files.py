"""Who else on this machine could read or write the files that the proxy lives by.

Owns which files of a configuration those are, and what their modes say. Judges nothing: ``doctor`` does. Only
the rights of every account count here, as a group's are given on purpose; an access control list is not
looked at. Knows the modes of POSIX alone, and says nothing where there are none.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from proxy.agents import FileAuth, Login
from proxy.config import Config
from proxy.credentials import PasswordFile


@dataclass(frozen=True, slots=True)
class FileFacts:
    """One file, by its path free of links. ``where`` is the part of the configuration that names it;
    ``secret`` what it gives away to whoever reads it, "" for nothing; ``rules`` what its writer decides.
    """

    path: Path
    where: str
    secret: str
    rules: str
    read_by_all: bool
    written_at: Path | None
    """What every account may write: the file, or a folder above it in which it could be replaced."""


def read_files(config: Config) -> list[FileFacts]:
    """The facts of every file of ``config`` that is there, each file once; none where there are no modes."""
    if os.name != "posix":
        return []
    found: dict[Path, FileFacts] = {}
    for path, where, secret, rules in _files(config):
        try:
            real = path.resolve(strict=True)
            if real.is_file():  # an audit record may go to a device
                found.setdefault(real, FileFacts(real, where, secret, rules, *_open_to_all(real)))
        except (OSError, RuntimeError):  # not there, or not ours to look at; links in a circle
            continue
    return list(found.values())


class _File(NamedTuple):
    path: Path
    where: str
    secret: str
    rules: str


def _files(config: Config) -> Iterator[_File]:
    yield _File(Path(config.source), "configuration", "", "who connects, and as which role")
    for policy in config.policies:
        yield _File(Path(policy.source), f"policy {policy.name}", "", "what its agents may do")
    if (listen := config.listen.tls) is not None:
        key = "the key of the proxy's certificate"
        yield _File(listen.key, "listen.tls.key", key, "who passes for the proxy")
        if listen.client_ca is not None:
            yield _File(listen.client_ca, "listen.tls.client_ca", "", "who passes for an agent")
    backend = config.backend.tls
    if backend.own is not None:
        key = "the key shown to PostgreSQL"
        yield _File(backend.own[1], "backend.tls.key", key, "whom PostgreSQL takes the proxy for")
    if backend.ca is not None:
        yield _File(backend.ca, "backend.tls.ca", "", "which server passes for PostgreSQL")
    for agent in config.agents.values():
        yield from _password(agent.login, f"agent {agent.name}")
        if isinstance(agent.auth, FileAuth):
            file = agent.auth.source.file
            yield _File(file.path, f"agent {agent.name}", "the agent's password", "who passes for the agent")
    yield from _password(config.catalog_login, "catalog")
    if config.audit is not None:
        yield _File(config.audit.path, "audit", "what agents asked, values included", "what was asked")
    if config.ledger.path is not None:
        asked = "what agents asked and were refused"
        yield _File(config.ledger.path, "ledger", asked, "who has a repair turn left")


def _password(login: Login | None, where: str) -> Iterator[_File]:
    if login is not None and isinstance(login.source, PasswordFile):
        secret = f"the password of the backend role {login.user}"
        yield _File(login.source.path, where, secret, "with which password the proxy logs in")


def _open_to_all(path: Path) -> tuple[bool, Path | None]:
    """Whether every account may read the file at ``path``, which is free of links; and what it may write."""
    writable: list[Path] = []
    for folder in reversed(path.parents):
        mode = folder.stat().st_mode
        if not mode & stat.S_IXOTH:
            return False, next(iter(writable), None)
        # In a folder with the sticky bit only the owner of a file may replace it.
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            writable.append(folder)
    mode = path.stat().st_mode
    if mode & stat.S_IWOTH:
        writable.append(path)
    return bool(mode & stat.S_IROTH), next(iter(writable), None)
