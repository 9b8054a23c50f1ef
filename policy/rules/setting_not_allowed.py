"""setting-not-allowed: a change of a setting that agents may not change.

What it refuses
    SET, SET LOCAL, RESET, ``set_config(…)`` and ALTER … SET of a setting outside the base set and
    ``settings.allow``; a held setting (client_encoding, standard_conforming_strings, search_path) set to a
    value that is not accepted; a setting whose name is no constant; an UPDATE of pg_settings, itself or
    through a view, which is SET by another name. A name that is read from pg_settings is the one that the
    WHERE holds it to (pg_dump: ``… WHERE name = 'restrict_nonsystem_relation_kind'``), where a catalog says
    that no temporary relation of that name can be meant. In DECLARE and among EXECUTE's arguments search_path
    may not be set at all: it would change when a later FETCH runs, or when EXPLAIN asks for the price.
Why
    Settings lift limits, bend prices, change who the session is or what a name or literal means.
Refused
    ``SET statement_timeout = 0`` · ``RESET statement_timeout`` · ``SET ROLE admin`` ·
    ``SELECT set_config('shop.tenant', '2', false)`` · ``UPDATE pg_settings SET setting = '0' WHERE name =
    'statement_timeout'``
Allowed
    ``SET timezone = 'UTC'`` · ``SHOW work_mem`` (reading is free) · ``RESET ALL`` and ``DISCARD ALL``: every
    pin travels in the startup packet, so they bring the pins back
Settings
    ``settings.allow``, beside the base set that drivers need.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from policy.catalog import Catalog
from policy.catalog_names import CatalogNames
from policy.catalog_values import ColumnId, Relation
from policy.facts import Facts, RelationRef, SessionAction, SettingHow, SettingRef, Use
from policy.model import Policy, RuleLevel, Violation
from policy.names import Names, QualifiedName
from policy.resolve import Answer
from policy.settings import FOLLOWED, judge_name, not_allowed

NAME = "setting-not-allowed"
DEFAULT = RuleLevel.REJECT
SQLSTATE = "42501"
GOVERNED_BY = "settings"

_ELSEWHERE = frozenset({SettingHow.RESET_ALL, SettingHow.TRANSACTION})
"""RESET ALL is always allowed; transaction modes are the business of access-read-only."""
_RUNS_APART: Final = frozenset({SessionAction.DECLARE, SessionAction.EXECUTE})
"""What runs when a later FETCH does, or already when EXPLAIN asks for a price: names would be read under a
path that nobody knows of."""
_VIEW: Final = QualifiedName("pg_catalog", "pg_settings")
_SETTING: Final = ColumnId(*_VIEW, "setting")


def check(facts: Facts, names: Names, policy: Policy) -> Iterator[Violation]:
    late = any(ref.action in _RUNS_APART for ref in facts.session)
    for ref in facts.settings:
        if ref.how in _ELSEWHERE:
            continue
        if late and ref.name == "search_path":
            yield not_allowed(ref, policy, "search_path may not change by a cursor or an argument of EXECUTE")
            continue
        violation = judge_name(_named(ref, facts, names), policy)
        if violation is not None:
            yield violation if violation.position else replace(violation, position=facts.start)
    for index, mention in enumerate(facts.relations):
        if mention.use is Use.UPDATE and _sets(mention, index, facts, names):
            ref = SettingRef(None, SettingHow.SET, position=mention.position or facts.start)
            yield not_allowed(ref, policy, "UPDATE of pg_catalog.pg_settings is not allowed: use SET")
            return


def _named(ref: SettingRef, facts: Facts, names: Names) -> SettingRef:
    """``ref`` by the name that it is pinned to, where that is certain.

    Any relation of the session's own may stand before the server's pg_settings, with a column whose type or
    collation takes different texts for equal.
    """
    pinned = ref.pinned
    if pinned is None or pinned.name in FOLLOWED or not isinstance(names, CatalogNames):
        return ref
    meant = names.resolve(facts).relations[pinned.relation]
    certain = meant.answer is Answer.RESOLVED and [each.qualified for each in meant.relations] == [_VIEW]
    return replace(ref, name=pinned.name) if certain else ref


def _sets(ref: RelationRef, index: int, facts: Facts, names: Names) -> bool:
    """Whether an UPDATE of ``ref`` is one of pg_settings, whose rule pg_settings_u calls set_config with the
    column ``setting`` of every row (system_views.sql)."""
    if ref.name == _VIEW.name and ref.schema in (None, _VIEW.schema):
        return True
    if not isinstance(names, CatalogNames):
        return False
    written = [column.name for column in facts.columns if column.target == index]
    found = (names.catalog.relation(*name) for name in names.relations(ref))
    return any(each is not None and _gives_setting(each, written, names.catalog) for each in found)


def _gives_setting(relation: Relation, written: Sequence[str | None], catalog: Catalog) -> bool:
    sources = catalog.view_sources(relation)
    if sources is None:
        # No view, which reaches nothing, or one that is not told column by column.
        return _SETTING in catalog.reach(relation)
    return any(_SETTING in sources.columns.get(name or "", ()) for name in written)
