"""Reading the catalog of real servers: what is in a snapshot, what an epoch notices, how a watcher lives."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from itertools import pairwise
from random import Random
from typing import Any, TypeVar

import asyncpg
import pytest

from policy import catalog_queries, catalog_source
from policy.catalog import Catalog
from policy.catalog_values import (
    CastContext,
    CastMethod,
    Column,
    ExpressionOrigin,
    FunctionKind,
    Generated,
    Identity,
    Relation,
    RelationKind,
    RuleEvent,
    TypeKind,
    Uses,
    Volatility,
)
from policy.catalog_watcher import CatalogUnavailableError, CatalogWatcher, connector
from policy.names import QualifiedName
from tests.policy.conftest import read_catalog
from tests.support.postgres import Database, Server

Result = TypeVar("Result")


HUES = """
CREATE TYPE hue AS ENUM ('red', 'blue');
CREATE FUNCTION hue_order(hue, hue) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN 0; END';
CREATE FUNCTION hue_before(hue, hue) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN true; END';
CREATE OPERATOR <# (LEFTARG = hue, RIGHTARG = hue, FUNCTION = hue_before);
CREATE OPERATOR CLASS hue_class FOR TYPE hue USING btree AS OPERATOR 1 <#, FUNCTION 1 hue_order(hue, hue);
CREATE TYPE hues AS RANGE (SUBTYPE = hue, SUBTYPE_OPCLASS = hue_class);
"""


def on_connection(dsn: str, work: Callable[[Any], Awaitable[Result]]) -> Result:
    async def run() -> Result:
        connection = await asyncpg.connect(dsn)
        try:
            return await work(connection)
        finally:
            await connection.close()

    return asyncio.run(run())


@pytest.fixture(scope="session")
def catalog(rich_catalog: Catalog) -> Catalog:
    return rich_catalog


def relation(catalog: Catalog, name: str, schema: str = "app") -> Relation:
    found = catalog.relation(schema, name)
    assert found is not None
    return found


def names(values: Any) -> set[str]:
    return {str(value) for value in values}


class TestRelations:
    def test_kinds(self, catalog: Catalog) -> None:
        kinds = {r.name: r.kind for r in catalog.content.relations if r.schema == "app"}
        assert {
            name: kinds[name]
            for name in ("people", "moves", "moves_old", "names", "kept", "counter", "address")
        } == {
            "people": RelationKind.TABLE,
            "moves": RelationKind.PARTITIONED,
            "moves_old": RelationKind.TABLE,
            "names": RelationKind.VIEW,
            "kept": RelationKind.MATERIALIZED_VIEW,
            "counter": RelationKind.SEQUENCE,
            "address": RelationKind.COMPOSITE,
        }
        assert catalog.relation("Odd Names", "Mixed Case") is not None
        assert catalog.relation("pg_catalog", "pg_class") is not None
        assert not any(r.schema.startswith(("pg_toast", "pg_temp")) for r in catalog.content.relations)

    def test_columns(self, catalog: Catalog) -> None:
        people = relation(catalog, "people")
        assert [c.name for c in people.columns] == [
            *("id", "name", "email", "mail2", "mood", "home", "tags", "salary", "folded", "since", "boss_id")
        ], "the dropped column is gone"
        text = QualifiedName("pg_catalog", "text")
        assert people.column("id") == Column(
            "id", 1, QualifiedName("pg_catalog", "int4"), True, True, Identity.ALWAYS
        )
        assert people.column("name") == Column("name", 2, text, not_null=True)
        assert people.column("folded") == Column("folded", 10, text, default=True, generated=Generated.STORED)
        email, mail2 = people.column("email"), people.column("mail2")
        assert email is not None
        assert (email.type, email.not_null, email.default) == (QualifiedName("app", "email"), True, False)
        assert mail2 is not None
        assert mail2.default, "the domain has a default"
        move_id = relation(catalog, "moves").column("move_id")
        assert move_id is not None
        assert move_id.identity is Identity.BY_DEFAULT

    def test_keys_and_indexes(self, catalog: Catalog) -> None:
        people = relation(catalog, "people")
        assert people.unique_keys == (("id",), ("email",)), "neither partial nor deferrable ones"
        assert {i.name: i.columns for i in people.indexes}["people_folded"] == (None, "mood")
        assert relation(catalog, "stock").unique_keys == (("product_id", "place"),)
        assert relation(catalog, "kept").unique_keys == (("place",),)

    def test_foreign_keys(self, catalog: Catalog) -> None:
        (key,) = relation(catalog, "moves").foreign_keys
        assert key.columns == key.target_columns == ("product_id", "place")
        assert key.target == QualifiedName("app", "stock")

    def test_partitions(self, catalog: Catalog) -> None:
        moves = relation(catalog, "moves")
        assert names(moves.children) == {"app.moves_old", "app.moves_new"}
        assert names(catalog.descendants(moves)) == {"app.moves_old", "app.moves_new", "app.moves_new_rest"}
        assert relation(catalog, "moves_old").partition
        assert not moves.partition

    def test_triggers(self, catalog: Catalog) -> None:
        after, before = relation(catalog, "people").triggers
        assert (before.events, before.before, before.row, before.enabled) == (
            ("insert", "update"),
            True,
            True,
            True,
        )
        assert (after.events, after.before, after.row, after.enabled) == (("delete",), False, False, False)
        assert names([before.function]) == {"lab.on_write"}

    def test_expressions(self, catalog: Catalog) -> None:
        found = {
            (e.origin, e.column): names(e.uses.functions) for e in relation(catalog, "people").expressions
        }
        assert found == {
            (ExpressionOrigin.DEFAULT, "folded"): {"lab.fold"},
            (ExpressionOrigin.DEFAULT, "since"): {"lab.stamp"},
            (ExpressionOrigin.DEFAULT, "mood"): set(),
            (ExpressionOrigin.CHECK, None): {"lab.mark"},
            (ExpressionOrigin.INDEX, None): {"lab.fold"},
        }
        reads = {e.column: e.reads for e in relation(catalog, "people").expressions if e.reads}
        assert reads == {"folded": ("name",)}
        note = relation(catalog, "note")
        assert [(e.origin, names(e.uses.functions)) for e in note.expressions] == [
            (ExpressionOrigin.POLICY, {"lab.may_see"})
        ]
        assert (note.row_security, note.row_security_forced) == (True, False)

    def test_a_rule_of_a_table(self, catalog: Catalog) -> None:
        (rule,) = relation(catalog, "note").rules
        assert (rule.event, rule.instead) == (RuleEvent.DELETE, False)
        assert {str(r.relation): r.columns for r in rule.reads} == {"app.stock": ("on_hand",)}
        assert names(rule.uses.functions) == {"lab.mark"}


VIEWS: dict[str, tuple[set[str], set[str]]] = {
    "names": ({"app.people.id", "app.people.name", "app.people.salary"}, {"pg_catalog.numeric"}),
    "names_again": (
        {"app.names.called", "app.people.id", "app.people.name", "app.people.salary"},
        {"pg_catalog.numeric"},
    ),
    "counts": (set(), {"pg_catalog.count"}),
    "odd_sums": ({"app.moves.amount"}, {"lab.total", "lab.step", "lab.finish", "lab.near"}),
    "casts": ({"app.people.mood"}, {"lab.mood_to_int"}),
    "mails": ({"app.people.name"}, {"lab.guard"}),
    "sleeper": ({"app.note.id"}, {"pg_catalog.pg_sleep", "pg_catalog.float8"}),
    "sampled": ({"app.note.id", "app.stock.on_hand"}, set()),
    "kept": ({"app.stock.place", "app.stock.on_hand"}, {"pg_catalog.sum"}),
}


class TestViews:
    @pytest.mark.parametrize("name", VIEWS)
    def test_reach(self, catalog: Catalog, name: str) -> None:
        columns, functions = VIEWS[name]
        found = relation(catalog, name)
        assert names(c for c in catalog.reach(found) if c.column is not None) == columns
        assert names(catalog.functions_reached(found)) == functions

    def test_a_whole_row_is_every_column(self, catalog: Catalog) -> None:
        people = relation(catalog, "people")
        assert {c.column for c in catalog.reach(relation(catalog, "rows"))} == {
            None,
            *(c.name for c in people.columns),
        }

    def test_the_servers_own_relations_show(self, catalog: Catalog) -> None:
        """pg_depend has no rows for them."""
        assert "pg_catalog.pg_authid.rolpassword" in names(catalog.reach(relation(catalog, "passwords")))
        assert "pg_catalog.pg_stat_activity.query" in names(catalog.reach(relation(catalog, "watching")))

    def test_relations_without_columns(self, catalog: Catalog) -> None:
        assert names(catalog.reach(relation(catalog, "counts"))) == {"app.stock"}


class TestFunctions:
    def test_attributes(self, catalog: Catalog) -> None:
        (stamp,) = catalog.functions("lab", "stamp")
        assert (stamp.kind, stamp.volatility, stamp.security_definer, stamp.language, stamp.owner) == (
            FunctionKind.FUNCTION,
            Volatility.STABLE,
            True,
            "sql",
            "owner",
        )
        (pick,) = catalog.functions("lab", "pick")
        assert (len(pick.arguments), pick.defaults, pick.variadic) == (3, 2, True)
        assert names(pick.uses.functions) == {"lab.mark"}, "called by a parameter's default"
        (total,) = catalog.functions("lab", "total")
        assert total.kind is FunctionKind.AGGREGATE
        assert names(total.uses.functions) == {"lab.step", "lab.finish"}
        (tidy,) = catalog.functions("lab", "tidy")
        assert tidy.kind is FunctionKind.PROCEDURE

    def test_result_columns(self, catalog: Catalog) -> None:
        (pairs,) = catalog.functions("lab", "pairs")
        assert ([c.name for c in pairs.columns], pairs.returns_set) == (["left_part", "right_part"], True)
        (everybody,) = catalog.functions("lab", "everybody")
        assert everybody.result == QualifiedName("app", "people")
        assert [c.name for f in catalog.functions("pg_catalog", "json_each") for c in f.columns] == [
            "key",
            "value",
        ]

    def test_builtin_overloads_of_a_shared_name(self, catalog: Catalog) -> None:
        schemas = {f.schema for f in catalog.functions_named("length")}
        assert schemas == {"lab", "pg_catalog"}
        assert len(catalog.functions("pg_catalog", "length")) > 3
        assert catalog.functions("pg_catalog", "upper") == (), "no other schema has it"

    def test_row_functions(self, catalog: Catalog) -> None:
        assert {"to_jsonb", "row_to_json", "count", "pg_typeof"} <= catalog.row_functions
        assert "lower" not in catalog.row_functions


class TestOperatorsCastsTypes:
    def test_operators(self, catalog: Catalog) -> None:
        (near,) = catalog.operators("<~>")
        assert str(near.function) == "lab.near"
        assert {o.schema for o in catalog.operators("+")} == {"lab", "pg_catalog"}
        assert catalog.operators("*") == ()

    def test_casts(self, catalog: Catalog) -> None:
        (cast,) = (c for c in catalog.casts(QualifiedName("pg_catalog", "int4")))
        assert (str(cast.source), str(cast.function), cast.context, cast.method) == (
            "app.mood",
            "lab.mood_to_int",
            CastContext.ASSIGNMENT,
            CastMethod.FUNCTION,
        )

    def test_types(self, catalog: Catalog) -> None:
        kinds = {t.name: t.kind for t in catalog.content.types if t.schema == "app"}
        assert kinds == {
            "mood": TypeKind.ENUM,
            "email": TypeKind.DOMAIN,
            "work_email": TypeKind.DOMAIN,
            "home": TypeKind.DOMAIN,
            "address": TypeKind.COMPOSITE,
            "span": TypeKind.RANGE,
            "span_multirange": TypeKind.MULTIRANGE,
        }
        work_email, span = catalog.type("app", "work_email"), catalog.type("app", "span")
        assert work_email is not None
        assert span is not None
        assert names(catalog.closure(work_email.uses)) == {"lab.guard"}
        assert names(span.uses.functions) == {"lab.gap"}
        people = catalog.type("app", "people")
        assert people is not None
        assert people.relation == QualifiedName("app", "people")

    def test_the_operator_class_of_a_range_counts(self, empty_database: Database) -> None:
        empty_database.execute(HUES)
        hues = read_catalog(empty_database.dsn()).type("public", "hues")
        assert hues is not None
        assert names(hues.uses.functions) == {"public.hue_order"}

    def test_a_domain_inside_a_composite_counts(self, catalog: Catalog) -> None:
        address = catalog.type("app", "_address")
        assert address is not None
        assert address.element is not None
        uses = Uses(types=(QualifiedName("app", "_address"),))
        assert names(catalog.closure(uses)) == {"lab.guard"}


class TestReading:
    def test_an_ordinary_login_sees_the_same(self, shop_catalogs: tuple[Catalog, Catalog]) -> None:
        superuser, reader = shop_catalogs
        assert reader.content.login == "shop_ro"
        assert reader.sha256 == superuser.sha256
        assert reader.content.relations == superuser.content.relations

    def test_session(self, catalog: Catalog, rich: Database) -> None:
        content = catalog.content
        assert (content.version // 10000, content.database) == (rich.server.major, rich.name)
        assert content.search_path == ("public",)
        assert {"app", "lab", "Odd Names", "public", "pg_catalog"} <= set(content.schemas)

    def test_a_dump_is_the_same_again(self, catalog: Catalog) -> None:
        assert Catalog.from_json(catalog.to_json()).content == catalog.content

    def test_the_connection_is_left_as_it_was(self, rich: Database) -> None:
        async def work(connection: Any) -> tuple[Any, ...]:
            await connection.execute("SET search_path TO app")
            await catalog_source.read(connection)
            await catalog_source.epoch(connection)
            return tuple(
                await connection.fetchrow(
                    "SELECT current_setting('search_path'), current_setting('transaction_read_only')"
                )
            )

        assert on_connection(rich.dsn(), work) == ("app", "off")

    def test_names_that_imitate_the_catalogs_are_not_fooled(self, rich: Database) -> None:
        """An operator or relation earlier on the login's search_path must not change what is read."""

        async def work(connection: Any) -> Catalog:
            await connection.execute(
                "CREATE SCHEMA trap; CREATE TABLE trap.pg_class (oid oid, relname name);"
                "SET search_path TO trap, pg_catalog"
            )
            found = await catalog_source.read(connection)
            await connection.execute("DROP SCHEMA trap CASCADE")
            return found

        found = on_connection(rich.dsn(), work)
        assert found.relation("app", "people") is not None
        assert found.content.search_path == ("trap", "pg_catalog")


@pytest.fixture(scope="module")
def shop_catalogs(shop: Database) -> tuple[Catalog, Catalog]:
    return read_catalog(shop.dsn()), read_catalog(shop.dsn("shop_ro"))


CHANGES = (
    "CREATE SCHEMA fresh",
    "CREATE TABLE t (a int, b text)",
    "ALTER TABLE t ADD c int",
    "ALTER TABLE t RENAME b TO bb",
    "ALTER TABLE t ALTER bb SET NOT NULL",
    "ALTER TABLE t ALTER bb SET DEFAULT 'x'",
    "ALTER TABLE t ALTER bb SET DEFAULT 'y'",
    "ALTER TABLE t DROP COLUMN c",
    "CREATE INDEX ON t (a)",
    "ALTER TABLE t ADD PRIMARY KEY (a)",
    "CREATE TABLE u () INHERITS (t)",
    "ALTER TABLE u NO INHERIT t",
    "ALTER TABLE u RENAME TO v",
    "ALTER TABLE v SET SCHEMA fresh",
    "CREATE VIEW w AS SELECT a FROM t",
    "CREATE OR REPLACE VIEW w AS SELECT a + 1 AS a FROM t",
    "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "CREATE OR REPLACE FUNCTION f() RETURNS int LANGUAGE sql VOLATILE AS 'SELECT 2'",
    "ALTER FUNCTION f() SECURITY DEFINER",
    "CREATE FUNCTION g() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
    "CREATE TRIGGER g BEFORE INSERT ON t EXECUTE FUNCTION g()",
    "ALTER TABLE t DISABLE TRIGGER g",
    "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
    "CREATE POLICY p ON t USING (a > 0)",
    "ALTER POLICY p ON t USING (a > 1)",
    "CREATE DOMAIN d AS int",
    "ALTER DOMAIN d ADD CONSTRAINT c CHECK (VALUE > 0)",
    "CREATE TYPE e AS ENUM ('x')",
    "CREATE FUNCTION h(int) RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "CREATE OPERATOR @@@ (RIGHTARG = int, FUNCTION = h)",
    "CREATE FUNCTION c(e) RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "CREATE CAST (e AS int) WITH FUNCTION c(e)",
    "DROP TABLE t CASCADE",
    "DROP SCHEMA fresh CASCADE",
)
NO_CHANGES = (
    "INSERT INTO stay VALUES (1)",
    "ANALYZE stay",
    "VACUUM stay",
    "CREATE TEMP TABLE passing (a int DEFAULT 1 CHECK (a > 0), b text)",
    "CREATE INDEX ON passing (a)",
    "CREATE TEMP VIEW passing_by AS SELECT 1 AS one",
    "DROP TABLE passing",
    "SELECT nextval('count')",
)
SERVERS_CHANGES = (
    "ALTER FUNCTION pg_catalog.lower(text) COST 2",
    "ALTER FUNCTION pg_catalog.lower(text) RENAME TO lowered",
    "ALTER FUNCTION pg_catalog.lowered(text) RENAME TO lower",
    "ALTER SCHEMA information_schema RENAME TO described",
    "ALTER SCHEMA described RENAME TO information_schema",
    "ALTER VIEW information_schema.tables RENAME TO listed",
    "ALTER TABLE information_schema.sql_parts RENAME COLUMN comments TO remarks",
    "ALTER TABLE information_schema.sql_parts OWNER TO pg_monitor",
    "CREATE TYPE odd AS ENUM ('a')",
    "ALTER TABLE information_schema.sql_parts ADD COLUMN odd odd",
    "ALTER TYPE odd RENAME TO odder",
    "CREATE TABLE heir () INHERITS (information_schema.sql_parts)",
    "CREATE INDEX ON information_schema.sql_parts (feature_id)",
    "ANALYZE information_schema.sql_parts",
    "DROP TABLE heir",
    "ALTER TABLE information_schema.sql_parts DROP COLUMN odd",
    "DROP TABLE information_schema.sql_parts",
)
"""Of objects that came with the server."""


RANDOM_START = """
CREATE SCHEMA s0; CREATE SCHEMA s1;
CREATE FUNCTION fire() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE FUNCTION f0(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1';
CREATE FUNCTION f1(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1';
CREATE DOMAIN d0 AS int; CREATE DOMAIN d1 AS int;
CREATE TABLE t0 (id int PRIMARY KEY, a d0, b d1 DEFAULT f0(1));
CREATE TABLE t1 (id int PRIMARY KEY, a int REFERENCES t0, b t0);
CREATE VIEW v0 AS SELECT id, a, f0(id) AS b FROM t0;
CREATE TABLE p0 (id int, a int) PARTITION BY RANGE (id);
"""
"""What RANDOM_CHANGES begins with."""
RANDOM_CHANGES = (
    "CREATE TABLE {t} (id int PRIMARY KEY, a {type}, b {type})",
    "CREATE TABLE {t} (id int, a {type}) INHERITS ({t})",
    "CREATE TABLE {t} PARTITION OF {p} FOR VALUES FROM ({n}) TO ({n} + 1)",
    "CREATE TABLE {p} (id int, a {type}) PARTITION BY RANGE (id)",
    "CREATE TEMP TABLE {t} (id int)",
    "CREATE TYPE {t} AS (id int, a {type})",
    "CREATE MATERIALIZED VIEW {v} AS SELECT * FROM {t}",
    "CREATE VIEW {v} AS SELECT id, a, f{n}(id) AS b FROM {t}",
    "CREATE OR REPLACE VIEW {v} AS SELECT id, f{n}(id)::int AS a, a AS b, {n} AS c FROM {t}",
    "CREATE VIEW {v} AS SELECT x, x.id FROM {t} x JOIN {v} y USING (id)",
    "CREATE RULE r{n} AS ON INSERT TO {t} DO ALSO UPDATE {t} SET a = NULL WHERE id = {n}",
    "CREATE TRIGGER g{n} BEFORE INSERT ON {t} EXECUTE FUNCTION fire()",
    "CREATE POLICY y{n} ON {t} USING (f{n}(id) > 0)",
    "CREATE INDEX ON {t} (a, f{n}(id))",
    "CREATE DOMAIN {d} AS int CHECK (f{n}(VALUE) > 0)",
    "CREATE FUNCTION f{n}(text) RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "ALTER TABLE {t} ADD COLUMN c {type}",
    "ALTER TABLE {t} ADD COLUMN b {type} DEFAULT f{n}(3)",
    "ALTER TABLE {t} ADD FOREIGN KEY (a) REFERENCES {t} (id)",
    "ALTER TABLE {t} ADD CHECK (f{n}(a) > 0)",
    "ALTER TABLE {t} DROP COLUMN a CASCADE",
    "ALTER TABLE {t} ALTER a SET NOT NULL",
    "ALTER TABLE {t} ALTER a TYPE {type} USING NULL",
    "ALTER TABLE {t} ALTER b SET DEFAULT f{n}(2)",
    "ALTER TABLE {t} RENAME COLUMN a TO c",
    "ALTER TABLE {t} RENAME COLUMN c TO a",
    "ALTER TABLE {t} RENAME TO t{n}",
    "ALTER TABLE {t} SET SCHEMA s{n}",
    "ALTER TABLE {t} INHERIT {t}",
    "ALTER TABLE {t} DISABLE TRIGGER ALL",
    "ALTER TABLE {t} ENABLE ROW LEVEL SECURITY",
    "ALTER TABLE {t} OWNER TO pg_monitor",
    "ALTER TABLE {t} SET UNLOGGED",
    "ALTER TABLE {p} DETACH PARTITION {t}",
    "ALTER TABLE {p} ATTACH PARTITION {t} FOR VALUES FROM ({n}) TO ({n} + 1)",
    "ALTER VIEW {v} RENAME COLUMN a TO c",
    "ALTER DOMAIN {d} RENAME TO d{n}",
    "ALTER DOMAIN {d} SET DEFAULT {n}",
    "ALTER DOMAIN {d} SET NOT NULL",
    "ALTER DOMAIN {d} SET SCHEMA s{n}",
    "ALTER FUNCTION f{n}(int) RENAME TO renamed",
    "ALTER FUNCTION renamed(int) RENAME TO f{n}",
    "ALTER SCHEMA s{n} RENAME TO s2",
    "ALTER SCHEMA s2 RENAME TO s{n}",
    "DROP TABLE {t} CASCADE",
    "DROP VIEW {v} CASCADE",
    "DROP DOMAIN {d} CASCADE",
    "DROP FUNCTION f{n}(int) CASCADE",
    "ANALYZE",
    "VACUUM FULL pg_attribute",
    "BEGIN; ALTER TABLE {t} ADD COLUMN c int; ROLLBACK",
    "BEGIN; SAVEPOINT s; ALTER TABLE {t} ADD c int; ROLLBACK TO s; ALTER TABLE {t} DROP COLUMN b; COMMIT",
)


class Spied:
    """A connection that keeps what it was asked, by the text, and fails where ``failing`` is asked."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.asked: dict[str, tuple[Any, ...]] = {}
        self.failing: str | None = None

    def cursor(self, query: str, *arguments: Any, prefetch: int) -> Any:
        self.asked[query] = arguments
        return self.connection.cursor(query, *arguments, prefetch=prefetch)

    async def fetch(self, query: str, *arguments: Any) -> Any:
        if query == self.failing:
            raise TimeoutError
        return await self.connection.fetch(query, *arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)


def random_change(random: Random) -> str:
    """One of RANDOM_CHANGES, of names of which some exist."""
    statement = random.choice(RANDOM_CHANGES)
    for part, chosen in (
        ("{t}", ("t0", "t1", "t2", "s0.t0", "s1.t1", "p0")),
        ("{v}", ("v0", "v1", "v2")),
        ("{p}", ("p0", "p1")),
        ("{d}", ("d0", "d1", "s0.d0")),
        ("{type}", ("int", "text", "d0", "d1", "t0", "t1[]", "d0[]")),
        ("{n}", ("0", "1")),
    ):
        while part in statement:
            statement = statement.replace(part, random.choice(chosen), 1)
    return statement


class TestEpoch:
    def test_what_it_notices_and_what_not(self, empty_database: Database) -> None:
        async def work(connection: Any) -> tuple[list[str], list[str]]:
            await connection.execute("CREATE TABLE stay (a int); CREATE SEQUENCE count")
            last = await catalog_source.epoch(connection)
            missed, noticed = [], []
            for statement in CHANGES:
                await connection.execute(statement)
                now = await catalog_source.epoch(connection)
                if now == last:
                    missed.append(statement)
                last = now
            for statement in NO_CHANGES:
                await connection.execute(statement)
                now = await catalog_source.epoch(connection)
                if now != last:
                    noticed.append(statement)
                last = now
            return missed, noticed

        assert on_connection(empty_database.dsn(), work) == ([], [])

    def test_a_reader_that_keeps_the_servers_own_part_reads_the_same(self, empty_database: Database) -> None:
        """After every change, the server's own objects among what changes, as somebody who reads anew."""

        async def work(connection: Any) -> list[str]:
            await connection.execute("CREATE TABLE stay (a int); CREATE SEQUENCE count")
            reader = catalog_source.Reader(connection)
            await reader.read()
            differing = []
            for statement in (*CHANGES, *NO_CHANGES, *SERVERS_CHANGES):
                await connection.execute(statement)
                again, anew = await reader.read(), await catalog_source.read(connection)
                if again.content != anew.content or again.sha256 != anew.sha256:
                    differing.append(statement)
                if again.sha256 != Catalog(again.content).sha256:
                    differing.append(f"the digest after {statement}")
            return differing

        assert on_connection(empty_database.dsn(), work) == []

    @pytest.mark.parametrize("seed", [1, 2, *(pytest.param(n, marks=pytest.mark.slow) for n in range(3, 16))])
    def test_whatever_changes_a_reader_reads_the_same_by_difference(
        self, empty_database: Database, seed: int
    ) -> None:
        """Random changes, many of which fail or are undone, a few at a time."""
        random = Random(seed)

        async def work(connection: Any) -> tuple[list[str], int]:
            await connection.execute(RANDOM_START)
            reader = catalog_source.Reader(connection)
            await reader.read()
            differing, done = [], 0
            for _ in range(8):
                tried = []
                for _ in range(random.randint(1, 14)):
                    statement = random_change(random)
                    tried.append(statement)
                    try:
                        await connection.execute(statement)
                        done += 1
                    except asyncpg.PostgresError:
                        await connection.execute("ROLLBACK")
                again, anew = await reader.read(), await catalog_source.read(connection)
                if (
                    again.content != anew.content
                    or not again.sha256 == anew.sha256 == Catalog(again.content).sha256
                ):
                    differing.append("; ".join(tried))
            return differing, done

        differing, done = on_connection(empty_database.dsn(), work)
        assert differing == []
        assert done > 5, "there were changes"

    def test_columns_are_asked_for_where_they_changed(self, empty_database: Database) -> None:
        """And where their type did: to rename a row type or a domain writes no column's row."""

        async def work(connection: Any) -> list[int]:
            await connection.execute(
                "CREATE DOMAIN code AS text; CREATE TABLE held (a int); CREATE TABLE holder (h held);"
                "CREATE TABLE coded (c code); CREATE TABLE plain (a int, b int)"
            )
            spied = Spied(connection)
            reader = catalog_source.Reader(spied)
            await reader.read()
            counts = []
            for statement in (
                "ALTER TABLE held RENAME TO kept",
                "ALTER DOMAIN code SET DEFAULT 'x'",
                "CREATE TABLE another (a int)",
                "CREATE VIEW seen AS SELECT a FROM plain",
                "ALTER TABLE plain DROP COLUMN a CASCADE",
                "INSERT INTO plain VALUES (1)",
            ):
                await connection.execute(statement)
                spied.asked.clear()
                await reader.read()
                assert catalog_queries.ADDED_COLUMNS not in spied.asked
                (oids,) = spied.asked[catalog_queries.COLUMNS_OF]
                counts.append(len(oids))
            return counts

        # holder; coded; another; seen; plain, which seen went with
        assert on_connection(empty_database.dsn(), work) == [1, 1, 1, 1, 1, 0]

    def test_after_a_failure_a_reader_reads_everything(self, empty_database: Database) -> None:
        async def work(connection: Any) -> tuple[bool, bool]:
            await connection.execute("CREATE TABLE t (a int)")
            spied = Spied(connection)
            reader = catalog_source.Reader(spied)
            await reader.read()
            spied.failing = catalog_queries.WRITTEN
            with pytest.raises(TimeoutError):
                await reader.read()
            spied.failing = None
            await connection.execute("ALTER TABLE t ADD b int")
            spied.asked.clear()
            again, anew = await reader.read(), await catalog_source.read(connection)
            assert catalog_queries.SERVERS_COLUMNS in spied.asked
            return again.content == anew.content, relation(again, "t", "public").column("b") is not None

        assert on_connection(empty_database.dsn(), work) == (True, True)

    def test_a_reader_asks_for_the_servers_part_once(self, empty_database: Database) -> None:
        asked: list[str] = []

        async def work(connection: Any) -> tuple[int, int, int]:
            connection.add_query_logger(lambda record: asked.append(record.query))
            reader = catalog_source.Reader(connection)
            counts = []
            for statement in ("CREATE TABLE t (a int)", "CREATE TABLE u (a int)", SERVERS_CHANGES[0]):
                await connection.execute(statement)
                asked.clear()
                await reader.read()
                counts.append(asked.count(catalog_queries.SERVERS_FUNCTIONS))
            return counts[0], counts[1], counts[2]

        assert on_connection(empty_database.dsn(), work) == (1, 0, 1)

    def test_visible_changes_with_every_commit_and_with_no_read(self, empty_database: Database) -> None:
        async def work(connection: Any) -> tuple[bool, bool]:
            before = await catalog_source.visible(connection)
            await connection.fetch("SELECT * FROM pg_class")
            after_read = await catalog_source.visible(connection)
            await connection.execute("CREATE TABLE t (a int)")
            return before == after_read, after_read == await catalog_source.visible(connection)

        assert on_connection(empty_database.dsn(), work) == (True, False)


def watch(
    database: Database, work: Callable[[CatalogWatcher], Coroutine[Any, Any, None]], **more: Any
) -> None:
    async def run() -> None:
        connect = connector(dsn=database.dsn())
        async with asyncio.timeout(60), CatalogWatcher(connect, **more) as watcher:
            await work(watcher)

    asyncio.run(run())


class TestWatcher:
    def test_renews_on_demand(self, empty_database: Database) -> None:
        async def work(watcher: CatalogWatcher) -> None:
            assert not watcher.current
            first = await watcher.renew()
            assert watcher.current is first
            assert await watcher.renew() is first, "nothing changed, nothing read"
            epoch = watcher.epoch
            await asyncio.to_thread(empty_database.execute, "CREATE TABLE late (a int)")
            both = await asyncio.gather(watcher.renew(), watcher.renew())
            assert both[0].relation("public", "late") is not None
            assert both[0] is both[1]
            assert watcher.epoch != epoch

        watch(empty_database, work, poll_seconds=600)

    def test_polls(self, empty_database: Database) -> None:
        async def work(watcher: CatalogWatcher) -> None:
            await watcher.renew()
            await asyncio.to_thread(empty_database.execute, "CREATE TABLE late (a int)")
            while watcher.current is None or watcher.current.relation("public", "late") is None:
                await asyncio.sleep(0.01)

        watch(empty_database, work, poll_seconds=0.01)

    def test_survives_its_connection(self, empty_database: Database) -> None:
        async def work(watcher: CatalogWatcher) -> None:
            await watcher.renew()
            await asyncio.to_thread(
                empty_database.execute,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()",
            )
            await asyncio.to_thread(empty_database.execute, "CREATE TABLE late (a int)")
            renewed = await watcher.renew()
            assert renewed.relation("public", "late") is not None
            assert watcher.failure is None

        watch(empty_database, work, poll_seconds=0.01)

    def test_an_unconfirmed_snapshot_is_none(self, empty_database: Database) -> None:
        now = [0.0]

        async def work(watcher: CatalogWatcher) -> None:
            first = await watcher.renew()
            now[0] = 30.0
            assert watcher.current is first
            now[0] = 30.5
            assert not watcher.current
            assert await watcher.renew() is first
            assert watcher.current is first

        watch(empty_database, work, poll_seconds=600, stale_after=30.0, clock=lambda: now[0])

    def test_no_server(self) -> None:
        async def connect() -> Any:
            raise ConnectionRefusedError("nobody there")

        async def run() -> None:
            async with CatalogWatcher(connect) as watcher:
                with pytest.raises(CatalogUnavailableError) as raised:
                    await watcher.renew(timeout=0.05)
                assert isinstance(raised.value.__cause__, ConnectionRefusedError)
                assert watcher.current is None
                assert isinstance(watcher.failure, ConnectionRefusedError)

        asyncio.run(run())


@pytest.mark.slow
def test_ten_thousand_relations(postgres18: Server) -> None:
    """A schema of 10,000 tables and 200,000 columns is read in a few seconds, and asked about in a moment."""
    with postgres18.database("template0") as database:
        columns = ", ".join(f"column_{n} text" for n in range(19))
        for start in range(0, 10_000, 1_000):
            database.execute(
                f"DO $$BEGIN FOR n IN {start}..{start + 999} LOOP "
                f"EXECUTE format('CREATE TABLE t%s (id int, {columns})', n); END LOOP; END$$"
            )

        async def work(connection: Any) -> tuple[Catalog, list[float]]:
            reader = catalog_source.Reader(connection)
            times = [time.perf_counter()]
            await reader.read()
            times.append(time.perf_counter())
            await connection.execute("CREATE TABLE another (a int)")
            times.append(time.perf_counter())
            found = await reader.read()
            times.append(time.perf_counter())
            await catalog_source.epoch(connection)
            times.append(time.perf_counter())
            anew = await catalog_source.read(connection)
            assert found.content == anew.content
            assert found.sha256 == anew.sha256
            return found, [after - before for before, after in pairwise(times)]

        found, (reading, _, again, asking) = on_connection(database.dsn(), work)
        print(f"read in {reading:.2f} s, by difference in {again:.2f} s, epoch in {asking:.2f} s")
        assert sum(r.schema == "public" for r in found.content.relations) == 10_001
        assert len(relation(found, "t9999", "public").columns) == 20
