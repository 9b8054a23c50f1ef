"""YAML read strictly: a key that stands twice is an error, as it is to a careful reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    pass


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key) for key, _ in node.value]
    twice = {key for key in keys if keys.count(key) > 1}
    if twice:
        raise ValueError(f"{node.start_mark}: {sorted(map(str, twice))} more than once")
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def load_all(path: Path) -> list[Any]:
    """Every document of the file at ``path``."""
    return list(yaml.load_all(path.read_text(encoding="utf-8"), _Loader))
