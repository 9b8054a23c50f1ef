"""A configuration loads with its policies and secrets, or every fault of every file is named."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policy.diagnostics import Diagnostic, render
from policy.loader import load_file
from proxy.agents import BackendPassword, CertificateAuth, FileAuth, Login, ScramAuth, TrustLoopback
from proxy.config import Admin, Audit, BackendTls, Config, Listen, ServerLimits, Statements
from proxy.config_reading import ConfigError, load_config, read_config
from proxy.scram import Verifier
from proxy.tls import CertificateName, NameKind, TLSMode
from tests.support.certificates import Certificates

PASSWORD = "open-sesame-7"
ADMIN_TOKEN = "a-token-of-many-characters"
ENVIRON = {
    "RO_PASSWORD": PASSWORD,
    "BOT_PASSWORD": "bot-secret",
    "ADMIN_TOKEN": ADMIN_TOKEN,
    "EMPTY": "",
    "TWO_LINES": "a\nb",
}
VERIFIER = Verifier.derive("agent-secret", b"0123456789abcdef")
LOGIN = "{user: ro, password_env: RO_PASSWORD}"
AGENT = f"agents: {{bot: {{auth: {{trust: loopback}}, login: {LOGIN}, policy: p.yaml}}}}"
BASE = f"version: 1\nbackend: {{}}\n{AGENT}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "p.yaml").write_text(
        "version: 1\nname: reading\nstatements: {select: allow}\n", encoding="utf-8"
    )
    (tmp_path / "secret").write_text(PASSWORD + "\n", encoding="utf-8")
    (tmp_path / "latin1").write_bytes(b"stra\xdfe")
    (tmp_path / "broken.yaml").write_text("version: 1\nmode: observ\nacess: x\n", encoding="utf-8")
    return tmp_path


def read(text: str, folder: Path, environ: Mapping[str, str] = ENVIRON) -> Config:
    return read_config(text, "c.yaml", folder, environ)


def faults(text: str, folder: Path) -> tuple[Diagnostic, ...]:
    with pytest.raises(ConfigError) as caught:
        read(text, folder)
    return caught.value.diagnostics


def proves(verifier: Verifier, password: str) -> bool:
    return Verifier.derive(password, verifier.salt, verifier.iterations) == verifier


@pytest.mark.parametrize(
    ("section", "store", "password"),
    [
        ("{store: memory}", "memory", None),
        ("{store: 'sqlite:ledger.db'}", "sqlite:{folder}/ledger.db", None),
        ("{store: 'sqlite:/var/lib/l.db'}", "sqlite:/var/lib/l.db", None),
        ("{store: 'redis://cache:6380/2', password_env: BOT_PASSWORD}", "redis://cache:6380/2", "bot-secret"),
        ("{store: 'rediss://agents@[::1]'}", "rediss://agents@[::1]", None),
    ],
)
def test_a_ledger_is_where_it_is_said_to_be(
    section: str, store: str, password: str | None, folder: Path
) -> None:
    ledger = read(f"{BASE}ledger: {section}\n", folder).ledger
    assert (ledger.store, ledger.password) == (store.format(folder=folder), password)
    assert "bot-secret" not in repr(ledger)
    assert ledger.remote is store.startswith("redis")


def test_without_its_client_library_a_ledger_says_what_is_missing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (fault,) = faults(f"{BASE}ledger: {{store: 'redis://h'}}\n", folder)
    assert fault.path == "ledger.store"
    assert "pip install 'pgturnstile[redis]'" in fault.message


def test_every_key_of_a_full_configuration_arrives(folder: Path, certificates: Certificates) -> None:
    pem = certificates.issue("proxy")
    config = read(
        f"""
version: 1
listen:
  host: 0.0.0.0
  port: 0
  tls:
    cert: {certificates.certificate}
    key: {certificates.key}
    client_ca: {certificates.ca}
    required: false
backend:
  host: db.example.com
  port: 5433
  tls: {{mode: verify-ca, ca: {certificates.ca}, negotiation: direct, cert: {pem[0]}, key: {pem[1]}}}
agents:
  one: {{auth: {{scram: "{VERIFIER}"}}, login: {{user: ro, password_file: secret}}, policy: p.yaml}}
  two: {{auth: {{password_env: BOT_PASSWORD}}, login: {{user: ro}}, databases: [shop, Other], policy: p.yaml}}
  three:
    auth: {{password_file: secret}}
    login: {{user: ro}}
    networks: [10.0.0.0/8, 192.0.2.7, "2001:db8::/32"]
    connections: 7
    policy: p.yaml
  four: {{auth: {{cert: {{cn: Bot Four}}}}, login: {{user: ro}}, policy: p.yaml}}
  five: {{auth: {{cert: {{san: "spiffe://shop/five"}}}}, login: {{user: ro}}, policy: p.yaml}}
  "*": {{auth: {{backend: password}}, policy: p.yaml}}
catalog: {{login: {{user: reader_of_schemas, password_file: secret}}}}
audit: {{path: logs/audit.jsonl, statements: literals_masked}}
admin: {{host: 0.0.0.0, port: 0, token_env: ADMIN_TOKEN}}
ledger: {{store: memory}}
limits:
  connections: 5
  connections_per_agent: 2
  startup_timeout: 3s
  judge_timeout: 4s
  message_bytes: 2MiB
  statement_bytes: 1KiB
  drain_timeout: 5s
""",
        folder,
    )

    assert (config.listen.host, config.listen.port) == ("0.0.0.0", 0)
    assert config.listen.tls is not None
    assert (config.listen.tls.cert, config.listen.tls.required) == (certificates.certificate, False)
    assert config.listen.tls.client_ca == certificates.ca
    assert (config.backend.host, config.backend.port) == ("db.example.com", 5433)
    assert config.backend.tls == BackendTls(TLSMode.VERIFY_CA, certificates.ca, True, pem)
    one, two, three, four, five, rest = config.agents.values()
    assert one.auth == ScramAuth(VERIFIER)
    assert one.login is not None
    assert (one.login.user, one.login.password()) == ("ro", PASSWORD)
    assert (one.networks, one.connections) == (None, None)
    assert isinstance(three.auth, FileAuth)
    assert proves(three.auth.source.verifier(), PASSWORD)
    assert three.networks == tuple(map(ip_network, ("10.0.0.0/8", "192.0.2.7/32", "2001:db8::/32")))
    assert three.connections == 7
    assert four.auth == CertificateAuth(CertificateName(NameKind.COMMON_NAME, "Bot Four"))
    assert five.auth == CertificateAuth(CertificateName(NameKind.URI, "spiffe://shop/five"))
    assert isinstance(two.auth, ScramAuth)
    assert proves(two.auth.verifier, "bot-secret")
    assert two.login == Login("ro", None)
    assert [two.may_use(name) for name in ("shop", "Other", "other")] == [True, True, False]
    assert one.may_use("anything")
    assert (rest.auth, rest.login) == (BackendPassword(), None)
    assert config.catalog_login is not None
    assert (config.catalog_login.user, config.catalog_login.password()) == ("reader_of_schemas", PASSWORD)
    assert one.policy is two.policy
    assert one.policy == load_file(folder / "p.yaml")
    assert config.policies == (one.policy,)
    assert config.audit == Audit(folder / "logs/audit.jsonl", Statements.LITERALS_MASKED)
    assert config.admin == Admin("0.0.0.0", 0, ADMIN_TOKEN)
    assert config.limits == ServerLimits(5, 2, 3000, 4000, 2 * 2**20, 1024, 5000)


def test_silence_takes_the_documented_defaults(folder: Path) -> None:
    config = read(BASE, folder)

    assert config.listen == Listen("127.0.0.1", 6432, None)
    assert (config.backend.host, config.backend.port) == ("127.0.0.1", 5432)
    assert config.audit is None
    assert config.admin is None
    assert config.limits == ServerLimits(500, 50, 10_000, 10_000, 16 * 2**20, 2**20, 30_000)
    assert read(f"{BASE}admin: {{}}\n", folder).admin == Admin("127.0.0.1", 6433, None)
    assert config.agents["bot"].auth == TrustLoopback()


@pytest.mark.parametrize(
    ("backend", "mode"),
    [
        ("{}", TLSMode.DISABLE),
        ("{host: localhost}", TLSMode.DISABLE),
        ("{host: 127.1.2.3}", TLSMode.DISABLE),
        ('{host: "::1"}', TLSMode.DISABLE),
        ("{host: /var/run/postgresql}", TLSMode.DISABLE),
        ("{host: db.example.com}", TLSMode.VERIFY_FULL),
        ("{host: localhost.example.com}", TLSMode.VERIFY_FULL),
        ("{host: 10.0.0.5}", TLSMode.VERIFY_FULL),
        ("{host: db.example.com, tls: {}}", TLSMode.VERIFY_FULL),
        ("{tls: {mode: verify-full}}", TLSMode.VERIFY_FULL),
        ("{host: db.example.com, tls: {mode: disable}}", TLSMode.DISABLE),
    ],
)
def test_only_what_stays_on_the_machine_is_in_clear_unasked(
    folder: Path, backend: str, mode: TLSMode
) -> None:
    assert read(BASE.replace("backend: {}", f"backend: {backend}"), folder).backend.tls.mode is mode


def test_a_socket_folder_names_its_socket(folder: Path) -> None:
    config = read(BASE.replace("backend: {}", "backend: {host: /run/pg, port: 5433}"), folder)

    assert config.backend.socket == Path("/run/pg/.s.PGSQL.5433")
    assert read(BASE, folder).backend.socket is None


def test_the_startup_packets_name_picks_the_agent(folder: Path) -> None:
    wild = BASE.removesuffix("}\n") + ', "*": {auth: {backend: password}, policy: p.yaml}}\n'

    config = read(wild, folder)
    assert config.agent_for("bot") is config.agents["bot"]
    assert config.agent_for("Bot") is config.agents["*"]
    assert config.agent_for("") is config.agents["*"]
    assert read(BASE, folder).agent_for("someone") is None


class Broken(NamedTuple):
    """``old`` of BASE replaced by ``new``; ``path`` and words of the one fault, on line ``line``."""

    old: str
    new: str
    line: int
    path: str
    says: str


BROKEN = {
    "unknown section": Broken("version: 1", "version: 1\nlogging: {}", 2, "logging", "unknown key"),
    "no version": Broken("version: 1\n", "", 1, "version", "required"),
    "version of the future": Broken("version: 1", "version: 2", 1, "version", "reads version 1"),
    "no backend": Broken("backend: {}", "listen: {}", 1, "backend", "required"),
    "no agents": Broken(AGENT, "", 1, "agents", "required"),
    "nobody": Broken(AGENT, "agents: {}", 3, "agents", "nobody could connect"),
    "admin for all without a token": Broken(
        "version: 1", "version: 1\nadmin: {host: 0.0.0.0}", 2, "admin", "give token_env"
    ),
    "an admin token that can be guessed": Broken(
        "version: 1",
        "version: 1\nadmin: {token_env: BOT_PASSWORD}",
        2,
        "admin.token_env",
        "at least 16 characters",
    ),
    "an admin token in the file": Broken(
        "version: 1", "version: 1\nadmin: {token: abc}", 2, "admin.token", "name the variable with token_env"
    ),
    "a drain without end": Broken(
        "backend: {}", "backend: {}\nlimits: {drain_timeout: 2d}", 3, "limits.drain_timeout", "0ms to 24h"
    ),
    "port a text": Broken(
        "backend: {}", 'backend: {port: "5432"}', 2, "backend.port", "whole number, found a text"
    ),
    "port zero": Broken("backend: {}", "backend: {port: 0}", 2, "backend.port", "1 to 65535"),
    "two hosts": Broken("backend: {}", "backend: {host: 'a,b'}", 2, "backend.host", "one host"),
    "relative socket folder": Broken(
        "backend: {}", "backend: {host: run/pg}", 2, "backend.host", "absolute path"
    ),
    "mode misspelt": Broken(
        "backend: {}", "backend: {tls: {mode: verify_full}}", 2, "backend.tls.mode", "unknown value"
    ),
    "CA that is not looked at": Broken(
        "backend: {}",
        "backend: {tls: {mode: prefer, ca: p.yaml}}",
        2,
        "backend.tls.ca",
        "would not be looked at",
    ),
    "CA that is none": Broken(
        "backend: {}", "backend: {tls: {ca: p.yaml}}", 2, "backend.tls.ca", "cannot be used"
    ),
    "CA that is absent": Broken(
        "backend: {}", "backend: {tls: {ca: ca.pem}}", 2, "backend.tls.ca", "No such file"
    ),
    "TLS on a socket": Broken(
        "backend: {}", "backend: {host: /run, tls: {}}", 2, "backend.tls", "Unix socket"
    ),
    "listen on a star": Broken("version: 1", "version: 1\nlisten: {host: '*'}", 2, "listen.host", "0.0.0.0"),
    "listen on a socket": Broken(
        "version: 1", "version: 1\nlisten: {host: /run}", 2, "listen.host", "not offered"
    ),
    "certificate without key": Broken(
        "version: 1", "version: 1\nlisten: {tls: {cert: p.yaml}}", 2, "listen.tls.key", "required"
    ),
    "certificate that is none": Broken(
        "version: 1",
        "version: 1\nlisten: {tls: {cert: p.yaml, key: p.yaml}}",
        2,
        "listen.tls",
        "cannot be used",
    ),
    "no auth": Broken("auth: {trust: loopback}, ", "", 3, "agents.bot.auth", "required"),
    "auth of a word": Broken("{trust: loopback}", "trust", 3, "agents.bot.auth", "expected a mapping"),
    "negotiation misspelt": Broken(
        "backend: {}", "backend: {tls: {negotiation: at-once}}", 2, "backend.tls.negotiation", "unknown value"
    ),
    "direct TLS that may be none": Broken(
        "backend: {}",
        "backend: {tls: {mode: prefer, negotiation: direct}}",
        2,
        "backend.tls.negotiation",
        "cannot be done without",
    ),
    "own certificate without key": Broken(
        "backend: {}", "backend: {tls: {cert: p.yaml}}", 2, "backend.tls.cert", "without key"
    ),
    "own key without certificate": Broken(
        "backend: {}", "backend: {tls: {key: p.yaml}}", 2, "backend.tls.key", "without cert"
    ),
    "own certificate that is not shown": Broken(
        "backend: {}",
        "backend: {tls: {mode: disable, cert: p.yaml, key: p.yaml}}",
        2,
        "backend.tls.cert",
        "would not be shown",
    ),
    "own certificate that is none": Broken(
        "backend: {}",
        "backend: {tls: {cert: p.yaml, key: p.yaml}}",
        2,
        "backend.tls.cert",
        "cannot be used",
    ),
    "certificate nobody asks for": Broken(
        "trust: loopback", "cert: {cn: bot}", 3, "agents.bot.auth.cert", "listen.tls.client_ca is missing"
    ),
    "password file of an agent absent": Broken(
        "trust: loopback", "password_file: nowhere", 3, "agents.bot.auth.password_file", "No such file"
    ),
    "no network": Broken("policy:", "networks: [], policy:", 3, "agents.bot.networks", "leave the key out"),
    "network of a word": Broken(
        "policy:", "networks: [office], policy:", 3, "agents.bot.networks[0]", "expected a network"
    ),
    "network a number": Broken(
        "policy:", "networks: [10], policy:", 3, "agents.bot.networks[0]", "expected a text"
    ),
    "network with bits of a host": Broken(
        "policy:", "networks: [10.1.2.3/8], policy:", 3, "agents.bot.networks[0]", "do you mean 10.0.0.0/8?"
    ),
    "network not in a list": Broken(
        "policy:", "networks: 10.0.0.0/8, policy:", 3, "agents.bot.networks", "expected a list"
    ),
    "an agent's connections": Broken(
        "policy:", "connections: 0, policy:", 3, "agents.bot.connections", "1 to"
    ),
    "two kinds of auth": Broken(
        "{trust: loopback}",
        "{trust: loopback, password_env: BOT_PASSWORD}",
        3,
        "agents.bot.auth",
        "exactly one",
    ),
    "trust of everyone": Broken(
        "trust: loopback", "trust: all", 3, "agents.bot.auth.trust", "expected loopback"
    ),
    "verifier cut": Broken(
        "trust: loopback", "scram: SCRAM-SHA-256$4096:x", 3, "agents.bot.auth.scram", "not a SCRAM"
    ),
    "verifier of MD5": Broken(
        "trust: loopback", "scram: md5abc", 3, "agents.bot.auth.scram", "hash-password"
    ),
    "password in the file": Broken(
        "password_env: RO_PASSWORD", "password: open-sesame-7", 3, "agents.bot.login.password", "password_env"
    ),
    "variable not set": Broken(
        "RO_PASSWORD", "NO_SUCH", 3, "agents.bot.login.password_env", "NO_SUCH is not set"
    ),
    "variable empty": Broken("RO_PASSWORD", "EMPTY", 3, "agents.bot.login.password_env", "EMPTY is empty"),
    "variable of two lines": Broken(
        "RO_PASSWORD", "TWO_LINES", 3, "agents.bot.login.password_env", "one line"
    ),
    "variable written with $": Broken(
        "RO_PASSWORD", "$RO", 3, "agents.bot.login.password_env", "the name of an"
    ),
    "password file absent": Broken(
        "password_env: RO_PASSWORD",
        "password_file: nowhere",
        3,
        "agents.bot.login.password_file",
        "No such file",
    ),
    "password file of other bytes": Broken(
        "password_env: RO_PASSWORD",
        "password_file: latin1",
        3,
        "agents.bot.login.password_file",
        "cannot be read: not UTF-8",
    ),
    "two sources of a password": Broken(
        "password_env: RO_PASSWORD",
        "password_env: RO_PASSWORD, password_file: secret",
        3,
        "agents.bot.login.password_file",
        "give one of",
    ),
    "login without user": Broken("user: ro, ", "", 3, "agents.bot.login.user", "required"),
    "no login": Broken(f"login: {LOGIN}, ", "", 3, "agents.bot", "login is missing"),
    "login beside the backend's": Broken(
        "trust: loopback", "backend: password", 3, "agents.bot.login", "remove login"
    ),
    "name of nobody": Broken("bot:", '"":', 3, 'agents[""]', "1 to 63 bytes"),
    "wildcard on trust": Broken("bot:", '"*":', 3, 'agents["*"].auth', "must vouch"),
    "no database": Broken(
        "policy:", "databases: [], policy:", 3, "agents.bot.databases", "leave the key out"
    ),
    "database a number": Broken(
        "policy:", "databases: [7], policy:", 3, "agents.bot.databases[0]", "in quotes"
    ),
    "no policy": Broken(", policy: p.yaml", "", 3, "agents.bot.policy", "required"),
    "catalog without login": Broken("version: 1", "version: 1\ncatalog: {}", 2, "catalog.login", "required"),
    "audit without path": Broken("version: 1", "version: 1\naudit: {}", 2, "audit.path", "required"),
    "audit of some": Broken(
        "version: 1",
        "version: 1\naudit: {path: a, statements: masked}",
        2,
        "audit.statements",
        "literals_masked",
    ),
    "ledger with a secret in its address": Broken(
        "version: 1",
        "version: 1\nledger: {store: 'redis://:pw@h'}",
        2,
        "ledger.store",
        "a secret never stands in the file",
    ),
    "ledger with a secret": Broken(
        "version: 1",
        "version: 1\nledger: {store: 'redis://h', password: pw}",
        2,
        "ledger.password",
        "a secret never stands in the file",
    ),
    "ledger at no address": Broken(
        "version: 1", "version: 1\nledger: {store: 'redis:/h'}", 2, "ledger.store", "redis://HOST:PORT/NUMBER"
    ),
    "ledger at no port": Broken(
        "version: 1", "version: 1\nledger: {store: 'redis://h:p/0'}", 2, "ledger.store", "Port could not be"
    ),
    "ledger in no database": Broken(
        "version: 1", "version: 1\nledger: {store: 'redis://h/one'}", 2, "ledger.store", "HOST:PORT/NUMBER"
    ),
    "ledger in no file": Broken(
        "version: 1", "version: 1\nledger: {store: 'sqlite:'}", 2, "ledger.store", "sqlite:PATH"
    ),
    "password of a file": Broken(
        "version: 1",
        "version: 1\nledger: {store: 'sqlite:l.db', password_env: BOT_PASSWORD}",
        2,
        "ledger.password_env",
        "takes no password",
    ),
    "ledger elsewhere": Broken(
        "version: 1", "version: 1\nledger: {store: disk}", 2, "ledger.store", "expected memory"
    ),
    "connections": Broken(
        "version: 1", "version: 1\nlimits: {connections: 0}", 2, "limits.connections", "1 to"
    ),
    "statement over message": Broken(
        "version: 1",
        "version: 1\nlimits: {message_bytes: 64KiB}",
        2,
        "limits.message_bytes",
        "may not be larger",
    ),
    "time without unit": Broken(
        "version: 1",
        "version: 1\nlimits: {startup_timeout: 10}",
        2,
        "limits.startup_timeout",
        "unit is missing",
    ),
    "policy's limit": Broken(
        "version: 1", "version: 1\nlimits: {result_rows: 10}", 2, "limits.result_rows", "unknown key"
    ),
}


@pytest.mark.parametrize("case", BROKEN.values(), ids=BROKEN)
def test_a_fault_is_named_at_its_place(folder: Path, case: Broken) -> None:
    assert case.old in BASE

    (fault,) = faults(BASE.replace(case.old, case.new), folder)

    assert case.says in fault.message
    assert (fault.source, fault.line, fault.path) == ("c.yaml", case.line, case.path)
    assert fault.column >= 1


TLS_BROKEN = {
    "authority that is none": ("client_ca: p.yaml", "listen.tls.client_ca", "cannot be used"),
    "authority that is absent": ("client_ca: ca.pem", "listen.tls.client_ca", "No such file"),
    "required of a word": ("required: always", "listen.tls.required", "true or false"),
    "a key that is misspelt": ("client_cas: p.yaml", "listen.tls.client_cas", "unknown key"),
}


@pytest.mark.parametrize(("key", "path", "says"), TLS_BROKEN.values(), ids=TLS_BROKEN)
def test_a_fault_of_the_listeners_tls(
    folder: Path, certificates: Certificates, key: str, path: str, says: str
) -> None:
    pem = f"cert: {certificates.certificate}, key: {certificates.key}"

    (fault,) = faults(f"{BASE}listen: {{tls: {{{pem}, {key}}}}}", folder)

    assert (fault.path, fault.line) == (path, 4)
    assert says in fault.message


@pytest.mark.parametrize(
    ("cert", "path", "says"),
    [
        ("{}", "agents.bot.auth.cert", "exactly one of cn and san"),
        ("{cn: a, san: b}", "agents.bot.auth.cert", "exactly one of cn and san"),
        ("bot", "agents.bot.auth.cert", "expected a mapping"),
        ("{cn: 7}", "agents.bot.auth.cert.cn", "in quotes"),
        ("{san: ''}", "agents.bot.auth.cert.san", "an empty one"),
        ("{subject: a}", "agents.bot.auth.cert.subject", "unknown key"),
    ],
)
def test_a_fault_of_a_certificates_name(
    folder: Path, certificates: Certificates, cert: str, path: str, says: str
) -> None:
    files = {"cert": certificates.certificate, "key": certificates.key, "client_ca": certificates.ca}
    listen = ", ".join(f"{key}: {file}" for key, file in files.items())
    text = BASE.replace("trust: loopback", f"cert: {cert}") + f"listen: {{tls: {{{listen}}}}}"

    found = faults(text, folder)

    assert (found[0].path, found[0].line) == (path, 3)
    assert says in found[0].message


def test_a_key_that_is_anothers(folder: Path, certificates: Certificates) -> None:
    other = certificates.issue("another", usage="serverAuth")[1]

    (fault,) = faults(f"{BASE}listen: {{tls: {{cert: {certificates.certificate}, key: {other}}}}}", folder)

    assert (fault.path, "cannot be used" in fault.message) == ("listen.tls", True)


def test_salts_stay_when_a_configuration_is_loaded_anew(folder: Path) -> None:
    """A salt that changed with a reload would tell an agent's name from one that is made up."""
    text = BASE.replace("trust: loopback", "password_env: BOT_PASSWORD")

    first, again, other = (
        read(text.replace("bot:", f"{name}:"), folder).agents[name].auth for name in ("bot", "bot", "bat")
    )

    assert isinstance(first, ScramAuth)
    assert isinstance(other, ScramAuth)
    assert first == again
    assert first.verifier.salt != other.verifier.salt


def test_a_login_file_is_read_when_it_is_needed(folder: Path) -> None:
    text = BASE.replace("password_env: RO_PASSWORD", "password_file: secret")
    login = read(text, folder).agents["bot"].login
    assert login is not None
    assert login.password() == PASSWORD

    (folder / "new").write_text("rotated", encoding="utf-8")
    (folder / "new").rename(folder / "secret")

    assert login.password() == "rotated"


def test_a_policys_faults_come_with_the_configurations(folder: Path) -> None:
    text = BASE.replace("p.yaml", "broken.yaml") + "ledger: {store: disk}\n"

    found = faults(text, folder)

    assert [(Path(d.source).name, d.line, d.path) for d in found] == [
        ("c.yaml", 3, "agents.bot.policy"),
        ("c.yaml", 4, "ledger.store"),
        ("broken.yaml", 2, "mode"),
        ("broken.yaml", 3, "acess"),
    ]


CLONE = "postgresql://dba:clone-secret@127.0.0.1:5433/clone"


@pytest.mark.parametrize(
    ("dsn", "says"),
    [
        (None, "is not set"),
        ("", "is empty"),
        ("postgresql://dba:clone-secret@h/c?sslmode=perhaps", "sslmode"),
    ],
)
def test_a_sandbox_needs_the_clone_that_it_names(folder: Path, dsn: str | None, says: str) -> None:
    sandboxed = "version: 1\nsandbox: {dsn_env: CLONE_DSN, classes: [update]}\n"
    (folder / "p.yaml").write_text(sandboxed, encoding="utf-8")
    environ = ENVIRON if dsn is None else {**ENVIRON, "CLONE_DSN": dsn}
    with pytest.raises(ConfigError) as caught:
        read(BASE, folder, environ)
    (fault,) = caught.value.diagnostics
    assert (fault.path, fault.line) == ("agents.bot.policy", 3)
    assert "CLONE_DSN" in fault.message
    assert says in fault.message
    assert "clone-secret" not in str(fault)


def test_a_sandbox_has_its_clone(folder: Path) -> None:
    sandboxed = "version: 1\nsandbox: {dsn_env: CLONE_DSN, classes: [update]}\n"
    (folder / "p.yaml").write_text(sandboxed, encoding="utf-8")
    config = read(BASE, folder, {**ENVIRON, "CLONE_DSN": CLONE})
    clone = config.agents["bot"].clone
    assert clone is not None
    assert (clone.port, clone.database) == (5433, "clone")
    assert "clone-secret" not in repr(config)


def test_a_policy_that_is_absent_is_named_where_it_is_asked_for(folder: Path) -> None:
    asked, absent = faults(BASE.replace("p.yaml", "nowhere.yaml"), folder)

    assert asked.path == "agents.bot.policy"
    assert absent.source == str(folder / "nowhere.yaml")
    assert "No such file" in absent.message


@pytest.mark.parametrize(
    "new",
    [
        "trust: loopback}, login: {user: ro, password: open-sesame-7",
        "trust: loopback}, login: {user: ro, pasword: open-sesame-7",
        "trust: loopback}, login: {user: ro, password_env: open-sesame-7",
        "scram: open-sesame-7}, login: {user: ro",
        "password_env: [open-sesame-7]}, login: {user: ro",
        "password: open-sesame-7}, login: {user: ro",
        "trust: loopback}, login: {user: ro, password_file: 'secret'}, x: {'",
    ],
)
def test_no_diagnostic_repeats_a_secret(folder: Path, new: str) -> None:
    text = BASE.replace(f"trust: loopback}}, login: {LOGIN[:-1]}", new)
    assert text != BASE

    assert PASSWORD not in render(faults(text, folder))


def test_no_repr_shows_a_secret(folder: Path) -> None:
    config = read(BASE.replace("trust: loopback", "password_env: BOT_PASSWORD"), folder)

    assert PASSWORD not in repr(config)
    assert "bot-secret" not in repr(config)
    assert str(VERIFIER) not in repr(ScramAuth(VERIFIER))


def test_a_file_is_read_with_paths_from_its_own_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "pgturnstile.yaml"
    path.write_text(BASE, encoding="utf-8")
    monkeypatch.setenv("RO_PASSWORD", "from the process")

    config = load_config(path)

    assert config.source == str(path)
    assert config.agents["bot"].login == Login("ro", "from the process")
    assert config.agents["bot"].policy.source == str(folder / "p.yaml")


def test_a_configuration_that_cannot_be_read_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "absent.yaml", {})

    (fault,) = caught.value.diagnostics
    assert fault.message == "cannot be read: No such file or directory"


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_configuration_is_loaded_or_refused(folder: Path, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(BASE)))
    cut = data.draw(st.integers(0, 20))
    filling = data.draw(
        st.one_of(st.text(max_size=4), st.sampled_from(["{", "}", "*", "null", "7", "[]", '"\\0"']))
    )

    try:
        read(BASE[:at] + filling + BASE[at + cut :], folder)
    except ConfigError as error:
        assert error.diagnostics
