"""Who gets in: certificates, files, networks, limits, reloads, and secrets that nothing shows."""

from __future__ import annotations

import os
import random
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from proxy.scram import Verifier
from tests.support.certificates import Certificates, make_certificates
from tests.support.postgres import Database, Server
from tests.support.proxy import PASSWORD, RunningProxy, run_proxy, wait_for

READS = {"user": "shop_ro", "password_env": "PASSWORD_SHOP_RO"}


def agent(auth: dict[str, Any], login: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"auth": auth, "login": login or READS, "policy": "reader.yaml", **more}


def connect(proxy: RunningProxy, user: str, **more: Any) -> psycopg.Connection[Any]:
    return psycopg.connect(**proxy.parameters(user, **{"connect_timeout": 10, **more}), autocommit=True)


def gets_in(proxy: RunningProxy, user: str, **more: Any) -> bool:
    with connect(proxy, user, **more) as connection:
        return connection.execute("SELECT 1").fetchone() == (1,)


def refusal(proxy: RunningProxy, user: str, **more: Any) -> str:
    with pytest.raises(psycopg.OperationalError) as caught:
        connect(proxy, user, **more)
    return str(caught.value)


# --- certificates ---


@pytest.fixture(scope="module")
def certified(
    postgres18: Server, certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningProxy]:
    """Agents known by their certificates, beside one with a password."""
    listen = {
        "tls": {
            "cert": str(certificates.certificate),
            "key": str(certificates.key),
            "client_ca": str(certificates.ca),
            "required": False,
        }
    }
    agents = {
        "by-name": agent({"cert": {"cn": "Bot One"}}),
        "by-uri": agent({"cert": {"san": "spiffe://shop/bot"}}),
        "by-dns": agent({"cert": {"san": "bot.example.org"}}),
        "by-mail": agent({"cert": {"san": "bot@example.org"}}),
        "by-password": agent({"scram": str(Verifier.derive(PASSWORD))}),
    }
    folder = tmp_path_factory.mktemp("certified")
    with run_proxy(postgres18.shop, folder, listen=listen, agents=agents) as running:
        yield running


def shown(files: tuple[Path, Path]) -> dict[str, Any]:
    return {"sslmode": "require", "sslcert": str(files[0]), "sslkey": str(files[1]), "password": None}


CERTIFICATES = {
    "one": ("/CN=Bot One", "", {"by-name"}),
    "of many names": ("/CN=x", "URI:spiffe://shop/bot,DNS:BOT.example.org", {"by-uri", "by-dns"}),
    "mail": ("/CN=y", "email:bot@example.org", {"by-mail"}),
    "two common names": ("/CN=Bot One/CN=Bot Two", "", set[str]()),
    "names in the wrong places": (
        "/CN=spiffe:\\/\\/shop\\/bot",
        "DNS:Bot One,DNS:spiffe,URI:urn:bot.example.org",
        set[str](),
    ),
    "a longer name": ("/CN=Bot One2", "DNS:bot.example.org.evil,DNS:*.example.org", set[str]()),
}


@pytest.mark.parametrize(("subject", "alternatives", "welcome"), CERTIFICATES.values(), ids=CERTIFICATES)
def test_a_certificate_opens_what_its_names_say(
    certified: RunningProxy, certificates: Certificates, subject: str, alternatives: str, welcome: set[str]
) -> None:
    files = shown(certificates.issue(f"agent{random.random()}", subject=subject, alternatives=alternatives))
    for name in ("by-name", "by-uri", "by-dns", "by-mail"):
        if name in welcome:
            assert gets_in(certified, name, **files)
        else:
            assert f'certificate authentication failed for user "{name}"' in refusal(certified, name, **files)
    assert gets_in(certified, "by-password", **{**files, "password": PASSWORD})


@pytest.mark.parametrize("sslmode", ["require", "disable"])
def test_no_certificate_is_like_no_agent(certified: RunningProxy, sslmode: str) -> None:
    answers = [
        refusal(certified, name, sslmode=sslmode, sslcertmode="disable").replace(name, "?")
        for name in ("by-name", "nobody")
    ]
    assert "password authentication failed" in answers[0]
    assert answers[0].split("FATAL:")[1] == answers[1].split("FATAL:")[1]
    assert certified.logged("connection refused", reason="agent is known by a certificate and has shown none")
    assert gets_in(certified, "by-password", sslmode=sslmode, sslcertmode="disable")


@pytest.mark.parametrize("why", ["another authority's", "a server's", "expired"])
def test_a_certificate_that_does_not_verify_ends_the_handshake(
    certified: RunningProxy, certificates: Certificates, tmp_path: Path, why: str
) -> None:
    match why:
        case "another authority's":
            files = make_certificates(tmp_path).issue("agent", subject="/CN=Bot One")
        case "a server's":
            files = certificates.issue("misused", subject="/CN=Bot One", usage="serverAuth")
        case _:
            files = certificates.issue("expired", subject="/CN=Bot One", days=-1)
    assert "FATAL" not in refusal(certified, "by-name", **shown(files))
    wait_for(lambda: "VERIFY" in str(certified.log()[-1].get("reason")).upper())


# --- reloading ---


def served(proxy: RunningProxy) -> bytes:
    """The certificate that a new connection is shown, as DER."""
    return ssl.PEM_cert_to_DER_cert(
        subprocess.run(
            ["openssl", "s_client", "-starttls", "postgres", "-connect", f"127.0.0.1:{proxy.port}"],
            input=b"",
            capture_output=True,
            check=False,
            timeout=20,
        )
        .stdout.decode()
        .partition("-----BEGIN")[2]
        .partition("-----END")[0]
        .join(("-----BEGIN", "-----END CERTIFICATE-----"))
    )


def der(path: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(path.read_text())


def reload(proxy: RunningProxy, event: str) -> None:
    before = len(proxy.log())
    proxy.process.send_signal(signal.SIGHUP)
    wait_for(lambda: any(entry["event"] == event for entry in proxy.log()[before:]))


def test_certificates_are_exchanged_under_live_connections(
    database18: Database, tmp_path: Path, certificates: Certificates
) -> None:
    other = make_certificates(make(tmp_path / "other"))
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    cert.write_bytes(certificates.certificate.read_bytes())
    key.write_bytes(certificates.key.read_bytes())
    listen = {"tls": {"cert": str(cert), "key": str(key)}}
    with (
        run_proxy(database18, tmp_path, listen=listen) as proxy,
        connect(proxy, "reader", sslmode="require", channel_binding="require") as live,
    ):
        assert served(proxy) == der(certificates.certificate)

        cert.write_bytes(other.certificate.read_bytes())  # half of the change: the key is the old one still
        reload(proxy, "reload failed; the old configuration stays")
        assert served(proxy) == der(certificates.certificate)
        assert gets_in(proxy, "reader", sslmode="require", channel_binding="require")

        key.write_bytes(other.key.read_bytes())
        reload(proxy, "configuration reloaded")
        assert served(proxy) == der(other.certificate)
        verified = {"sslmode": "verify-full", "sslrootcert": str(other.ca), "channel_binding": "require"}
        assert gets_in(proxy, "reader", host="localhost", **verified)

        cert.unlink()
        reload(proxy, "reload failed; the old configuration stays")
        assert gets_in(proxy, "reader", host="localhost", **verified)
        assert live.execute("SELECT 2").fetchone() == (2,)


def make(folder: Path) -> Path:
    folder.mkdir()
    return folder


# --- files, networks, limits ---


def test_passwords_in_files_are_exchanged_without_a_restart(database18: Database, tmp_path: Path) -> None:
    role = database18.server.passwords["shop_ro"]
    agents_file, login_file = tmp_path / "agent.pw", tmp_path / "login.pw"
    agents_file.write_text("first\n")
    login_file.write_text(role + "\n")
    login = {"user": "shop_ro", "password_file": "login.pw"}
    agents = {
        "bot": agent({"password_file": "agent.pw"}, login),
        "idle": agent({"trust": "loopback"}, login),
    }
    with (
        run_proxy(database18, tmp_path, agents=agents) as proxy,
        connect(proxy, "bot", password="first") as live,
    ):
        replace(agents_file, "second")
        assert "password authentication failed" in refusal(proxy, "bot", password="first")
        assert gets_in(proxy, "bot", password="second")

        replace(login_file, "wrong")
        assert "refused the login configured for this agent" in refusal(proxy, "idle")
        replace(login_file, role)
        assert gets_in(proxy, "idle")

        agents_file.unlink()
        login_file.unlink()
        assert "password authentication failed" in refusal(proxy, "bot", password="second")
        assert "the login configured for this agent cannot be had" in refusal(proxy, "idle")
        assert proxy.logged(
            "connection refused",
            reason="login's password: the file cannot be read: No such file or directory",
        )
        assert live.execute("SELECT 2").fetchone() == (2,)


def replace(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.rename(path)


@pytest.fixture(scope="module")
def fenced(postgres18: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    secret = {"scram": str(Verifier.derive(PASSWORD))}
    agents = {
        "here": agent(secret, networks=["127.0.0.1"]),
        "elsewhere": agent(secret, networks=["10.0.0.0/8", "::1"]),
        "trusted-elsewhere": agent({"trust": "loopback"}, networks=["10.0.0.0/8"]),
        "two": agent(secret, connections=2),
        "many": agent(secret, connections=4),
        "one-database": agent(secret, databases=["nowhere"]),
    }
    limits = {"connections_per_agent": 3}
    folder = tmp_path_factory.mktemp("fenced")
    with run_proxy(postgres18.shop, folder, agents=agents, limits=limits) as running:
        yield running


def test_an_agent_comes_from_its_networks_alone(fenced: RunningProxy) -> None:
    assert gets_in(fenced, "here")
    for name in ("elsewhere", "trusted-elsewhere"):
        assert f'password authentication failed for user "{name}"' in refusal(fenced, name)
    assert fenced.logged("connection refused", reason="agent may not come from this address")


@pytest.mark.parametrize(("name", "most"), [("two", 2), ("here", 3), ("many", 4)])
def test_an_agent_has_as_many_connections_as_it_may(fenced: RunningProxy, name: str, most: int) -> None:
    held = [connect(fenced, name) for _ in range(most)]
    try:
        assert f'too many connections for role "{name}"' in refusal(fenced, name)
    finally:
        for connection in held:
            connection.close()
    wait_for(lambda: _gets_in_again(fenced, name))


def _gets_in_again(proxy: RunningProxy, name: str) -> bool:
    try:
        return gets_in(proxy, name)
    except psycopg.OperationalError:
        return False


def test_a_database_that_is_not_the_agents(fenced: RunningProxy) -> None:
    assert 'permission denied for database "shop"' in refusal(fenced, "one-database")


def test_guessing_is_one_line_in_the_log_and_keeps_nobody_out(fenced: RunningProxy) -> None:
    before = len(fenced.log())
    for _ in range(12):
        assert "password authentication failed" in refusal(fenced, "many", password="guess")
    assert gets_in(fenced, "many")
    lines = [e for e in fenced.log()[before:] if e["event"] == "connection refused"]
    assert [line["reason"] for line in lines] == ["wrong password"]


# --- secrets ---


def test_no_secret_of_the_backend_is_shown_whatever_fails(database15: Database, tmp_path: Path) -> None:
    """The log at its most talkative, errors, /proc, the audit file: after failures of each kind."""
    role = database15.server.passwords["shop_ro"]
    login_file = tmp_path / "login.pw"
    login_file.write_text(role)
    agents = {
        "good": agent({"trust": "loopback"}),
        "file": agent({"trust": "loopback"}, {"user": "shop_ro", "password_file": "login.pw"}),
        "wrong-role": agent({"trust": "loopback"}, {"user": "nobody", "password_env": "PASSWORD_SHOP_RO"}),
    }
    with run_proxy(database15, tmp_path, agents=agents, audit={"path": "audit.jsonl"}) as proxy:
        told = [refusal(proxy, "wrong-role"), refusal(proxy, "good", dbname="nowhere")]
        with connect(proxy, "good") as connection:
            for sql in ("SELECT nothing", "SELECT 1/0", f"SELECT '{'x' * 100}'::int", "SHOW all"):
                try:
                    connection.execute(sql.encode())
                except psycopg.Error as error:
                    told.append(f"{error} {error.diag.message_detail} {error.diag.context}")
        replace(login_file, role + role)
        told.append(refusal(proxy, "file"))
        database15.execute(f"ALTER DATABASE {database15.name} CONNECTION LIMIT 0")
        told.append(refusal(proxy, "good"))
        proxy.process.send_signal(signal.SIGHUP)
        process = Path(f"/proc/{proxy.process.pid}/cmdline").read_bytes().decode()
        proxy.logged("configuration reloaded")
        everything = [*told, process, proxy.log_path.read_text(), (tmp_path / "audit.jsonl").read_text()]
    assert len(told) > 5
    assert all(everything)
    for text in everything:
        assert role not in text


def test_a_faulty_configuration_shows_no_secret(tmp_path: Path) -> None:
    secret = "open-sesame-7"
    (tmp_path / "pw").write_text(secret + "\n" + secret)
    path = tmp_path / "pgturnstile.yaml"
    path.write_text(
        "version: 1\nbackend: {}\nagents:\n"
        "  bot: {auth: {password_env: SECRET}, login: {user: a, password_file: pw}, policy: none.yaml}\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "proxy", "serve", "--config", str(path)],
        env={**os.environ, "SECRET": secret + "\n"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert "password_env" in done.stderr
    assert "password_file" in done.stderr
    assert secret not in done.stdout + done.stderr
