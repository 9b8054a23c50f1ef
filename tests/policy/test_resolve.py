"""The resolver against real servers: what it calls unknown they refuse, and what they read it has seen."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar

import asyncpg
import pytest

from policy import parse
from policy.catalog import Catalog
from policy.facts import Facts
from policy.resolve import Answer, Fault, Resolution, resolve
from tests.policy.random_selects import RandomSelects
from tests.policy.resolve_statements import ACCEPTED, REFUSED, SINCE_18
from tests.support.postgres import Database

PATHS = (("app", "public"),)
SYSTEM = {"ctid", "xmin", "cmax", "tableoid"}

Result = TypeVar("Result")


def facts(sql: str) -> Facts:
    query = parse.parse(sql)
    assert query.failure is None, query.failure
    (statement,) = query.statements
    assert statement.not_understood is None, statement.not_understood
    return statement


def resolved(sql: str, catalog: Catalog, paths: Sequence[tuple[str, ...]] = PATHS) -> Resolution:
    return resolve(facts(sql), catalog, paths, temporary=False)


def unknown(resolution: Resolution) -> list[str]:
    """What is called unknown, as it stands in the statement."""
    return [a.ref.name for a in resolution.relations if a.answer is Answer.UNKNOWN] + [
        ".".join((*a.ref.qualifier, a.ref.name or "*"))
        for a in resolution.columns
        if a.answer is Answer.UNKNOWN
    ]


def reads(resolution: Resolution) -> set[str]:
    return {f"{read.relation}.{read.column}" for read in resolution.reads}


def statements(catalog: Catalog) -> tuple[str, ...]:
    return ACCEPTED + (SINCE_18 if catalog.content.version >= 180000 else ())


def on_server(database: Database, work: Callable[[Any], Awaitable[Result]]) -> Result:
    async def run() -> Result:
        settings = {"search_path": ", ".join(PATHS[0])}
        connection = await asyncpg.connect(database.dsn(), server_settings=settings)
        try:
            return await work(connection)
        finally:
            await connection.close()

    return asyncio.run(run())


async def refusal(connection: Any, sql: str) -> asyncpg.PostgresError | None:
    """The server's objection to a statement that is analysed, never run; None where it has none."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute(f"PREPARE s AS {sql}")
    except asyncpg.PostgresError as error:
        return error
    else:
        await connection.execute("DEALLOCATE s")
        return None
    finally:
        await transaction.rollback()


def preparable(sql: str) -> bool:
    return (
        not sql.startswith(("EXPLAIN", "DECLARE", "COPY", "PREPARE", "CREATE")) and " INTO copied" not in sql
    )


class TestAgainstServers:
    def test_nothing_accepted_is_called_unknown(self, rich: Database, rich_catalog: Catalog) -> None:
        async def work(connection: Any) -> list[str]:
            return [
                f"{sql}: {error}"
                for sql in filter(preparable, statements(rich_catalog) + HIDDEN)
                if (error := await refusal(connection, sql)) is not None
            ]

        assert on_server(rich, work) == [], "the lists are of accepted statements"
        false = {sql: unknown(resolved(sql, rich_catalog)) for sql in statements(rich_catalog)}
        assert {sql: names for sql, names in false.items() if names} == {}

    def test_names_that_do_not_exist(self, rich: Database, rich_catalog: Catalog) -> None:
        async def work(connection: Any) -> list[str]:
            return [
                sql
                for sql in filter(preparable, REFUSED)
                if getattr(await refusal(connection, sql), "sqlstate", None)
                not in ("42703", "42P01", "42P10")
            ]

        assert on_server(rich, work) == [], "the list is of unknown names"
        assert [sql for sql in REFUSED if not unknown(resolved(sql, rich_catalog))] == []

    def test_most_references_are_certain(self, rich_catalog: Catalog) -> None:
        answers = Counter(
            column.answer
            for sql in statements(rich_catalog)
            for column in resolved(sql, rich_catalog).columns
        )
        assert answers[Answer.RESOLVED] > 0.95 * answers.total()

    def test_mutations(self, rich: Database, rich_catalog: Catalog) -> None:
        compare_mutations(rich, rich_catalog, ("{}q",))

    @pytest.mark.slow
    def test_more_mutations(self, rich: Database, rich_catalog: Catalog) -> None:
        compare_mutations(rich, rich_catalog, ("folded", "place", "p", "id", "ctid", "s", "q", "x"))

    def test_random_selects(self, rich: Database, rich_catalog: Catalog) -> None:
        compare_random_selects(rich, rich_catalog, seed=1, count=300)

    @pytest.mark.slow
    def test_more_random_selects(self, rich: Database, rich_catalog: Catalog) -> None:
        compare_random_selects(rich, rich_catalog, seed=2, count=5000)

    def test_the_server_reads_nothing_else(self, rich: Database, rich_catalog: Catalog) -> None:
        """Of every SELECT made a view, the columns the server records are among those resolved."""

        async def work(connection: Any) -> tuple[dict[str, set[str]], int]:
            missing, compared = {}, 0
            for sql in statements(rich_catalog):
                read_there = await view_reads(connection, sql)
                if read_there is not None:
                    compared += 1
                    missing[sql] = read_there - reads(resolved(sql, rich_catalog))
            return {sql: columns for sql, columns in missing.items() if columns}, compared

        missing, compared = on_server(rich, work)
        assert missing == {}
        assert compared > 140


async def view_reads(connection: Any, sql: str) -> set[str] | None:
    """The columns of tables that the server says a view of ``sql`` depends on; None where it cannot be one.

    Fields of composite types are left out: they are no columns of a relation.
    """
    if not sql.startswith(("SELECT", "WITH", "VALUES", "TABLE", "(")):
        return None
    transaction = connection.transaction()
    await transaction.start()
    try:
        width = len((await connection.prepare(sql)).get_attributes())
        names = f"({', '.join(f'c{n}' for n in range(width))})" if width else ""
        await connection.execute(f"CREATE VIEW pg_temp.probe {names} AS {sql}")
        rows = await connection.fetch(
            "SELECT c.relname, a.attname FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid "
            "JOIN pg_class c ON c.oid = d.refobjid "
            "JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = d.refobjsubid "
            "WHERE d.classid = 'pg_rewrite'::regclass AND d.refclassid = 'pg_class'::regclass "
            "AND r.ev_class = 'pg_temp.probe'::regclass AND d.deptype = 'n' AND c.relkind <> 'c'"
        )
    except asyncpg.PostgresError:
        return None
    else:
        return {f"{relation}.{column}" for relation, column in rows}
    finally:
        await transaction.rollback()


def mutations(sql: str, replacements: tuple[str, ...]) -> Iterator[str]:
    """``sql`` with one name of one column reference, its qualifier included, replaced."""
    seen = set()
    for ref in facts(sql).columns:
        if ref.position is None:
            continue
        start = ref.position - 1
        for name in (*ref.qualifier, ref.name):
            if name is None:
                continue
            at = sql.find(name, start)
            start = at + len(name)
            if at < 0 or (at, name) in seen:
                continue
            seen.add((at, name))
            for replacement in replacements:
                new = replacement.format(name)
                if new != name:
                    yield sql[:at] + new + sql[at + len(name) :]


def compare_mutations(rich: Database, catalog: Catalog, replacements: tuple[str, ...]) -> None:
    async def work(connection: Any) -> tuple[list[str], Counter[str]]:
        wrong: list[str] = []
        found: Counter[str] = Counter()
        for sql in itertools.chain.from_iterable(
            mutations(sql, replacements) for sql in filter(preparable, statements(catalog))
        ):
            query = parse.parse(sql)
            if query.failure is not None or len(query.statements) != 1:
                continue
            names = unknown(resolve(query.statements[0], catalog, PATHS, temporary=False))
            error = await refusal(connection, sql)
            if error is None and names:
                wrong.append(f"{sql}: {names}")
            if error is not None and error.sqlstate in ("42703", "42P01"):
                found["seen" if names else "left to the server"] += 1
        return wrong, found

    wrong, found = on_server(rich, work)
    assert wrong == []
    assert found["seen"] > 0.9 * found.total()


def compare_random_selects(rich: Database, catalog: Catalog, seed: int, count: int) -> None:
    """Both promises at once, on statements nobody thought of."""

    async def work(connection: Any) -> tuple[list[str], Counter[str]]:
        selects = RandomSelects(seed)
        wrong: list[str] = []
        found: Counter[str] = Counter()
        for _ in range(count):
            sql = selects.select()
            query = parse.parse(sql)
            if query.failure is not None:
                continue
            resolution = resolve(query.statements[0], catalog, PATHS, temporary=False)
            error = await refusal(connection, sql)
            found["accepted" if error is None else "seen" if unknown(resolution) else "left"] += 1
            if error is not None:
                continue
            wrong += [f"{sql}: {name} is called unknown" for name in unknown(resolution)]
            missed = (await view_reads(connection, sql) or set()) - reads(resolution)
            wrong += [f"{sql}: {column} is read" for column in missed]
        return wrong, found

    wrong, found = on_server(rich, work)
    assert wrong == []
    assert found["accepted"] > 0.4 * count
    assert found["seen"] > 0.1 * count


@pytest.fixture(scope="module")
def catalog(postgres18_rich: Catalog) -> Catalog:
    return postgres18_rich


PEOPLE = {
    f"people.{column}"
    for column in (
        *("id", "name", "email", "mail2", "mood", "home", "tags", "salary", "folded", "since", "boss_id"),
    )
}
READS: tuple[tuple[str, set[str]], ...] = (
    ("SELECT p FROM people p", PEOPLE),
    ("SELECT p.* FROM people p", PEOPLE),
    ("SELECT p.to_jsonb FROM people p", PEOPLE),
    ("SELECT (p).salary FROM people p", {"people.salary"}),
    ("SELECT (p).* FROM people p", PEOPLE),
    ("SELECT (p).label FROM people p", PEOPLE),
    ("SELECT e.salary FROM lab.everybody() e", {"people.salary"}),
    ("SELECT x.b FROM (SELECT name, salary FROM people) AS x(a, b)", {"people.name", "people.salary"}),
    ("SELECT ctid FROM people", {"people.ctid"}),
    (
        "SELECT j.b FROM (stock JOIN kept USING (place)) AS j(a, b)",
        {"stock.place", "kept.place", "stock.product_id"},
    ),
    (
        "SELECT j.d FROM (stock JOIN kept USING (place)) AS j(a, b, c, d)",
        {"stock.place", "kept.place", "stock.keeper_id"},
    ),
    ("SELECT 1 FROM stock NATURAL JOIN kept", {"stock.place", "kept.place"}),
    ("SELECT x.place FROM stock JOIN kept USING (place) AS x", {"stock.place", "kept.place"}),
    ("SELECT name AS salary FROM people ORDER BY salary", {"people.name"}),
    ("SELECT name AS salary FROM people ORDER BY salary || ''", {"people.name", "people.salary"}),
    ("SELECT DISTINCT ON (salary) name AS salary FROM people", {"people.name"}),
    ("COPY note (id) TO STDOUT", {"note.id"}),
    ("INSERT INTO note (id, body) VALUES (1, 'x')", {"note.id", "note.body"}),
    ("UPDATE note SET body = 'x' WHERE id = 1 RETURNING tenant", {"note.id", "note.body", "note.tenant"}),
    (
        "SELECT name AS salary FROM people WHERE id = 1 GROUP BY salary, name",
        {"people.salary", "people.name", "people.id"},
    ),
)
"""Statements and every column they read."""

HIDDEN: tuple[str, ...] = (
    # Conditions and arguments see a part of their level: the name is the outer table's.
    "SELECT (SELECT count(*) FROM kept k JOIN note n ON salary > 1, public.pay) FROM app.people",
    "SELECT (SELECT count(*) FROM kept k JOIN note n ON (SELECT salary > 1), public.pay) FROM app.people",
    "SELECT (SELECT max(g) FROM generate_series(1, salary::int) g, public.pay) FROM app.people",
    "SELECT (SELECT max(g) FROM generate_series(1, (SELECT salary)::int) g, public.pay) FROM app.people",
    "SELECT (SELECT count(*) FROM kept k JOIN note n ON p.salary > 1, public.pay p) FROM app.people p",
    "SELECT (SELECT count(*) FROM LATERAL (SELECT salary) q, public.pay) FROM app.people",
    "SELECT (SELECT count(*) FROM note TABLESAMPLE system ((SELECT salary)::real), public.pay) "
    "FROM app.people",
    # Nor is a column of the name, or of the alias, certain to be the one: a whole row may be meant.
    "SELECT (SELECT count(*) FROM kept k JOIN note n ON p IS NOT NULL, public.pay x(p)) FROM app.people p",
    "SELECT (SELECT count(*) FROM kept k JOIN note n ON p.to_jsonb IS NULL, public.pay p(to_jsonb)) "
    "FROM app.people p",
    # A source that may have any column comes between.
    "SELECT (SELECT salary FROM lab.loose(1) AS l(a int, b text)) FROM app.people",
    "SELECT (SELECT salary FROM jsonb_to_record('{}') AS l(salary int)) , salary FROM app.people",
)
"""Statements that read people.salary, whatever else of that name stands nearer."""


class TestReads:
    def test_a_sub_select_does_not_see_itself(self, catalog: Catalog) -> None:
        sql = "SELECT 1 FROM stock u, LATERAL (SELECT ctid FROM names) q"
        assert "stock.ctid" in reads(resolved(sql, catalog))

    @pytest.mark.parametrize(("sql", "expected"), READS, ids=[sql for sql, _ in READS])
    def test_reads(self, catalog: Catalog, sql: str, expected: set[str]) -> None:
        assert reads(resolved(sql, catalog)) == expected

    @pytest.mark.parametrize("sql", HIDDEN)
    def test_a_nearer_name_hides_nothing(self, catalog: Catalog, sql: str) -> None:
        assert "people.salary" in reads(resolved(sql, catalog))

    def test_an_inner_name_is_the_inner_table_s(self, catalog: Catalog) -> None:
        sql = "SELECT name FROM app.people WHERE EXISTS (SELECT 1 FROM public.pay WHERE salary > 1)"
        assert reads(resolved(sql, catalog)) == {"people.name", "pay.salary"}


class TestAnswers:
    def answer(self, resolution: Resolution, name: str) -> tuple[Answer, Fault | None]:
        (found,) = (column for column in resolution.columns if column.ref.name == name)
        return found.answer, found.fault

    @pytest.mark.parametrize(
        ("sql", "name", "fault"),
        [
            ("SELECT wages FROM people", "wages", Fault.COLUMN),
            ("SELECT p.wages FROM people p", "wages", Fault.COLUMN),
            ("SELECT people.name FROM people p", "name", Fault.SOURCE),
            ("UPDATE people SET wages = 1 WHERE id = 1", "wages", Fault.COLUMN),
        ],
    )
    def test_faults(self, catalog: Catalog, sql: str, name: str, fault: Fault) -> None:
        assert self.answer(resolved(sql, catalog), name) == (Answer.UNKNOWN, fault)

    @pytest.mark.parametrize(
        "sql",
        [
            "SELECT wages FROM people",
            "SELECT wages FROM nowhere_to_be_found",
        ],
    )
    def test_temporary_relations_make_names_uncertain(self, catalog: Catalog, sql: str) -> None:
        resolution = resolve(facts(sql), catalog, PATHS, temporary=True)
        assert unknown(resolution) == []
        assert self.answer(resolution, "wages")[0] is Answer.UNCERTAIN

    def test_a_qualified_name_is_no_temporary_relation(self, catalog: Catalog) -> None:
        resolution = resolve(facts("SELECT wages FROM app.people"), catalog, PATHS, temporary=True)
        assert unknown(resolution) == ["wages"]
        resolution = resolve(facts("SELECT wages FROM pg_temp.people"), catalog, PATHS, temporary=False)
        assert unknown(resolution) == []

    def test_two_paths(self, catalog: Catalog) -> None:
        """Between a SET search_path and the server's word on it both hold."""
        paths = (("app",), ("public",))
        resolution = resolved("SELECT id, nickname, wages FROM people", catalog, paths)
        assert unknown(resolution) == []
        assert resolution.relations[0].answer is Answer.UNCERTAIN
        assert {str(r.qualified) for r in resolution.relations[0].relations} == {
            "app.people",
            "public.people",
        }
        assert {str(c) for c in resolution.reads} == {
            "app.people.id",
            "public.people.id",
            "public.people.nickname",
        }

    def test_a_relation_in_doubt_hides_nothing(self, catalog: Catalog) -> None:
        """Where the inner relation has no such column the outer one's is read."""
        paths = (("app",), ("public",))
        sql = "SELECT (SELECT salary FROM people LIMIT 1) FROM public.pay"
        assert reads(resolved(sql, catalog, paths)) == {"people.salary", "pay.salary"}
        sql = "SELECT (SELECT pay FROM people LIMIT 1) FROM public.pay"
        assert reads(resolved(sql, catalog, paths)) == {"pay.salary", "pay.pay_id"}

    def test_the_schema_of_a_relation_in_doubt_is_not_known(self, catalog: Catalog) -> None:
        sql = "SELECT pg_temp_3.passing.a FROM passing"
        assert unknown(resolve(facts(sql), catalog, PATHS, temporary=True)) == []
        assert unknown(resolved("SELECT pg_temp_3.people.a FROM people", catalog)) == ["pg_temp_3.people.a"]

    def test_an_item_of_group_by_that_is_not_alone(self, catalog: Catalog) -> None:
        """In a ROLLUP it may name an output, in an expression it may not."""
        resolution = resolved("SELECT name AS n FROM people GROUP BY name, ROLLUP (n)", catalog)
        assert self.answer(resolution, "n")[0] is Answer.UNCERTAIN

    @pytest.mark.parametrize(
        "sql",
        [
            "CREATE TABLE fresh (a int CHECK (a > b))",
            "CREATE INDEX ON people (nothing)",
            "CREATE POLICY p ON people USING (nothing > 1)",
            "CREATE FUNCTION f(a int) RETURNS int LANGUAGE sql RETURN a + 1",
            "CREATE RULE r AS ON DELETE TO people DO ALSO INSERT INTO note VALUES (old.id)",
            "DROP TABLE nothing",
            "CREATE TEMP TABLE fresh AS SELECT id FROM fresher",
        ],
    )
    def test_what_other_statements_name_is_the_servers_to_judge(self, catalog: Catalog, sql: str) -> None:
        assert unknown(resolved(sql, catalog)) == []
