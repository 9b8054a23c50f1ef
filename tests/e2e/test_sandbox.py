"""Trying statements on a clone first: a clone that is alike, a stale one, a dead one, over both protocols."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg import pq
from psycopg.pq.abc import PGresult

from tests.support.postgres import Database, Server
from tests.support.proxy import WRITER, RunningProxy, free_port, run_proxy, wait_for
from tests.support.wire import SYNC, bind, execute, kinds, parse, query, run, through

TRYING = (
    WRITER.replace("update: allow", "update: {decide: allow, repair: once}")
    .replace("insert: allow", "insert: {decide: allow, repair: once}")
    .replace("copy_in: allow", "copy_in: allow, maintenance: allow, ddl: allow, call: allow")
    .replace("builtin-safe,", "builtin-safe, public.*, pg_catalog.pg_advisory_lock,")
    + "settings: {allow: [app.tenant]}\nrepair: {turns: 1, window: 10m, scope: connection}\n"
)
CLASSES = "[insert, update, delete, call, transaction, maintenance, set, prepare]"


def trying(name: str, dsn_env: str, more: str = "") -> str:
    sandbox = f"sandbox: {{dsn_env: {dsn_env}, classes: {CLASSES}{more}}}\n"
    return TRYING.replace("name: writer", f"name: {name}") + sandbox


MOODS = """
CREATE TYPE mood AS ENUM ('calm', 'keen');
CREATE TABLE moods (id int, mood mood, moods mood[]);
CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS
  $$BEGIN IF NEW.id > 5 THEN RAISE EXCEPTION 'too much' USING ERRCODE = 'MY001'; END IF; RETURN NULL; END$$;
CREATE CONSTRAINT TRIGGER late AFTER INSERT ON moods DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION late();
GRANT ALL ON moods TO shop_app
"""


@pytest.fixture(scope="module")
def clone(postgres: Server) -> Iterator[Database]:
    """A clone that was restored, not copied: its types have other numbers."""
    with postgres.database() as database:
        database.execute("CREATE TYPE in_between AS ENUM ('a', 'b', 'c')")
        database.execute(MOODS)
        yield database


@pytest.fixture(scope="module")
def stale(postgres: Server) -> Iterator[Database]:
    """A clone without one CHECK constraint of products."""
    with postgres.database() as database:
        database.execute("ALTER TABLE products DROP CONSTRAINT products_price_check")
        yield database


@pytest.fixture(scope="module")
def proxy(
    postgres: Server, clone: Database, stale: Database, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningProxy]:
    policies = {
        "trying": trying("trying", "CLONE_DSN"),
        "mapped": trying("mapped", "OWNERS_DSN"),
        "stale": trying("stale", "STALE_DSN"),
        "lax": trying("lax", "STALE_DSN", ", on_stale: skip"),
        "dead": trying("dead", "DEAD_DSN"),
        "unmapped": trying("unmapped", "READERS_DSN"),
        "hasty": trying("hasty", "CLONE_DSN", ", timeout: 300ms"),
        "priced": trying("priced", "CLONE_DSN")
        + "cost: {max_total_cost: 100000}\nlimits: {affected_rows: 3}\n",
    }
    with pytest.MonkeyPatch.context() as patch, postgres.database() as database:
        database.execute(MOODS)
        patch.setenv("CLONE_DSN", clone.dsn("shop_app"))
        patch.setenv("OWNERS_DSN", clone.dsn())
        patch.setenv("READERS_DSN", clone.dsn("shop_ro"))
        patch.setenv("STALE_DSN", stale.dsn("shop_app"))
        patch.setenv("DEAD_DSN", f"postgresql://shop_app:x@127.0.0.1:{free_port()}/shop")
        folder = tmp_path_factory.mktemp("sandbox")
        login = {"user": "shop_app", "password_env": "PASSWORD_SHOP_APP"}
        agents = {
            name: {"auth": {"trust": "loopback"}, "login": login, "policy": f"{name}.yaml"}
            for name in policies
        }
        audit = {"path": str(folder / "audit.jsonl")}
        with run_proxy(database, folder, policies, agents=agents, audit=audit) as running:
            yield running


class Agent:
    """One connection, and what the audit says of its statements."""

    def __init__(self, proxy: RunningProxy, name: str = "trying") -> None:
        self._proxy = proxy
        self.name = name
        self.connection = psycopg.connect(**proxy.parameters(name), autocommit=True)
        self.pg = self.connection.pgconn

    def send(self, sql: str, extended: bool = False, *values: str) -> PGresult:
        if extended or values:
            return self.pg.exec_params(sql.encode(), [value.encode() for value in values] or None)
        return self.pg.exec_(sql.encode())

    def audited(self, sql: str) -> dict[str, Any]:
        """The last audit line of this agent about ``sql``."""
        path = self._proxy.folder / "audit.jsonl"

        def lines() -> list[dict[str, Any]]:
            # Whole lines alone: the writer may be at work on the next. A repair's end is no statement's line.
            read = [json.loads(line) for line in path.read_text().rpartition("\n")[0].splitlines()]
            return [each for each in read if (each["agent"], each.get("statement")) == (self.name, sql)]

        wait_for(lambda: bool(lines()))
        return lines()[-1]

    def ended(self, lineage: str) -> dict[str, Any]:
        """The line of the end of ``lineage``."""
        path = self._proxy.folder / "audit.jsonl"

        def lines() -> list[dict[str, Any]]:
            read = [json.loads(line) for line in path.read_text().rpartition("\n")[0].splitlines()]
            return [each for each in read if each.get("event") and each["lineage"] == lineage]

        wait_for(lambda: bool(lines()))
        (line,) = lines()
        return line


@pytest.fixture
def agents(proxy: RunningProxy) -> Iterator[Any]:
    opened: list[Agent] = []

    def agent(name: str = "trying") -> Agent:
        opened.append(Agent(proxy, name))
        return opened[-1]

    yield agent
    for each in opened:
        each.connection.close()


both = pytest.mark.parametrize("extended", [False, True], ids=["simple", "extended"])


def sqlstate(result: PGresult) -> str | None:
    found = result.error_field(pq.DiagnosticField.SQLSTATE)
    return None if found is None else found.decode()


def detail(result: PGresult) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(result.error_field(pq.DiagnosticField.MESSAGE_DETAIL) or b"{}")
    return told


@both
def test_what_runs_on_the_clone_runs_once_on_the_database_and_leaves_nothing_there(
    agents: Any, proxy: RunningProxy, clone: Database, extended: bool
) -> None:
    agent = agents()
    sql = f"UPDATE products SET stock = stock + 1 WHERE id = {21 + extended}"
    asked = f"SELECT stock FROM products WHERE id = {21 + extended}"
    ((before,),) = proxy.database.execute(asked)
    there = clone.execute(asked)
    assert agent.send(sql, extended).command_status == b"UPDATE 1"
    assert proxy.database.execute(asked) == [(before + 1,)]
    assert clone.execute(asked) == there
    assert clone.executed("shop_app").count(sql) == 1
    assert proxy.database.executed("shop_app").count(sql) == 1
    assert agent.audited(sql)["sandbox"] == {"error": None}


@both
def test_an_error_on_the_clone_is_told_and_nothing_reaches_the_database(
    agents: Any, proxy: RunningProxy, extended: bool
) -> None:
    agent = agents()
    sql = f"UPDATE products SET price = -1 WHERE id = {23 + extended}"
    answer = agent.send(sql, extended)
    assert sqlstate(answer) == "23514"
    told = detail(answer)
    assert (told["decision"], told["repair"]["turns_left"]) == ("engine_error", 1)
    assert told["engine"]["detail"].startswith("Failing row contains")
    assert told["engine"]["sandbox"] is True
    assert agent.pg.transaction_status == pq.TransactionStatus.IDLE
    line = agent.audited(sql)
    assert (line["decision"], line["outcome"]["sqlstate"]) == ("allow", "23514")
    assert line["sandbox"]["error"]["sqlstate"] == "23514"
    assert sql not in proxy.database.executed("shop_app")
    fixed = f"UPDATE products SET price = 1 WHERE id = {23 + extended}"
    assert agent.send(fixed, extended).command_status == b"UPDATE 1"
    again = agent.send(f"UPDATE products SET price = -2 WHERE id = {23 + extended}", extended)
    assert sqlstate(again) == "23514"


@both
def test_the_clones_error_is_the_evidence_for_one_turn(agents: Any, extended: bool) -> None:
    agent = agents()
    wrong = "UPDATE products SET price = {} WHERE id = 25"
    assert sqlstate(agent.send(wrong.format(-1), extended)) == "23514"
    assert sqlstate(agent.send(wrong.format(-2), extended)) == "23514"
    assert detail(agent.send(wrong.format(3), extended))["halt"] == "repair_budget_exhausted"
    ended = agent.ended(agent.audited(wrong.format(-2))["repair"]["lineage"])
    assert (ended["outcome"], ended["turns"], ended["reasons"]) == ("halted", 1, ["23514"])
    assert ended["sandbox"]["error"] == agent.audited(wrong.format(-2))["sandbox"]["error"]
    assert (
        ended["sandbox"]["error"]["detail"] != agent.audited(wrong.format(-1))["sandbox"]["error"]["detail"]
    )


@both
def test_a_repair_that_passes_on_the_clone_ends_without_an_error_of_it(agents: Any, extended: bool) -> None:
    agent = agents()
    wrong = f"UPDATE products SET price = {{}} WHERE id = {26 + extended}"
    assert sqlstate(agent.send(wrong.format(-1), extended)) == "23514"
    assert agent.send(wrong.format(3), extended).command_status == b"UPDATE 1"
    ended = agent.ended(agent.audited(wrong.format(3))["repair"]["lineage"])
    assert (ended["outcome"], ended["turns"], ended["sandbox"]) == ("repaired", 1, {"error": None})


@both
def test_in_a_transaction_the_status_is_the_servers(agents: Any, extended: bool) -> None:
    agent = agents()
    agent.send("BEGIN")
    assert sqlstate(agent.send("UPDATE products SET price = -1 WHERE id = 26", extended)) == "23514"
    assert agent.pg.transaction_status == pq.TransactionStatus.INERROR
    assert sqlstate(agent.send("UPDATE products SET price = 1 WHERE id = 26", extended)) == "25P02"
    agent.send("ROLLBACK")
    assert agent.pg.transaction_status == pq.TransactionStatus.IDLE


@both
def test_a_transaction_that_has_written_is_not_tried(agents: Any, clone: Database, extended: bool) -> None:
    agent = agents()
    agent.send("BEGIN")
    first = f"UPDATE products SET stock = 5 WHERE id = 27 AND {1 + extended} > 0"
    second = f"UPDATE products SET stock = 6 WHERE id = 28 AND {1 + extended} > 0"
    assert agent.send(first, extended).command_status == b"UPDATE 1"
    assert agent.send(second, extended).command_status == b"UPDATE 1"
    agent.send("COMMIT")
    assert agent.audited(first)["sandbox"] == {"error": None}
    assert "has written" in agent.audited(second)["sandbox"]["not_tried"]
    assert second not in clone.executed()


def test_bound_values_are_tried_as_they_were_bound(agents: Any) -> None:
    agent = agents()
    sql = "UPDATE products SET price = $1 WHERE id = $2"
    assert sqlstate(agent.send(sql, True, "-5", "31")) == "23514"
    cursor = agents().connection.cursor(binary=True)
    with pytest.raises(psycopg.errors.CheckViolation):
        cursor.execute("UPDATE products SET stock = %b WHERE id = %b", (-5, 31))
    cursor.execute("UPDATE products SET stock = %b WHERE id = %b", (5, 31))
    assert cursor.rowcount == 1


def test_the_clone_is_given_the_sessions_own_settings(agents: Any, proxy: RunningProxy) -> None:
    agent = agents()
    agent.send("SET datestyle TO 'ISO, DMY'")
    agent.send("SET app.tenant TO '7'")
    sql = "UPDATE orders SET ordered_at = '13/02/2026' WHERE id = 3 AND current_setting('app.tenant') = '7'"
    assert agent.send(sql, True).command_status == b"UPDATE 1", agent.pg.error_message
    assert agent.audited(sql)["sandbox"] == {"error": None}
    agent.send("SET datestyle TO 'ISO, MDY'")
    assert sqlstate(agent.send(sql, True)) == "22008"


STALE_UPDATE = "UPDATE products SET stock = 7 WHERE id = 41"


def test_settings_that_change_between_bind_and_execute_are_noticed(proxy: RunningProxy) -> None:
    sql = "UPDATE orders SET ordered_at = '02/01/2026'::text::timestamptz WHERE id = 4"
    with through(proxy, "trying") as client:
        tried = parse(sql, "s") + bind("s", "p")
        answer = client.ask(tried, run("SET datestyle TO 'ISO, DMY'"), execute("p"), SYNC)
        refused = [m for m in answer if m.kind == "E"]
        assert json.loads(refused[0].fields["detail"])["halt"] == "sandbox_stale"
        assert kinds(answer)[-1] == "Z"
        client.ask(query("SET datestyle TO 'ISO, DMY'"))
        answer = client.ask(parse(sql, "u"), bind("u", "p"), execute("p"), SYNC)
        assert [m.body for m in answer if m.kind == "C"] == [b"UPDATE 1\0"]


def test_what_runs_between_bind_and_execute_and_changes_nothing_is_no_matter(proxy: RunningProxy) -> None:
    with through(proxy, "trying") as client:
        sql = "UPDATE products SET stock = 8 WHERE id = 42"
        answer = client.ask(parse(sql, "t"), bind("t", "p"), run("SELECT 1"), execute("p"), SYNC)
        assert [m.body for m in answer if m.kind == "C"] == [b"SELECT 1\0", b"UPDATE 1\0"]
        assert kinds(answer)[-1] == "Z"


@both
@pytest.mark.parametrize("name", ["stale", "dead", "hasty", "unmapped"])
def test_a_clone_that_cannot_speak_for_the_database_refuses_and_spends_no_turn(
    agents: Any, proxy: RunningProxy, name: str, extended: bool
) -> None:
    agent = agents(name)
    sql = STALE_UPDATE if name != "hasty" else STALE_UPDATE + " AND pg_sleep(2) IS NOT NULL"
    for _ in range(2):
        answer = agent.send(sql, extended)
        told = detail(answer)
        assert (told["rule"], told["halt"], sqlstate(answer)) == ("sandbox-stale", "sandbox_stale", "42501")
        assert told["repair"] == {"allowed": False, "turns_left": 0, "keep": None}
    assert agent.pg.transaction_status == pq.TransactionStatus.IDLE
    assert sql not in proxy.database.executed("shop_app")
    line = agent.audited(sql)
    assert (line["decision"], line["rule"], line["repair"]["halt"]) == (
        "reject",
        "sandbox-stale",
        "sandbox_stale",
    )
    assert line["sandbox"]["not_tried"]
    assert agent.send("SELECT 1", extended).ntuples == 1


@both
def test_a_stale_clone_may_be_passed_by(agents: Any, extended: bool) -> None:
    agent = agents("lax")
    sql = f"UPDATE products SET stock = 9 WHERE id = {43 + extended}"
    assert agent.send(sql, extended).command_status == b"UPDATE 1"
    line = agent.audited(sql)
    assert (line["decision"], line["outcome"]["command_tag"]) == ("allow", "UPDATE 1")
    assert "schema differs" in line["sandbox"]["not_tried"]


def test_only_what_a_statement_meets_makes_a_clone_stale(agents: Any) -> None:
    agent = agents("stale")
    assert agent.send("UPDATE customers SET city = 'Ghent' WHERE id = 3").command_status == b"UPDATE 1"


@both
def test_what_rests_on_rows_is_put_to_the_database(agents: Any, clone: Database, extended: bool) -> None:
    agent = agents()
    parent, child = (9001, 9101) if extended else (9002, 9102)
    first = f"INSERT INTO customers (id, name, email, city) VALUES ({parent}, 'N', 'n{parent}@x', 'Oslo')"
    second = f"INSERT INTO orders (id, customer_id) VALUES ({child}, {parent})"
    assert agent.send(first, extended).command_status == b"INSERT 0 1"
    assert agent.send(second, extended).command_status == b"INSERT 0 1", agent.pg.error_message
    assert agent.audited(second)["sandbox"]["error"]["sqlstate"] == "23503"
    assert sqlstate(agent.send(first, extended)) == "23505"
    assert clone.execute(f"SELECT FROM customers WHERE id = {parent}") == []


def test_what_cannot_be_undone_is_never_sent_to_the_clone(agents: Any, clone: Database) -> None:
    agent = agents()
    for sql in ("VACUUM products", "BEGIN", "COMMIT", "SET timezone TO 'UTC'", "PREPARE q AS SELECT 1"):
        agent.send(sql)
        assert agent.audited(sql)["sandbox"]["not_tried"]
        assert sql not in clone.executed()
    agent.send("PREPARE w AS UPDATE products SET stock = 3 WHERE id = 45")
    assert agent.send("EXECUTE w").command_status == b"UPDATE 1"
    assert "prepared statement" in agent.audited("EXECUTE w")["sandbox"]["not_tried"]


def test_a_role_is_mapped(agents: Any, clone: Database, proxy: RunningProxy) -> None:
    agent = agents("mapped")
    sql = "UPDATE products SET name = current_user || id WHERE id = 46"
    assert agent.send(sql).command_status == b"UPDATE 1"
    assert agent.audited(sql)["sandbox"] == {"error": None}
    assert sql in clone.executed("owner")
    assert proxy.database.execute("SELECT name FROM products WHERE id = 46") == [("shop_app46",)]


@both
def test_with_a_price_and_a_limit_all_are_asked_in_turn(
    agents: Any, proxy: RunningProxy, clone: Database, extended: bool
) -> None:
    agent = agents("priced")
    sql = f"UPDATE products SET stock = 11 WHERE sku = 'TEA-05{1 + extended}'"
    assert agent.send(sql, extended).command_status == b"UPDATE 1"
    line = agent.audited(sql)
    assert line["sandbox"] == {"error": None}
    assert line["cost"]["total"] > 0
    assert clone.executed("shop_app").count(sql) == 1
    over = f"UPDATE products SET stock = {11 + extended} WHERE category = 'black'"
    assert detail(agents("priced").send(over, extended))["rule"] == "affected-rows-over-limit"
    assert over not in clone.executed()
    wrong = f"UPDATE products SET price = -{1 + extended} WHERE sku = 'TEA-055'"
    assert sqlstate(agent.send(wrong, extended)) == "23514"
    assert agent.send(wrong.replace("-", "", 1), extended).command_status == b"UPDATE 1"


def test_a_pipeline_is_tried_up_to_its_first_write(proxy: RunningProxy) -> None:
    with through(proxy, "trying") as client:
        good, bad = (
            "UPDATE products SET stock = 1 WHERE id = 61",
            "UPDATE products SET price = -1 WHERE id = 62",
        )
        answer = client.ask(run("SELECT 1"), run(good), run(bad), run(good), SYNC)
        assert [m.fields["sqlstate"] for m in answer if m.kind == "E"] == ["23514"]
        assert kinds(answer)[-1] == "Z"
    assert proxy.database.execute("SELECT stock = 1 FROM products WHERE id = 61") == [(61 * 29 % 200 == 1,)]


def test_messages_in_any_split_and_statements_in_a_row_keep_their_order(proxy: RunningProxy) -> None:
    with through(proxy, "trying") as client:
        sqls = [f"UPDATE products SET stock = {n} WHERE id = 63" for n in range(5)]
        client.send(*[query(sql) + query("SELECT stock FROM products WHERE id = 63") for sql in sqls])
        answer = client.cycles(10)
        assert [m.body[-1:] for m in answer if m.kind == "D"] == [b"%d" % n for n in range(5)]


def test_an_agent_that_leaves_takes_its_trial_along(proxy: RunningProxy, clone: Database) -> None:
    sql = "UPDATE products SET stock = 1 WHERE id = 64 AND pg_sleep(20) IS NOT NULL"
    running = (
        f"SELECT state FROM pg_stat_activity WHERE datname = '{clone.name}' AND query LIKE 'UPDATE%id = 64%' "
        "AND application_name = 'pgturnstile sandbox' AND state = 'active'"
    )
    with through(proxy, "trying") as client:
        client.send(query(sql))
        wait_for(lambda: clone.execute(running) == [("active",)])
        client.cut()
    wait_for(lambda: clone.execute(running) == [])


@both
def test_a_cancel_reaches_a_trial(agents: Any, proxy: RunningProxy, clone: Database, extended: bool) -> None:
    agent = agents()
    sql = f"UPDATE products SET stock = 1 WHERE id = {65 + extended} AND pg_sleep(20) IS NOT NULL"
    timer = threading.Timer(1.0, agent.connection.cancel)
    timer.start()
    answer = agent.send(sql, extended)
    timer.join()
    assert sqlstate(answer) == "57014"
    assert sql not in proxy.database.executed("shop_app")
    assert agent.send("SELECT 1").ntuples == 1
    assert (
        agent.send(f"UPDATE products SET stock = 1 WHERE id = {65 + extended}").command_status == b"UPDATE 1"
    )


def test_temporary_tables_are_the_sessions_own(agents: Any) -> None:
    agent = agents()
    agent.send("CREATE TEMPORARY TABLE scratch (id int)")
    sql = "INSERT INTO scratch VALUES (1)"
    assert agent.send(sql).command_status == b"INSERT 0 1", agent.pg.error_message
    assert "temporary" in agent.audited(sql)["sandbox"]["not_tried"]
    assert agent.send("UPDATE products SET stock = 1 WHERE id = 67").command_status == b"UPDATE 1"
    elsewhere = "UPDATE products SET stock = 2 WHERE id = 67"
    agent.send(elsewhere)
    assert agent.audited(elsewhere)["sandbox"] == {"error": None}


def test_nothing_of_a_trial_is_there_at_the_next(agents: Any, clone: Database) -> None:
    agent = agents()
    locks = (
        "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) "
        f"WHERE locktype = 'advisory' AND datname = '{clone.name}'"
    )
    agent.send("UPDATE products SET stock = 1 WHERE id = 68 AND pg_advisory_lock(68) IS NOT NULL")
    assert clone.execute(locks) == [(0,)]


def test_a_clone_that_was_restarted_is_connected_to_anew(agents: Any, clone: Database) -> None:
    agent = agents()
    assert agent.send("UPDATE products SET stock = 1 WHERE id = 69").command_status == b"UPDATE 1"
    clone.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        f"WHERE application_name = 'pgturnstile sandbox' AND datname = '{clone.name}'"
    )
    time.sleep(0.3)
    sql = "UPDATE products SET stock = 2 WHERE id = 69"
    assert agent.send(sql).command_status == b"UPDATE 1"
    assert agent.audited(sql)["sandbox"] == {"error": None}


@both
def test_deferred_constraints_are_checked_where_the_statement_commits(agents: Any, extended: bool) -> None:
    agent = agents()
    assert sqlstate(agent.send("INSERT INTO moods VALUES (9)")) == "MY001"
    agent = agents()
    agent.send("BEGIN")
    assert agent.send("INSERT INTO moods VALUES (9)", extended).command_status == b"INSERT 0 1"
    agent.send("ROLLBACK")


def test_binary_values_of_enums_are_tried_and_of_arrays_of_them_not(agents: Any, proxy: RunningProxy) -> None:
    one, many = "INSERT INTO moods VALUES (1, $1)", "INSERT INTO moods VALUES (1, NULL, $1)"

    async def insert() -> None:
        given = proxy.parameters("trying", None)
        connection = await asyncpg.connect(database=given.pop("dbname"), **given)
        try:
            await connection.execute(one, "calm")
            await connection.execute(many, ["keen"])
        finally:
            await connection.close()

    asyncio.run(insert())
    agent = agents()
    assert agent.audited(one)["sandbox"] == {"error": None}
    assert "binary" in agent.audited(many)["sandbox"]["not_tried"]


def test_statements_bound_in_one_go_are_tried_up_to_the_first_that_writes(agents: Any) -> None:
    agent = agents()
    sql = "UPDATE products SET stock = %s WHERE id = %s"
    with agent.connection.cursor() as cursor:
        cursor.executemany(sql, [(1, 71), (2, 72)])
        assert cursor.rowcount == 2
        with pytest.raises(psycopg.errors.CheckViolation):
            cursor.executemany(sql, [(-1, 71), (2, 72)])
    assert agent.pg.transaction_status == pq.TransactionStatus.IDLE
