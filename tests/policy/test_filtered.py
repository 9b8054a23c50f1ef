"""``catalogs: filtered``: what is put in the place of a statement, and what is refused, without a server."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.builtin import RELATIONS, WITHHELD
from policy.builtin_symbols import TYPES as BUILTIN_TYPES
from policy.catalog_filters import FILTERS, MASKS
from policy.decision import Allow, Decision, Reject, Situation, decide
from policy.filtered import Rewritten, rewrite
from policy.filtered_parameters import named_parameters
from policy.loader import load
from policy.name_givers import GIVERS, REFUSED, TYPES
from policy.names import PathNames
from policy.parse import parse, tokens, trees
from policy.reg_types import OPEN_TYPES, REG_TYPES
from policy.text_edits import Edits, UnknownSpan
from tests.support.hidden_schema import POLICY

SHOWN = load(POLICY, "shown.yaml")
CATALOGS_ON = load(POLICY.replace("catalogs: filtered", "catalogs: on"), "on.yaml")
CLOSED = load(POLICY.replace("catalogs: filtered", "catalogs: off"), "closed.yaml")
OBSERVING = load(POLICY.replace("version: 1", "version: 1\nmode: observe"), "observing.yaml")


def judged(sql: str, policy=SHOWN) -> Decision:  # type: ignore[no-untyped-def]
    return decide(policy, Situation("agent", PathNames()), parse(sql))


def test_every_catalog_that_is_structure_has_its_condition() -> None:
    structure = {name for name, access in RELATIONS.items() if access == "structure"}
    assert {str(name) for name in FILTERS} == structure | WITHHELD.keys()
    assert MASKS.keys() <= FILTERS.keys()


@pytest.mark.parametrize(
    ("plain", "withheld"),
    [
        ("SELECT rolname FROM pg_roles", "SELECT rolconfig FROM pg_roles"),
        ("SELECT usename FROM pg_user WHERE usesuper", "SELECT * FROM pg_user"),
        ("SELECT fdwname FROM pg_foreign_data_wrapper", "TABLE pg_foreign_data_wrapper"),
        ("SELECT srvname FROM pg_foreign_server", "SELECT s FROM pg_foreign_server s"),
    ],
)
def test_what_a_catalog_withholds_is_refused_where_nothing_tells_its_columns(
    plain: str, withheld: str
) -> None:
    assert isinstance(judged(plain), Allow)
    refused = judged(withheld)
    assert isinstance(refused, Reject)
    assert {violation.rule for violation in refused.violations} == {"column-not-allowed"}


def test_every_type_that_names_objects_is_either_open_or_looked_up() -> None:
    assert OPEN_TYPES | TYPES.keys() == REG_TYPES
    assert REG_TYPES & BUILTIN_TYPES
    assert not GIVERS.keys() & REFUSED.keys()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "SELECT name FROM clients",
        "SELECT datname FROM pg_database",
        "SELECT name, setting FROM pg_settings",
        "WITH pg_class AS (SELECT 1 AS relname) SELECT relname FROM pg_class",
        "SELECT 'english'::regconfig, to_tsvector('english', 'a')",
        "SELECT lanname FROM pg_catalog.pg_language",
        "SHOW jit",
    ],
)
def test_what_shows_no_object_goes_as_it_is(sql: str) -> None:
    decision = judged(sql)
    assert isinstance(decision, Allow)
    assert decision.rewritten is None


@pytest.mark.parametrize("policy", [CATALOGS_ON, OBSERVING], ids=["on", "observe"])
def test_only_an_enforcing_policy_that_filters_rewrites(policy) -> None:  # type: ignore[no-untyped-def]
    decision = judged("SELECT relname FROM pg_class", policy)
    assert isinstance(decision, Allow)
    assert decision.rewritten is None


@pytest.mark.parametrize(
    ("sql", "before", "behind"),
    [
        ("SELECT relname FROM pg_class", "SELECT relname FROM (SELECT t.*", ') AS "pg_class"'),
        ("SELECT c.oid FROM pg_catalog.pg_class c WHERE c.relkind = 'r'", "SELECT c.oid FROM (", "c WHERE"),
        ('SELECT c.oid FROM "pg_catalog" . /* here */ "pg_class" AS c', "SELECT c.oid FROM (", "AS c"),
        ("SELECT pg_catalog.pg_class.relname FROM pg_catalog.pg_class", "SELECT pg_class.relname FROM (", ""),
        ("SELECT a, b FROM pg_class AS c(a, b)", "SELECT a, b FROM (", "AS c(a, b)"),
        ("COPY (SELECT relname FROM pg_class) TO STDOUT", "COPY (SELECT relname FROM (", "TO STDOUT"),
        (
            "PREPARE p AS SELECT oid FROM pg_class WHERE relname = $1",
            "PREPARE p AS SELECT oid FROM (",
            "= $1",
        ),
        ("DECLARE k CURSOR FOR SELECT oid FROM pg_class", "DECLARE k CURSOR FOR SELECT oid FROM (", ""),
        ("SELECT xmin, relname FROM pg_class", "SELECT xmin, relname FROM (SELECT t.*, t.xmin AS xmin", ""),
        (
            "SELECT c.xmin, n.* FROM pg_class c, pg_namespace n",
            "SELECT c.xmin, n.* FROM (SELECT t.*, t.xmin AS xmin FROM pg_catalog.pg_class",
            "(SELECT t.* FROM pg_catalog.pg_namespace",
        ),
        (
            "SELECT b.xmin, b.* FROM bills b WHERE EXISTS (SELECT FROM pg_class)",
            "SELECT b.xmin, b.* FROM bills b WHERE EXISTS (SELECT FROM (SELECT t.* FROM pg_catalog.pg_class",
            "",
        ),
        (
            "SELECT *, xmin FROM bills WHERE EXISTS (SELECT FROM pg_class)",
            "SELECT *, xmin FROM bills WHERE EXISTS (SELECT FROM (SELECT t.*, t.xmin AS xmin",
            "",
        ),
        ("SELECT pg_partition_root(5)", "SELECT (SELECT CASE WHEN r.o IN", "::pg_catalog.regclass"),
        ("SELECT 1 FROM pg_partition_tree(5)", "SELECT 1 FROM LATERAL (SELECT", ") AS pg_partition_tree"),
        (
            "SELECT 1 FROM pg_class c, LATERAL pg_catalog.pg_partition_tree(c.oid) AS t(a, b)",
            "SELECT 1 FROM (SELECT",
            "c, LATERAL (SELECT a.relid",
        ),
        (
            "SELECT pg_describe_object(classid, objid, 0) FROM pg_depend",
            "SELECT pg_describe_object(classid, objid, 0) FROM (SELECT t.*",
            "",
        ),
        (
            "SELECT (pg_identify_object(d.refclassid, d.refobjid, d.refobjsubid)).* FROM pg_depend d",
            "SELECT (pg_identify_object(d.refclassid, d.refobjid, d.refobjsubid)).* FROM (SELECT t.*",
            "",
        ),
        (
            "SELECT pg_describe_object(classoid, objoid, objsubid) FROM pg_description",
            "SELECT pg_describe_object(classoid, objoid, objsubid) FROM (SELECT t.*",
            "",
        ),
        ("SELECT 5::regclass", "SELECT (SELECT CASE", "::pg_catalog.regclass"),
        ("SELECT CAST(5 AS regclass)", "SELECT (SELECT CASE", "::pg_catalog.regclass"),
        ("SELECT regclass '5'", "SELECT (SELECT CASE", "::pg_catalog.regclass"),
        ("SELECT to_regclass($1)", "SELECT (SELECT CASE", "::pg_catalog.regclass"),
        ("SELECT COALESCE(NULL::regclass, 5)", "SELECT COALESCE((SELECT", "::pg_catalog.text, 5)"),
        ("SELECT ARRAY['int4'::regtype]::oidvector", "SELECT ARRAY[(SELECT", "::pg_catalog.oid]::oidvector"),
        (
            "SELECT (CASE WHEN true THEN 'int4'::regtype END)::oid",
            "SELECT (CASE WHEN true THEN (SELECT",
            "::pg_catalog.oid END)::oid",
        ),
        (
            "SELECT 23 IN (SELECT unnest('{int4}'::regtype[]))",
            "SELECT 23 IN (SELECT unnest((SELECT CASE WHEN k.a",
            "AS k)::pg_catalog.oid[]))",
        ),
        (
            "SELECT CASE a WHEN 'int4'::regtype THEN 'int4'::regtype END FROM f(1) a",
            "SELECT CASE a WHEN (SELECT",
            "::pg_catalog.oid THEN (SELECT",
        ),
        (
            "SELECT (a, 1) = ('int4'::regtype, 1) FROM f(1) a",
            "SELECT (a, 1) = ((SELECT",
            "::pg_catalog.oid, 1) FROM f(1) a",
        ),
        ("SELECT COALESCE(to_regclass($1), 0)::oid", "SELECT COALESCE((SELECT", "::pg_catalog.oid, 0)::oid"),
        ("SELECT obj_description(a + 1) FROM f(1) a", "SELECT (SELECT (SELECT d.", "AS k) FROM f(1) a"),
        ("TABLE pg_class", "SELECT * FROM (SELECT t.* FROM pg_catalog.pg_class", ') AS "pg_class"'),
        (
            "SELECT 1 FROM (TABLE pg_catalog.pg_namespace ORDER BY 1) AS n",
            "SELECT 1 FROM (SELECT * FROM (SELECT t.*",
            ') AS "pg_namespace" ORDER BY 1) AS n',
        ),
        ("SELECT ARRAY[5]::regtype[]", "SELECT (SELECT CASE WHEN k.a", "AS k)::pg_catalog.regtype[]"),
        (
            "SELECT CAST(ARRAY[5] AS regtype[]) || 6",
            "SELECT (SELECT CASE WHEN k.a",
            "AS k)::pg_catalog.regtype[]::pg_catalog.text[] || 6",
        ),
        ("SELECT '{5}'::pg_catalog.regtype[]", "SELECT (SELECT CASE WHEN k.a", "::pg_catalog.regtype[]"),
        ("SELECT CAST($1 AS regtype[])", "SELECT (SELECT CASE WHEN k.a", ")::pg_catalog._text AS a"),
        (
            "SELECT oid FROM pg_class WHERE oid = ANY ('{clients,5}'::regclass[])",
            "SELECT oid FROM (",
            "AS k)::pg_catalog.oid[]",
        ),
        ("SELECT 5::regclass UNION SELECT 6", "SELECT (SELECT", "::pg_catalog.text UNION SELECT 6"),
        ("SELECT oid FROM pg_class WHERE oid = $1::regclass", "SELECT oid FROM (", "AS k)"),
        (
            "SELECT pg_get_viewdef(a.b + 1) FROM f(1) a(b)",
            "SELECT pg_get_viewdef((SELECT",
            ") FROM f(1) a(b)",
        ),
    ],
)
def test_what_is_put_in_the_place_of_a_statement(sql: str, before: str, behind: str) -> None:
    policy = load(POLICY.replace("builtin-safe,", 'builtin-safe, "public.f",'), "shown.yaml")
    decision = judged(sql, policy)
    assert isinstance(decision, Allow), decision
    assert decision.rewritten is not None
    text = decision.rewritten.text
    assert text.startswith(before)
    assert behind in text
    assert trees(text)


@pytest.mark.parametrize(
    ("sql", "rule", "said"),
    [
        ("TABLE ONLY pg_class", "relation-not-allowed", "has no parts"),
        ("TABLE pg_class *", "relation-not-allowed", "cannot be filtered"),
        ("SELECT relname FROM ONLY pg_class", "relation-not-allowed", "has no parts"),
        ("SELECT relname FROM pg_class TABLESAMPLE SYSTEM (1)", "relation-not-allowed", "sampled"),
        ("COPY pg_class TO STDOUT", "relation-not-allowed", "by SELECT alone"),
        ("EXPLAIN SELECT relname FROM pg_class", "relation-not-allowed", "EXPLAIN"),
        ("SELECT *, xmin FROM pg_class", "relation-not-allowed", "beside *"),
        ("SELECT c.*, c.xmin FROM pg_class c", "relation-not-allowed", "beside *"),
        ("SELECT c, xmin FROM pg_class c", "relation-not-allowed", "beside *"),
        ("SELECT (c).*, c.ctid FROM pg_class c", "relation-not-allowed", "beside *"),
        ("SELECT (SELECT count(c) FROM clients), c.xmin FROM pg_class c", "relation-not-allowed", "beside *"),
        (
            "SELECT j.*, c.xmin FROM (pg_am a CROSS JOIN pg_am b) AS j, pg_class c",
            "relation-not-allowed",
            "beside *",
        ),
        ("SELECT t.xmin FROM pg_class t NATURAL JOIN pg_am a", "relation-not-allowed", "beside *"),
        ("SELECT prosrc FROM pg_proc", "relation-not-allowed", "schema is known"),
        ("SELECT objid FROM pg_shdepend", "relation-not-allowed", "not among those"),
        ("SELECT current_query() FROM pg_class", "function-not-allowed", "current_query"),
        ("SELECT regtype[] '{5}'", "unparsable", "syntax"),
        ("SELECT ARRAY[5]::regtype[][]", "relation-not-allowed", "cannot be filtered"),
        ("SELECT ARRAY[5]::regtype ARRAY", "relation-not-allowed", "cannot be filtered"),
        ("SELECT x FROM json_to_record('{}') AS t(x regclass)", "function-not-allowed", "any object"),
        ("PREPARE p(regclass) AS SELECT $1", "function-not-allowed", "any object"),
        ("SELECT pg_describe_object(1259, 5, 0)", "function-not-allowed", "any object"),
        (
            "SELECT pg_describe_object(classid, objid, 1) FROM pg_depend",
            "function-not-allowed",
            "describe_object",
        ),
        (
            "SELECT pg_describe_object(classid, objid, $1) FROM pg_depend",
            "function-not-allowed",
            "describe_object",
        ),
        (
            "SELECT pg_describe_object(classid, refobjid, 0) FROM pg_depend",
            "function-not-allowed",
            "describe",
        ),
        (
            "SELECT pg_describe_object(classid, objid, refobjsubid) FROM pg_depend",
            "function-not-allowed",
            "describe",
        ),
        (
            "SELECT pg_identify_object(a.classid, b.objid, 0) FROM pg_depend a, pg_depend b",
            "function-not-allowed",
            "identify",
        ),
        (
            "SELECT pg_describe_object(classid, objid, 0) FROM pg_depend AS d(objid, classid)",
            "function-not-allowed",
            "describe",
        ),
        (
            "SELECT pg_describe_object(classid, objid, 0) FROM (SELECT classid, 5 AS objid FROM pg_depend) d",
            "function-not-allowed",
            "describe",
        ),
        ("SELECT pg_describe_object(classid, objid) FROM pg_depend", "function-not-allowed", "describe"),
        ("SELECT pg_partition_tree(5)", "function-not-allowed", "any object"),
        ("SELECT 1 FROM pg_partition_tree(5) WITH ORDINALITY", "function-not-allowed", "any object"),
        (
            "SELECT 1 FROM ROWS FROM (pg_partition_tree(5), generate_series(1, 2)) t",
            "function-not-allowed",
            "any object",
        ),
        ("SELECT 1 FROM pg_partition_tree(rootrelid => 5)", "function-not-allowed", "pg_partition_tree"),
        ("SELECT pg_partition_root()", "function-not-allowed", "pg_partition_root"),
        ("SELECT obj_description(5, $1)", "function-not-allowed", "obj_description"),
        ("SELECT obj_description()", "function-not-allowed", "obj_description"),
        ("SELECT obj_description(5) OVER ()", "relation-not-allowed", "cannot be filtered"),
        ("SELECT oidvectortypes()", "function-not-allowed", "oidvectortypes"),
        ("SELECT to_regtype('a', 'b')", "function-not-allowed", "to_regtype"),
        ("SELECT oidvectortypes('5')", "function-not-allowed", "oidvectortypes"),
    ],
)
def test_what_cannot_be_filtered_is_refused(sql: str, rule: str, said: str) -> None:
    decision = judged(sql)
    assert not isinstance(decision, Allow)
    assert not decision.failures
    assert decision.violations[0].rule == rule
    assert said in decision.violations[0].message
    assert decision.violations[0].hint


def test_a_place_in_what_is_forwarded_is_told_in_what_was_sent() -> None:
    sql = "SELECT é, nope, 5::regclass FROM pg_class c WHERE nix"
    decision = judged(sql)
    assert isinstance(decision, Allow)
    assert decision.rewritten is not None
    forwarded = decision.rewritten
    for word in ("é", "nope", "c WHERE", "nix"):
        assert forwarded.position(forwarded.text.rindex(word) + 1) == sql.index(word) + 1
    inside = forwarded.text.index("pg_my_temp_schema")
    assert 1 <= forwarded.position(inside) <= len(sql)


def test_what_is_priced_leaves_the_conditions_out_and_every_place_where_it_is() -> None:
    decision = judged("SELECT c.relname, nope::regtype, é FROM pg_class c WHERE nix AND $1::regclass = c.oid")
    assert isinstance(decision, Allow)
    assert decision.rewritten is not None
    text, priced = decision.rewritten.text, decision.rewritten.priced
    assert len(priced) == len(text)
    assert "pg_my_temp_schema" in text
    assert "pg_my_temp_schema" not in priced
    assert "clients" not in priced
    for word in ("nope", "é", "nix", "$1", "= c.oid"):
        assert priced.rindex(word) == text.rindex(word)


def test_parameters_may_not_be_declared_of_types_that_name_objects() -> None:
    assert named_parameters((25, 2205), SHOWN, None) is not None
    assert named_parameters((25, 23, 26), SHOWN, None) is None
    assert named_parameters((20000,), SHOWN, None) is not None
    assert named_parameters((2205,), CLOSED, None) is not None
    assert named_parameters((20000,), CLOSED, None) is None, "an enum as likely as not"
    assert named_parameters((2205,), CATALOGS_ON, None) is None
    assert named_parameters((2205,), OBSERVING, None) is None


@given(st.text(alphabet="ab(),:\"'$ .\né[]-*/", max_size=40))
@settings(deadline=None)
def test_spans_are_of_tokens_or_unknown(text: str) -> None:
    data = text.encode()
    cut = tokens(data)
    assert all(0 <= start < end <= len(data) for start, end in cut)
    assert list(cut) == sorted(cut)
    edits = Edits(text, data, cut)
    for start, _ in cut:
        try:
            spans, end = edits.arguments(start)
        except UnknownSpan:
            continue
        assert all(start < first < last < end for first, last in spans)


@given(
    st.lists(st.sampled_from(["c.oid", "5", "$1", "(a)", "'x'", "lower(x)", "1 + 2"]), min_size=1, max_size=4)
)
@settings(deadline=None, max_examples=30)
def test_a_cast_is_looked_up_whatever_stands_before_it(parts: list[str]) -> None:
    sql = "SELECT " + ", ".join(f"({part})::regproc" for part in parts) + " FROM pg_class c"
    decision = judged(sql)
    assert isinstance(decision, Allow)
    assert decision.rewritten is not None
    assert decision.rewritten.text.count("to_regproc(") == len(parts)


def test_where_no_catalog_is_open_the_hint_says_so() -> None:
    decision = judged("SELECT c.oid FROM pg_catalog.pg_class c", CLOSED)
    assert not isinstance(decision, Allow)
    assert "opens no catalog" in decision.violations[0].hint
    assert "public.clients" in decision.violations[0].hint


@pytest.mark.parametrize(
    ("sql", "is_looked_up"),
    [
        ("SELECT 16400::regclass", True),
        ("SELECT tableoid::regclass FROM clients", True),
        ("SELECT pg_get_viewdef(16400)", True),
        ("SELECT nextval(16400)", True),
        ("SELECT nextval('16400')", True),
        ("SELECT nextval(name) FROM clients", True),
        ("SELECT nextval('clients_id_seq'), currval('public.clients_id_seq')", False),
        ("SELECT 16400::oid, pg_typeof(1), now()", False),
    ],
)
def test_where_no_catalog_is_open_names_are_looked_up_all_the_same(sql: str, is_looked_up: bool) -> None:
    """But for a sequence that a constant names: it has been judged as a mention, and writers ask often."""
    rewritten = rewrite(parse(sql), PathNames(), CLOSED)
    assert isinstance(rewritten, Rewritten) == is_looked_up


def test_what_cannot_be_looked_up_is_refused_where_no_catalog_is_open() -> None:
    decision = judged("SELECT pg_describe_object(1259, 16400, 0)", CLOSED)
    assert not isinstance(decision, Allow)
    assert decision.violations[0].rule == "function-not-allowed"
    assert "opens no catalog" in decision.violations[0].hint
    assert "pg_catalog or information_schema" not in decision.violations[0].hint
