"""The JSON Schema of policies agrees with the loader: what one takes the other takes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from policy import loader, schema
from policy.diagnostics import PolicyError
from policy.model import Access, StatementClass
from proxy.cli import main

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "policy" / "schema.json"
EXAMPLES = sorted((ROOT / "policy" / "examples").glob("*.yaml"))
SCHEMA = schema.policy_schema()
VALIDATOR = jsonschema.Draft7Validator(SCHEMA)


class Core(yaml.SafeLoader):
    """YAML 1.2's words, as editors read them: on and off are text, days too."""


Core.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in resolvers
        if tag not in ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:timestamp")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Core.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("true|false"), list("tf"))


def complaints(text: str) -> list[str]:
    return [error.json_path for error in VALIDATOR.iter_errors(yaml.load(text, Core))]


def test_the_schema_that_ships_is_the_generated_one() -> None:
    assert SHIPPED.read_text(encoding="utf-8") == schema.rendered(), "run: pgturnstile policy schema"


def test_the_schema_is_one() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_shipped_policies_fit(path: Path) -> None:
    assert complaints(path.read_text(encoding="utf-8")) == []


def test_every_key_of_the_reference_fits() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    reference = readme.partition("```yaml policy-reference\n")[2].partition("\n```")[0]
    assert complaints(reference) == []
    assert set(SCHEMA["properties"]) - set(yaml.load(reference, Core)) == {"extends"}


def test_closed_sets_are_listed() -> None:
    properties = SCHEMA["properties"]
    assert properties["access"]["enum"] == [access.value for access in Access]
    assert properties["access"]["default"] == "read_only"
    assert set(properties["statements"]["properties"]) == {c.value for c in StatementClass}
    assert properties["repair"]["properties"]["window"]["default"] == "10m"


HEAD = "version: 1\n"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("name: x", "$"),
        (f"{HEAD}acess: read_only", "$"),
        (f"{HEAD}access: read-only", "$.access"),
        (f"{HEAD}mode: true", "$.mode"),
        (f"{HEAD}statements: {{selekt: allow}}", "$.statements"),
        (f"{HEAD}statements: {{select: warn}}", "$.statements.select"),
        (f"{HEAD}statements: {{select: {{repair: once}}}}", "$.statements.select"),
        (f"{HEAD}relations: {{allow: public.*}}", "$.relations.allow"),
        (f"{HEAD}relations: {{allow: [1]}}", "$.relations.allow[0]"),
        (f"{HEAD}columns: [public.users]", "$.columns"),
        (f"{HEAD}columns: {{public.users: {{hide: [a]}}}}", "$.columns['public.users']"),
        (f"{HEAD}functions: {{allow: [{{volatility: fast}}]}}", "$.functions.allow[0]"),
        (f"{HEAD}rules: {{unbounded-join: maybe}}", "$.rules['unbounded-join']"),
        (f"{HEAD}rules: {{no-such-rule: warn}}", "$.rules"),
        (f"{HEAD}cost: {{max_rows: -1}}", "$.cost.max_rows"),
        (f"{HEAD}cost: {{allowances: [{{name: a}}]}}", "$.cost.allowances[0]"),
        (f"{HEAD}limits: {{statement_timeout: 30 parsecs}}", "$.limits.statement_timeout"),
        (f"{HEAD}limits: {{result_bytes: many}}", "$.limits.result_bytes"),
        (f"{HEAD}limits: {{connections: 5}}", "$.limits"),
        (f"{HEAD}repair: {{turns: 7}}", "$.repair.turns"),
        (f"{HEAD}sandbox: {{dsn: x}}", "$.sandbox"),
        (f"{HEAD}tests: [{{sql: SELECT 1}}]", "$.tests[0]"),
    ],
)
def test_what_the_loader_refuses_by_its_form_the_schema_refuses_there(text: str, path: str) -> None:
    with pytest.raises(PolicyError):
        loader.load(text, "p.yaml")
    assert path in complaints(text)


def keys(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths that the sentences are filed under."""
    yield path
    for option in (node, *node.get("anyOf", ())):
        for key, value in option.get("properties", {}).items():
            yield from keys(value, (*path, key))
        for key, part in (("*", "additionalProperties"), ("[]", "items")):
            if isinstance(option.get(part), dict):
                yield from keys(option[part], (*path, key))


def test_every_sentence_belongs_to_a_key_and_every_section_has_one() -> None:
    known = {".".join(path) for path in keys(SCHEMA)}
    assert set(schema.DESCRIPTIONS) <= known
    assert set(SCHEMA["properties"]) <= set(schema.DESCRIPTIONS)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "schema"]) == 0
    assert json.loads(capsys.readouterr().out) == SCHEMA
