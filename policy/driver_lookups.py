"""Look-ups that a driver makes by itself, which no agent wrote and no agent can repair.

asyncpg asks the catalogs for every type it does not know yet: recursively, over system catalogs alone, and at
a price that grows with the number of types there are. A cost limit that refused it would refuse every
statement that returns an enum. So these very statements, constants aside, are let through unpriced; what else
is judged of them stays judged, and ``statement_timeout`` holds. The texts are those of the asyncpg that is
installed here: an agent's own may word them otherwise, and is then priced like anybody.
"""

from __future__ import annotations

import hashlib
from functools import cache

from asyncpg import introspection

from policy.facts import Facts
from policy.parse import canonical, normalize


def is_driver_lookup(facts: Facts) -> bool:
    """True for one of a known driver's own look-ups, as it is worded there."""
    if not facts.queries or not any(cte.recursive for cte in facts.ctes):
        return False
    digest = _digest(facts.sql)
    return digest is not None and digest in _known()


@cache
def _known() -> frozenset[str]:
    texts = (introspection.INTRO_LOOKUP_TYPES, introspection.INTRO_LOOKUP_TYPES_13)
    return frozenset(digest for text in texts if (digest := _digest(text)) is not None)


def _digest(sql: str) -> str | None:
    """Of the statement with its constants lifted, in PostgreSQL's own spelling: names stay as they are."""
    lifted = normalize(sql)
    shape = None if lifted is None else canonical(lifted)
    return None if shape is None else hashlib.sha256(shape.encode()).hexdigest()
