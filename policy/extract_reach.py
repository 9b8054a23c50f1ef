"""How far DDL reaches beyond the object it is about: new names, whole schemas, keys that tables refer to.

Handlers for ``extract_walk``; ``HANDLERS`` is the table. What a policy says of a name is lost with the name,
and what it says of a table is passed by where its schema stands for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from policy.extract_utility import of_objects
from policy.extract_walk import Fields, Handler, Walk, strings
from policy.facts import ColumnRef, RenameRef, SchemaRef
from policy.model import StatementClass

_RELATIONS: Final = frozenset(
    (
        *("OBJECT_FOREIGN_TABLE", "OBJECT_INDEX", "OBJECT_MATVIEW", "OBJECT_SEQUENCE", "OBJECT_TABLE"),
        "OBJECT_VIEW",
    )
)
_COLUMNS: Final = frozenset(("OBJECT_ATTRIBUTE", "OBJECT_COLUMN"))
_SCHEMA: Final = "OBJECT_SCHEMA"


def _rename(walk: Walk, fields: Fields) -> None:
    relation = len(walk.relations)
    _RENAME(walk, fields)
    kind = fields["renameType"]
    if kind == _SCHEMA:
        walk.schemas.append(SchemaRef(fields["subname"], fields["newname"]))
    elif "relation" in fields and kind in _COLUMNS:
        walk.renames.append(RenameRef(relation, fields["subname"]))
    elif "relation" in fields and kind in _RELATIONS:
        walk.renames.append(RenameRef(relation, name=fields["newname"]))


def _set_schema(walk: Walk, fields: Fields) -> None:
    relation = len(walk.relations)
    _SET_SCHEMA(walk, fields)
    if "relation" in fields:
        walk.renames.append(RenameRef(relation, schema=fields["newschema"]))


def _drop(walk: Walk, fields: Fields) -> None:
    _DROP(walk, fields)
    if fields["removeType"] == _SCHEMA:
        walk.schemas.extend(map(SchemaRef, strings(fields["objects"])))


def _truncate(walk: Walk, fields: Fields) -> None:
    walk.add_class(StatementClass.DDL)
    walk.truncates_referring = fields["behavior"] == "DROP_CASCADE"
    walk.rest("TruncateStmt", fields)


def _grant(walk: Walk, fields: Fields) -> None:
    walk.add_class(StatementClass.ROLE)
    if fields["targtype"] == "ACL_TARGET_ALL_IN_SCHEMA":
        walk.schemas.extend(map(SchemaRef, strings(fields["objects"])))
    walk.rest("GrantStmt", fields)


def _publication_object(walk: Walk, fields: Fields) -> None:
    if fields.get("pubobjtype") == "PUBLICATIONOBJ_TABLES_IN_SCHEMA":
        walk.schemas.append(SchemaRef(fields["name"]))
    walk.rest("PublicationObjSpec", fields)


def _constraint(walk: Walk, fields: Fields) -> None:
    """Of a foreign key the columns it refers to: whether a value is among theirs, every row then tells."""
    for name in strings(fields.get("pk_attrs", ())):
        walk.columns.append(ColumnRef(name, position=walk.position(fields), clause="references"))
    walk.rest("Constraint", fields)


_RENAME: Final = of_objects("RenameStmt", "renameType", None, "object")
_SET_SCHEMA: Final = of_objects("AlterObjectSchemaStmt", "objectType", None, "object")
_DROP: Final = of_objects("DropStmt", "removeType", "objects", None)

HANDLERS: Final[Mapping[str, Handler]] = {
    "AlterObjectSchemaStmt": _set_schema,
    "Constraint": _constraint,
    "DropStmt": _drop,
    "GrantStmt": _grant,
    "PublicationObjSpec": _publication_object,
    "RenameStmt": _rename,
    "TruncateStmt": _truncate,
}
