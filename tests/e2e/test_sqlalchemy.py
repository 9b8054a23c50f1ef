"""SQLAlchemy over each of its drivers: connecting, reflection, the ORM, and what a rejection does to them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from sqlalchemy import (
    URL,
    Engine,
    ForeignKey,
    MetaData,
    Table,
    create_engine,
    exc,
    func,
    inspect,
    select,
    text,
)
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from tests.support.proxy import RunningProxy


class Base(DeclarativeBase):
    pass


class Customer(Base):
    __tablename__ = "customers"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    email: Mapped[str]
    city: Mapped[str]
    notes: Mapped[str | None]
    orders: Mapped[list[Order]] = relationship(back_populates="customer", order_by="Order.id")


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer_id: Mapped[int] = mapped_column(ForeignKey("customers.id"))
    status: Mapped[str]
    customer: Mapped[Customer] = relationship(back_populates="orders")


def url(gateway: RunningProxy, driver: str, agent: str) -> URL:
    given = gateway.parameters(agent)
    return URL.create(
        f"postgresql+{driver}",
        username=given["user"],
        password=given["password"],
        host=given["host"],
        port=given["port"],
        database=given["dbname"],
    )


@pytest.fixture(params=["psycopg", "psycopg2", "pg8000"])
def driver(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def engine(gateway: RunningProxy, driver: str) -> Iterator[Engine]:
    engine = create_engine(url(gateway, driver, "writer"), pool_pre_ping=True)
    yield engine
    engine.dispose()


def test_an_engine_connects_and_reads(engine: Engine) -> None:
    for _ in range(3):
        with engine.connect() as connection:
            found = connection.execute(text("SELECT id, city FROM customers WHERE id = :id"), {"id": 3}).one()
            assert found.id == 3


def test_reflection_is_the_same_as_direct(gateway: RunningProxy, driver: str) -> None:
    """Even where joins need a bound: reflection joins system catalogs alone."""
    engine = create_engine(url(gateway, driver, "strict"))
    straight = create_engine(gateway.database.dsn("shop_app").replace("postgresql:", "postgresql+psycopg:"))
    try:
        ours, theirs = inspect(engine), inspect(straight)
        assert ours.get_table_names() == theirs.get_table_names()
        assert ours.get_view_names() == theirs.get_view_names()
        assert ours.get_schema_names() == theirs.get_schema_names()
        for name in ours.get_table_names():
            for look in (
                "get_columns",
                "get_pk_constraint",
                "get_foreign_keys",
                "get_indexes",
                "get_unique_constraints",
                "get_check_constraints",
                "get_table_comment",
            ):
                assert repr(getattr(ours, look)(name)) == repr(getattr(theirs, look)(name)), (look, name)
        metadata = MetaData()
        metadata.reflect(engine)
        assert {"customers", "orders"} <= set(metadata.tables)
        orders = Table("orders", MetaData(), autoload_with=engine)
        assert [c.name for c in orders.primary_key] == ["id"]
    finally:
        straight.dispose()
        engine.dispose()


def test_the_orm_writes_and_reads_back(gateway: RunningProxy, engine: Engine, driver: str) -> None:
    email = f"{driver}@orm.example"
    with Session(engine) as session:
        customer = Customer(name="Örm", email=email, city="Graz")
        customer.orders = [Order(status="open"), Order(status="paid"), Order(status="open")]
        session.add(customer)
        session.commit()
        customer.orders[0].status = "sent"
        session.commit()
        seen = session.scalars(
            select(Order.status).join(Customer).where(Customer.email == email).limit(9)
        ).all()
        assert sorted(seen) == ["open", "paid", "sent"]
        for order in list(customer.orders):
            session.delete(order)
        session.delete(customer)
        session.commit()
    assert gateway.database.execute(f"SELECT count(*) FROM customers WHERE email = '{email}'") == [(0,)]


def test_a_rejection_through_the_orm(gateway: RunningProxy, engine: Engine, driver: str) -> None:
    email = f"{driver}@refused.example"
    with Session(engine) as session:
        session.add(Customer(name="n", email=email, city="c"))
        session.flush()
        with pytest.raises(exc.ProgrammingError) as caught:
            session.execute(text("UPDATE customers SET city = 'Oslo'"))
        assert told_detail(caught.value)["rule"] == "update-without-where"
        session.rollback()
        assert session.scalar(select(func.count()).select_from(Customer).where(Customer.email == email)) == 0


def told_detail(error: exc.DBAPIError) -> dict[str, object]:
    original = error.orig
    assert original is not None
    diagnostics = getattr(original, "diag", None)
    detail = diagnostics.message_detail if diagnostics is not None else original.args[0]["D"]
    told = json.loads(detail)
    assert isinstance(told, dict)
    return told


def test_a_savepoint_of_the_orm(engine: Engine) -> None:
    with Session(engine) as session:
        with pytest.raises(exc.DBAPIError), session.begin_nested():
            session.execute(text("DELETE FROM orders"))
        assert session.scalar(select(func.count()).select_from(Order)) == 2000


@pytest.mark.parametrize("level", ["AUTOCOMMIT", "SERIALIZABLE", "REPEATABLE READ"])
def test_isolation_levels(engine: Engine, level: str) -> None:
    with engine.connect().execution_options(isolation_level=level) as connection:
        assert connection.scalar(text("SELECT 1")) == 1
        if level != "AUTOCOMMIT":
            shown = connection.scalar(text("SHOW transaction_isolation"))
            assert shown == level.lower()


def test_the_orm_over_asyncpg(gateway: RunningProxy) -> None:
    async def run() -> None:
        engine = create_async_engine(url(gateway, "asyncpg", "writer"), pool_pre_ping=True)
        async with AsyncSession(engine) as session:
            customer = Customer(name="async", email="asyncpg@orm.example", city="Brno")
            session.add(customer)
            await session.flush()
            found = await session.scalar(select(Customer.city).where(Customer.id == customer.id))
            assert found == "Brno"
            with pytest.raises(exc.ProgrammingError) as caught:
                await session.execute(text("DELETE FROM orders"))
            assert getattr(caught.value.orig, "sqlstate", None) == "42501"
            await session.rollback()
            assert await session.scalar(select(func.count()).select_from(Order)) == 2000
        async with engine.connect() as connection:
            names = await connection.run_sync(lambda sync: inspect(sync).get_table_names())
            assert "orders" in names
            columns = await connection.run_sync(lambda sync: inspect(sync).get_columns("orders"))
            assert [column["name"] for column in columns][:2] == ["id", "customer_id"]
        await engine.dispose()

    asyncio.run(run())
