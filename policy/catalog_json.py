"""A catalog snapshot as JSON text, and back.

Owns the dump's format: a header object whose ``content`` is made of arrays, one value of ``catalog_values``
each, its fields in order. Deterministic: equal content gives equal text. Knows no look-ups and no connection.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
import types
import typing
from collections.abc import Callable, Mapping
from enum import StrEnum
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from policy.catalog_values import ColumnId, Content, Relation
from policy.names import QualifiedName

FORMAT = 4
"""Raised whenever a field is added, dropped or moved: a dump of another format is refused."""


class CatalogFormatError(ValueError):
    """The text is no catalog dump, or one of another format."""


def dump(content: Content) -> str:
    """``content`` as one line of JSON."""
    return _encode({"format": FORMAT, "content": content}, _fields)


def load(text: str | bytes) -> Content:
    """The content ``dump`` wrote.

    Raises CatalogFormatError for anything else; every value's type is checked.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CatalogFormatError(f"the catalog dump is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise CatalogFormatError(f"this is no catalog dump of format {FORMAT}")
    content = _decoder(Content)(document.get("content"))
    assert isinstance(content, Content)  # noqa: S101 - what _decoder(Content) returns
    return content


def digest(content: Content, encoded: Mapping[int, str] = MappingProxyType({})) -> str:
    """SHA-256, in hex, of the schema that ``content`` describes.

    ``encoded`` holds what ``encode_relation`` gave for relations of ``content``, by their ``id()``.

    Leaves out what says nothing of the schema: row counts, the database's and the login's names and the
    server's version. A clone of the same schema has the same digest.
    """
    described = dataclasses.replace(content, version=0, database="", login="", search_path=())
    sha = hashlib.sha256()
    for part in dataclasses.fields(described):
        value = getattr(described, part.name)
        items = value if isinstance(value, tuple) else (value,)
        sha.update(f"\n{part.name}\n".encode())
        for item in items:
            line = encoded.get(id(item))
            sha.update((_encode(item, _fields_without_counts) if line is None else line).encode())
            sha.update(b"\n")
    return sha.hexdigest()


def encode_relation(relation: Relation) -> str:
    """The text that stands for ``relation`` in a digest."""
    return _encode(relation, _fields_without_counts)


def _encode(value: Any, default: Callable[[Any], Any]) -> str:
    return json.dumps(value, default=default, ensure_ascii=True, separators=(",", ":"))


_getters: dict[type, Callable[[Any], Any]] = {}


def _fields(value: Any) -> Any:
    """A dataclass as the tuple of its fields: what the JSON encoder asks for a value it does not know."""
    kind = type(value)
    getter = _getters.get(kind)
    if getter is None:
        getter = attrgetter(*(part.name for part in dataclasses.fields(kind)))
        _getters[kind] = getter
    return getter(value)


def _fields_without_counts(value: Any) -> Any:
    values = _fields(value)
    return values[:-1] if type(value) is Relation else values


Decoder = Callable[[Any], Any]


def _decoder(hint: Any) -> Decoder:
    """The function that turns parsed JSON into a value of the annotated type ``hint``."""
    known = _decoders.get(hint)
    if known is None:
        known = _decoders[hint] = _make_decoder(hint)
    return known


def _make_decoder(hint: Any) -> Decoder:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and arguments[-1] is Ellipsis:
        return _tuple_decoder(_decoder(arguments[0]))
    if origin in (typing.Union, types.UnionType):
        (inner,) = (argument for argument in arguments if argument is not type(None))
        decode_inner = _decoder(inner)
        return lambda value: None if value is None else decode_inner(value)
    if dataclasses.is_dataclass(hint):
        return _dataclass_decoder(hint)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        members: Mapping[str, StrEnum] = {member.value: member for member in hint}
        return lambda value: _member(members, value)
    raise TypeError(f"no decoder for {hint!r}")  # a field of a new kind: teach this module first


def _tuple_decoder(decode_item: Decoder) -> Decoder:
    def decode(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise CatalogFormatError(f"expected a list, not {value!r:.40}")
        return tuple(map(decode_item, value))

    return decode


def _dataclass_decoder(kind: Any) -> Decoder:
    hints = typing.get_type_hints(kind)
    decoders = tuple(_decoder(hints[part.name]) for part in dataclasses.fields(kind))

    def decode(value: Any) -> Any:
        if not isinstance(value, list) or len(value) != len(decoders):
            raise CatalogFormatError(
                f"expected the {len(decoders)} fields of {kind.__name__}, not {value!r:.40}"
            )
        return kind(*[decode_field(item) for decode_field, item in zip(decoders, value, strict=True)])

    return decode


def _member(members: Mapping[str, StrEnum], value: Any) -> StrEnum:
    member = members.get(value) if isinstance(value, str) else None
    if member is None:
        raise CatalogFormatError(f"expected one of {', '.join(members)}, not {value!r:.40}")
    return member


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise CatalogFormatError(f"expected a string, not {value!r:.40}")
    return sys.intern(value)


def _integer(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise CatalogFormatError(f"expected an integer, not {value!r:.40}")
    return value


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise CatalogFormatError(f"expected a number, not {value!r:.40}")
    return float(value)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise CatalogFormatError(f"expected true or false, not {value!r:.40}")
    return value


def _qualified(value: Any) -> QualifiedName:
    if not isinstance(value, list) or len(value) != 2:
        raise CatalogFormatError(f"expected a schema and a name, not {value!r:.40}")
    return QualifiedName(_text(value[0]), _text(value[1]))


def _column(value: Any) -> ColumnId:
    if not isinstance(value, list) or len(value) != 3:
        raise CatalogFormatError(f"expected a schema, a relation and a column, not {value!r:.40}")
    schema, relation, column = value
    return ColumnId(_text(schema), _text(relation), None if column is None else _text(column))


_decoders: dict[Any, Decoder] = {
    str: _text,
    int: _integer,
    float: _number,
    bool: _boolean,
    QualifiedName: _qualified,
    ColumnId: _column,
}
