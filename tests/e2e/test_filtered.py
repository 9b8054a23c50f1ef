"""``catalogs: filtered`` through real clients: what is hidden is as if it were not there.

The oracle is a database where it is not: the same schema without the hidden parts, asked directly.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy

from tests.support.hidden_schema import HIDDEN, POLICY, PREFIX, SHOWN
from tests.support.postgres import Database, Server
from tests.support.proxy import RunningProxy, run_proxy

GRANTS = """
GRANT USAGE ON SCHEMA public, reporting TO shop_app;
GRANT ALL ON ALL TABLES IN SCHEMA public, reporting TO shop_app;
"""
TOO_LOOSE = (
    "GRANT USAGE ON SCHEMA zzvault TO shop_app; GRANT ALL ON ALL TABLES IN SCHEMA zzvault TO shop_app;"
)
KEEPER = (
    POLICY.replace("access: read_only", "access: read_write").replace(
        "{select: allow,", "{select: allow, delete: allow,"
    )
    + "limits: {affected_rows: 1}\ncost: {max_total_cost: 100000}\n"
)
"""The same for an agent that writes, under limits that are near to what it does."""
CLOSED = POLICY.replace("catalogs: filtered", "catalogs: off")
"""The same for an agent to whom no catalog is open."""
COMMANDS = (  # noqa: SIM905  # as psql's own -c takes them, one beside the other
    r"\d;\dt;\dv;\dm;\di;\ds;\dE;\d clients;\d bills;\d staff;\d rich;\d reporting.days;"
    r"\d reporting.days_2024;"
    r"\d+ clients;\d+ bills;\d+ staff;\d+ rich;\d+ reporting.days;\d bills_client;\d clients_id_seq;\dn;\dn+;"
    r"\df;\df reporting.*;\dT;\dT+ mood;\da;\dA+;\dAo;\dAp;\dc;\dC;\dd;\ddp;\dD;\do;\dp;\dP;\dP+;\dPtn+;"
    r"\dRp;\dx;\dx+;\dX;\dy;\du;\d zzkeys;\d zz*;\d *keys;\sv rich"
).split(";")
OFTEN = [r"\d", r"\d clients", r"\d staff", r"\d reporting.days", r"\dv", r"\dn", r"\d zzkeys"]


@pytest.fixture(scope="module")
def both(
    postgres: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunningProxy, Database]]:
    """The proxy before a database with hidden parts, and a database without them."""
    folder = tmp_path_factory.mktemp("filtered")
    with postgres.database("template0") as bare, postgres.database("template0") as full:
        bare.execute(SHOWN + GRANTS)
        full.execute(SHOWN + HIDDEN + GRANTS + TOO_LOOSE)
        with run_proxy(full, folder, {"shown": POLICY, "keeper": KEEPER, "closed": CLOSED}) as running:
            yield running, bare


@pytest.fixture
def agent(both: tuple[RunningProxy, Database]) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(**both[0].parameters("shown"), autocommit=True) as connection:
        yield connection


@pytest.fixture
def keeper(both: tuple[RunningProxy, Database]) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(**both[0].parameters("keeper"), autocommit=True) as connection:
        yield connection


def _direct(bare: Database) -> dict[str, Any]:
    return dict(psycopg.conninfo.conninfo_to_dict(bare.dsn("shop_app")))


def _psql(parameters: dict[str, Any], commands: list[str]) -> list[str]:
    asked = [
        part
        for number, command in enumerate(commands)
        for part in ("-c", rf"\echo <<{number}>>", "-c", command)
    ]
    env = {
        **os.environ,
        "PGHOST": str(parameters["host"]),
        "PGPORT": str(parameters["port"]),
        "PGUSER": parameters["user"],
        "PGDATABASE": parameters["dbname"],
        "PGPASSWORD": parameters.get("password") or "",
    }
    done = subprocess.run(
        [str(shutil.which("psql")), "-X", "-A", *asked],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    return [_plain(part) for part in re.split(r"<<\d+>>\n", done.stdout)[1:]]


def _plain(shown: str) -> str:
    """Less what differs between any two databases: numbers that the server gives, and sizes."""
    return re.sub(r"test_\d+|\b1[6-9]\d{3}\b|\d+ (bytes|kB)", "N", shown)


@pytest.mark.skipif(shutil.which("psql") is None, reason="needs psql")
@pytest.mark.parametrize(
    "commands",
    [pytest.param(OFTEN, id="often"), pytest.param(COMMANDS, id="all", marks=pytest.mark.slow)],
)
def test_psql_shows_what_it_would_without_the_hidden_parts(
    both: tuple[RunningProxy, Database], commands: list[str]
) -> None:
    proxy, bare = both
    told = _psql(proxy.parameters("shown"), commands)
    wanted = _psql(_direct(bare), commands)
    assert len(told) == len(commands)
    for command, shown, expected in zip(commands, told, wanted, strict=True):
        assert shown == expected, command


def _reflected(parameters: dict[str, Any], driver: str) -> list[str]:
    url = sqlalchemy.URL.create(
        f"postgresql+{driver}",
        parameters["user"],
        parameters.get("password"),
        parameters["host"],
        int(parameters["port"]),
        parameters["dbname"],
    )
    engine = sqlalchemy.create_engine(url)
    told: list[str] = []
    with engine.connect() as connection:
        inspector = sqlalchemy.inspect(connection)
        told.append(str(sorted(inspector.get_schema_names())))
        for schema in ("public", "reporting"):
            views = sorted(inspector.get_view_names(schema))
            told += [str(views), str(sorted(inspector.get_sequence_names(schema)))]
            told += [str(inspector.get_view_definition(view, schema)) for view in views]
            for table in [*sorted(inspector.get_table_names(schema)), *views]:
                told += [
                    f"{table} {ask(table, schema)}"
                    for ask in (
                        inspector.get_columns,
                        inspector.get_pk_constraint,
                        inspector.get_foreign_keys,
                        inspector.get_indexes,
                        inspector.get_check_constraints,
                        inspector.get_table_comment,
                    )
                ]
        told.append(str(inspector.get_enums("*")))  # type: ignore[attr-defined]
    engine.dispose()
    return told


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_sqlalchemy_reflects_what_it_would_without_the_hidden_parts(
    both: tuple[RunningProxy, Database], driver: str
) -> None:
    proxy, bare = both
    assert _reflected(proxy.parameters("shown"), driver) == _reflected(_direct(bare), driver)


LOOK_UPS = (
    # Django's get_table_list and get_constraints.
    """SELECT c.relname, CASE WHEN c.relispartition THEN 'p' WHEN c.relkind IN ('m', 'v') THEN 'v'
       ELSE 't' END,
       obj_description(c.oid, 'pg_class') FROM pg_catalog.pg_class c
       LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
       WHERE c.relkind IN ('f', 'm', 'p', 'r', 'v') AND n.nspname NOT IN ('pg_catalog', 'pg_toast')
       AND pg_catalog.pg_table_is_visible(c.oid) ORDER BY 1""",
    """SELECT c.conname, array(SELECT attname FROM unnest(c.conkey) WITH ORDINALITY cols(colid, arridx)
       JOIN pg_attribute AS ca ON cols.colid = ca.attnum WHERE ca.attrelid = c.conrelid ORDER BY cols.arridx),
       c.contype, (SELECT fkc.relname || '.' || fka.attname FROM pg_attribute AS fka
       JOIN pg_class AS fkc ON fka.attrelid = fkc.oid
       WHERE fka.attrelid = c.confrelid AND fka.attnum = c.confkey[1]), cl.reloptions
       FROM pg_constraint AS c JOIN pg_class AS cl ON c.conrelid = cl.oid
       WHERE pg_catalog.pg_table_is_visible(cl.oid) AND cl.relname NOT LIKE 'pg%' ORDER BY 1""",
    # JDBC's getTables, getColumns and getPrimaryKeys.
    """SELECT n.nspname AS TABLE_SCHEM, c.relname AS TABLE_NAME, d.description AS REMARKS
       FROM pg_catalog.pg_namespace n, pg_catalog.pg_class c
       LEFT JOIN pg_catalog.pg_description d ON (c.oid = d.objoid AND d.objsubid = 0
       AND d.classoid = 'pg_class'::regclass)
       WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'p', 'v') AND n.nspname !~ '^pg_' ORDER BY 1, 2""",
    """SELECT * FROM (SELECT n.nspname, c.relname, a.attname, a.attnotnull, a.atttypmod,
       row_number() OVER (PARTITION BY a.attrelid ORDER BY a.attnum) AS attnum,
       pg_catalog.pg_get_expr(def.adbin, def.adrelid) AS adsrc, dsc.description, t.typtype
       FROM pg_catalog.pg_namespace n JOIN pg_catalog.pg_class c ON (c.relnamespace = n.oid)
       JOIN pg_catalog.pg_attribute a ON (a.attrelid = c.oid)
       JOIN pg_catalog.pg_type t ON (a.atttypid = t.oid)
       LEFT JOIN pg_catalog.pg_attrdef def ON (a.attrelid = def.adrelid AND a.attnum = def.adnum)
       LEFT JOIN pg_catalog.pg_description dsc ON (c.oid = dsc.objoid AND a.attnum = dsc.objsubid)
       WHERE c.relkind IN ('r', 'p', 'v') AND a.attnum > 0 AND NOT a.attisdropped AND n.nspname = 'public') c
       ORDER BY relname, attnum""",
    """SELECT result.table_name, result.column_name
       FROM (SELECT ct.relname AS table_name, a.attname AS column_name,
       (information_schema._pg_expandarray(i.indkey)).n AS key_seq, a.attnum,
       (information_schema._pg_expandarray(i.indkey)).x AS key
       FROM pg_catalog.pg_class ct JOIN pg_catalog.pg_attribute a ON (ct.oid = a.attrelid)
       JOIN pg_catalog.pg_index i ON (a.attrelid = i.indrelid) WHERE i.indisprimary) result
       WHERE result.attnum = result.key AND result.table_name !~ '^pg_' ORDER BY 1, 2""",
    # What agents and their tools write by hand.
    "SELECT table_schema, table_name, table_type FROM information_schema.tables ORDER BY 1, 2",
    """SELECT table_name, column_name, data_type, is_nullable, column_default, udt_name
       FROM information_schema.columns WHERE table_schema NOT IN ('pg_catalog', 'information_schema')
       ORDER BY table_name, ordinal_position""",
    """SELECT tc.table_name, tc.constraint_name, kcu.column_name, ccu.table_name
       FROM information_schema.table_constraints AS tc
       JOIN information_schema.key_column_usage AS kcu ON tc.constraint_name = kcu.constraint_name
       JOIN information_schema.constraint_column_usage AS ccu ON ccu.constraint_name = tc.constraint_name
       WHERE tc.table_schema = 'public' ORDER BY 1, 2, 3, 4""",
    "SELECT schemaname, tablename, indexname, indexdef FROM pg_indexes "
    "WHERE schemaname = 'public' ORDER BY 3",
    "SELECT conrelid::regclass, conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE contype <> 'n' "
    "AND connamespace = 'public'::regnamespace ORDER BY 2",
    "SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid "
    "AND a.attnum = ANY(i.indkey) WHERE i.indrelid = 'staff'::regclass AND i.indisprimary",
    "SELECT schema_name FROM information_schema.schemata ORDER BY 1",
    "SELECT viewname, definition FROM pg_views WHERE schemaname = 'public' ORDER BY 1",
    "SELECT t.typname, e.enumlabel FROM pg_type t JOIN pg_enum e ON e.enumtypid = t.oid ORDER BY 1, 2",
    "SELECT atttypid::regtype, count(*) FROM pg_attribute WHERE attrelid = 'clients'::regclass "
    "GROUP BY atttypid::regtype ORDER BY 2, (atttypid::regtype)::text",
    "SELECT conrelid::regclass::text, max(conname) FROM pg_constraint "
    "WHERE connamespace = 'public'::regnamespace GROUP BY conrelid ORDER BY 1",
    "SELECT DISTINCT indrelid::regclass FROM pg_index WHERE indrelid = 'bills'::regclass",
    "SELECT id FROM reporting.watched",
    "SELECT amname, amhandler FROM pg_am ORDER BY 1",
    "SELECT relname FROM pg_class WHERE oid IN ('clients'::regclass)",
    "SELECT conname FROM pg_constraint WHERE conrelid NOT IN ('clients'::regclass) AND contype = 'f'",
    "SELECT typinput IN ('int4in'::regproc) FROM pg_type WHERE typname = 'int4'",
    "SELECT c.relname, a.amname FROM pg_class c JOIN pg_am a ON a.oid = c.relam WHERE relname = 'clients'",
    "SELECT * FROM pg_am ORDER BY 1",
    "SELECT a.aggfnoid, p.proname, aggtransfn FROM pg_aggregate a JOIN pg_proc p ON p.oid = a.aggfnoid "
    "WHERE p.pronamespace = 'pg_catalog'::regnamespace ORDER BY p.oid",
    "SELECT aggfnoid::regprocedure::text FROM pg_aggregate ORDER BY 1",
    "SELECT typname, t.typinput, typoutput::text FROM pg_type t WHERE typinput = 'int4in'::regproc",
    "SELECT typinput, count(*) FROM pg_type, pg_am WHERE typinput = 'int4in'::regproc GROUP BY typinput",
    "SELECT count(*) FROM pg_proc",
    "SELECT count(*) FROM pg_operator",
    # Columns that hold more than structure are null, * included.
    "SELECT * FROM pg_roles WHERE rolname = 'shop_app' AND rolconfig IS NULL",
    "SELECT r.rolname, u.usename FROM pg_roles r JOIN pg_user u ON u.usesysid = r.oid "
    "WHERE rolname = 'shop_ro'",
    "SELECT sequencename, last_value FROM pg_sequences ORDER BY 1",
    "SELECT s.* FROM pg_sequences s ORDER BY sequencename",
    "SELECT l.* FROM pg_foreign_server l",
    # What is counted of tables, beside their names.
    "SELECT schemaname, relname, n_live_tup IS NULL FROM pg_stat_user_tables ORDER BY 1, 2",
    "SELECT relname, indexrelname FROM pg_stat_all_indexes WHERE schemaname = 'public' ORDER BY 1, 2",
    "SELECT schemaname, relname FROM pg_statio_user_sequences ORDER BY 1, 2",
    "SELECT c.relname, s.idx_scan IS NULL FROM pg_class c LEFT JOIN pg_stat_user_tables s ON s.relid = c.oid "
    "WHERE c.relkind IN ('r', 'p', 'v') AND c.relnamespace = 'public'::regnamespace ORDER BY 1",
    "SELECT relname, pg_stat_get_live_tuples(c.oid) IS NULL, pg_stat_get_numscans(oid) >= 0 FROM pg_class c"
    " WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace ORDER BY 1",
    "SELECT name FROM pg_available_extensions() WHERE name = 'plpgsql'",
    # A comment on whatever object it is.
    "SELECT relname, obj_description(oid) FROM pg_class WHERE relkind = 'r' AND "
    "relnamespace = 'public'::regnamespace ORDER BY 1",
    "SELECT obj_description('clients'::regclass), obj_description('bills'::regclass) AS none",
    "TABLE pg_am",
    "SELECT nspname FROM (TABLE pg_catalog.pg_namespace UNION TABLE pg_namespace) n WHERE nspname ~ '^[^p]'",
    # Types of a function's arguments, as arrays.
    "SELECT proname, p.proargtypes::regtype[],"
    " COALESCE(proallargtypes::regtype[], proargtypes::regtype[])::text[] FROM pg_proc p"
    " WHERE proname IN ('lower', 'json_each', 'now') ORDER BY p.oid",
    "SELECT array_to_string(pg_proc.proargtypes::regtype[], ', '), (proargtypes::regtype[])[0] FROM pg_proc"
    " WHERE proname = 'substring' ORDER BY oid",
    "SELECT array_agg(atttypid ORDER BY attnum)::regtype[], array_agg(attrelid)::regclass[]::text"
    " FROM pg_attribute WHERE attrelid = 'staff'::regclass AND attnum > 0",
    "SELECT array_agg(CAST(ARRAY[x, NULL, 0]::oid[] AS regtype[])), NULL::oid[]::regtype[],"
    " ARRAY[]::oid[]::regtype[] FROM (VALUES (16), (25)) AS t(x)",
    # Names that a sub-select or a CTE gives, read as numbers further out.
    "WITH t AS (SELECT 'staff'::regclass AS r) SELECT attname FROM pg_attribute, t WHERE attrelid = t.r"
    " AND attnum > 0",
    "SELECT relname, k.t FROM pg_class c JOIN (SELECT conrelid::regclass AS t, conname FROM pg_constraint"
    " WHERE contype = 'p' AND connamespace = 'public'::regnamespace) k ON c.oid = t ORDER BY 1",
    "SELECT t.r, t.r::oid = 'staff'::regclass, t.r = 'staff'::regclass, pg_relation_size(r) >= 0 FROM"
    " (SELECT to_regclass('public.staff') AS r) AS t",
    "SELECT relname FROM pg_class WHERE oid IN (SELECT r FROM (SELECT conrelid::regclass AS r"
    " FROM pg_constraint WHERE contype = 'f') x WHERE r = 'bills'::regclass)",
    "SELECT typname FROM pg_type WHERE oid = (SELECT x.y FROM (SELECT 'mood'::regtype AS y) x)",
    # Grouped by a key of a catalog, whose other columns need not be grouped by then.
    "SELECT c.relname, array_agg(a.attname ORDER BY a.attnum) FROM pg_class c JOIN pg_attribute a ON"
    " a.attrelid = c.oid WHERE a.attnum > 0 AND c.relnamespace = 'public'::regnamespace GROUP BY c.oid"
    " HAVING c.relkind = 'r' ORDER BY c.relname",
    "SELECT n.nspname || '.' || typname, typinput, min(enumlabel) FROM pg_type JOIN pg_enum ON"
    " enumtypid = pg_type.oid JOIN pg_namespace n ON n.oid = typnamespace GROUP BY n.oid, pg_type.oid",
    "SELECT (SELECT count(*) FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum <= c.relnatts) > 0,"
    " count(*) FROM pg_class c, pg_index WHERE indrelid = c.oid AND c.relname = 'bills' GROUP BY c.oid",
    "SELECT attname, count(*) FROM pg_attribute, pg_depend WHERE refobjid = attrelid AND attnum = refobjsubid"
    " AND attrelid = 'clients'::regclass GROUP BY attnum, attrelid ORDER BY attname",
    # Names that are only ever read as numbers.
    "SELECT proname FROM pg_proc WHERE proname = 'lower' AND proargtypes = ARRAY['text'::regtype]::oidvector",
    "SELECT attname FROM pg_attribute WHERE attnum > 0 AND attrelid = ANY (ARRAY['staff'::regclass]::oid[])",
    "SELECT relname FROM pg_class WHERE oid = COALESCE(NULL::regclass, to_regclass('staff'))::oid",
    "SELECT relname FROM pg_class WHERE oid = (CASE WHEN true THEN 'staff'::regclass ELSE 'bills' END)::oid",
    # Names that are compared as CASE and rows compare.
    "SELECT attname, CASE atttypid WHEN 'int4'::regtype THEN 'n' WHEN 25 THEN 't' END FROM pg_attribute"
    " WHERE attrelid = 'clients'::regclass AND attnum > 0 ORDER BY attnum",
    "SELECT CASE 'clients'::regclass WHEN oid THEN oid::regclass END FROM pg_class"
    " WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' ORDER BY relname",
    "SELECT attname FROM pg_attribute WHERE (attrelid, attnum) = ('bills'::regclass, 2)"
    " OR (attrelid, atttypid) IN (('clients'::regclass, 'text'::regtype)) ORDER BY 1",
    # Names that one text holds.
    "SELECT attname, atttypid = ANY ('{int,int8,\"double precision\"}'::regtype[]) FROM pg_attribute"
    " WHERE attrelid = ANY ('{clients,public.bills}'::regclass[]) AND attnum > 0 ORDER BY attrelid, attnum",
    "SELECT '{clients,NULL,0,bills}'::regclass[], NULL::regtype[], '{}'::regproc[]",
    "SELECT typname FROM pg_type WHERE oid IN (SELECT unnest('{int4,text}'::regtype[])) ORDER BY 1",
    # The parts of a table, and what stands above one.
    "SELECT relid::regclass, parentrelid::regclass, isleaf, level FROM pg_partition_tree('reporting.days')"
    " ORDER BY level, relid::regclass::text",
    "SELECT c.relname, t.*, (SELECT sum(pg_table_size(p.r)) FROM pg_partition_tree(c.oid) AS p(r, of))"
    " FROM pg_class c, LATERAL (SELECT count(*) FROM pg_catalog.pg_partition_tree(c.oid)) t"
    " WHERE c.relnamespace = 'reporting'::regnamespace ORDER BY 1",
    "SELECT relname, pg_partition_root(oid), pg_partition_root(c.oid) = 'reporting.days'::regclass"
    " FROM pg_class c WHERE relkind IN ('r', 'p') AND relnamespace = 'reporting'::regnamespace ORDER BY 1",
    # What hangs on a table, by what it is called.
    "SELECT pg_describe_object(classid, objid, objsubid) FROM pg_depend WHERE refobjid = 'bills'::regclass"
    " AND classid <> 'pg_type'::regclass AND pg_describe_object(classid, objid, 0) !~ 'toast' ORDER BY 1",
    "SELECT type, identity FROM pg_depend d, pg_identify_object(d.classid, d.objid, d.objsubid)"
    " WHERE d.refobjid = 'staff'::regclass AND type <> 'toast table' ORDER BY 1, 2",
    "SELECT pg_describe_object(classoid, objoid, objsubid), description FROM pg_description"
    " WHERE classoid = 'pg_class'::regclass AND objoid = 'clients'::regclass ORDER BY 1",
    # What a role may use, what a check calls, and how the session is encrypted.
    "SELECT object_schema, object_name, object_type, privilege_type FROM information_schema.usage_privileges"
    " WHERE object_type <> 'COLLATION' AND grantee = 'shop_app' ORDER BY 1, 2, 3, 4",
    "SELECT count(*) FROM information_schema.usage_privileges WHERE object_type = 'COLLATION'",
    "SELECT object_name, object_type FROM information_schema.role_usage_grants"
    " WHERE object_schema IN ('public', 'reporting') ORDER BY 1, 2",
    "SELECT DISTINCT object_schema, object_name, object_type FROM information_schema.data_type_privileges"
    " WHERE object_schema IN ('public', 'reporting') AND object_type <> 'ROUTINE' ORDER BY 1, 2",
    "SELECT constraint_name FROM information_schema.check_constraint_routine_usage ORDER BY 1",
    "SELECT s.ssl, encrypted FROM pg_stat_ssl s JOIN pg_stat_gssapi USING (pid) WHERE pid = pg_backend_pid()",
    # A system column of the one beside every column of the other.
    "SELECT a.*, c.xmin IS NULL FROM pg_am a, pg_class c WHERE c.relname = 'clients' ORDER BY 1",
    "SELECT c.*, b.xmin IS NULL FROM bills b, clients c WHERE EXISTS (SELECT FROM pg_class) ORDER BY 1",
)


@pytest.mark.parametrize("sql", LOOK_UPS)
def test_look_ups_find_what_they_would_without_the_hidden_parts(
    both: tuple[RunningProxy, Database], keeper: psycopg.Connection[Any], sql: str
) -> None:
    """At the price of what the agent wrote: that of the conditions alone would be over the limit."""
    assert keeper.execute(sql.encode()).fetchall() == both[1].execute(sql, "shop_app")


def _numbers(proxy: RunningProxy) -> dict[str, int]:
    (row,) = proxy.database.execute(
        "SELECT 'zzkeys'::regclass::oid::int,"
        " 'zzkeys_token'::regclass::oid::int, 'zzview'::regclass::oid::int,"
        " 'zzfunction'::regproc::oid::int, 'zzkeys'::regtype::oid::int, 'zzvault'::regnamespace::oid::int,"
        " (SELECT oid::int FROM pg_constraint"
        " WHERE conname = 'zztoken_long' AND conrelid = 'zzkeys'::regclass),"
        " (SELECT oid::int FROM pg_trigger WHERE tgname = 'zztrigger_of'), 'staff'::regclass::oid::int,"
        " (SELECT attnum FROM pg_attribute WHERE attname = 'zzpay' AND attrelid = 'staff'::regclass)::int,"
        " 'zzvault.zzdays'::regclass::oid::int"
    )
    names = (
        "t",
        "index",
        "view",
        "function",
        "type",
        "schema",
        "constraint",
        "trigger",
        "staff",
        "pay",
        "part",
    )
    return dict(zip(names, row, strict=True))


PROBES = (
    "SELECT relid::regclass, parentrelid FROM pg_partition_tree('reporting.days')",
    "SELECT relid, parentrelid::regclass FROM pg_partition_tree({part})",
    "SELECT pg_partition_root({part})",
    "SELECT CASE {t} WHEN {t}::regclass THEN {t} END, CASE {t}::regclass WHEN 0 THEN 'none' END",
    "SELECT CASE WHEN true THEN {t} ELSE 0::regclass END, CASE 1 WHEN 1 THEN {t} ELSE 0::regclass END",
    "SELECT ({t}, 1) = ({t}::regclass, 1), (SELECT ROW({t}::regclass)), ROW({t}::regclass, 2)",
    "SELECT '{{{t},{part},zzview}}'::regclass[], CAST('{{{function}}}' AS regproc[])::text",
    "SELECT array_to_string('{{{type},_zzkeys,zzvault.zzlevel}}'::regtype[], ' ')",
    "SELECT t, '{{{schema}}}'::regnamespace[] FROM unnest('{{{t}}}'::regclass[]) AS t",
    "SELECT * FROM information_schema.usage_privileges",
    "SELECT * FROM information_schema.role_usage_grants",
    "SELECT * FROM information_schema.data_type_privileges",
    "SELECT * FROM information_schema.check_constraint_routine_usage",
    "SELECT pg_describe_object(classid, objid, objsubid) FROM pg_depend",
    "SELECT pg_describe_object(refclassid, refobjid, 0), pg_describe_object(classid, objid, 0)"
    " FROM pg_depend",
    "SELECT pg_identify_object(refclassid, refobjid, refobjsubid) FROM pg_depend",
    "SELECT pg_identify_object_as_address(d.classid, d.objid, d.objsubid) FROM pg_depend d",
    "SELECT pg_describe_object(classoid, objoid, objsubid) FROM pg_description",
    "SELECT pg_describe_object(classid, objid, {pay}) FROM pg_depend WHERE objid = {staff}",
    "SELECT pg_describe_object(classid, {t}, 0) FROM pg_depend",
    "SELECT pg_describe_object(classid, objid, 0) FROM pg_depend d(classid, x, y, objid)",
    "SELECT {t}::regclass",
    "SELECT ({t})::oid::regclass::text",
    "SELECT CAST({t} AS regclass)",
    "SELECT pg_catalog.regclass '{t}'",
    "SELECT regclass({t})",
    "SELECT '{t}'::regclass",
    "SELECT ('public.zz' || 'keys')::regclass",
    "SELECT to_regclass('public.zz' || 'keys')",
    "SELECT oid::regclass FROM generate_series({t} - 90, {t} + 90) AS oid",
    "SELECT COALESCE(NULL::regclass, {t})",
    "SELECT 'clients'::regclass UNION ALL SELECT {t}",
    "SELECT CASE WHEN false THEN 'clients'::regclass ELSE {t} END",
    "SELECT ARRAY['clients'::regclass, {t}]",
    "SELECT GREATEST('clients'::regclass, {t})",
    "SELECT array_append(ARRAY['clients'::regclass], {t})",
    "VALUES ('clients'::regclass), ({t})",
    "SELECT lag('clients'::regclass, 1, {t}) OVER ()",
    'SELECT x FROM json_to_record(\'{{"x": "{t}"}}\') AS t(x regclass)',
    "SELECT '{{{t}}}'::regclass[]",
    "SELECT ARRAY[{t}]::regclass[]",
    "SELECT ARRAY[{t}]::oid[]::regclass[]::text",
    "SELECT CAST(ARRAY[{type}, 16] AS regtype[])",
    "SELECT (p.proargtypes::regtype[] || {type}::oid::regtype) FROM pg_proc p WHERE proname = 'lower'",
    "SELECT array_append(proargtypes::regtype[], {type}) FROM pg_proc",
    "SELECT lag(proargtypes::regtype[], 1, ARRAY[{type}]::oid[]) OVER () FROM pg_proc",
    "SELECT (y.proargtypes || '{type}')::regtype[] FROM pg_proc y",
    "SELECT proargtypes::regtype[] FROM (SELECT '{type}'::oidvector AS proargtypes) AS pg_proc",
    "SELECT proargtypes::regtype[] FROM pg_proc WHERE proname LIKE 'zz%'",
    "SELECT pg_get_viewdef({view})",
    "SELECT pg_get_viewdef('public.zz' || 'view')",
    "SELECT pg_get_indexdef({index})",
    "SELECT pg_get_constraintdef({constraint})",
    "SELECT pg_get_triggerdef({trigger})",
    "SELECT pg_get_functiondef({function})",
    "SELECT pg_get_function_result({function}), pg_get_function_arguments({function})",
    "SELECT {function}::regproc",
    "SELECT {function}::regprocedure",
    "SELECT {type}::regtype",
    "SELECT format_type({type}, -1)",
    "SELECT oidvectortypes('{type}'::oidvector)",
    "SELECT pg_typeof(1) UNION ALL SELECT {type}",
    "SELECT {schema}::regnamespace",
    "SELECT obj_description({t}, 'pg_class')",
    "SELECT obj_description({t})",
    "SELECT obj_description(relation) FROM (SELECT {t} AS relation) d",
    "SELECT obj_description({t}) FROM pg_description d",
    "SELECT (CASE WHEN true THEN {t}::regclass END)::oid::regclass",
    "SELECT ARRAY[{t}::regclass]::oid[]::text",
    "WITH w AS (SELECT {t}::regclass AS r) SELECT r::oid::regclass, r, r = {t} FROM w",
    "SELECT (SELECT r FROM (SELECT '{t}' AS r UNION SELECT 5::regclass::text) x LIMIT 1)::oid::regclass",
    "SELECT x.r::oid::regclass FROM (SELECT 5::regclass AS r) y RIGHT JOIN (SELECT {t} AS r) x ON y.r = x.r",
    "SELECT s.* FROM pg_stat_user_tables s",
    "SELECT * FROM pg_stat_xact_user_tables",
    "SELECT * FROM pg_statio_all_tables",
    "SELECT * FROM pg_stat_user_indexes",
    "SELECT * FROM pg_statio_user_indexes",
    "SELECT * FROM pg_statio_user_sequences",
    "SELECT relid::regclass FROM pg_stat_user_tables",
    "SELECT * FROM pg_sequences",
    "SELECT pg_stat_get_live_tuples({t}), pg_stat_get_last_vacuum_time({t}) FROM pg_class LIMIT 1",
    "SELECT col_description({t}, 3)",
    "SELECT col_description({staff}, {pay})",
    "SELECT pg_describe_object(1259, {t}, 0)",
    "SELECT * FROM pg_identify_object(1259, {t}, 0)",
    "SELECT has_table_privilege({t}, 'SELECT')",
    "SELECT has_column_privilege({staff}, {pay}::int2, 'SELECT')",
    "SELECT pg_relation_size({t})",
    "SELECT pg_table_is_visible({t})",
    "SELECT pg_get_expr(k.conbin, {t}) FROM pg_constraint k",
    "SELECT pg_get_expr(k.conbin, {staff}) FROM pg_constraint k",
    "SELECT a.x FROM pg_partition_ancestors({t}) AS a(x)",
    "SELECT pg_partition_root({t})",
    "SELECT relname FROM pg_class ORDER BY 1",
    "SELECT c FROM pg_class c",
    "SELECT row_to_json(c) FROM pg_class c",
    "TABLE pg_class",
    "COPY pg_class TO STDOUT",
    "WITH c AS (SELECT * FROM pg_class) SELECT relname FROM c",
    "SELECT (SELECT string_agg(relname, ',') FROM pg_class)",
    "EXPLAIN SELECT * FROM pg_class",
    "SELECT current_query() FROM pg_class",
    "SELECT attname FROM pg_attribute",
    "SELECT prosrc, proname FROM pg_proc",
    "SELECT * FROM information_schema.columns",
    "SELECT * FROM information_schema.view_table_usage",
    "SELECT * FROM information_schema.check_constraints",
    "SELECT * FROM information_schema.triggers",
    "SELECT description FROM pg_description",
    "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint",
    "SELECT pg_get_ruledef(oid), ev_action FROM pg_rewrite",
    "SELECT polname, pg_get_expr(polqual, polrelid) FROM pg_policy",
    "SELECT typname FROM pg_type",
    "SELECT nspname FROM pg_namespace",
    "SELECT oprname, oprnamespace::regnamespace FROM pg_operator",
    "SELECT stxname FROM pg_statistic_ext",
    "SELECT max(r) FROM (SELECT 'clients'::regclass UNION SELECT {t}) AS t(r)",
    "SELECT x.f FROM (SELECT typinput AS f FROM pg_type UNION ALL SELECT {function}) x",
    "SELECT relname FROM public.z" + "zcatalog",
    "SELECT CASE WHEN amhandler IS NULL THEN amhandler ELSE {function} END FROM pg_am",
    "SELECT {function} UNION ALL SELECT amhandler FROM pg_am",
    "SELECT lag(amhandler, 1, {function}) OVER () FROM pg_am",
    'SELECT jsonb_populate_record(a, \'{{"amhandler": "{function}"}}\') FROM pg_am a',
    'SELECT jsonb_populate_record(a, \'{{"typinput": "{function}"}}\') FROM (SELECT * FROM pg_type) a',
    "SELECT lag(f, 1, {function}) OVER () FROM (SELECT * FROM pg_am) AS a(o, n, f)",
    "SELECT (SELECT typinput FROM pg_class LIMIT 1) FROM (SELECT {function} AS typinput) x",
    "SELECT typinput FROM pg_type RIGHT JOIN (SELECT {function}::oid AS typinput) x USING (typinput)",
    "SELECT oprcode, amproc FROM pg_operator, pg_amproc",
    "SELECT what FROM reporting.watched UNION SELECT {t}",
    "SELECT COALESCE(NULLIF(seen, seen), {t}) FROM reporting.watching",
    "SELECT CASE WHEN false THEN w.what ELSE {t} END FROM (SELECT * FROM reporting.watched) w",
    "SELECT calls || {function}::oid FROM reporting.watched",
    'SELECT jsonb_populate_record(w, \'{{"what": "{t}"}}\') FROM reporting.watched w',
    "SELECT (1, {t}, NULL)::reporting.watched",
    "SELECT '(1,{t})'::reporting.pair",
    'SELECT jsonb_populate_record(NULL::reporting.pair, \'{{"relation": "{t}"}}\')',
    "SELECT {t}::reporting.relation_name",
    "SELECT reporting.relation_name('{t}')",
    "SELECT amname('{t}')",
    "SELECT ('{t}'::text).amname",
    "SELECT '{{{t}}}'::reporting.relation_name[]",
    'SELECT x FROM json_to_record(\'{{"x": "{t}"}}\') AS t(x reporting.relation_name)',
    "SELECT reporting.relation_of({t})",
    "SELECT CASE WHEN false THEN reporting.relation_of(0) ELSE {t} END",
    "SELECT c.oid::regclass FROM (pg_class c RIGHT JOIN (SELECT {t}::oid AS oid) y USING (oid)) AS c",
    "SELECT c.oid::regclass FROM (pg_class c FULL JOIN (SELECT {t}::oid AS oid) y USING (oid)) AS c",
    "SELECT k.oid::regclass FROM pg_class k RIGHT JOIN (SELECT {t}::oid AS oid) y USING (oid)",
    "SELECT obj_description(c.oid, 'pg_class') FROM"
    " (pg_class c RIGHT JOIN (SELECT {t}::oid AS oid) y USING (oid)) AS c",
)


@pytest.mark.parametrize("probe", PROBES)
def test_no_road_leads_to_a_hidden_name(
    both: tuple[RunningProxy, Database], agent: psycopg.Connection[Any], probe: str
) -> None:
    sql = probe.format(**_numbers(both[0]))
    assert not _tells_of_hidden(agent, sql)


def _tells_of_hidden(agent: psycopg.Connection[Any], sql: str) -> bool:
    said = _said(agent, sql)
    for word in re.findall(rf"{PREFIX}\w*", sql):
        said = said.replace(word, "")
    # The message that tells what is allowed repeats the policy's own pattern.
    return re.search(rf"(?<![a-z]){PREFIX}", said.replace("public.zz*", "")) is not None


def test_where_no_catalog_is_open_no_road_leads_to_a_name_either(both: tuple[RunningProxy, Database]) -> None:
    numbers = _numbers(both[0])
    with psycopg.connect(**both[0].parameters("closed"), autocommit=True) as closed:
        assert [probe for probe in PROBES if _tells_of_hidden(closed, probe.format(**numbers))] == []
        assert closed.execute("SELECT tableoid::regclass, pg_typeof(id) FROM clients LIMIT 1").description
        assert closed.execute("SELECT 'clients'::regclass, to_regclass('clients')").fetchall() == [
            ("clients", "clients")
        ]
        assert closed.execute(
            "SELECT pg_relation_size('clients') >= 0, {}::regclass".format(numbers["t"])
        ).fetchall() == [(True, None)]


def _said(agent: psycopg.Connection[Any], sql: str) -> str:
    try:
        cursor = agent.execute(sql.encode())
        return str(cursor.fetchall() if cursor.description else "")
    except psycopg.Error as error:
        diagnostic = error.diag
        return f"{diagnostic.message_primary} {diagnostic.message_detail} {diagnostic.message_hint}"


@pytest.mark.parametrize(
    "question",
    [
        "SELECT {}::regclass",
        "SELECT to_regclass({})",
        "SELECT count(*) FROM pg_class WHERE oid = {}::regclass",
        "SELECT count(*) FROM pg_class WHERE oid::regclass = {}",
        "SELECT pg_relation_size({}::text::regclass)",
        "SELECT has_table_privilege({}::text, 'SELECT')",
        "SELECT count(*) FROM pg_class WHERE relname = {}",
        "SELECT count(*) FROM information_schema.tables WHERE table_name = {}",
    ],
)
@pytest.mark.parametrize("binds", [True, False], ids=["bound", "computed"])
def test_hidden_and_absent_cannot_be_told_apart(
    agent: psycopg.Connection[Any], question: str, binds: bool
) -> None:
    def ask(first: str, last: str) -> object:
        value = "%s" if binds else f"('{first}' || '{last}')"
        try:
            return agent.execute(
                question.format(value).encode(), [first + last] if binds else None
            ).fetchall()
        except psycopg.Error as error:
            return error.sqlstate, error.diag.message_primary

    assert ask("zz", "keys") == ask("zz", "absent")


def test_an_error_points_at_its_place_in_the_statement_as_sent(agent: psycopg.Connection[Any]) -> None:
    sql = "SELECT c.oid::regclass FROM pg_catalog.pg_class c, pg_namespace n WHERE c.relname = n.oid"
    with pytest.raises(psycopg.errors.UndefinedFunction) as caught:
        agent.execute(sql)
    assert caught.value.diag.statement_position == str(sql.rindex("=") + 1)


def test_sql_prepare_cursors_and_copy_are_filtered_too(agent: psycopg.Connection[Any]) -> None:
    agent.execute("PREPARE q AS SELECT relname FROM pg_class WHERE relname = $1")
    assert agent.execute("EXECUTE q('clients')").fetchall() == [("clients",)]
    assert agent.execute("EXECUTE q('zz' || 'keys')").fetchall() == []
    with agent.transaction():
        agent.execute("DECLARE k CURSOR FOR SELECT relname FROM pg_class WHERE relname LIKE '%keys'")
        assert agent.execute("FETCH ALL k").fetchall() == []
    with agent.cursor().copy("COPY (SELECT relname FROM pg_class WHERE relname LIKE 'z%') TO STDOUT") as copy:
        assert list(copy) == []


def test_what_was_prepared_before_the_schema_changed_is_prepared_anew(
    both: tuple[RunningProxy, Database],
) -> None:
    """A view is shown once it is known what stands behind it; asyncpg's caller does not notice."""
    proxy, _ = both
    given = proxy.parameters("shown")
    sql = "SELECT relname::text FROM pg_class WHERE relname IN ('clients', 'bills_later') ORDER BY relname"

    async def look() -> None:
        connection = await asyncpg.connect(
            host=given["host"],
            port=given["port"],
            user=given["user"],
            password=given["password"],
            database=given["dbname"],
        )
        try:
            kept = await connection.prepare(sql)
            assert [*await kept.fetch(), *await connection.fetch(sql)] == [("clients",)] * 2
            proxy.database.execute("CREATE VIEW public.bills_later AS SELECT id FROM public.bills")
            with pytest.raises(asyncpg.UndefinedTableError):
                await connection.fetch("SELECT 1 FROM public.bills_of_none")  # asked of a new snapshot
            with pytest.raises(asyncpg.InvalidCachedStatementError):
                await kept.fetch()
            assert await connection.fetch(sql) == [("bills_later",), ("clients",)]
        finally:
            await connection.close()
            proxy.database.execute("DROP VIEW IF EXISTS public.bills_later")

    asyncio.run(look())


def test_what_the_agent_wrote_over_catalogs_has_its_price(keeper: psycopg.Connection[Any]) -> None:
    with pytest.raises(psycopg.errors.StatementTooComplex) as caught:
        keeper.execute("SELECT count(*) FROM pg_proc a, pg_proc b WHERE a.proname < b.prosrc")
    assert caught.value.diag.source_function == "cost-over-limit"


@pytest.mark.parametrize(
    "where",
    [
        "EXISTS (SELECT FROM pg_class WHERE relname = 'zz' || {})",
        "('public.zz' || {})::regclass IS NOT NULL",
        "to_regclass('public.zz' || {}) IS NOT NULL",
    ],
)
def test_counting_rows_before_a_write_tells_nothing_of_what_is_hidden(
    keeper: psycopg.Connection[Any], where: str
) -> None:
    """Two bills are there, one more than may be deleted: a count by what is hidden would say so."""
    for name in ("'keys'", "'absent'"):
        deleted = keeper.execute(f"DELETE FROM bills WHERE id < 9 AND {where.format(name)}".encode())
        assert deleted.rowcount == 0
    with pytest.raises(psycopg.errors.QueryCanceled):
        keeper.execute(
            "DELETE FROM bills WHERE id < 9 AND EXISTS (SELECT FROM pg_class WHERE relname = 'bills')"
        )


def test_a_parameter_may_not_be_declared_of_a_type_of_somebodys_that_names_objects(
    both: tuple[RunningProxy, Database], agent: psycopg.Connection[Any]
) -> None:
    (domain, mood) = both[0].database.execute(
        "SELECT 'reporting.relation_name'::regtype::oid::int, 'mood'::regtype::oid::int"
    )[0]
    for number, sql in ((domain, b"SELECT $1"), (mood, b"SELECT feeling = $1 FROM clients")):
        result = agent.pgconn.exec_params(sql, [b"1"], param_types=[number])
        assert result.error_field(psycopg.pq.DiagnosticField.SQLSTATE) == b"42501"
        assert b"names objects" in (result.error_field(psycopg.pq.DiagnosticField.MESSAGE_PRIMARY) or b"")
