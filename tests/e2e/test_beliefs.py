"""What the proxy takes the server's names, cursors, paths and pipelines for is what they are.

Each conversation makes the two differ, if anything does, so that what was judged is not what runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from tests.support.postgres import Server
from tests.support.proxy import WRITER, RunningProxy, run_proxy
from tests.support.wire import (
    COPY_DONE,
    FLUSH,
    SYNC,
    Client,
    Message,
    bind,
    close,
    copy_data,
    copy_fail,
    execute,
    kinds,
    message,
    parse,
    query,
    run,
    straight,
    through,
)

WIDER: Final = WRITER.replace('"public.*"', '"public.*", "other.fine"') + "cost: {max_total_cost: 10000}\n"
POLICIES: Final = {
    "bounded": WRITER + "multiple: judged\nlimits: {result_rows: 100, affected_rows: 10}\n",
    "priced": WIDER,
    "paths": WIDER.replace('"other.fine"', '"other.fine", "shut.*"'),
    "watched": WRITER.replace("enforce", "observe"),
    "mending": WIDER.replace("update: allow", "update: {decide: allow, repair: once}")
    + "repair: {turns: 1, window: 10m, scope: connection}\n",
    "coded": "multiple: judged\n"
    + WIDER.replace("lock: allow", "lock: allow, do: allow").replace(
        "safe,", "safe, public.move_path, public.move_and_fail,"
    ),
}
SCHEMA: Final = """
CREATE TABLE things (id int PRIMARY KEY, n int NOT NULL DEFAULT 0);
INSERT INTO things SELECT g FROM generate_series(1, 1000) g;
CREATE TABLE big AS SELECT g AS id FROM generate_series(1, 100000) g;
CREATE SCHEMA other;
CREATE TABLE other.things (id int, secret text);
INSERT INTO other.things VALUES (1, 'CANARY');
CREATE TABLE other.fine (id int);
CREATE TABLE fine (id int);
GRANT ALL ON things, big, fine, other.things, other.fine TO shop_app;
GRANT USAGE ON SCHEMA other TO shop_app;
CREATE SCHEMA shut;
CREATE TABLE shut.things (id int, n int);
CREATE FUNCTION move_path() RETURNS void LANGUAGE plpgsql
  AS $$BEGIN PERFORM set_config('search_path', 'other', false); END$$;
CREATE FUNCTION move_and_fail() RETURNS void LANGUAGE plpgsql
  AS $$BEGIN PERFORM set_config('search_path', 'other', false); RAISE 'oops'; END$$;
ANALYZE;
"""
LONG: Final = "a" * 63
DEAR: Final = "SELECT count(*)::int AS n FROM big a, big b WHERE a.id + b.id < 5"
MOVES: Final = "SELECT set_config('search_path', 'other', false)"


@pytest.fixture(scope="module")
def proxy(postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    login = {"user": "shop_app", "password_env": "PASSWORD_SHOP_APP"}
    agents = {
        name: {"auth": {"trust": "loopback"}, "login": login, "policy": f"{name}.yaml"} for name in POLICIES
    }
    with postgres.database() as database:
        database.execute(SCHEMA)
        folder = tmp_path_factory.mktemp("beliefs")
        with run_proxy(database, folder, POLICIES, agents=agents) as running:
            yield running


def errors(messages: list[Message]) -> list[str]:
    return [each.sqlstate for each in messages if each.kind == "E"]


def untouched(proxy: RunningProxy, client: Client) -> None:
    """Nothing was written, and the session goes on."""
    ((changed,),) = proxy.database.execute("SELECT count(*) FROM things WHERE n <> 0 OR id > 1000")
    assert changed == 0
    assert kinds(client.ask(query("SELECT 1"))) == "TDCZ"


def test_long_names_are_one_where_the_server_takes_them_for_one(proxy: RunningProxy) -> None:
    write = "UPDATE things SET n = 1 WHERE id < 500"
    with through(proxy, "bounded") as client:
        client.ask(parse("SELECT 1", LONG + "X"), SYNC)
        client.ask(close("S", LONG + "Z"), parse(write, LONG + "Y"), SYNC)
        assert errors(client.ask(bind(LONG + "X"), execute(), SYNC)) == ["57014"]
        portals = (bind("r", LONG + "X"), close("P", LONG + "Z"), bind("w", LONG + "Y"), execute(LONG + "X"))
        assert errors(client.ask(parse("SELECT 1", "r"), parse(write, "w"), *portals, SYNC)) == ["57014"]
        untouched(proxy, client)


def test_names_that_are_looked_up_as_a_portal_runs_are_judged_by_the_path_of_then(
    proxy: RunningProxy,
) -> None:
    copied = (parse("COPY things TO STDOUT", "c"), bind("c", "c"))
    moved = (parse("SET search_path = other", "s"), bind("s", "s"), execute("s"))
    with through(proxy, "paths") as client:
        answer = client.ask(*copied, *moved, execute("c"), SYNC)
        assert errors(answer) == ["42501"]
        assert b"CANARY" not in b"".join(each.body for each in answer)
        untouched(proxy, client)


@pytest.mark.parametrize(
    "before",
    [
        [query("BEGIN"), query(f"DECLARE c CURSOR FOR {MOVES}"), query("FETCH c")],
        [
            query("BEGIN"),
            parse("SELECT 1") + bind("", "c") + SYNC,
            query("CLOSE ALL"),
            query(f"DECLARE c CURSOR FOR {MOVES}"),
            execute("c") + SYNC,
        ],
        [
            query("PREPARE foo(text) AS SELECT count(*) FROM big a, big b WHERE a.id + b.id < length($1)"),
            query("EXECUTE foo(set_config('search_path', 'other', false))"),
        ],
    ],
    ids=["by FETCH", "by a cursor behind a stale portal", "by an argument of EXECUTE"],
)
def test_the_path_is_not_moved_unseen(proxy: RunningProxy, before: list[bytes]) -> None:
    with through(proxy, "paths") as client:
        told = [sqlstate for each in before for sqlstate in errors(client.ask(each))]
        assert told[:1] == ["42501"]
        client.ask(query("ROLLBACK"))
        read = client.ask(query("SELECT * FROM things WHERE id = 1"))
        assert b"CANARY" not in b"".join(each.body for each in read)
        assert kinds(read) == "TDCZ"


READ: Final = "SELECT * FROM things WHERE id = 1"
HIDDEN: Final = {
    "DO": query("DO $$BEGIN PERFORM move_path(); END$$"),
    "a function": query("SELECT move_path()"),
    "a cursor": query("BEGIN") + query("DECLARE c CURSOR FOR SELECT move_path()") + query("FETCH c"),
}


def refused(answer: list[Message]) -> None:
    assert errors(answer) == ["42501"]
    assert b"CANARY" not in b"".join(each.body for each in answer)


@pytest.mark.parametrize("moves", HIDDEN.values(), ids=HIDDEN)
@pytest.mark.parametrize("pipelined", [False, True], ids=["one by one", "pipelined"])
def test_code_that_no_text_shows_may_move_the_path(
    proxy: RunningProxy, moves: bytes, pipelined: bool
) -> None:
    with through(proxy, "coded") as client:
        if pipelined:
            client.send(moves + query(READ))
            answer = client.cycles(1 + moves.count(b"Q\0\0"))
        else:
            client.send(moves)
            client.cycles(moves.count(b"Q\0\0"))
            answer = client.ask(query(READ))
        refused(answer)
        client.ask(query("ROLLBACK"))
        client.ask(query("RESET search_path"))
        untouched(proxy, client)


def test_code_that_moves_the_path_is_asked_about_inside_a_pipeline(proxy: RunningProxy) -> None:
    with through(proxy, "coded") as client:
        refused(client.ask(run("SELECT move_path()"), run(READ), SYNC))
        # The path went with the transaction that was rolled back.
        assert kinds(client.ask(query(READ))) == "TDCZ"
        untouched(proxy, client)


ENDS: Final = {
    "a Query": query("ROLLBACK"),
    "a Query of the part": query("ROLLBACK TO s"),
    "a pipeline": run("ROLLBACK") + SYNC,
    "a pipeline of the part": run("ROLLBACK TO s") + SYNC,
}


@pytest.mark.parametrize("user", ["coded", "watched"])
@pytest.mark.parametrize("extended", [False, True], ids=["simple", "extended"])
@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
def test_hidden_code_that_fails_leaves_a_transaction_that_can_be_ended(
    proxy: RunningProxy, user: str, ends: bytes, extended: bool
) -> None:
    fails = run("SELECT move_and_fail()") + SYNC if extended else query("SELECT move_and_fail()")
    asked = [query("BEGIN"), query("SAVEPOINT s"), fails, query("SELECT 1"), run("SELECT 1") + SYNC, ends]
    asked += [query(READ), query("ROLLBACK"), query(READ)]
    with straight(proxy.database) as server, through(proxy, user) as client:
        assert [kinds(client.ask(each)) for each in asked] == [kinds(server.ask(each)) for each in asked]
        untouched(proxy, client)


def test_what_hidden_code_did_before_a_savepoint_is_asked_about_behind_it(proxy: RunningProxy) -> None:
    """Back to the savepoint, the path is what the code before it has made of it, which nobody had asked."""
    with through(proxy, "coded") as client:
        for behind in (
            query(f"ROLLBACK TO s; {READ}"),
            query("ROLLBACK TO s") + query(READ),
            run("ROLLBACK TO s") + run(READ) + SYNC,
        ):
            client.ask(query("BEGIN"))
            assert errors(
                client.ask(run("SELECT move_path()") + run("SAVEPOINT s") + run("SELECT 1/0"), SYNC)
            )
            client.send(behind)
            answer = client.cycles(behind.count(b"Q\0\0") or 1)
            assert errors(answer)[0] in ("25P02", "42501")
            assert b"CANARY" not in b"".join(each.body for each in answer)
            client.ask(query("ROLLBACK"))
            untouched(proxy, client)


def test_a_schema_that_comes_to_be_searched_is_noticed(proxy: RunningProxy) -> None:
    """``"$user"`` names one that is not there at first; nobody sets anything."""
    with through(proxy, "paths") as client:
        assert kinds(client.ask(query(READ))) == "TDCZ"
        proxy.database.execute(
            "CREATE SCHEMA shop_app; CREATE TABLE shop_app.things AS SELECT * FROM other.things;"
            "GRANT ALL ON SCHEMA shop_app TO shop_app; GRANT ALL ON shop_app.things TO shop_app"
        )
        try:
            client.ask(query("SELECT * FROM nowhere"))  # has the catalog asked again
            refused(client.ask(query(READ)))
            proxy.database.execute("REVOKE ALL ON SCHEMA shop_app FROM shop_app")
            client.ask(query("SELECT * FROM nowhere"))
            assert kinds(client.ask(query(READ))) == "TDCZ", "not searched any more"
        finally:
            proxy.database.execute("DROP SCHEMA shop_app CASCADE")


def test_a_schema_that_the_role_may_not_use_is_passed_over(proxy: RunningProxy) -> None:
    with through(proxy, "paths") as client:
        for path, kept in (("shut, other", False), ("shut, public", True), ("public, other", True)):
            client.ask(query("BEGIN"))
            client.ask(query(f"SET LOCAL search_path = {path}"))
            answer = client.ask(query(READ))
            if kept:
                assert kinds(answer) == "TDCZ"
            else:
                refused(answer)
            client.ask(query("ROLLBACK"))
        untouched(proxy, client)


def test_a_role_that_may_make_nothing_temporary_logs_in_where_that_would_come_first(
    proxy: RunningProxy,
) -> None:
    """PostgreSQL makes the schema for temporary objects where it is asked what it searches."""
    owner, name = proxy.database.execute, proxy.database.name
    owner(f"REVOKE TEMPORARY ON DATABASE {name} FROM PUBLIC")
    owner(f"ALTER ROLE shop_app IN DATABASE {name} SET search_path = pg_temp, public")
    try:
        with through(proxy, "paths") as client:
            assert kinds(client.ask(query(READ))) == "TDCZ"
            client.ask(query("SET search_path = other, public"))
            refused(client.ask(query(READ)))
            client.ask(query("RESET search_path"))
            untouched(proxy, client)
            client.ask(query("BEGIN"))
            untouched(proxy, client)
            client.ask(query("ROLLBACK"))
    finally:
        owner(f"ALTER ROLE shop_app IN DATABASE {name} RESET search_path")


def test_asking_for_the_path_commits_nothing(proxy: RunningProxy) -> None:
    """PostgreSQL 18 keeps the pipeline's transaction open behind a Query, 15 does not."""
    kept = []
    with straight(proxy.database) as server, through(proxy, "paths") as client:
        for number, side in ((100, server), (101, client)):
            side.send(run(f"INSERT INTO other.fine VALUES ({number})") + query("SET search_path = public"))
            side.cycles()
            assert errors(side.ask(run("SELECT 1/0"), SYNC)) == ["22012"]
            kept.append(proxy.database.execute(f"SELECT count(*) FROM other.fine WHERE id = {number}"))
        assert kept[0] == kept[1]
        untouched(proxy, client)


def test_what_execute_runs_is_what_was_priced(proxy: RunningProxy) -> None:
    with through(proxy, "priced") as client:
        client.ask(query("PREPARE foo AS SELECT 1 AS n"))
        client.ask(query("BEGIN"))
        client.ask(parse("EXECUTE foo", "e"), bind("e", "p"), SYNC)
        client.ask(parse("DEALLOCATE foo", "d"), bind("d"), execute(), SYNC)
        client.ask(parse(DEAR, "foo"), SYNC)
        assert errors(client.ask(execute("p"), SYNC)) == ["54001"]
        client.ask(query("ROLLBACK"))
        untouched(proxy, client)


@pytest.mark.parametrize("fetch", [execute("c", 60) + SYNC, query("EXECUTE foo")], ids=["execute", "SQL"])
def test_rows_of_a_cursor_add_up_however_they_are_fetched(proxy: RunningProxy, fetch: bytes) -> None:
    with through(proxy, "bounded") as client:
        client.ask(parse("FETCH 60 FROM c", "foo"), SYNC)
        client.ask(query("BEGIN"))
        client.ask(query("DECLARE c CURSOR FOR SELECT g FROM generate_series(1, 1000) g"))
        assert errors(client.ask(fetch)) == []
        assert errors(client.ask(fetch)) == ["57014"]
        client.ask(query("ROLLBACK"))
        untouched(proxy, client)


def test_nothing_of_ours_goes_into_a_frame_of_the_agents(proxy: RunningProxy) -> None:
    """A result over its limit fails while half a CopyData frame has been sent: what the rest of it and the
    values behind it hold is data, whatever it looks like."""
    hidden = message("Q", b"UPDATE things SET n = 3; COMMIT\0")
    with through(proxy, "bounded") as client:
        client.ask(parse("SELECT $1::bytea", "x"), SYNC)
        over = run("BEGIN") + run("SELECT g FROM generate_series(1, 101) g") + FLUSH
        whole = message("d", b"x" * 400)
        client.send(over + whole[:50])
        assert "57014" in errors(client.read_until("E"))
        answer = client.ask(whole[50:] + SYNC)
        assert errors(answer) == []
        assert kinds(client.ask(bind("x", "", (hidden.hex().encode(),)), SYNC))[-1] == "Z"
        client.ask(query("ROLLBACK"))
        untouched(proxy, client)


def test_a_query_sent_with_the_failure_of_a_copy_is_answered(proxy: RunningProxy) -> None:
    with through(proxy, "bounded") as client:
        client.send(query("COPY things FROM STDIN"))
        client.read_until("G")
        client.send(copy_fail() + query("SELECT 1"))
        assert kinds(client.cycles(2)) == "EZTDCZ"
        untouched(proxy, client)


def by_parse(name: str) -> bytes:
    return parse("SELECT 1", name) + SYNC


def by_prepare(name: str) -> bytes:
    return query(f"PREPARE {name} AS SELECT 1")


@pytest.mark.parametrize("prepare", [by_parse, by_prepare])
def test_a_name_of_ours_cannot_be_prepared(proxy: RunningProxy, prepare: Callable[[str], bytes]) -> None:
    with through(proxy, "bounded") as client, through(proxy, "bounded") as other:
        client.ask(query("SELECT count(*) FROM nowhere"))
        ((asked,),) = proxy.database.execute(f"SELECT query FROM pg_stat_activity WHERE pid = {client.pid}")
        assert errors(other.ask(prepare(asked))) == [], "it is another's"
        client.send(prepare(asked))
        assert errors(client.rest()) == ["42939"]


@pytest.mark.parametrize(
    ("string", "found"),
    [
        ("DECLARE c CURSOR WITH HOLD FOR SELECT 2; SELECT 1/0", 1),
        ("SELECT 1; DECLARE c CURSOR WITH HOLD FOR SELECT 2; SELECT 3", 1),
        ("CLOSE c; DECLARE c CURSOR WITH HOLD FOR SELECT 2; COMMIT; SELECT 1/0", 2),
    ],
)
def test_what_a_string_made_before_it_failed_is_there(proxy: RunningProxy, string: str, found: int) -> None:
    with through(proxy, "bounded") as client:
        client.ask(query("BEGIN; DECLARE c CURSOR WITH HOLD FOR SELECT 1; COMMIT"))
        client.ask(query("PREPARE s AS SELECT 1"))
        assert len(errors(client.ask(query(string)))) == 1
        rows = client.ask(execute("c") + SYNC)
        assert [each.body[-1:] for each in rows if each.kind == "D"] == [str(found).encode()]
        assert len(errors(client.ask(query("DEALLOCATE s; PREPARE s AS SELECT 2; SELECT 1/0")))) == 1
        rows = client.ask(query("EXECUTE s"))
        assert [each.body[-1:] for each in rows if each.kind == "D"] == [b"2"]
        untouched(proxy, client)


@pytest.mark.parametrize(("rows", "sqlstate"), [(3, []), (11, ["57014"])])
@pytest.mark.parametrize("simple", [True, False])
def test_what_execute_copies_in_is_counted(
    proxy: RunningProxy, rows: int, sqlstate: list[str], simple: bool
) -> None:
    with through(proxy, "bounded") as client:
        client.ask(query("BEGIN"))
        client.ask(parse("COPY things (id, n) FROM STDIN", "c") + parse("EXECUTE c", "e") + SYNC)
        client.send(query("EXECUTE c") if simple else bind("e") + execute())
        client.read_until("G")
        data = b"".join(copy_data(b"%d\t0\n" % (2000 + n)) for n in range(rows))
        answer = client.ask(data + COPY_DONE + (b"" if simple else SYNC))
        assert errors(answer) == sqlstate
        client.ask(query("ROLLBACK"))
        untouched(proxy, client)


def test_what_takes_the_place_of_a_write_fails_as_it_would(proxy: RunningProxy) -> None:
    """A Query that is held goes as Parse, Bind and Execute: where the Parse fails, nothing is read past."""
    fails = query("UPDATE things SET n = 'x' WHERE id = 1")
    seen = []
    with straight(proxy.database) as server, through(proxy, "bounded") as client:
        for side in (server, client):
            side.send(fails + query("SELECT 1") + query("BEGIN") + fails + query("SELECT 1"))
            seen.append([(each.kind, each.body) for each in side.cycles(5) if each.kind not in "TEN"])
            side.ask(query("ROLLBACK"))
        assert seen[0] == seen[1]
        untouched(proxy, client)


def test_what_a_function_has_made_runs_under_a_policy_that_only_observes(proxy: RunningProxy) -> None:
    asked = [
        query("DO $$BEGIN EXECUTE 'PREPARE made AS SELECT 42'; END$$"),
        bind("made") + execute() + SYNC,
        query("BEGIN"),
        query("DO $$DECLARE r refcursor := 'opened'; BEGIN OPEN r FOR SELECT 43; END$$"),
        execute("opened") + SYNC,
        query("COMMIT"),
        bind("never") + execute() + SYNC,
    ]
    with straight(proxy.database) as server, through(proxy, "watched") as client:
        assert [client.ask(each) for each in asked] == [server.ask(each) for each in asked]
    with through(proxy, "coded") as client:
        told = [errors(client.ask(each)) for each in asked]
        assert told == [[], ["26000"], [], [], ["34000"], [], ["26000"]]


def test_a_portal_that_a_refusal_has_overtaken_is_compared_with_it(proxy: RunningProxy) -> None:
    refusal = query("UPDATE things SET m = 7 WHERE id = 3")
    with through(proxy, "mending") as client:
        client.ask(query("BEGIN"))
        for name, text in (
            ("weaker", "UPDATE things SET n = 7 WHERE id < 500"),
            ("other", "INSERT INTO other.fine VALUES (7)"),
            ("read", "SELECT g FROM generate_series(1, 5) g"),
        ):
            client.ask(parse(text, name) + bind(name, name) + SYNC)
        assert kinds(client.ask(execute("read", 2) + SYNC)) == "DDsZ"
        client.ask(query("SAVEPOINT s"))
        assert errors(client.ask(refusal)) == ["42703"]
        client.ask(query("ROLLBACK TO s"))
        assert kinds(client.ask(execute("other") + execute("read") + SYNC)) == "CDDDCZ"
        (halted,) = (each for each in client.ask(execute("weaker") + SYNC) if each.kind == "E")
        assert json.loads(halted.fields["detail"])["halt"] == "predicate_weakened"
        client.ask(query("ROLLBACK"))
        untouched(proxy, client)


def test_a_refusal_behind_a_query_undoes_what_an_error_would(proxy: RunningProxy) -> None:
    """PostgreSQL 18 keeps the pipeline's transaction open behind a Query, 15 does not."""
    kept = []
    with straight(proxy.database) as server, through(proxy, "priced") as client:
        for number, (side, failing) in enumerate(((server, "SELECT nothing FROM big"), (client, DEAR))):
            side.send(run(f"INSERT INTO other.fine VALUES ({number})") + query("SELECT 1"))
            side.cycles()
            assert len(errors(side.ask(query(failing)))) == 1
            side.ask(SYNC)
            sql = f"SELECT count(*) FROM other.fine WHERE id = {number}"
            kept.append(proxy.database.execute(sql))
    assert kept[0] == kept[1]


@pytest.mark.parametrize(
    ("agent", "between"),
    [
        ("bounded", "INSERT INTO fine VALUES ({})"),
        ("bounded", "UPDATE things SET n = 0 WHERE id = 1 RETURNING id"),
        ("bounded", "SELECT 1"),
        ("paths", "SET search_path = public, other"),
        ("paths", "SELECT set_config('search_path', 'public,other', false)"),
        ("priced", "INSERT INTO fine VALUES ({})"),
    ],
)
@pytest.mark.parametrize("behind", ["SELECT 1/0", "SELECT 1"], ids=["failing", "passing"])
def test_a_query_within_a_pipeline_ends_what_it_ends_there(
    proxy: RunningProxy, agent: str, between: str, behind: str
) -> None:
    """Whatever the proxy makes of the Query: on PostgreSQL 18 only the Sync commits what stands before it."""
    told = []
    with straight(proxy.database) as server, through(proxy, agent) as client:
        for number, side in enumerate((server, client)):
            side.ask(parse(f"INSERT INTO fine VALUES ({number})", "s") + SYNC)
            side.send(bind("s") + execute() + query(between.format(number)))
            answer = side.cycles()
            answer += side.ask(parse("SELECT 7") + bind() + execute() + FLUSH + run(behind) + SYNC)
            answer += side.ask(execute() + SYNC)
            answer += side.ask(query("SELECT 1"))
            kept = proxy.database.execute(f"DELETE FROM fine WHERE id = {number} RETURNING 1")
            told.append(
                ([(each.kind, each.body) for each in answer if each.kind != "E"], errors(answer), kept)
            )
    assert told[1] == told[0]
