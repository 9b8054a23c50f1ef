"""The review loop: one repair at most, of a fault alone, with a record of how it ended."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import psycopg
import pytest

from policy import loader
from policy.model import Halt
from policy.review import CANNOT_ANSWER, Ending, EngineError, Review, review
from proxy.cli import main
from tests.policy.rules.schema import CATALOG
from tests.support.postgres import Database

POLICY = loader.load(
    """
version: 1
name: reviewed
access: read_write
statements:
  select: {decide: allow, repair: once}
  update: {decide: allow, repair: once}
  delete: allow
relations: {allow: ["public.*"], deny: [public.api_keys]}
functions: {allow: [builtin-safe]}
""",
    "reviewed.yaml",
)
DEADLOCK = EngineError("40P01", "deadlock detected")
BY_ZERO = EngineError("22012", "division by zero")


class Model:
    """Answers one by one what it was given, and keeps what it was asked."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    def __call__(self, prompt: str) -> str:
        self.asked.append(prompt)
        return self.answers.pop(0)


class Engine:
    """Fails as it was told, one by one, and keeps what it ran."""

    def __init__(self, *errors: EngineError | None) -> None:
        self.errors = list(errors)
        self.ran: list[str] = []

    def __call__(self, sql: str) -> EngineError | None:
        self.ran.append(sql)
        return self.errors.pop(0) if self.errors else None


def reviewed(
    sql: str, answers: Sequence[str] = (), errors: Sequence[EngineError | None] = ()
) -> tuple[Review, Engine, Model]:
    engine, model = Engine(*errors), Model(*answers)
    return review(sql, POLICY, engine, model, catalog=CATALOG), engine, model


def test_what_runs_is_done_and_no_model_is_asked() -> None:
    ended, engine, model = reviewed("SELECT id FROM orders")
    assert (ended.ending, ended.turns, ended.reasons) == (Ending.PASSED, 0, ())
    assert (engine.ran, model.asked) == (["SELECT id FROM orders"], [])


@pytest.mark.parametrize(
    ("sql", "rule"),
    [
        ("DELETE FROM orders", "delete-without-where"),
        ("UPDATE orders SET total = 1", "update-without-where"),
        ("SELECT * FROM api_keys", "relation-not-allowed"),
        ("DROP TABLE orders", "class-not-allowed"),
    ],
)
def test_what_the_table_gives_no_repair_ends_at_once(sql: str, rule: str) -> None:
    ended, engine, model = reviewed(sql)
    assert ended.ending is Ending.REFUSED
    assert ended.reasons[0].startswith(f"{rule}: ")
    assert (engine.ran, model.asked) == ([], [])


def test_a_fault_is_repaired_once() -> None:
    ended, engine, model = reviewed(
        "SELECT totl FROM orders WHERE id = 7", ["```sql\nSELECT total FROM orders WHERE id = 7\n```"]
    )
    assert (ended.ending, ended.turns, ended.halt) == (Ending.REPAIRED, 1, None)
    assert engine.ran == ["SELECT total FROM orders WHERE id = 7"]
    assert ended.reasons == ("unknown-column: Column totl does not exist. Use orders.total instead.",)
    (prompt,) = model.asked
    for part in ("SELECT totl FROM orders", "Column totl does not exist", "public.orders", "id = 7"):
        assert part in prompt


def test_an_error_of_the_engine_is_repaired_once() -> None:
    mended = "SELECT total / 2 FROM orders WHERE id = 7"
    ended, engine, model = reviewed("SELECT total / 0 FROM orders WHERE id = 7", [mended], [BY_ZERO])
    assert (ended.ending, ended.turns, ended.halt, ended.sandbox) == (Ending.REPAIRED, 1, None, BY_ZERO)
    assert engine.ran[1] == mended
    assert ended.reasons == ("22012: division by zero",)
    assert "division by zero" in model.asked[0]


@pytest.mark.parametrize("error", [DEADLOCK, EngineError("57014", "canceled")])
def test_an_error_that_no_repair_mends_ends_it(error: EngineError) -> None:
    ended, _, model = reviewed("SELECT id FROM orders", errors=[error])
    assert (ended.ending, ended.sandbox, model.asked) == (Ending.REFUSED, error, [])


MISSING = "SELECT totl FROM orders WHERE id = 7"


@pytest.mark.parametrize(
    ("first", "answer", "halt"),
    [
        (MISSING, "SELECT total FROM orders", Halt.PREDICATE_REMOVED),
        (
            "SELECT totl FROM orders WHERE id = 7",
            "SELECT total FROM orders WHERE id > 0",
            Halt.PREDICATE_WEAKENED,
        ),
        (MISSING, "SELECT totl FROM orders WHERE 7 = id", Halt.UNCHANGED),
        (MISSING, "SELECT 1", Halt.RELATIONS_CHANGED),
        (MISSING, "DELETE FROM orders WHERE id = 7", Halt.CLASS_CHANGED),
        (
            "SELECT totl FROM orders WHERE id = 7",
            "SELECT ttl FROM orders WHERE id = 7",
            Halt.REPAIR_BUDGET_EXHAUSTED,
        ),
    ],
)
def test_what_does_not_stand_in_for_the_first_is_halted(first: str, answer: str, halt: Halt) -> None:
    ended, engine, model = reviewed(first, [answer, "never asked"])
    assert (ended.ending, ended.turns, ended.halt) == (Ending.HALTED, 1, halt)
    assert (engine.ran, len(model.asked), len(ended.reasons)) == ([], 1, 2)


def test_a_second_error_ends_it() -> None:
    ended, engine, model = reviewed(
        "SELECT total / 0 FROM orders", ["SELECT total / 00 + 1 FROM orders"], [BY_ZERO] * 2
    )
    assert (ended.ending, ended.halt) == (Ending.HALTED, Halt.REPAIR_BUDGET_EXHAUSTED)
    assert (len(engine.ran), len(model.asked)) == (2, 1)


# --- giving up ---


def test_giving_up_against_the_finding_earns_one_more_turn() -> None:
    ended, _, model = reviewed(
        "SELECT totl FROM orders WHERE id = 7",
        [f"{CANNOT_ANSWER}: there is no such column", "SELECT total FROM orders WHERE id = 7"],
    )
    assert (ended.ending, ended.turns) == (Ending.REPAIRED, 1)
    assert "exists elsewhere" in model.asked[1]
    assert "orders.total" in model.asked[1]


def test_giving_up_twice_is_final() -> None:
    ended, _, model = reviewed("SELECT totl FROM orders", [CANNOT_ANSWER, CANNOT_ANSWER.lower()])
    assert (ended.ending, ended.turns, len(model.asked)) == (Ending.GIVEN_UP, 0, 2)


def test_giving_up_on_what_is_nowhere_is_believed() -> None:
    ended, _, model = reviewed("SELECT zzzzzzzz FROM orders", [CANNOT_ANSWER])
    assert (ended.ending, len(model.asked)) == (Ending.GIVEN_UP, 1)


def test_without_a_model_it_ends_where_a_repair_would_begin() -> None:
    ended = review("SELECT totl FROM orders", POLICY, Engine(), catalog=CATALOG)
    assert (ended.ending, ended.halt) == (Ending.REPAIRABLE, None)
    assert json.loads(json.dumps(ended.as_json()))["ending"] == "repairable"


# --- the command ---

Run = Callable[..., tuple[int, list[dict[str, object]]]]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    policy = tmp_path / "reviewed.yaml"
    policy.write_text(
        "version: 1\naccess: read_write\n"
        "statements: {select: {decide: allow, repair: once}, update: allow, ddl: allow, maintenance: allow}\n"
        "relations: {allow: ['public.*']}\n"
    )

    def run(sql: str, *arguments: str) -> tuple[int, list[dict[str, object]]]:
        (tmp_path / "in.sql").write_text(sql)
        code = main(["review", "--policy", str(policy), *arguments, str(tmp_path / "in.sql")])
        return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


def test_statements_are_tried_on_the_clone_and_rolled_back(database: Database, run: Run) -> None:
    before = database.execute("SELECT count(*), sum(id) FROM orders WHERE status = 'open'")
    code, records = run(
        "UPDATE orders SET status = 'sent' WHERE id < 100;\n"
        "SELECT 1 / 0;\nVACUUM orders;\nCREATE INDEX CONCURRENTLY i ON orders (status);\n"
        "CREATE TABLE made ();\n"
        "SELECT stauts FROM orders;",
        "--sandbox",
        database.dsn(),
    )
    assert code == 1
    told = [(r["line"], r["ending"], r["tried"]) for r in records]
    assert told == [
        (1, "passed", True),
        (2, "repairable", True),
        (3, "passed", False),
        (4, "passed", False),
        (5, "passed", True),
        # An agent that may make tables may have one of the same name, so PostgreSQL is the one to say.
        (6, "repairable", True),
    ]
    sandbox = records[1]["sandbox"]
    assert isinstance(sandbox, dict)
    assert (sandbox["sqlstate"], sandbox["message"]) == ("22012", "division by zero")
    assert database.execute("SELECT count(*), sum(id) FROM orders WHERE status = 'open'") == before
    with psycopg.connect(database.dsn()) as connection:
        assert connection.execute(
            "SELECT count(*) FROM pg_locks WHERE relation = 'orders'::regclass"
        ).fetchone() == (0,)


def test_without_a_clone_the_gate_alone_speaks(run: Run) -> None:
    code, records = run("SELECT 1; DELETE FROM orders WHERE id = 1")
    assert (code, [r["ending"] for r in records]) == (1, ["passed", "refused"])
    assert records[0]["not_tried"] == "there is no clone"


def test_a_clone_that_is_not_there_is_wrong_usage(run: Run) -> None:
    code, records = run("SELECT 1", "--sandbox", "postgresql://nobody:secret@127.0.0.1:1/none")
    assert (code, records) == (2, [])
