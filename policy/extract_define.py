"""What definitions name: the functions that an operator, cast, aggregate, type or index will call.

Handlers for ``extract_walk``; ``HANDLERS`` is the table. Whoever may not call a function may not have an
operator call it either, so that a function named here counts as called. A type named here is not cast to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from policy.extract_expression import type_name
from policy.extract_walk import Fields, Handler, Walk, strings
from policy.facts import CallKind
from policy.model import StatementClass

_FUNCTIONS: Final = frozenset(
    (
        *("function", "procedure", "restrict", "join"),
        *("sfunc", "sfunc1", "finalfunc", "combinefunc", "serialfunc", "deserialfunc"),
        *("msfunc", "minvfunc", "mfinalfunc"),
        *("input", "output", "receive", "send", "typmod_in", "typmod_out", "analyze", "subscript"),
        *("canonical", "subtype_diff"),
        *("start", "gettoken", "end", "lextypes", "headline", "init", "lexize"),
        *("handler", "validator", "support"),
    )
)
"""Options that name a function: of operators, aggregates, types, ranges, text search, foreign-data wrappers
and functions (DefineOperator, DefineAggregate, DefineType, DefineRange … in src/backend/commands)."""
_TYPES: Final = frozenset(
    ("leftarg", "rightarg", "stype", "mstype", "stype1", "basetype", "like", "element", "subtype")
)
"""Options that name a type. Whatever else is written like one is a word: ``storage = plain``."""
_NAMES: Final = frozenset({"names"})
_FUNCTION_ITEM: Final = 2
"""OPCLASS_ITEM_FUNCTION (parsenodes.h)"""


def _defines(node: str, options: str) -> Handler:
    """A handler for a statement whose list ``options`` defines an object."""
    done = frozenset({options})

    def handler(walk: Walk, fields: Fields) -> None:
        walk.add_class(StatementClass.DDL)
        for option in fields.get(options, ()):
            _option(walk, option)
        walk.rest(node, fields, done)

    return handler


def _option(walk: Walk, option: Fields) -> None:
    element = option.get("DefElem", {})
    name, argument = element.get("defname"), element.get("arg", {})
    if name in _FUNCTIONS:
        _function(walk, _words(argument))
    if "TypeName" not in argument:
        walk.visit(option)
    elif name in _TYPES:
        type_name(walk, argument["TypeName"], cast=False)
    else:
        walk.rest("TypeName", argument["TypeName"], _NAMES)


def _words(argument: Fields) -> list[str]:
    """A name as ``defGetQualifiedName`` reads it: a type's, a list of words or one."""
    if "TypeName" in argument:
        return strings(argument["TypeName"].get("names", ()))
    words = argument["List"].get("items", ()) if "List" in argument else [argument]
    return strings(word for word in words if "String" in word)


def _function(walk: Walk, names: list[str]) -> None:
    if names:
        walk.function(names, {}, 0, (), kind=CallKind.NAMED)


def _names_functions(node: str, *named: str, types: Sequence[str] = ()) -> Handler:
    """A handler for a statement whose fields ``named`` name functions, and ``types`` types."""
    done = frozenset((*named, *types))

    def handler(walk: Walk, fields: Fields) -> None:
        walk.add_class(StatementClass.DDL)
        for field in named:
            _named(walk, fields.get(field, ()))
        for field in types:
            if field in fields:
                type_name(walk, fields[field], cast=False)
        walk.rest(node, fields, done)

    return handler


def _named(walk: Walk, named: Any) -> None:
    """A function by a list of words, or by its name and its arguments' types."""
    if isinstance(named, Mapping):
        _function(walk, strings(named.get("objname", ())))
        walk.visit({"ObjectWithArgs": named})
    else:
        _function(walk, strings(named))


def _operator_class_item(walk: Walk, fields: Fields) -> None:
    if fields.get("itemtype") == _FUNCTION_ITEM and "name" in fields:
        _function(walk, strings(fields["name"].get("objname", ())))
    for each in fields.get("class_args", ()):
        type_name(walk, each["TypeName"], cast=False)
    if "storedtype" in fields:
        type_name(walk, fields["storedtype"], cast=False)
    walk.rest("CreateOpClassItem", fields, _CLASS_ITEM_TYPES)


def _object_with_arguments(walk: Walk, fields: Fields) -> None:
    """A function, aggregate or operator by its arguments' types; ``NONE`` is an operator's missing side."""
    for each in fields.get("objargs", ()):
        if "TypeName" in each:
            type_name(walk, each["TypeName"], cast=False)
    walk.rest("ObjectWithArgs", fields, _ARGUMENTS)


def _function_definition(node: str, options: str) -> Handler:
    defines = _defines(node, options)

    def handler(walk: Walk, fields: Fields) -> None:
        if "returnType" in fields:
            type_name(walk, fields["returnType"], cast=False)
        defines(walk, {name: value for name, value in fields.items() if name != "returnType"})

    return handler


_ARGUMENTS: Final = frozenset({"objargs"})
_CLASS_ITEM_TYPES: Final = frozenset({"class_args", "storedtype"})

HANDLERS: Final[Mapping[str, Handler]] = {
    "AlterFdwStmt": _defines("AlterFdwStmt", "func_options"),
    "AlterFunctionStmt": _function_definition("AlterFunctionStmt", "actions"),
    "AlterOperatorStmt": _defines("AlterOperatorStmt", "options"),
    "AlterTypeStmt": _defines("AlterTypeStmt", "options"),
    "CreateAmStmt": _names_functions("CreateAmStmt", "handler_name"),
    "CreateCastStmt": _names_functions("CreateCastStmt", "func", types=("sourcetype", "targettype")),
    "CreateDomainStmt": _names_functions("CreateDomainStmt", types=("typeName",)),
    "CreateConversionStmt": _names_functions("CreateConversionStmt", "func_name"),
    "CreateEventTrigStmt": _names_functions("CreateEventTrigStmt", "funcname"),
    "CreateFdwStmt": _defines("CreateFdwStmt", "func_options"),
    "CreateFunctionStmt": _function_definition("CreateFunctionStmt", "options"),
    "CreateOpClassItem": _operator_class_item,
    "CreateOpClassStmt": _names_functions("CreateOpClassStmt", types=("datatype",)),
    "CreatePLangStmt": _names_functions("CreatePLangStmt", "plhandler", "plinline", "plvalidator"),
    "CreateRangeStmt": _defines("CreateRangeStmt", "params"),
    "CreateTransformStmt": _names_functions("CreateTransformStmt", "fromsql", "tosql", types=("type_name",)),
    "DefineStmt": _defines("DefineStmt", "definition"),
    "ObjectWithArgs": _object_with_arguments,
}
