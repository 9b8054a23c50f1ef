"""Print the table of ``policy/nodes.py`` from the installed binding's protobuf descriptor.

Run it after an upgrade of the binding, review what changed, and paste. ``test_nodes`` compares the two.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from postgast import pg_query_pb2

from policy.nodes import LIST, NODE, SCALAR, UNDERSTOOD

_MESSAGES = pg_query_pb2.DESCRIPTOR.message_types_by_name
_ENUM = 14


def known_messages() -> frozenset[str]:
    return frozenset(_MESSAGES)


def fields_of(message: str) -> Iterator[tuple[str, str]]:
    """Each JSON field that a raw parse tree may hold, with its kind.

    Left out: ``xpr``, the header of primitive nodes, and positions typed with a node that only parse analysis
    makes.
    """
    for field in _MESSAGES[message].fields:
        if field.json_name == "xpr":
            continue
        if field.message_type is None:
            yield field.json_name, SCALAR
        elif field.message_type.name == "Node":
            yield field.json_name, LIST if field.is_repeated else NODE
        elif field.message_type.name in UNDERSTOOD:
            assert not field.is_repeated, f"{message}.{field.json_name}: a list of a typed message"
            yield field.json_name, field.message_type.name


def render() -> str:
    suffixes = {SCALAR: "", NODE: "!", LIST: "[]"}
    lines = []
    for message in sorted(UNDERSTOOD):
        words = " ".join(name + suffixes.get(kind, f":{kind}") for name, kind in fields_of(message))
        lines.append(message)
        lines.extend(textwrap.wrap(words, 106, initial_indent="    ", subsequent_indent="    "))
    return "\n".join(lines)


if __name__ == "__main__":
    print(render())
