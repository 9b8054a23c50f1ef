"""The gate and its catalog: what names it gives, and when a refusal is made sure of."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

from policy.catalog import Catalog
from policy.catalog_names import CatalogNames, SessionNames, UnreadCatalog
from policy.decision import Reject
from policy.model import Policy
from policy.names import PathNames
from proxy.gate import Gate
from proxy.ruling import Ruling
from tests.policy.rules.schema import CATALOG, CONTENT, reader, relation, writer

PATHS = (("public",),)
WITH_FRESH = Catalog(replace(CONTENT, relations=(*CONTENT.relations, relation("fresh", "id int4"))))


@dataclass
class View:
    """A catalog as a test wants it: ``next`` is what asking again would find, None that it cannot be had."""

    current: Catalog | None = CATALOG
    next: Catalog | None = CATALOG
    database: str = "shop"
    asked: list[Catalog | None] = field(default_factory=list)

    async def renew(self) -> bool:
        self.asked.append(self.next)
        if self.next is None:
            return False
        self.current = self.next
        return True


def gate_of(view: View | None, policy: Policy | None = None) -> Gate:
    return Gate(policy or reader(), "agent", 1_000_000, view)


def rule_surely(gate: Gate, sql: str, *, renew: bool = False) -> Ruling:
    async def judge_apart(text: bytes, names: SessionNames) -> Ruling:
        return gate.rule_slowly(text, names)

    return asyncio.run(gate.rule_surely(sql.encode(), gate.names(PATHS), judge_apart, renew=renew))


def test_names_are_the_catalog_s_where_there_is_one() -> None:
    view = View()
    gate = gate_of(view)
    assert gate.names(PATHS) == CatalogNames(CATALOG, PATHS, temporary=False)
    assert gate.generation is CATALOG
    assert gate_of(None).names(PATHS) == PathNames(PATHS)


def test_where_it_cannot_be_read_names_say_so() -> None:
    gate = gate_of(View(current=None))
    assert gate.names(PATHS) == UnreadCatalog(PATHS, "shop")
    assert gate.generation is None


def test_what_a_session_may_have_made_depends_on_policy_and_catalog() -> None:
    policy = writer(functions="{allow: [builtin-safe, public.bump]}")
    names = gate_of(View(), policy).names(PATHS)
    assert isinstance(names, CatalogNames)
    assert names.temporary


def test_a_refusal_for_what_the_catalog_lacks_is_made_sure_of() -> None:
    view = View(next=WITH_FRESH)
    gate = gate_of(view)
    text = b"SELECT id FROM fresh LIMIT 1"
    assert gate.rule(text, gate.names(PATHS)) is None
    ruling = rule_surely(gate, text.decode())
    assert ruling.allowed
    assert ruling.names == CatalogNames(WITH_FRESH, PATHS, temporary=False)
    assert view.asked == [WITH_FRESH]


def test_it_stands_where_the_catalog_is_as_it_was() -> None:
    view = View()
    ruling = rule_surely(gate_of(view), "SELECT id FROM nowhere")
    assert isinstance(ruling.decision, Reject)
    assert ruling.decision.violations[0].rule == "unknown-relation"
    assert ruling.decision.basis.catalog_sha256 == CATALOG.sha256
    assert view.asked == [CATALOG]


def test_other_rulings_ask_nothing() -> None:
    view = View()
    gate = gate_of(view)
    for text in (b"SELECT id FROM orders", b"SELECT 1 FROM api_keys"):
        assert gate.rule(text, gate.names(PATHS)) is not None
        rule_surely(gate, text.decode())
    assert view.asked == []


def test_renewing_comes_before_judging_where_it_is_asked_for() -> None:
    view = View(next=WITH_FRESH)
    assert rule_surely(gate_of(view), "SELECT id FROM fresh LIMIT 1", renew=True).allowed
    assert view.asked == [WITH_FRESH]


def test_what_cannot_be_renewed_is_refused() -> None:
    ruling = rule_surely(gate_of(View(next=None)), "SELECT id FROM orders", renew=True)
    assert isinstance(ruling.decision, Reject)
    assert "catalog of database shop cannot be read" in ruling.decision.violations[0].message
    doubted = rule_surely(gate_of(View(next=None)), "SELECT id FROM nowhere")
    assert isinstance(doubted.decision, Reject)


def test_rulings_of_an_old_schema_are_forgotten() -> None:
    view = View()
    gate = gate_of(view)
    text = b"SELECT id FROM orders LIMIT 1"
    gate.rule(text, gate.names(PATHS))
    assert gate.cache(gate.names(PATHS)).get(text) is not None
    before = gate.cache(gate.names((("public", "billing"),)))
    view.current = WITH_FRESH
    assert gate.cache(gate.names(PATHS)).get(text) is None
    view.current = CATALOG
    assert gate.cache(gate.names(PATHS)).get(text) is None
    assert gate.cache(gate.names((("public", "billing"),))) is not before


def test_an_equal_snapshot_keeps_its_rulings() -> None:
    view = View()
    gate = gate_of(view)
    text = b"SELECT id FROM orders LIMIT 1"
    ruling = gate.rule(text, gate.names(PATHS))
    view.current = Catalog(CONTENT)
    assert gate.generation is not CATALOG
    assert gate.cache(gate.names(PATHS)).get(text) is ruling


def test_a_ruling_says_whether_it_may_alter_the_schema() -> None:
    policy = writer(statements="{select: allow, ddl: allow, do: allow, call: allow}")
    gate = gate_of(None, policy)
    for text, alters in ((b"CREATE TABLE t ()", True), (b"DO ''", True), (b"SELECT 1", False)):
        ruling = gate.rule_slowly(text, PathNames())
        assert ruling.alters is alters
        assert ruling.plain is not alters


def test_engine_errors_are_told_by_the_ruling_s_own_names() -> None:
    gate = gate_of(View())
    ruling = gate.rule_slowly(b"SELECT id FROM orders JOIN customers ON true", gate.names(PATHS))
    told = gate.enrich({"sqlstate": "42702", "message": "m", "position": "8"}, ruling, 1, "c-1")
    assert told is not None
    assert told["hint"] == "Write orders.id or customers.id."
    assert '"id":"c-1"' in told["detail"]
    assert gate.enrich({"sqlstate": "22012", "message": "division by zero"}, ruling, 0) is None
