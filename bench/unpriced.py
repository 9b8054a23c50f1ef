"""``pgturnstile serve`` with a gate that looks no name up in the catalog, to see what the catalog costs.

The product has no such switch, on purpose. Run as ``python -m bench.unpriced serve --config FILE``.
"""

from __future__ import annotations

import sys
from typing import Any

from policy.catalog import Catalog
from policy.catalog_names import SessionNames
from policy.names import PathNames, SearchPath
from proxy import cli, server
from proxy.gate import Gate


class _CatalogBlindGate(Gate):
    """Names as text and search path give them, whatever snapshot there is."""

    @property
    def generation(self) -> Catalog | None:
        return None

    def names(self, paths: tuple[SearchPath, ...], **_: bool) -> SessionNames:
        return PathNames(paths)

    async def renewed(self, paths: tuple[SearchPath, ...], **_: bool) -> SessionNames:
        return PathNames(paths)


if __name__ == "__main__":
    replaced: Any = server
    replaced.Gate = _CatalogBlindGate
    sys.exit(cli.main())
