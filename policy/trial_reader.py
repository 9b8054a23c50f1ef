"""What stands under ``tests:``, read: statements, and what a policy's author expects of them.

Owns the keys of a test and of the steps of a dialogue. How they are put to the gate is ``trial``'s.
"""

from __future__ import annotations

import re
from functools import partial

from policy import yaml_source
from policy.diagnostics import nearest
from policy.levels import GOVERNED_ELSEWHERE, default_levels
from policy.model import Halt, PolicyTest, Step, Verdict
from policy.reader import Fields, Place


def tests(place: Place) -> tuple[PolicyTest, ...]:
    return tuple(_test(item) for item in place.items())


def _test(place: Place) -> PolicyTest:
    keys = (*_STEP, "steps", "agent", "name", "why")
    fields = place.fields(keys, required=_REQUIRED, unless="steps")
    dialogue = "steps" in fields
    for key in _STEP if dialogue else ():
        if key in fields:
            fields[key].fault("is said of a statement; write it in the step that it is meant for")
    return PolicyTest(
        steps=fields.get("steps", _steps, ()) if dialogue else (_step(place, fields),),
        agent=fields.get("agent", lambda p: p.string(), ""),
        source=place.report.source,
        name=fields.maybe("name", one_line),
        line=place.line,
    )


_OF_A_REJECTION = ("rule", "sqlstate", "message_contains", "hint_contains", "halt")
_REQUIRED = ("sql", "expect")
_STEP = (*_REQUIRED, *_OF_A_REJECTION)


def _steps(place: Place) -> tuple[Step, ...]:
    keys = (*_STEP, "fails", "at", "connection", "why")
    steps = tuple(_step(item, item.fields(keys, required=_REQUIRED)) for item in place.items())
    if not steps:
        place.fault("expected at least one statement")
    return steps


def _step(place: Place, fields: Fields) -> Step:
    expect = fields.get("expect", lambda p: p.word(Verdict), Verdict.REJECT)
    for key in _OF_A_REJECTION:
        if key in fields and expect is Verdict.ALLOW:
            fields[key].fault("is said of a rejection; this test expects allow")
    if "fails" in fields and expect is Verdict.REJECT:
        fields["fails"].fault("is said of a statement that runs; this one is expected to be rejected")
    if "at" in fields and "fails" not in fields:
        fields["at"].fault("is where an error points; say with fails which")
    sql = fields.get("sql", _sql, "")
    return Step(
        sql=sql,
        expect=expect,
        rule=fields.maybe("rule", _rule_name),
        sqlstate=fields.maybe("sqlstate", _sqlstate),
        hint_contains=fields.get("hint_contains", texts, ()),
        message_contains=fields.get("message_contains", texts, ()),
        halt=fields.maybe("halt", lambda p: p.word(Halt)),
        fails=fields.maybe("fails", _sqlstate),
        position=fields.maybe("at", partial(_position, sql=sql)),
        connection=fields.get("connection", lambda p: p.string(), ""),
        line=place.line,
    )


def _position(place: Place, sql: str) -> int | None:
    """Where the text at ``place`` first stands in ``sql``, from 1."""
    text = place.string()
    if text is None:
        return None
    if text not in sql:
        place.fault("expected a part of the statement")
        return None
    return sql.index(text) + 1


def _sql(place: Place) -> str | None:
    """A statement; an empty one too, which is what a driver's ping is."""
    if isinstance(place.node, yaml_source.Scalar) and place.node.value == "":
        return ""
    return place.string()


def _rule_name(place: Place) -> str | None:
    known = (*default_levels(), *GOVERNED_ELSEWHERE)
    name = place.string()
    if name is not None and name not in known:
        place.fault("unknown rule", nearest(name, known))
    return name


def _sqlstate(place: Place) -> str | None:
    code = place.written()
    if code is not None and not _SQLSTATE.fullmatch(code):
        place.fault("expected the five characters of a SQLSTATE, as in 42501")
    return code


_SQLSTATE = re.compile(r"[0-9A-Z]{5}")


def texts(place: Place) -> tuple[str, ...]:
    items = place.items() if isinstance(place.node, yaml_source.Sequence) else [place]
    return tuple(text for item in items if (text := item.string()) is not None)


def one_line(place: Place) -> str | None:
    name = place.string()
    if name is not None and (len(name) > 100 or not name.isprintable()):
        place.fault("expected a name of one line, at most 100 characters")
    return name
