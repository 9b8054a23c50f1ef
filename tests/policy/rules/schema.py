"""A small catalog made by hand, and judgements with it: what rules say where the schema is known."""

from __future__ import annotations

from typing import Any

from policy.catalog import Catalog
from policy.catalog_names import CatalogNames
from policy.catalog_values import (
    Cast,
    CastContext,
    CastMethod,
    Column,
    Content,
    Expression,
    ExpressionOrigin,
    ForeignKey,
    Function,
    FunctionKind,
    Operator,
    Read,
    Relation,
    RelationKind,
    RewriteRule,
    RuleEvent,
    Trigger,
    Type,
    TypeKind,
    Uses,
    Volatility,
)
from policy.decision import Decision, Reject, Situation, decide
from policy.model import Policy, Violation
from policy.names import QualifiedName
from policy.parse import parse
from tests.policy.rules.judging import policy_of

READER = """\
version: 1
name: reader
access: read_only
statements: {select: {decide: allow, repair: once}, explain: allow, copy_out: allow, prepare: allow}
relations: {allow: ["public.*"], deny: ["billing.*", public.api_keys, public.ledger], catalogs: filtered}
columns: {public.employees: {deny: [salary]}, public.events: {deny: [payload]}}
functions: {allow: [builtin-safe, public.order_total]}
"""
WRITER = """\
version: 1
name: writer
access: read_write
statements: {select: allow, insert: {decide: allow, repair: once}, update: allow, delete: allow, merge: allow,
  copy_in: allow, explain: allow}
relations: {allow: ["public.*"], deny: ["billing.*", public.api_keys, public.ledger]}
columns: {public.employees: {deny: [salary]}}
functions: {allow: [builtin-safe, public.order_total]}
"""


def named(text: str) -> QualifiedName:
    """``schema.name``; a bare name is public's, one of PostgreSQL's types pg_catalog's."""
    schema, _, name = text.rpartition(".")
    return QualifiedName(schema or ("pg_catalog" if name in _BUILTIN else "public"), name)


_BUILTIN = frozenset(
    ["int2", "int4", "int8", "text", "varchar", "date", "bool", "numeric", "jsonb", "json", "trigger"]
)


def relation(name: str, columns: str, kind: RelationKind = RelationKind.TABLE, **more: Any) -> Relation:
    """``columns``: ``id int4!, note text, on_hand int4!=`` (``!``: not null, ``=``: has a default)."""
    made = []
    for number, item in enumerate(filter(None, columns.split(", ")), 1):
        column, type_name = item.split()
        flags = type_name[len(type_name.rstrip("!=")) :]
        made.append(
            Column(column, number, named(type_name.rstrip("!=")), not_null="!" in flags, default="=" in flags)
        )
    return Relation(*named(name), kind=kind, owner="dba", columns=tuple(made), **more)


def view(name: str, columns: str, *reads: str, functions: tuple[str, ...] = (), **more: Any) -> Relation:
    """``reads``: ``employees(name, salary)``."""
    made = []
    for read in reads:
        of, _, read_columns = read.rstrip(")").partition("(")
        made.append(Read(named(of), tuple(read_columns.split(", ")) if read_columns else ()))
    rule = RewriteRule(
        "_RETURN", RuleEvent.SELECT, True, tuple(made), Uses(functions=tuple(map(named, functions)))
    )
    return relation(name, columns, more.pop("kind", RelationKind.VIEW), rules=(rule,), **more)


def function(name: str, arguments: str = "", result: str = "int4", **more: Any) -> Function:
    settings: dict[str, Any] = {
        "kind": FunctionKind.FUNCTION,
        "volatility": Volatility.VOLATILE,
        "security_definer": False,
        "language": "plpgsql",
        "owner": "dba",
    }
    taken = tuple(named(argument) for argument in arguments.split(", ") if argument)
    return Function(*named(name), arguments=taken, result=named(result), **(settings | more))


def cast(source: str, target: str, by: str, context: CastContext) -> Cast:
    return Cast(named(source), named(target), named(by), context, CastMethod.FUNCTION)


CONTENT = Content(
    version=180000,
    database="shop",
    login="shop_ro",
    search_path=("public",),
    schemas=("billing", "pg_catalog", "public"),
    relations=(
        relation("pg_catalog.pg_class", "oid int4!, relname text!"),
        relation("pg_catalog.pg_authid", "oid int4!, rolpassword text"),
        relation("customers", "id int4!=, name text!, email text!, country text!"),
        relation(
            "orders",
            "id int4!=, customer_id int4!, status text!=, total numeric!=, notes text",
            foreign_keys=(ForeignKey("fk", ("customer_id",), named("customers"), ("id",)),),
            triggers=(Trigger("audit", named("log_change"), ("insert", "update"), row=True),),
        ),
        relation("employees", "id int4!, name text!, title text!, salary numeric"),
        relation("shipments", "id int4!=, order_id int4!, carrier text!, shipped_on date!, note text"),
        relation("pay", "id int4!=, employee_id int4!, salary numeric!"),
        relation(
            "api_keys",
            "id int4!, secret text!, customer_id int4",
            foreign_keys=(
                ForeignKey("api_keys_customer_id_fkey", ("customer_id",), named("customers"), ("id",)),
            ),
        ),
        relation("billing.cards", "id int4!, pan text!"),
        relation("labels", "id int4!, code sku_code, qty small_qty"),
        relation("tagged", "id int4!, tag ci"),
        relation(
            "guarded",
            "id int4!, tenant int4!",
            row_security=True,
            expressions=(Expression(ExpressionOrigin.POLICY, None, Uses((named("tenant_of"),))),),
        ),
        relation(
            "stamped",
            "id int4!, at date!",
            triggers=(Trigger("fill", named("fill"), ("insert",), before=True, row=True),),
        ),
        relation(
            "ruled",
            "id int4!",
            rules=(RewriteRule("also", RuleEvent.INSERT, False, (Read(named("api_keys")),)),),
        ),
        relation(
            "events",
            "id int4!, payload jsonb",
            RelationKind.PARTITIONED,
            children=(named("events_1"),),
        ),
        relation("events_1", "id int4!, payload jsonb", partition=True),
        relation("ledger", "id int4!", RelationKind.PARTITIONED, children=(named("ledger_1"),)),
        relation("ledger_1", "id int4!", partition=True),
        view("order_view", "id int4, customer text", "orders(id, customer_id)", "customers(id, name)"),
        view("key_view", "token text", "api_keys(secret)"),
        view("key_view_view", "token text", "key_view(token)"),
        view("pay_view", "name text, amount numeric", "employees(name, salary)"),
        view("staff", "name text", "employees(name)"),
        view("event_view", "id int4", "events(id)"),
        view("noisy_view", "n int4", "orders(id)", functions=("bump",)),
        view("kept_keys", "token text", "api_keys(secret)", kind=RelationKind.MATERIALIZED_VIEW),
    ),
    functions=(
        function("order_total", "int4", "numeric", volatility=Volatility.STABLE, language="sql"),
        function("bump", "text"),
        function("definer", "int4", security_definer=True, language="sql"),
        function("staff_of", "int4", "employees", returns_set=True, language="sql"),
        function("score_of", "mood", "int4"),
        function("pure", "int4", volatility=Volatility.IMMUTABLE, language="sql"),
        function("length", "int4"),
        function("pg_catalog.length", "text", volatility=Volatility.IMMUTABLE, language="internal"),
        function("replace", "ci, ci, ci", "text"),
        function(
            "pg_catalog.replace",
            "text, text, text",
            "text",
            volatility=Volatility.IMMUTABLE,
            language="internal",
        ),
        function("billing.secret_sum", "int4"),
        function("loyalty", "customers", "text"),
        function("score", "int4, int4"),
        function("noisy_add", "int4, int4"),
        function("noisy_sum", "int4", kind=FunctionKind.AGGREGATE, uses=Uses((named("noisy_add"),))),
        function("to_sku", "text", "sku_code"),
        function("small_enough", "int4", "bool"),
        function("ci_eq", "ci, ci", "bool"),
        function("as_json", "sku_code", "json"),
        function("log_change", "", "trigger"),
        function("fill", "", "trigger"),
        function("tenant_of", "", "int4"),
    ),
    operators=(
        Operator("public", "<~>", named("int4"), named("int4"), named("int4"), named("score")),
        Operator("public", "=", named("ci"), named("ci"), named("bool"), named("ci_eq")),
        Operator(
            "pg_catalog",
            "=",
            named("text"),
            named("text"),
            named("bool"),
            QualifiedName("pg_catalog", "texteq"),
        ),
        Operator(
            "pg_catalog",
            "=",
            named("int4"),
            named("int4"),
            named("bool"),
            QualifiedName("pg_catalog", "int4eq"),
        ),
    ),
    casts=(
        cast("text", "sku_code", "to_sku", CastContext.ASSIGNMENT),
        cast("sku_code", "json", "as_json", CastContext.EXPLICIT),
        cast("mood", "int4", "score_of", CastContext.ASSIGNMENT),
    ),
    types=(
        Type("public", "ci", TypeKind.BASE, "S"),
        Type(
            "public",
            "small_qty",
            TypeKind.DOMAIN,
            "N",
            base=named("int4"),
            uses=Uses((named("small_enough"),)),
        ),
        Type("public", "mood", TypeKind.ENUM, "E"),
        Type("public", "sku_code", TypeKind.BASE, "U"),
    ),
)
CATALOG = Catalog(CONTENT)


def names(*path: str, temporary: bool = False, catalog: Catalog = CATALOG) -> CatalogNames:
    return CatalogNames(catalog, (path or ("public",),), temporary=temporary)


def reader(**sections: str) -> Policy:
    return policy_of(READER, **sections)


def writer(**sections: str) -> Policy:
    return policy_of(WRITER, **sections)


def judge(sql: str, policy: Policy, known: CatalogNames | None = None) -> Decision:
    return decide(policy, Situation("agent", known or names()), parse(sql))


def objections(sql: str, policy: Policy, known: CatalogNames | None = None) -> list[Violation]:
    """What refuses ``sql``, and nothing where it passes; a rule that failed fails the test."""
    decision = judge(sql, policy, known)
    assert decision.failures == ()
    return list(decision.violations) if isinstance(decision, Reject) else []


def objection(sql: str, policy: Policy, known: CatalogNames | None = None) -> Violation:
    """What leads the refusal of ``sql``."""
    found = objections(sql, policy, known)
    assert found, "allowed"
    return found[0]
