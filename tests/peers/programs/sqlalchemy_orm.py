"""SQLAlchemy's ORM and reflection on one driver, given as the dialect's name. Prints under `== step`."""

import datetime
import os
import sys

from sqlalchemy import ForeignKey, Index, MetaData, create_engine, func, inspect, select, text, update
from sqlalchemy.dialects.postgresql import ARRAY, ENUM, JSONB, insert
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship, selectinload
from sqlalchemy.types import Integer, Text


class Base(DeclarativeBase):
    pass


class Author(Base):
    __tablename__ = "author"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    kind: Mapped[str] = mapped_column(ENUM("poet", "novelist", name="author_kind"))
    born: Mapped[datetime.date | None]
    books: Mapped[list["Book"]] = relationship(back_populates="author", cascade="all, delete-orphan")


class Book(Base):
    __tablename__ = "book"
    id: Mapped[int] = mapped_column(primary_key=True)
    author_id: Mapped[int] = mapped_column(ForeignKey("author.id", ondelete="CASCADE"))
    title: Mapped[str] = mapped_column(Text)
    data: Mapped[dict[str, object]] = mapped_column(JSONB, default=dict)
    tags: Mapped[list[str]] = mapped_column(ARRAY(Text), default=list)
    pages: Mapped[int] = mapped_column(Integer, server_default="1")
    author: Mapped[Author] = relationship(back_populates="books")
    __table_args__ = (Index("book_data", "data", postgresql_using="gin"),)


place = "{PGUSER}:{PGPASSWORD}@{PGHOST}:{PGPORT}/{PGDATABASE}".format(**os.environ)
engine = create_engine(f"postgresql+{sys.argv[1]}://{place}")


def told(error: DBAPIError) -> None:
    print(type(error).__name__, getattr(error.orig, "sqlstate", None), str(error.orig).splitlines()[0])


print("== schema")
Base.metadata.create_all(engine)
Base.metadata.create_all(engine)
print(sorted(inspect(engine).get_table_names()), inspect(engine).get_enums())

print("== unit of work")
with Session(engine) as session:
    session.add_all(
        Author(
            name=f"author {n}",
            kind="poet",
            books=[Book(title=f"b{n}.{m}", data={"n": m}, tags=["x", "y'"]) for m in range(5)],
        )
        for n in range(20)
    )
    session.commit()
    found = session.scalars(
        select(Author).options(selectinload(Author.books)).where(Author.id < 4).order_by(Author.id)
    ).all()
    print([(a.name, [b.title for b in a.books], a.books[0].pages) for a in found])
    found[0].books.pop()
    found[1].name = "renamed"
    session.commit()
    print(
        session.execute(
            select(Author.name, func.count(Book.id))
            .join(Book)
            .group_by(Author.id)
            .order_by(Author.id)
            .limit(3)
        ).all()
    )
    print(
        session.scalars(
            select(Book.title)
            .where(Book.data["n"].as_integer() == 3, Book.tags.contains(["x"]))
            .order_by(Book.id)
            .limit(3)
        ).all()
    )
    session.execute(update(Book).where(Book.author_id == 3).values(pages=Book.pages + 10))
    session.commit()
    statement = (
        insert(Author)
        .values(id=1, name="again", kind="novelist")
        .on_conflict_do_update(index_elements=["id"], set_={"kind": "novelist"})
    )
    print(session.execute(statement.returning(Author.kind)).all())
    session.commit()

print("== errors and savepoints")
with Session(engine) as session:
    try:
        with session.begin_nested():
            session.add(Author(name="author 5", kind="poet"))
            session.flush()
    except IntegrityError as error:
        told(error)
    print(session.scalar(select(func.count()).select_from(Author)))
    try:
        session.execute(text("SELECT 1 / (SELECT 0)"))
    except DBAPIError as error:
        told(error)
    session.rollback()
    print(session.scalar(text("SELECT :a + 1"), {"a": 41}))

print("== errors of syntax and names")
with Session(engine) as session:
    for statement in ("SELECT nowhere FROM author", "SELEC"):
        try:
            session.execute(text(statement))
        except DBAPIError as error:
            told(error)
        session.rollback()

print("== streams")
with engine.connect() as connection:
    result = connection.execution_options(yield_per=100).execute(
        text("SELECT i FROM generate_series(1, 1234) AS i")
    )
    print(sum(row.i for row in result))
with engine.execution_options(isolation_level="SERIALIZABLE").connect() as one, one.begin_nested():
    print(one.exec_driver_sql("SHOW transaction_isolation").scalar())

print("== reflection")
reflected = MetaData()
reflected.reflect(engine)
for table in reflected.sorted_tables:
    print(
        table.name,
        [(c.name, str(c.type), c.nullable, c.primary_key) for c in table.columns],
        sorted(i.name or "" for i in table.indexes),
    )
    print(inspect(engine).get_foreign_keys(table.name), inspect(engine).get_unique_constraints(table.name))
print(engine.dialect.server_version_info is not None, engine.dialect.default_schema_name)
Base.metadata.drop_all(engine)
print(inspect(engine).get_table_names())
