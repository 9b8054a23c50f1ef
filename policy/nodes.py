"""The node types of PostgreSQL's raw parse tree that the gate understands, and the fields of each.

Generated data, reviewed by hand. The names in the table are the allow-list, chosen by hand; the fields under
each are printed by ``tests/policy/derive_nodes.py`` from the parser's own protobuf description (PostgreSQL
18's grammar).
``extract`` refuses a node type or a field that is not here, so that a newer grammar can add nothing unseen.

Left out on purpose: nodes that only parse analysis, planning or PL/pgSQL makes (Var, Query, OpExpr, SubPlan,
PLAssignStmt …). A raw parse never holds them, so a tree that does is not one we know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SCALAR: Final = "scalar"
"""A number, string, boolean or enum: nothing can hide in it."""
NODE: Final = "node"
"""One node, wrapped in its type: ``{"ColumnRef": {…}}``; ``{}`` where the C tree holds NULL."""
LIST: Final = "list"
"""A list of such nodes."""

_TABLE: Final = """
ATAlterConstraint
    conname alterEnforceability is_enforced alterDeferrability deferrable initdeferred alterInheritability
    noinherit
A_ArrayExpr
    elements[] list_start list_end location
A_Const
    ival:Integer fval:Float boolval:Boolean sval:String bsval:BitString isnull location
A_Expr
    kind name[] lexpr! rexpr! rexpr_list_start rexpr_list_end location
A_Indices
    is_slice lidx! uidx!
A_Indirection
    arg! indirection[]
A_Star
AccessPriv
    priv_name cols[]
Alias
    aliasname colnames[]
AlterCollationStmt
    collname[]
AlterDatabaseRefreshCollStmt
    dbname
AlterDatabaseSetStmt
    dbname setstmt:VariableSetStmt
AlterDatabaseStmt
    dbname options[]
AlterDefaultPrivilegesStmt
    options[] action:GrantStmt
AlterDomainStmt
    subtype typeName[] name def! behavior missing_ok
AlterEnumStmt
    typeName[] oldVal newVal newValNeighbor newValIsAfter skipIfNewValExists
AlterEventTrigStmt
    trigname tgenabled
AlterExtensionContentsStmt
    extname action objtype object!
AlterExtensionStmt
    extname options[]
AlterFdwStmt
    fdwname func_options[] options[]
AlterForeignServerStmt
    servername version options[] has_version
AlterFunctionStmt
    objtype func:ObjectWithArgs actions[]
AlterObjectDependsStmt
    objectType relation:RangeVar object! extname:String remove
AlterObjectSchemaStmt
    objectType relation:RangeVar object! newschema missing_ok
AlterOpFamilyStmt
    opfamilyname[] amname isDrop items[]
AlterOperatorStmt
    opername:ObjectWithArgs options[]
AlterOwnerStmt
    objectType relation:RangeVar object! newowner:RoleSpec
AlterPolicyStmt
    policy_name table:RangeVar roles[] qual! with_check!
AlterPublicationStmt
    pubname options[] pubobjects[] for_all_tables action
AlterRoleSetStmt
    role:RoleSpec database setstmt:VariableSetStmt
AlterRoleStmt
    role:RoleSpec options[] action
AlterSeqStmt
    sequence:RangeVar options[] for_identity missing_ok
AlterStatsStmt
    defnames[] stxstattarget! missing_ok
AlterSubscriptionStmt
    kind subname conninfo publication[] options[]
AlterSystemStmt
    setstmt:VariableSetStmt
AlterTSConfigurationStmt
    kind cfgname[] tokentype[] dicts[] override replace missing_ok
AlterTSDictionaryStmt
    dictname[] options[]
AlterTableCmd
    subtype name num newowner:RoleSpec def! behavior missing_ok recurse
AlterTableMoveAllStmt
    orig_tablespacename objtype roles[] new_tablespacename nowait
AlterTableSpaceOptionsStmt
    tablespacename options[] isReset
AlterTableStmt
    relation:RangeVar cmds[] objtype missing_ok
AlterTypeStmt
    typeName[] options[]
AlterUserMappingStmt
    user:RoleSpec servername options[]
BitString
    bsval
BoolExpr
    boolop args[] location
Boolean
    boolval
BooleanTest
    arg! booltesttype location
CTECycleClause
    cycle_col_list[] cycle_mark_column cycle_mark_value! cycle_mark_default! cycle_path_column location
    cycle_mark_type cycle_mark_typmod cycle_mark_collation cycle_mark_neop
CTESearchClause
    search_col_list[] search_breadth_first search_seq_column location
CallStmt
    funccall:FuncCall outargs[]
CaseExpr
    casetype casecollid arg! args[] defresult! location
CaseWhen
    expr! result! location
CheckPointStmt
ClosePortalStmt
    portalname
ClusterStmt
    relation:RangeVar indexname params[]
CoalesceExpr
    coalescetype coalescecollid args[] location
CollateClause
    arg! collname[] location
ColumnDef
    colname typeName:TypeName compression inhcount is_local is_not_null is_from_type storage storage_name
    raw_default! cooked_default! identity identitySequence:RangeVar generated collClause:CollateClause
    collOid constraints[] fdwoptions[] location
ColumnRef
    fields[] location
CommentStmt
    objtype object! comment
CommonTableExpr
    ctename aliascolnames[] ctematerialized ctequery! search_clause:CTESearchClause
    cycle_clause:CTECycleClause location cterecursive cterefcount ctecolnames[] ctecoltypes[]
    ctecoltypmods[] ctecolcollations[]
CompositeTypeStmt
    typevar:RangeVar coldeflist[]
Constraint
    contype conname deferrable initdeferred is_enforced skip_validation initially_valid is_no_inherit
    raw_expr! cooked_expr generated_when generated_kind nulls_not_distinct keys[] without_overlaps
    including[] exclusions[] options[] indexname indexspace reset_default_tblspc access_method
    where_clause! pktable:RangeVar fk_attrs[] pk_attrs[] fk_with_period pk_with_period fk_matchtype
    fk_upd_action fk_del_action fk_del_set_cols[] old_conpfeqop[] old_pktable_oid location
ConstraintsSetStmt
    constraints[] deferred
CopyStmt
    relation:RangeVar query! attlist[] is_from is_program filename options[] whereClause!
CreateAmStmt
    amname handler_name[] amtype
CreateCastStmt
    sourcetype:TypeName targettype:TypeName func:ObjectWithArgs context inout
CreateConversionStmt
    conversion_name[] for_encoding_name to_encoding_name func_name[] def
CreateDomainStmt
    domainname[] typeName:TypeName collClause:CollateClause constraints[]
CreateEnumStmt
    typeName[] vals[]
CreateEventTrigStmt
    trigname eventname whenclause[] funcname[]
CreateExtensionStmt
    extname if_not_exists options[]
CreateFdwStmt
    fdwname func_options[] options[]
CreateForeignServerStmt
    servername servertype version fdwname if_not_exists options[]
CreateForeignTableStmt
    base:CreateStmt servername options[]
CreateFunctionStmt
    is_procedure replace funcname[] parameters[] returnType:TypeName options[] sql_body!
CreateOpClassItem
    itemtype name:ObjectWithArgs number order_family[] class_args[] storedtype:TypeName
CreateOpClassStmt
    opclassname[] opfamilyname[] amname datatype:TypeName items[] isDefault
CreateOpFamilyStmt
    opfamilyname[] amname
CreatePLangStmt
    replace plname plhandler[] plinline[] plvalidator[] pltrusted
CreatePolicyStmt
    policy_name table:RangeVar cmd_name permissive roles[] qual! with_check!
CreatePublicationStmt
    pubname options[] pubobjects[] for_all_tables
CreateRangeStmt
    typeName[] params[]
CreateRoleStmt
    stmt_type role options[]
CreateSchemaStmt
    schemaname authrole:RoleSpec schemaElts[] if_not_exists
CreateSeqStmt
    sequence:RangeVar options[] ownerId for_identity if_not_exists
CreateStatsStmt
    defnames[] stat_types[] exprs[] relations[] stxcomment transformed if_not_exists
CreateStmt
    relation:RangeVar tableElts[] inhRelations[] partbound:PartitionBoundSpec partspec:PartitionSpec
    ofTypename:TypeName constraints[] nnconstraints[] options[] oncommit tablespacename accessMethod
    if_not_exists
CreateSubscriptionStmt
    subname conninfo publication[] options[]
CreateTableAsStmt
    query! into:IntoClause objtype is_select_into if_not_exists
CreateTableSpaceStmt
    tablespacename owner:RoleSpec location options[]
CreateTransformStmt
    replace type_name:TypeName lang fromsql:ObjectWithArgs tosql:ObjectWithArgs
CreateTrigStmt
    replace isconstraint trigname relation:RangeVar funcname[] args[] row timing events columns[]
    whenClause! transitionRels[] deferrable initdeferred constrrel:RangeVar
CreateUserMappingStmt
    user:RoleSpec servername if_not_exists options[]
CreatedbStmt
    dbname options[]
CurrentOfExpr
    cvarno cursor_name cursor_param
DeallocateStmt
    name isall location
DeclareCursorStmt
    portalname options query!
DefElem
    defnamespace defname arg! defaction location
DefineStmt
    kind oldstyle defnames[] args[] definition[] if_not_exists replace
DeleteStmt
    relation:RangeVar usingClause[] whereClause! returningClause:ReturningClause withClause:WithClause
DiscardStmt
    target
DoStmt
    args[]
DropOwnedStmt
    roles[] behavior
DropRoleStmt
    roles[] missing_ok
DropStmt
    objects[] removeType behavior missing_ok concurrent
DropSubscriptionStmt
    subname missing_ok behavior
DropTableSpaceStmt
    tablespacename missing_ok
DropUserMappingStmt
    user:RoleSpec servername missing_ok
DropdbStmt
    dbname missing_ok options[]
ExecuteStmt
    name params[]
ExplainStmt
    query! options[]
FetchStmt
    direction howMany portalname ismove
Float
    fval
FuncCall
    funcname[] args[] agg_order[] agg_filter! over:WindowDef agg_within_group agg_star agg_distinct
    func_variadic funcformat location
FunctionParameter
    name argType:TypeName mode defexpr! location
GrantRoleStmt
    granted_roles[] grantee_roles[] is_grant opt[] grantor:RoleSpec behavior
GrantStmt
    is_grant targtype objtype objects[] privileges[] grantees[] grant_option grantor:RoleSpec behavior
GroupingFunc
    args[] refs[] agglevelsup location
GroupingSet
    kind content[] location
ImportForeignSchemaStmt
    server_name remote_schema local_schema list_type table_list[] options[]
IndexElem
    name expr! indexcolname collation[] opclass[] opclassopts[] ordering nulls_ordering
IndexStmt
    idxname relation:RangeVar accessMethod tableSpace indexParams[] indexIncludingParams[] options[]
    whereClause! excludeOpNames[] idxcomment indexOid oldNumber oldCreateSubid oldFirstRelfilelocatorSubid
    unique nulls_not_distinct primary isconstraint iswithoutoverlaps deferrable initdeferred transformed
    concurrent if_not_exists reset_default_tblspc
InferClause
    indexElems[] whereClause! conname location
InsertStmt
    relation:RangeVar cols[] selectStmt! onConflictClause:OnConflictClause returningClause:ReturningClause
    withClause:WithClause override
Integer
    ival
IntoClause
    rel:RangeVar colNames[] accessMethod options[] onCommit tableSpaceName skipData
JoinExpr
    jointype isNatural larg! rarg! usingClause[] join_using_alias:Alias quals! alias:Alias rtindex
JsonAggConstructor
    output:JsonOutput agg_filter! agg_order[] over:WindowDef location
JsonArgument
    val:JsonValueExpr name
JsonArrayAgg
    constructor:JsonAggConstructor arg:JsonValueExpr absent_on_null
JsonArrayConstructor
    exprs[] output:JsonOutput absent_on_null location
JsonArrayQueryConstructor
    query! output:JsonOutput format:JsonFormat absent_on_null location
JsonBehavior
    btype expr! coerce location
JsonFormat
    format_type encoding location
JsonFuncExpr
    op column_name context_item:JsonValueExpr pathspec! passing[] output:JsonOutput on_empty:JsonBehavior
    on_error:JsonBehavior wrapper quotes location
JsonIsPredicate
    expr! format:JsonFormat item_type unique_keys location
JsonKeyValue
    key! value:JsonValueExpr
JsonObjectAgg
    constructor:JsonAggConstructor arg:JsonKeyValue absent_on_null unique
JsonObjectConstructor
    exprs[] output:JsonOutput absent_on_null unique location
JsonOutput
    typeName:TypeName returning:JsonReturning
JsonParseExpr
    expr:JsonValueExpr output:JsonOutput unique_keys location
JsonReturning
    format:JsonFormat typid typmod
JsonScalarExpr
    expr! output:JsonOutput location
JsonSerializeExpr
    expr:JsonValueExpr output:JsonOutput location
JsonTable
    context_item:JsonValueExpr pathspec:JsonTablePathSpec passing[] columns[] on_error:JsonBehavior
    alias:Alias lateral location
JsonTableColumn
    coltype name typeName:TypeName pathspec:JsonTablePathSpec format:JsonFormat wrapper quotes columns[]
    on_empty:JsonBehavior on_error:JsonBehavior location
JsonTablePathSpec
    string! name name_location location
JsonValueExpr
    raw_expr! formatted_expr! format:JsonFormat
List
    items[]
ListenStmt
    conditionname
LoadStmt
    filename
LockStmt
    relations[] mode nowait
LockingClause
    lockedRels[] strength waitPolicy
MergeStmt
    relation:RangeVar sourceRelation! joinCondition! mergeWhenClauses[] returningClause:ReturningClause
    withClause:WithClause
MergeSupportFunc
    msftype msfcollid location
MergeWhenClause
    matchKind commandType override condition! targetList[] values[]
MinMaxExpr
    minmaxtype minmaxcollid inputcollid op args[] location
MultiAssignRef
    source! colno ncolumns
NamedArgExpr
    arg! name argnumber location
NotifyStmt
    conditionname payload
NullTest
    arg! nulltesttype argisrow location
ObjectWithArgs
    objname[] objargs[] objfuncargs[] args_unspecified
OnConflictClause
    action infer:InferClause targetList[] whereClause! location
ParamRef
    number location
PartitionBoundSpec
    strategy is_default modulus remainder listdatums[] lowerdatums[] upperdatums[] location
PartitionCmd
    name:RangeVar bound:PartitionBoundSpec concurrent
PartitionElem
    name expr! collation[] opclass[] location
PartitionRangeDatum
    kind value! location
PartitionSpec
    strategy partParams[] location
PrepareStmt
    name argtypes[] query!
PublicationObjSpec
    pubobjtype name pubtable:PublicationTable location
PublicationTable
    relation:RangeVar whereClause! columns[]
RangeFunction
    lateral ordinality is_rowsfrom functions[] alias:Alias coldeflist[]
RangeSubselect
    lateral subquery! alias:Alias
RangeTableFunc
    lateral docexpr! rowexpr! namespaces[] columns[] alias:Alias location
RangeTableFuncCol
    colname typeName:TypeName for_ordinality is_not_null colexpr! coldefexpr! location
RangeTableSample
    relation! method[] args[] repeatable! location
RangeVar
    catalogname schemaname relname inh relpersistence alias:Alias location
RawStmt
    stmt! stmt_location stmt_len
ReassignOwnedStmt
    roles[] newrole:RoleSpec
RefreshMatViewStmt
    concurrent skipData relation:RangeVar
ReindexStmt
    kind relation:RangeVar name params[]
RenameStmt
    renameType relationType relation:RangeVar object! subname newname behavior missing_ok
ReplicaIdentityStmt
    identity_type name
ResTarget
    name indirection[] val! location
ReturnStmt
    returnval!
ReturningClause
    options[] exprs[]
ReturningOption
    option value location
RoleSpec
    roletype rolename location
RowExpr
    args[] row_typeid row_format colnames[] location
RuleStmt
    relation:RangeVar rulename whereClause! event instead actions[] replace
SQLValueFunction
    op type typmod location
SecLabelStmt
    objtype object! provider label
SelectStmt
    distinctClause[] intoClause:IntoClause targetList[] fromClause[] whereClause! groupClause[]
    groupDistinct havingClause! windowClause[] valuesLists[] sortClause[] limitOffset! limitCount!
    limitOption lockingClause[] withClause:WithClause op all larg:SelectStmt rarg:SelectStmt
SetToDefault
    typeId typeMod collation location
SortBy
    node! sortby_dir sortby_nulls useOp[] location
StatsElem
    name expr!
String
    sval
SubLink
    subLinkType subLinkId testexpr! operName[] subselect! location
TableLikeClause
    relation:RangeVar options relationOid
TransactionStmt
    kind options[] savepoint_name gid chain location
TriggerTransition
    name isNew isTable
TruncateStmt
    relations[] restart_seqs behavior
TypeCast
    arg! typeName:TypeName location
TypeName
    names[] typeOid setof pct_type typmods[] typemod arrayBounds[] location
UnlistenStmt
    conditionname
UpdateStmt
    relation:RangeVar targetList[] whereClause! fromClause[] returningClause:ReturningClause
    withClause:WithClause
VacuumRelation
    relation:RangeVar oid va_cols[]
VacuumStmt
    options[] rels[] is_vacuumcmd
VariableSetStmt
    kind name args[] jumble_args is_local location
VariableShowStmt
    name
ViewStmt
    view:RangeVar aliases[] query! replace options[] withCheckOption
WindowDef
    name refname partitionClause[] orderClause[] frameOptions startOffset! endOffset! location
WithClause
    ctes[] recursive location
XmlExpr
    op name named_args[] arg_names[] args[] xmloption indent type typmod location
XmlSerialize
    xmloption expr! typeName:TypeName indent location
"""

_OLDER_GRAMMARS: Final = """
DeleteStmt
    returningList[]
InsertStmt
    returningList[]
MergeStmt
    returningList[]
UpdateStmt
    returningList[]
"""
"""Fields that PostgreSQL 17's grammar, the fallback binding's, spells differently."""

_SUFFIXES: Final = (("[]", LIST), ("!", NODE))


def _kind(word: str) -> tuple[str, str]:
    for suffix, kind in _SUFFIXES:
        if word.endswith(suffix):
            return word.removesuffix(suffix), kind
    name, _, message = word.partition(":")
    return name, message or SCALAR


def _read(*tables: str) -> Mapping[str, Mapping[str, str]]:
    rows: dict[str, dict[str, str]] = {}
    fields: dict[str, str] = {}
    for line in "\n".join(tables).splitlines():
        if line.startswith(" "):
            fields.update(_kind(word) for word in line.split())
        elif line:
            fields = rows.setdefault(line, {})
    return rows


FIELDS: Final = _read(_TABLE, _OLDER_GRAMMARS)
"""Node type -> JSON field -> SCALAR, NODE, LIST, or the message type of a typed position, whose fields stand
there bare (``SelectStmt.larg``, ``InsertStmt.relation`` …)."""

UNDERSTOOD: Final = frozenset(FIELDS)
