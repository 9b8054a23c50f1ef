"""``extends:``: a policy that is another one with changes.

Owns which file a base is, and how the two are put together. It works on what the files say, before anything
is read as a policy, so that the loader judges the whole as if one file said it. Knows what no key means, but
for which lists are joined.

Precedence, key by key: what the extending policy says replaces what its base says, whole rows and lists
alike; what it does not say is inherited. Two kinds of lists are joined instead: every ``deny``, because what
a base denies stays denied, and ``cost.allowances``. ``version``, ``name`` and ``tests`` are never inherited:
a base's tests hold of the base.

A line of a base is told apart from the extending policy's own by its number: ``in_file``, ``place_of`` and
``shown_line`` are the only readers of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from policy.diagnostics import nearest
from policy.yaml_source import Document, Entry, Mapping, Mark, Node, Scalar
from policy.yaml_source import Sequence as Items

KEY: Final = "extends"
MAX_DEPTH: Final = 4
"""Bases upon bases: more is a policy that nobody can read."""

_SHIPPED: Final = Path(__file__).parent / "examples"
_FILE_BITS: Final = 20
"""A file of ``yaml_source.MAX_BYTES`` has fewer lines than 2 to this."""
_OWN_KEYS: Final = frozenset({KEY, "version", "name", "tests"})
"""Keys that are not inherited."""
_SECTIONS: Final = frozenset(
    {"statements", "relations", "columns", "functions", "settings", "rules", "cost", "limits", "repair"}
)
"""Keys whose mappings are put together key by key."""
_JOINED: Final = (
    ("relations", "deny"),
    ("functions", "deny"),
    ("columns", "*", "deny"),
    ("cost", "allowances"),
)


@dataclass(frozen=True, slots=True)
class Layers:
    """What a policy and its bases say together, and the files that say it, the policy's own first."""

    root: Node
    files: tuple[str, ...]
    hashes: tuple[str, ...]


def shipped_names() -> list[str]:
    """Bases that come with the program, by the names that ``extends`` takes."""
    return sorted(path.stem for path in _SHIPPED.glob("*.yaml") if not path.stem.startswith("demo-"))


def is_shipped(source: str) -> bool:
    """Whether the file ``source`` is one of the policies that ship."""
    return Path(source).parent == _SHIPPED


def base_of(document: Document, source: str) -> Path | None:
    """The file that ``document``, which is ``source``, extends. A name that cannot stand is reported."""
    entry = _entry(document.root, KEY)
    if entry is None:
        return None
    value = entry.value
    if not isinstance(value, Scalar) or not isinstance(value.value, str) or not value.value.strip():
        return None  # the loader says what is wrong with it
    name = value.value
    if "/" in name or name.endswith((".yaml", ".yml")):
        return Path(source).parent / name
    if name not in shipped_names():
        message = f"no such base; name one of {', '.join(shipped_names())}, or a file, as in ./base.yaml"
        document.report.add(value.mark, KEY, message, nearest(name, shipped_names()))
        return None
    return _SHIPPED / f"{name}.yaml"


def mark_of_base(document: Document) -> Mark:
    """Where the base is named."""
    entry = _entry(document.root, KEY)
    return Mark(1, 1) if entry is None else entry.value.mark


def extend(base: Layers, root: Node, source: str, sha256: str) -> Layers:
    """``root``, of the file ``source``, over ``base``."""
    below = _shifted(base.root)
    merged = _merged(below, root, ()) if isinstance(root, Mapping) and isinstance(below, Mapping) else root
    return Layers(merged, (source, *base.files), (sha256, *base.hashes))


def _entry(root: Node, key: str) -> Entry | None:
    if not isinstance(root, Mapping):
        return None
    return next((entry for entry in root.entries if entry.key == key), None)


def _merged(base: Mapping, own: Mapping, path: tuple[str, ...]) -> Mapping:
    said = {entry.key: entry for entry in own.entries}
    inherited = [entry for entry in base.entries if path or entry.key not in _OWN_KEYS]
    entries = [
        _entry_of_both(entry, said.pop(entry.key), (*path, entry.key)) if entry.key in said else entry
        for entry in inherited
    ]
    return Mapping((*entries, *said.values()), own.mark)


def _entry_of_both(base: Entry, own: Entry, path: tuple[str, ...]) -> Entry:
    below, above = base.value, own.value
    if isinstance(below, Items) and isinstance(above, Items) and _is_joined(path):
        return replace(own, value=Items((*below.items, *above.items), above.mark))
    mergeable = (len(path) == 1 and path[0] in _SECTIONS) or (len(path) == 2 and path[0] == "columns")
    if mergeable and isinstance(below, Mapping) and isinstance(above, Mapping):
        return replace(own, value=_merged(below, above, path))
    return own


def _is_joined(path: tuple[str, ...]) -> bool:
    return any(
        len(path) == len(pattern) and all(p in ("*", part) for p, part in zip(pattern, path, strict=True))
        for pattern in _JOINED
    )


# --- lines of several files ---


def _shifted(node: Node) -> Node:
    """``node`` as it stands in the next file."""
    mark = Mark(in_file(node.mark.line, 1), node.mark.column)
    if isinstance(node, Mapping):
        entries = (
            Entry(entry.key, Mark(in_file(entry.mark.line, 1), entry.mark.column), _shifted(entry.value))
            for entry in node.entries
        )
        return Mapping(tuple(entries), mark)
    if isinstance(node, Items):
        return Items(tuple(_shifted(item) for item in node.items), mark)
    return replace(node, mark=mark)


def in_file(line: int, files_below: int) -> int:
    """The number that tells ``line`` of a file so many bases below."""
    return line + (files_below << _FILE_BITS)


def place_of(line: int, files: Sequence[str]) -> tuple[str, int]:
    """The file, of a policy's ``files``, and the line in it that the number ``line`` tells."""
    index = line >> _FILE_BITS
    return files[index] if index < len(files) else "", shown_line(line)


def shown_line(line: int) -> int:
    """The line in its own file that the number ``line`` tells."""
    return line & ((1 << _FILE_BITS) - 1)
