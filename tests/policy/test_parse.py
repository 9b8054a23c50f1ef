"""The door to the grammar: what is refused before it, what it refuses, and that nothing kills the process."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy import parse as parse_module
from policy.facts import ParseFailure
from policy.parse import DEFAULT_MAX_BYTES, canonical, fingerprint, normalize, parse, parse_heavy


def failure(text: bytes | str, max_bytes: int = DEFAULT_MAX_BYTES) -> ParseFailure:
    found = parse(text, max_bytes)
    assert found.failure is not None
    assert found.statements == ()
    return found.failure


@pytest.mark.parametrize("text", ["", " ", "\n\t", ";", ";;; ", "-- ping", "/* a /* b */ c */ ;", "--\n;--"])
def test_an_empty_query_string_has_no_statement_and_no_failure(text: str) -> None:
    found = parse(text)
    assert (found.sql, found.statements, found.failure) == (text, (), None)


@pytest.mark.parametrize(
    ("text", "message", "position"),
    [
        ("SELEC 1", 'syntax error at or near "SELEC"', 1),
        ("SELECT 'é', from", 'syntax error at or near "from"', 13),
        ("SELECT '日本語🐘', from", 'syntax error at or near "from"', 16),
        ("SELECT 1;\nDELETE FORM t", 'syntax error at or near "FORM"', 18),
        ("SELECT 'abc", 'unterminated quoted string at or near "\'abc"', 8),
        ("SELECT", None, None),
        ("SELECT 1 FROM", "syntax error at end of input", 14),
        ("SELECT * FROM order LIMIT 1", 'syntax error at or near "order"', 15),
    ],
)
def test_what_the_grammar_refuses_keeps_postgresqls_words_and_place(
    text: str, message: str | None, position: int | None
) -> None:
    found = parse(text)
    if message is None:
        assert found.failure is None  # a SELECT of nothing is a statement
        return
    assert found.failure == ParseFailure("unparsable", message, "42601", position)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        (b"SELECT 1\x00; DROP TABLE t", 9),
        ("SELECT 'é'\x00".encode(), 11),
        ("SELECT 1\x00", 9),
    ],
)
def test_a_zero_byte_does_not_end_the_text(text: bytes | str, position: int) -> None:
    found = failure(text)
    assert (found.rule, found.sqlstate, found.position) == ("unparsable", "42601", position)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        (b"SELECT '\xff'", 9),
        (b"SELECT '\xc3\xa9\xc3'", 10),
        (b"SELECT '\xed\xa0\x80'", 9),
        (b"SELECT '\xc0\xaf'", 9),
        ("SELECT '\ud800'", 9),
    ],
)
def test_text_that_is_not_utf_8_is_refused(text: bytes | str, position: int) -> None:
    found = failure(text)
    assert (found.rule, found.sqlstate, found.position) == ("unparsable", "42601", position)


def test_the_size_is_counted_in_bytes() -> None:
    text = "SELECT '" + "é" * 10 + "'"
    assert parse(text, 29).failure is None
    found = failure(text, 28)
    assert (found.rule, found.sqlstate) == ("statement-too-large", "54000")
    assert "29" in found.message
    assert "28" in found.message


@pytest.mark.parametrize("unit", ["/*", "+", "-+", "*/*", "=/*"])
def test_operator_runs_that_are_quadratic_to_lex_are_refused_unread(unit: str) -> None:
    found = failure("SELECT 1 " + unit * 16384 + " 1")
    assert (found.rule, found.sqlstate) == ("not-understood", "54001")
    assert "operator" in found.message


@pytest.mark.parametrize(
    "text",
    [
        "/" + "*" * 400 + " banner " + "*" * 400 + "/ SELECT 1",
        "-- " + "=" * 3000 + "\nSELECT 1",
        "-- " + ("-" * 30 + "+") * 20 + "\nSELECT 1",
        "SELECT '" + "+" * 1000 + "'",
    ],
)
def test_banners_and_ruled_tables_are_read(text: str) -> None:
    assert parse(text).failure is None


def test_statements_keep_their_own_text_and_start() -> None:
    text = "SELECT 'é'; /* x */ DELETE FROM t;\n\nSHOW a"
    statements = parse(text).statements
    assert [(s.node, s.sql, s.start) for s in statements] == [
        ("SelectStmt", "SELECT 'é'", 1),
        ("DeleteStmt", "DELETE FROM t", 21),
        ("VariableShowStmt", "SHOW a", 37),
    ]
    assert statements[1].relations[0].position == text.index("t;") + 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("1,000-term OR", "SELECT 1 FROM t WHERE " + " OR ".join(f"a = {n}" for n in range(1000))),
        ("10,000 values IN", f"SELECT 1 FROM t WHERE a IN ({', '.join(map(str, range(10_000)))})"),
        ("300 concatenations", "SELECT " + " || ".join(f"'{n}'" for n in range(300))),
        ("200 UNION ALL arms", " UNION ALL ".join(f"SELECT {n}" for n in range(200))),
        ("60 joins", "SELECT 1 FROM t0" + "".join(f" JOIN t{n} USING (id)" for n in range(1, 60))),
        ("100 nested sub-selects", "SELECT * FROM (" * 100 + "SELECT 1" + ") x" * 100),
        ("50 nested CASEs", "SELECT " + "CASE WHEN a THEN 1 ELSE " * 50 + "0" + " END" * 50),
        ("5,000 rows", "INSERT INTO t VALUES " + ", ".join(f"({n}, 'x', NULL)" for n in range(5000))),
        ("a long literal", "SELECT '" + "x" * 500_000 + "'"),
    ],
)
def test_ordinary_large_statements_are_understood(name: str, text: str) -> None:
    found = parse(text)
    assert found.failure is None
    assert found.statements[0].not_understood is None


def test_too_deep_is_the_same_however_deep_the_caller_is() -> None:
    text = "SELECT " + " || ".join(["a"] * 1100)

    def from_depth(depth: int) -> ParseFailure | None:
        return from_depth(depth - 1) if depth else parse(text).failure

    assert (
        from_depth(0)
        == from_depth(600)
        == ParseFailure("not-understood", "the statement is nested too deep", "54001")
    )


HOSTILE = {
    "parentheses": "'SELECT ' + '(' * 100_000 + '1' + ')' * 100_000",
    "sum": "'SELECT 1' + '+1' * 22_500",
    "a megabyte of sum": "'SELECT 1' + ' +1' * 340_000",
    "dense sum": "'SELECT 1' + '+1' * 520_000",
    "NOT": "'SELECT ' + 'NOT ' * 250_000 + 'true'",
    "casts": "'SELECT 1' + '::t' * 340_000",
    "ISNULL": "'SELECT a' + ' ISNULL' * 140_000",
    "calls": "'SELECT ' + 'f(' * 300_000",
    "arrays": "'SELECT ' + 'ARRAY[' * 100_000",
    "CASE": "'SELECT ' + 'CASE WHEN ' * 50_000",
    "UNION": "'SELECT 1' + ' UNION SELECT 1' * 60_000",
    "joins": "'SELECT FROM a' + ' CROSS JOIN a' * 70_000",
    "sub-selects": "'SELECT ' + '(SELECT ' * 9_000 + '1' + ')' * 9_000",
    "CTEs": "'WITH a AS (' * 5_000 + 'SELECT 1' + ') SELECT 1' * 5_000",
    "DML in CTEs": "'WITH a AS (' * 900 + 'DELETE FROM t' + ') DELETE FROM t' * 900",
    "from sub-selects": "'SELECT * FROM (' * 3_000 + 'SELECT 1' + ') x' * 3_000",
    "indirection": "'SELECT ' + '(' * 9_000 + 'a' + ').b' * 9_000",
    "subscripts": "'SELECT a' + '[1]' * 300_000",
    "comments": "'SELECT 1 ' + '/* ' * 300_000",
    "dollar": "'SELECT ' + '$a$' * 300_001",
}


def test_no_text_kills_the_process() -> None:
    """In a process of its own, because a C stack that overflows takes its process along."""
    script = textwrap.dedent(
        f"""
        import threading
        from policy.parse import canonical, fingerprint, normalize, parse
        HOSTILE = {HOSTILE!r}
        def run():
            for name, expression in HOSTILE.items():
                text = eval(expression)[: 1 << 20]
                found = parse(text)
                assert found.failure or found.statements, name
                # The longest texts that run inline, and the longest that gets advice.
                for size in (512, 4096, 1 << 16):
                    cut = eval(expression)[:size]
                    parse(cut), canonical(cut), fingerprint(cut), normalize(cut)
                print(name, found.failure.rule if found.failure else "understood")
        threading.stack_size(1 << 20)
        thread = threading.Thread(target=run)
        thread.start(); thread.join()
        """
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    answers = dict(line.rsplit(" ", 1) for line in ran.stdout.splitlines())
    assert answers.keys() == HOSTILE.keys()
    assert answers["sum"] == answers["dense sum"] == "not-understood"
    assert answers["parentheses"] == "unparsable"  # PostgreSQL's own parser stack ends there too


def test_a_thread_that_cannot_be_started_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    text = "SELECT '" + "x" * 10_000 + "'"
    assert parse_heavy(text)
    assert failure(text).rule == "not-understood"
    assert canonical(text) is None
    assert parse("SELECT 1").failure is None
    assert not parse_heavy("SELECT 1")


def test_the_stack_size_of_other_threads_is_left_alone() -> None:
    before = threading.stack_size()
    assert parse("SELECT '" + "x" * 100_000 + "'").failure is None
    assert threading.stack_size() == before


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200)))
def test_any_text_gets_an_answer(text: bytes | str) -> None:
    found = parse(text)
    assert found.failure is None or found.statements == ()


SQL_WORDS = """
    SELECT FROM WHERE t a 1 'x' ( ) , ; * = < JOIN ON WITH AS DELETE UPDATE SET INSERT INTO VALUES LIMIT NULL
    GROUP BY ORDER UNION ALL CASE WHEN THEN END f( [ ] . :: int $1 -- /* */ E'\\'' $$ U& EXPLAIN COPY TO é
"""


@given(st.lists(st.sampled_from(SQL_WORDS.split()), max_size=25).map(" ".join))
def test_any_words_get_an_answer_that_fits_the_text(text: str) -> None:
    found = parse(text)
    if found.failure is not None:
        assert found.failure.position is None or 1 <= found.failure.position <= len(text) + 1
    for statement in found.statements:
        assert text[statement.start - 1 :].startswith(statement.sql)
        places = [item.position for item in (*statement.columns, *statement.functions, *statement.relations)]
        assert all(place is None or 1 <= place <= len(text) for place in places)


def test_canonical_text_is_postgresqls_own_spelling() -> None:
    assert canonical('select  U&"a\\0062c" /* x */ from "T"\n where A=1 -- y') == (
        'SELECT abc FROM "T" WHERE a = 1'
    )
    assert canonical("SELEC 1") is None
    assert canonical("SELECT 1 \x00") is None
    assert canonical("SELECT '" + "x" * (64 << 10) + "'") is None


def test_advice_on_shape() -> None:
    assert fingerprint("SELECT a FROM t WHERE b = 1") == fingerprint("select a from t where b = 2")
    assert fingerprint("SELECT a FROM t") != fingerprint("SELECT b FROM t")
    assert fingerprint("SELEC") is None
    assert normalize("SELECT a FROM t WHERE b = 'x' LIMIT 3") == "SELECT a FROM t WHERE b = $1 LIMIT $2"
    assert normalize("SELEC") is None


def test_a_text_of_too_many_references_is_not_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parse_module, "MAX_NAMED", 4)
    assert parse("VALUES (1), (2), (3), (4), (5), (6)").failure is None
    found = failure("SELECT a, b, c, d FROM t")
    assert (found.rule, found.sqlstate) == ("not-understood", "54001")
    assert "more than 4 columns, calls and operators" in found.message


class TestFallbackBinding:
    @pytest.fixture(autouse=True)
    def pgparse(self, monkeypatch: pytest.MonkeyPatch) -> None:
        module = pytest.importorskip("pgparse")
        monkeypatch.setattr(parse_module, "_binding", parse_module._Pgparse(module))

    def test_it_reads_the_same(self) -> None:
        facts = parse("DELETE FROM t WHERE a = 'é' RETURNING f(b)").statements[0]
        assert facts.statement_class == "delete"
        assert [f.name for f in facts.functions] == ["f"]
        assert facts.functions[0].position == 39
        assert facts.queries[0].final

    def test_it_fails_the_same(self) -> None:
        assert parse("SELECT 'é', from").failure == ParseFailure(
            "unparsable", 'syntax error at or near "from"', "42601", 13
        )

    def test_it_has_no_deparse(self) -> None:
        assert canonical("SELECT 1") is None
        assert fingerprint("SELECT 1") is not None
        assert normalize("SELECT 1") == "SELECT $1"
