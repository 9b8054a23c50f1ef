"""What utility statements mean: their class, what they set, what they do to the session, what they run.

Handlers for ``extract_walk``; ``HANDLERS`` is the table, ``CLASSES`` the class of every statement that needs
no handler of its own. Relations that such statements name are mentions with use ``define``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from policy.extract_constants import constant
from policy.extract_expression import func_call, type_name
from policy.extract_walk import Fields, Handler, NotUnderstoodError, Walk, setting_name, strings
from policy.facts import (
    ColumnRef,
    CopyEnd,
    CopyRef,
    Output,
    SessionAction,
    SettingHow,
    SettingRef,
    SourceKind,
    TransactionKind,
    TransactionRef,
    Use,
    Write,
)
from policy.model import StatementClass

CURSOR_OPT_HOLD: Final = 0x0020
"""nodes/parsenodes.h"""
_ACCESS_SHARE_LOCK: Final = 1
"""storage/lockdefs.h"""

# EXPLAIN, PREPARE, cursors


def _explain(walk: Walk, fields: Fields) -> None:
    walk.add_class(StatementClass.EXPLAIN)
    # As ExplainQuery does: in order, the last one of a name wins.
    elements = [option["DefElem"] for option in fields.get("options", ())]
    options = {element["defname"]: _is_on(element.get("arg")) for element in elements}
    walk.explains = True
    walk.analyze, walk.verbose = options.get("analyze", False), options.get("verbose", False)
    running, walk.running = walk.running, walk.running and walk.analyze
    walk.visit_final(fields["query"])
    walk.running = running
    walk.rest("ExplainStmt", fields, _QUERY)


def _is_on(node: Fields | None) -> bool:
    """defGetBoolean of commands/define.c. A value it would refuse counts as on: the server refuses it too."""
    if not node:
        return True
    for name, fields in node.items():
        if name == "Integer":
            return bool(fields.get("ival"))
        if name == "Boolean":
            return bool(fields.get("boolval"))
        if name == "String":
            return setting_name(fields.get("sval", "")) not in _OFF_WORDS
    return True


_OFF_WORDS: Final = frozenset({"false", "off"})


def _prepare(walk: Walk, fields: Fields) -> None:
    walk.add_class(StatementClass.PREPARE)
    walk.acts_on_session(SessionAction.PREPARE, fields["name"])
    walk.visit_final(fields["query"])
    walk.rest("PrepareStmt", fields, _QUERY)


def _execute(walk: Walk, fields: Fields) -> None:
    walk.add_class(StatementClass.PREPARE)
    walk.acts_on_session(SessionAction.EXECUTE, fields["name"])
    walk.rest("ExecuteStmt", fields)


def _deallocate(walk: Walk, fields: Fields) -> None:
    walk.add_class(StatementClass.PREPARE)
    if fields.get("isall"):
        walk.acts_on_session(SessionAction.DEALLOCATE_ALL)
    else:
        walk.acts_on_session(SessionAction.DEALLOCATE, fields["name"])
    walk.rest("DeallocateStmt", fields)


def _declare(walk: Walk, fields: Fields) -> None:
    walk.add_class(StatementClass.CURSOR)
    if not walk.explains:
        hold = bool(fields.get("options", 0) & CURSOR_OPT_HOLD)
        walk.acts_on_session(SessionAction.DECLARE, fields["portalname"], hold)
    walk.visit_final(fields["query"])
    walk.rest("DeclareCursorStmt", fields, _QUERY)


def _fetch(walk: Walk, fields: Fields) -> None:
    walk.add_class(StatementClass.CURSOR)
    walk.acts_on_session(SessionAction.FETCH, fields["portalname"])
    walk.rest("FetchStmt", fields)


def _close(walk: Walk, fields: Fields) -> None:
    walk.add_class(StatementClass.CURSOR)
    name = fields.get("portalname")
    action = SessionAction.CLOSE_ALL if name is None else SessionAction.CLOSE
    walk.acts_on_session(action, name)
    walk.rest("ClosePortalStmt", fields)


# SET, SHOW, transactions


def _set(walk: Walk, fields: Fields) -> None:
    kind, name = fields["kind"], fields.get("name")
    multi = _MULTI_SET.get(name) if kind == "VAR_SET_MULTI" else None
    if kind == "VAR_SET_MULTI":
        if multi is None:
            raise NotUnderstoodError(f"SET {name}", walk.position(fields))
        _set_transaction(walk, fields, *multi)
    else:
        walk.add_class(StatementClass.SET)
        _setting(walk, fields, None)
    walk.rest("VariableSetStmt", fields)


_MULTI_SET: Final[Mapping[str | None, tuple[StatementClass, TransactionKind]]] = {
    "TRANSACTION": (StatementClass.TRANSACTION, TransactionKind.SET_TRANSACTION),
    "TRANSACTION SNAPSHOT": (StatementClass.TRANSACTION, TransactionKind.SET_TRANSACTION),
    "SESSION CHARACTERISTICS": (StatementClass.SET, TransactionKind.SET_CHARACTERISTICS),
}
_SET_KINDS: Final[Mapping[str, SettingHow]] = {
    "VAR_SET_VALUE": SettingHow.SET,
    "VAR_SET_DEFAULT": SettingHow.SET,
    "VAR_SET_CURRENT": SettingHow.SET,
    "VAR_RESET": SettingHow.RESET,
    "VAR_RESET_ALL": SettingHow.RESET_ALL,
}


def _setting(walk: Walk, fields: Fields, how: SettingHow | None) -> None:
    """Record one SET or RESET; ``how`` where it stands in ALTER … SET or CREATE FUNCTION … SET."""
    kind = fields["kind"]
    plain = _SET_KINDS.get(kind)
    if plain is None:
        raise NotUnderstoodError(f"SET of kind {kind}", walk.position(fields))
    name = fields.get("name")
    values: tuple[str, ...] | None = None
    if kind == "VAR_SET_VALUE":
        constants = [constant(argument) for argument in fields.get("args", ())]
        known = tuple(value for value in constants if value is not None)
        values = known if len(known) == len(constants) else None
    walk.settings.append(
        SettingRef(
            None if name is None else setting_name(name),
            how or plain,
            values,
            bool(fields.get("is_local")),
            walk.position(fields) or walk.start,
        )
    )


def _altered_setting(walk: Walk, fields: Fields) -> None:
    _setting(walk, fields, SettingHow.ALTER)
    walk.rest("VariableSetStmt", fields)


def _set_transaction(
    walk: Walk, fields: Fields, statement_class: StatementClass, kind: TransactionKind
) -> None:
    walk.add_class(statement_class)
    snapshot = None
    arguments = fields.get("args", [])
    if fields["name"] == "TRANSACTION SNAPSHOT":
        snapshot = constant(arguments[0])
        arguments = []
    _transaction_ref(walk, kind, arguments, position=walk.position(fields), snapshot=snapshot)
    if kind is TransactionKind.SET_CHARACTERISTICS:
        for option in arguments:
            element = option["DefElem"]
            value = constant(element["arg"])
            walk.settings.append(
                SettingRef(
                    f"default_{element['defname']}",
                    SettingHow.TRANSACTION,
                    None if value is None else (value,),
                    position=walk.position(element),
                )
            )


def _transaction_ref(
    walk: Walk, kind: TransactionKind, options: list[Fields], position: int | None, **more: Any
) -> None:
    modes = {}
    for option in options:
        element = option["DefElem"]
        if element["defname"] not in _TRANSACTION_MODES:
            raise NotUnderstoodError(f"the transaction mode {element['defname']}", position)
        # A later mode of the same name is a syntax error in PostgreSQL or wins.
        modes[element["defname"]] = constant(element["arg"])
    walk.transactions.append(
        TransactionRef(
            kind,
            _flag(modes.get("transaction_read_only")),
            isolation=modes.get("transaction_isolation"),
            deferrable=_flag(modes.get("transaction_deferrable")),
            position=position or walk.start,
            **more,
        )
    )


_TRANSACTION_MODES: Final = frozenset(
    {"transaction_isolation", "transaction_read_only", "transaction_deferrable"}
)


def _flag(value: str | None) -> bool | None:
    return None if value is None else value != "0"


_TRANSACTION_KINDS: Final[Mapping[str, TransactionKind]] = {
    "TRANS_STMT_BEGIN": TransactionKind.BEGIN,
    "TRANS_STMT_START": TransactionKind.BEGIN,
    "TRANS_STMT_COMMIT": TransactionKind.COMMIT,
    "TRANS_STMT_ROLLBACK": TransactionKind.ROLLBACK,
    "TRANS_STMT_SAVEPOINT": TransactionKind.SAVEPOINT,
    "TRANS_STMT_RELEASE": TransactionKind.RELEASE,
    "TRANS_STMT_ROLLBACK_TO": TransactionKind.ROLLBACK_TO,
    "TRANS_STMT_PREPARE": TransactionKind.PREPARE,
    "TRANS_STMT_COMMIT_PREPARED": TransactionKind.COMMIT_PREPARED,
    "TRANS_STMT_ROLLBACK_PREPARED": TransactionKind.ROLLBACK_PREPARED,
}
_TWO_PHASE: Final = frozenset(
    {TransactionKind.PREPARE, TransactionKind.COMMIT_PREPARED, TransactionKind.ROLLBACK_PREPARED}
)


def _transaction(walk: Walk, fields: Fields) -> None:
    kind = _TRANSACTION_KINDS.get(fields["kind"])
    if kind is None:
        raise NotUnderstoodError(f"a transaction statement of kind {fields['kind']}")
    # A prepared transaction outlives its session and keeps its locks: no part of ``transaction: allow``.
    walk.add_class(StatementClass.OTHER if kind in _TWO_PHASE else StatementClass.TRANSACTION)
    _transaction_ref(
        walk,
        kind,
        fields.get("options", []),
        position=walk.position(fields),
        chain=bool(fields.get("chain")),
        name=fields.get("savepoint_name") or fields.get("gid"),
    )
    walk.rest("TransactionStmt", fields)


def _discard(walk: Walk, fields: Fields) -> None:
    walk.add_class(StatementClass.SET)
    target = fields["target"].removeprefix("DISCARD_").lower()
    if target == "all":
        walk.acts_on_session(SessionAction.DISCARD_ALL)
        walk.settings.append(SettingRef(None, SettingHow.RESET_ALL, position=walk.start))
    else:
        walk.acts_on_session(SessionAction.DISCARD, target)
    walk.rest("DiscardStmt", fields)


def _listen(walk: Walk, fields: Fields) -> None:
    _channel(walk, fields, "ListenStmt", SessionAction.LISTEN)


def _unlisten(walk: Walk, fields: Fields) -> None:
    _channel(walk, fields, "UnlistenStmt", SessionAction.UNLISTEN)


def _notify(walk: Walk, fields: Fields) -> None:
    _channel(walk, fields, "NotifyStmt", SessionAction.NOTIFY)


def _channel(walk: Walk, fields: Fields, node: str, action: SessionAction) -> None:
    walk.add_class(StatementClass.NOTIFY)
    walk.acts_on_session(action, fields.get("conditionname"))
    walk.rest(node, fields)


# COPY, LOCK, CALL


def _copy(walk: Walk, fields: Fields) -> None:
    from_, program = bool(fields.get("is_from")), bool(fields.get("is_program"))
    end = _COPY_ENDS[from_, "filename" in fields, program]
    walk.add_class(StatementClass.COPY_IN if from_ else StatementClass.COPY_OUT)
    names = tuple(strings(fields.get("attlist", ())))
    before, relation = walk.scope, None
    if "relation" in fields:
        relation = (_copy_into if from_ else _copy_out)(walk, fields, names)
    else:
        walk.visit_final(fields["query"])
    walk.copies.append(
        CopyRef(
            end,
            relation,
            names,
            fields.get("whereClause"),
            tuple(_copy_option(option["DefElem"]) for option in fields.get("options", ())),
        )
    )
    walk.scope = before
    walk.rest("CopyStmt", fields, _COPY_DONE)


_COPY_ENDS: Final[Mapping[tuple[bool, bool, bool], CopyEnd]] = {
    # is_from, filename given, is_program
    (False, False, False): CopyEnd.STDOUT,
    (True, False, False): CopyEnd.STDIN,
    (False, True, False): CopyEnd.TO_FILE,
    (True, True, False): CopyEnd.FROM_FILE,
    (False, True, True): CopyEnd.TO_PROGRAM,
    (True, True, True): CopyEnd.FROM_PROGRAM,
}


def _copy_out(walk: Walk, fields: Fields, names: tuple[str, ...]) -> int:
    """COPY t TO is SELECT * FROM t by another name."""
    walk.add_class(StatementClass.SELECT)
    scope = walk.open_scope(None)
    scope.final = walk.running
    relation = walk.relation(fields["relation"], Use.READ, scope.index)
    scope.relation_count = 1
    walk.source(scope, SourceKind.RELATION, None, name=fields["relation"]["relname"], relation=relation)
    scope.outputs = tuple(Output(name) for name in names) or (Output(None, star=True),)
    for name in names or (None,):
        walk.columns.append(ColumnRef(name, (), Use.READ, None, scope.index, None, "copy"))
    return relation


def _copy_into(walk: Walk, fields: Fields, names: tuple[str, ...]) -> int:
    walk.add_class(StatementClass.INSERT)
    scope = walk.open_scope(None)
    scope.final = False
    relation = walk.relation(fields["relation"], Use.INSERT, scope.index)
    scope.relation_count = 1
    walk.source(scope, SourceKind.RELATION, None, name=fields["relation"]["relname"], relation=relation)
    for name in names:
        walk.columns.append(ColumnRef(name, (), Use.INSERT, None, scope.index, relation, "insert"))
    walk.in_clause("where", fields.get("whereClause"))
    walk.add_write(
        Write(
            StatementClass.INSERT,
            relation,
            scope.index,
            columns=names,
            has_columns=bool(names),
            source="copy",
            position=walk.start,
        )
    )
    return relation


def _copy_option(element: Fields) -> tuple[str, str]:
    argument = element.get("arg")
    if not argument:
        return element["defname"], ""
    for name, fields in argument.items():
        if name == "List":
            return element["defname"], ",".join(strings(fields.get("items", ())))
        return element["defname"], str(next(iter(fields.values()), ""))
    return element["defname"], ""


def _lock(walk: Walk, fields: Fields) -> None:
    walk.add_class(StatementClass.LOCK)
    walk.locks_as_reading = fields["mode"] == _ACCESS_SHARE_LOCK
    for item in fields["relations"]:
        walk.relation(item["RangeVar"], Use.LOCK)
    walk.rest("LockStmt", fields, _RELATIONS)


def _call(walk: Walk, fields: Fields) -> None:
    walk.add_class(StatementClass.CALL)
    func_call(walk, fields["funccall"])
    walk.rest("CallStmt", fields, _FUNCCALL)


# DDL


def _into(walk: Walk, fields: Fields) -> None:
    _created(walk, fields["rel"])
    walk.relation(fields["rel"], Use.DEFINE)
    walk.rest("IntoClause", fields, _REL)


def _created(walk: Walk, relation: Fields) -> None:
    if relation.get("relpersistence") == "t" or relation.get("schemaname") == "pg_temp":
        walk.creates_temp = True


def _create(field: str, node: str) -> Handler:
    """A handler for a statement that creates the relation named in ``field``."""

    def handler(walk: Walk, fields: Fields) -> None:
        walk.add_class(StatementClass.DDL)
        if field in fields:
            _created(walk, fields[field])
        walk.rest(node, fields)

    return handler


def _range_var(walk: Walk, fields: Fields) -> None:
    walk.relation(fields, Use.DEFINE, walk.query)


def of_objects(node: str, type_field: str, list_field: str | None, object_field: str | None) -> Handler:
    """A handler for a statement whose objects are lists of strings: DROP, COMMENT, ALTER … OWNER."""

    def handler(walk: Walk, fields: Fields) -> None:
        walk.add_class(StatementClass.DDL)
        dropped = _PARTS_AFTER_RELATION.get(fields[type_field])
        if dropped is not None:
            objects = [*fields.get(list_field or "", ()), fields.get(object_field or "", {})]
            for item in objects:
                names = strings(item.get("List", {}).get("items", ()))
                walk.named_relation(names[: len(names) - dropped])
        walk.only_names = True
        walk.rest(node, fields)
        walk.only_names = False

    return handler


_PARTS_AFTER_RELATION: Final[Mapping[str, int]] = {
    "OBJECT_COLUMN": 1,
    "OBJECT_FOREIGN_TABLE": 0,
    "OBJECT_INDEX": 0,
    "OBJECT_MATVIEW": 0,
    "OBJECT_POLICY": 1,
    "OBJECT_RULE": 1,
    "OBJECT_SEQUENCE": 0,
    "OBJECT_TABCONSTRAINT": 1,
    "OBJECT_TABLE": 0,
    "OBJECT_TRIGGER": 1,
    "OBJECT_VIEW": 0,
}
"""Object types whose dotted name begins with a relation's, and how many parts follow it."""


def _create_trigger(walk: Walk, fields: Fields) -> None:
    walk.add_class(StatementClass.DDL)
    names = strings(fields.get("funcname", ()))
    if names:
        arguments = tuple(strings(fields.get("args", ())))
        walk.function(names, {}, len(arguments), arguments)
    walk.rest("CreateTrigStmt", fields, _FUNCNAME)


def _constraints_set(walk: Walk, fields: Fields) -> None:
    walk.add_class(StatementClass.TRANSACTION)
    # Names constraints, not relations.
    walk.rest("ConstraintsSetStmt", fields, _CONSTRAINTS)


def _configures(node: str, statement_class: StatementClass) -> Handler:
    """A handler for ALTER … SET of a role, database or the system."""

    def handler(walk: Walk, fields: Fields) -> None:
        walk.add_class(statement_class)
        _altered_setting(walk, fields["setstmt"])
        walk.rest(node, fields, _SETSTMT)

    return handler


def _def_elem(walk: Walk, fields: Fields) -> None:
    """An option of some statement. A function's ``SET name = value`` is one."""
    argument = fields.get("arg", {})
    if "VariableSetStmt" in argument:
        _altered_setting(walk, argument["VariableSetStmt"])
    elif "TypeName" in argument:
        _word_or_type(walk, fields.get("defname"), argument["TypeName"])
    elif argument:
        walk.visit(argument)
    walk.rest("DefElem", fields, _ARG)


def _word_or_type(walk: Walk, option: str | None, fields: Fields) -> None:
    """``fillfactor = auto`` is written like a type and is a word; CREATE SEQUENCE … AS names one."""
    if option == "as":
        type_name(walk, fields, cast=False)
    else:
        walk.rest("TypeName", fields, _NAMES)


def _classified(node: str, statement_class: StatementClass) -> Handler:
    def handler(walk: Walk, fields: Fields) -> None:
        walk.add_class(statement_class)
        walk.rest(node, fields)

    return handler


_ARG: Final = frozenset({"arg"})
_CONSTRAINTS: Final = frozenset({"constraints"})
_COPY_DONE: Final = frozenset({"relation", "query", "attlist", "whereClause"})
_FUNCCALL: Final = frozenset({"funccall"})
_FUNCNAME: Final = frozenset({"funcname"})
_NAMES: Final = frozenset({"names"})
_QUERY: Final = frozenset({"query"})
_REL: Final = frozenset({"rel"})
_RELATIONS: Final = frozenset({"relations"})
_SETSTMT: Final = frozenset({"setstmt"})

_MAINTENANCE: Final = """CheckPointStmt ClusterStmt RefreshMatViewStmt ReindexStmt VacuumStmt"""
_ROLE: Final = """
    AlterDefaultPrivilegesStmt AlterRoleStmt CreateRoleStmt DropOwnedStmt DropRoleStmt GrantRoleStmt GrantStmt
    ReassignOwnedStmt
"""
_DDL: Final = """
    AlterCollationStmt AlterDatabaseRefreshCollStmt AlterDatabaseStmt AlterDomainStmt AlterEnumStmt
    AlterEventTrigStmt AlterExtensionStmt AlterFdwStmt AlterForeignServerStmt AlterFunctionStmt
    AlterOpFamilyStmt AlterOperatorStmt AlterPolicyStmt AlterPublicationStmt AlterSeqStmt AlterStatsStmt
    AlterSubscriptionStmt AlterTSConfigurationStmt AlterTSDictionaryStmt AlterTableMoveAllStmt
    AlterTableSpaceOptionsStmt AlterTableStmt AlterTypeStmt AlterUserMappingStmt CompositeTypeStmt
    CreateAmStmt CreateCastStmt CreateConversionStmt CreateDomainStmt CreateEnumStmt CreateEventTrigStmt
    CreateExtensionStmt CreateFdwStmt CreateForeignServerStmt CreateForeignTableStmt CreateFunctionStmt
    CreateOpClassStmt CreateOpFamilyStmt CreatePLangStmt CreatePolicyStmt CreatePublicationStmt
    CreateRangeStmt CreateSchemaStmt CreateStatsStmt CreateSubscriptionStmt CreateTableAsStmt
    CreateTableSpaceStmt CreateTransformStmt CreateUserMappingStmt CreatedbStmt DefineStmt
    DropSubscriptionStmt DropTableSpaceStmt DropUserMappingStmt DropdbStmt ImportForeignSchemaStmt IndexStmt
    RuleStmt SecLabelStmt TruncateStmt
"""

CLASSES: Final[Mapping[str, StatementClass]] = {
    **dict.fromkeys(_MAINTENANCE.split(), StatementClass.MAINTENANCE),
    **dict.fromkeys(_ROLE.split(), StatementClass.ROLE),
    **dict.fromkeys(_DDL.split(), StatementClass.DDL),
    "DoStmt": StatementClass.DO,
    "LoadStmt": StatementClass.OTHER,
    "VariableShowStmt": StatementClass.SHOW,
}

HANDLERS: Final[Mapping[str, Handler]] = {
    **{node: _classified(node, statement_class) for node, statement_class in CLASSES.items()},
    "AlterDatabaseSetStmt": _configures("AlterDatabaseSetStmt", StatementClass.DDL),
    "AlterExtensionContentsStmt": of_objects("AlterExtensionContentsStmt", "objtype", None, "object"),
    "AlterObjectDependsStmt": of_objects("AlterObjectDependsStmt", "objectType", None, "object"),
    "AlterOwnerStmt": of_objects("AlterOwnerStmt", "objectType", None, "object"),
    "AlterRoleSetStmt": _configures("AlterRoleSetStmt", StatementClass.ROLE),
    "AlterSystemStmt": _configures("AlterSystemStmt", StatementClass.MAINTENANCE),
    "CallStmt": _call,
    "ClosePortalStmt": _close,
    "CommentStmt": of_objects("CommentStmt", "objtype", None, "object"),
    "ConstraintsSetStmt": _constraints_set,
    "CopyStmt": _copy,
    "CreateSeqStmt": _create("sequence", "CreateSeqStmt"),
    "CreateStmt": _create("relation", "CreateStmt"),
    "CreateTrigStmt": _create_trigger,
    "DeallocateStmt": _deallocate,
    "DeclareCursorStmt": _declare,
    "DefElem": _def_elem,
    "DiscardStmt": _discard,
    "ExecuteStmt": _execute,
    "ExplainStmt": _explain,
    "FetchStmt": _fetch,
    "IntoClause": _into,
    "ListenStmt": _listen,
    "LockStmt": _lock,
    "NotifyStmt": _notify,
    "PrepareStmt": _prepare,
    "RangeVar": _range_var,
    "SecLabelStmt": of_objects("SecLabelStmt", "objtype", None, "object"),
    "TransactionStmt": _transaction,
    "UnlistenStmt": _unlisten,
    "VariableSetStmt": _set,
    "ViewStmt": _create("view", "ViewStmt"),
}
