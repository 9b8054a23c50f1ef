"""YAML is read by the core schema of 1.2, strictly, with places, and never expands."""

from __future__ import annotations

import math
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from policy import yaml_source
from policy.yaml_source import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_DIAGNOSTICS,
    Broken,
    Mapping,
    Mark,
    Node,
    Scalar,
    Sequence,
    read,
)


def plain(node: Node) -> Any:
    """The node as Python's own values."""
    match node:
        case Mapping(entries):
            return {entry.key: plain(entry.value) for entry in entries}
        case Sequence(items):
            return [plain(item) for item in items]
        case Scalar(value):
            return value
        case Broken():
            raise AssertionError("a broken node")


def value_of(text: str) -> Any:
    document = read(text, "f.yaml")
    assert document.report.found == []
    return plain(document.root)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        *((word, word) for word in ("on", "off", "yes", "no", "y", "n", "On", "OFF", "Yes", "tRUE")),
        *((word, True) for word in ("true", "True", "TRUE")),
        *((word, False) for word in ("false", "False", "FALSE")),
        *((word, None) for word in ("null", "Null", "NULL", "~", "")),
        ("2027-03-01", "2027-03-01"),
        ("12:30:45", "12:30:45"),
        ("1_000", "1_000"),
        ("007", 7),
        ("-12", -12),
        ("0o17", 15),
        ("0x1F", 31),
        ("0b1", "0b1"),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("1e", "1e"),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ('"on"', "on"),
        ("'7'", "7"),
        ('"true"', "true"),
        ("=", "="),
        ("5MiB", "5MiB"),
        ("10.0.0.1", "10.0.0.1"),
    ],
)
def test_words_mean_what_the_core_schema_says(written: str, meant: object) -> None:
    value = value_of(f"k: {written}\n")["k"]

    assert value == meant
    assert type(value) is type(meant)


def test_not_a_number_is_one() -> None:
    assert math.isnan(value_of("k: .nan")["k"])


def test_what_is_written_is_kept() -> None:
    root = read("sqlstate: 08000", "f").root

    assert isinstance(root, Mapping)
    assert root.entries[0].value == Scalar(8000, "08000", Mark(1, 11))


def test_keys_are_text() -> None:
    assert value_of("{7: a, true: b, on: c, ~: d, 'e f': g}") == {
        "7": "a", "true": "b", "on": "c", "~": "d", "e f": "g",
    }  # fmt: skip


def test_every_value_knows_its_place() -> None:
    root = read("a:\n  - b: c\n    'ü': [d]\n", "f").root

    assert isinstance(root, Mapping)
    (a,) = root.entries
    assert isinstance(a.value, Sequence)
    (item,) = a.value.items
    assert isinstance(item, Mapping)
    first, second = item.entries
    assert (a.mark, a.value.mark, first.mark, first.value.mark) == (
        Mark(1, 1), Mark(2, 3), Mark(2, 5), Mark(2, 8),
    )  # fmt: skip
    assert (second.mark, second.value.mark) == (Mark(3, 5), Mark(3, 10))


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_line_ends_of_every_system_count_alike(ending: str) -> None:
    root = read(f"a: 1{ending}b: 2{ending}".encode(), "f").root

    assert isinstance(root, Mapping)
    assert [entry.mark for entry in root.entries] == [Mark(1, 1), Mark(2, 1)]


@pytest.mark.parametrize("text", ["---\na: 1\n", "%YAML 1.2\n---\na: 1\n...\n", "\ufeffa: 1"])
def test_one_document_may_be_marked_as_such(text: str) -> None:
    assert value_of(text) == {"a": 1}


_COMMA = "has no value; in {…} a comma ends a text that is not in quotes"
REFUSED = {
    "empty": (b"", (1, 1), "", "empty"),
    "comment only": (b"# nothing\n", (1, 1), "", "empty"),
    "null": (b"~", (1, 1), "", "empty"),
    "not UTF-8": (b"a: 1\nbb: \xff\n", (2, 5), "", "not UTF-8: byte 0xff"),
    "UTF-16": ("a: 1".encode("utf-16"), (1, 1), "", "not UTF-8"),
    "NUL": (b"a: 1\nb: \0\n", (2, 4), "", "U+0000"),
    "escape sequence": (b"a: \x1b[31m", (1, 4), "", "U+001B"),
    "line end of YAML 1.1 only": ("a: x\u2028b: y".encode(), (1, 5), "", "U+2028"),
    "next line": ("a: x\u0085b: y".encode(), (1, 5), "", "U+0085"),
    "tab as indentation": (b"a:\n\tb: 1\n", (2, 1), "a", "use spaces"),
    "tab before a value in a list": (b"a:\n- b\n\t- c\n", (3, 1), "a[1]", "use spaces"),
    "second document": (b"a: 1\n---\nb: 2\n", (2, 1), "", "second YAML document"),
    "YAML 1.1": (b"%YAML 1.1\n---\na: 1\n", (1, 1), "", "directive"),
    "tag directive": (b"%TAG !e! tag:example.com,2000:\n---\na: 1\n", (1, 1), "", "directive"),
    "list as a key": (b"? [a]\n: b\n", (1, 3), "", "a key must be one word"),
    "template left over": (b"a: {{ name }}\n", (1, 5), "a", "a key must be one word"),
    "unclosed list": (b"a: [b, c\n", (1, 4), "a[2]", "not valid YAML"),
    "unclosed quote": (b'a: "b\n', (1, 4), "a", "not valid YAML"),
    "two colons": (
        b"a: b: c\n",
        (1, 5),
        "",
        "mapping values are not allowed here; a text that holds a colon",
    ),
    "a comma in an unquoted text": (b"{a: SELECT b, c FROM d, e: f}", (1, 15), '["c FROM d"]', _COMMA),
    "a key alone at the end": (b"{a: b, c # d\n}", (1, 8), "c", _COMMA),
    "a quoted key alone": (b"a: {'b', c: d}", (1, 5), "a.b", _COMMA),
    "a bracket in an unquoted text": (b"{a: b[1], c: d}", (1, 6), "", "got '['; in {…} and […] a text that"),
    "a brace in an unquoted text": (b"[a{b}]", (1, 3), "[1]", "got '{'; in {…} and […] a text that"),
    "a colon in an unquoted text": (b"{a: 'b' c: d}", (1, 9), "", "; in {…} and […] a text that"),
    "a brace never closed": (b"a: 1\nb: {c: d # e}\n", (2, 4), "b", "; in {…} and […] a text that"),
    "a quote never closed": (
        b"a: {b: c '}', d: e}\nf: g\n",
        (1, 12),
        "",
        "; a text that holds quotes must be",
    ),
    "bad indentation": (b"a:\n  b: 1\n c: 2\n", (3, 2), "", "not valid YAML"),
    "unquoted at": (b"a: @b\n", (1, 4), "a", "put it in quotes"),
    "unquoted backtick": (b"a: `b`\n", (1, 4), "a", "put it in quotes"),
    "unquoted percent": (b"a: %b\n", (1, 4), "a", "put it in quotes"),
    "unknown escape": (b'a: "\\@"\n', (1, 6), "a", "while scanning a double-quoted scalar, found unknown"),
    "escape beyond Unicode": (b'a: "\\UFFFFFFFF"\n', (1, 7), "a", "not valid YAML"),
    "escape of a surrogate": (b'a: "\\ud800"\n', (1, 4), "a", "no character"),
    "escape of NUL": (b'a: "\\0"\n', (1, 4), "a", "no character"),
    "alias alone": (b"*a", (1, 1), "", "alias"),
    "tag alone": (b"!!str a", (1, 1), "", "tag"),
    "alias as a key": (b"*a : 1\n", (1, 1), "", "alias"),
    "duplicate by different spelling": (b"1: a\n'1': b\n", (2, 1), "1", "line 1 and on line 2"),
}


@pytest.mark.parametrize(("text", "at", "path", "says"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_taken_is_refused_at_its_place(
    text: bytes, at: tuple[int, int], path: str, says: str
) -> None:
    (fault,) = read(text, "f.yaml").report.found

    assert says in fault.message
    assert ((fault.line, fault.column), fault.path, fault.source) == (at, path, "f.yaml")


@pytest.mark.parametrize("key", ["*a ", "<<", "b", "!!str k", "&a k", '"\\0"'])
def test_the_value_of_a_refused_key_is_dropped_with_it(key: str) -> None:
    document = read(f"b: 1\n{key}: {{c: d}}\ne: 2", "f")

    assert len(document.report.found) == 1
    assert plain(document.root) == {"b": 1, "e": 2}


def test_an_alias_bomb_is_refused_unexpanded() -> None:
    layers = [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 40)]

    document = read("l0: &l0 lol\n" + "\n".join(layers), "f")

    assert len(document.report.found) == MAX_DIAGNOSTICS
    assert {fault.message.split(";")[0] for fault in document.report.found} == {
        "an anchor is not accepted",
        "an alias is not accepted",
    }


def test_depth_is_bounded() -> None:
    within, beyond = MAX_DEPTH * "[" + MAX_DEPTH * "]", 100_000 * "["

    assert read(within, "f").report.found == []
    (fault,) = read(beyond, "f").report.found
    assert (fault.column, fault.message) == (MAX_DEPTH + 1, f"nested more than {MAX_DEPTH} levels deep")


def test_size_is_bounded() -> None:
    assert read("a: 1 #" + "x" * (MAX_BYTES - 6), "f").report.found == []
    (fault,) = read(b"x" * (MAX_BYTES + 1), "f").report.found
    assert "larger than" in fault.message


@pytest.mark.parametrize("word", ["password", "scram", "dsn_env", "token", "postgres://x"])
def test_a_line_that_may_hold_a_secret_is_not_quoted(word: str) -> None:
    first, second = read(f"a: 1\na: 2 # {word}\na: 3", "f").report.found

    assert (first.excerpt, second.excerpt) == ("", "a: 3")


LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**9), 10**9), st.text("abcö .*'\"#:-{}[]&!%@,\n", max_size=8)
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text("abc*: '", max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), TREES, min_size=1, max_size=4), st.booleans())
def test_what_a_writer_of_yaml_writes_is_read_back(tree: dict[str, Any], flow: bool) -> None:
    class NoAliases(yaml.SafeDumper):
        def ignore_aliases(self, data: object) -> bool:
            return True

    text = yaml.dump(tree, Dumper=NoAliases, default_flow_style=flow, allow_unicode=True)

    assert value_of(text) == tree


def test_the_tree_is_built_without_recursion() -> None:
    assert MAX_DEPTH < 100  # readers of the tree recurse
    assert isinstance(read("- " * 50_000, "f").root, Broken)
    assert yaml_source.read("? " * 50_000, "f").report.found
