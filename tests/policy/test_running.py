"""What running a statement does to rows, read from its facts."""

from __future__ import annotations

import pytest

from policy.parse import parse
from policy.running import Running, running


def of(sql: str) -> Running:
    return running(parse(sql.encode(), 1 << 20))


TRAITS = {
    "": {"reads"},
    "SELECT 1": {"reads", "returns"},
    "SHOW x": {"reads", "returns"},
    "EXPLAIN INSERT INTO t VALUES (1)": {"reads", "returns"},
    "EXPLAIN ANALYZE INSERT INTO t VALUES (1)": {"returns", "writes"},
    "FETCH 3 FROM c": {"reads", "returns"},
    "DECLARE c CURSOR FOR SELECT 1": {"reads", "returns"},
    "COPY t TO STDOUT": {"reads", "returns"},
    "COPY t FROM STDIN": {"writes", "takes"},
    "COPY (DELETE FROM t RETURNING a) TO STDOUT": {"returns", "writes"},
    "SELECT 1 FROM t FOR UPDATE": {"returns"},
    "INSERT INTO t VALUES (1)": {"writes"},
    "UPDATE t SET a = $1 RETURNING a": {"returns", "writes", "parameters"},
    "WITH w AS (DELETE FROM t) SELECT 1": {"returns", "writes"},
    "PREPARE p AS UPDATE t SET a = 1": {"writes", "prepares"},
    "EXECUTE p": {"returns"},
    "BEGIN": set(),
    "SET x = 1": set(),
    "SELECT 1; COMMIT": {"returns"},
}


@pytest.mark.parametrize("sql", TRAITS)
def test_traits(sql: str) -> None:
    found = of(sql)
    names = ("reads", "returns", "writes", "prepares", "takes", "parameters")
    assert {name for name in names if getattr(found, name)} == TRAITS[sql]


@pytest.mark.parametrize(
    ("options", "headers"),
    [("", 0), ("(FORMAT csv, HEADER)", 1), ("(FORMAT csv, HEADER FALSE)", 0), ("(FORMAT csv, HEADER on)", 1)],
)
def test_a_header_is_no_row(options: str, headers: int) -> None:
    assert of(f"COPY t TO STDOUT {options}").headers == headers
    assert of(f"COPY t FROM STDIN {options}").headers == 0
