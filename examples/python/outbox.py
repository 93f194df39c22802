"""Submits tasks inside transactions of SQLAlchemy: one that commits, and one that rolls back.

DATABASE_URL names the database of the application, for example
postgresql+psycopg://shop_app@localhost/shop. It has an outbox, and a table: create table orders (id
integer primary key).
"""

import os
import uuid
from datetime import timedelta

from sqlalchemy import JSON, create_engine, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

TOPIC = os.environ.get("TOPIC", "demo")


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class Task(Base):
    """A row of the outbox. Map the columns that you need, and no others: they have defaults."""

    __tablename__ = "outbox"
    __table_args__ = {"schema": "punctual"}

    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    topic: Mapped[str] = mapped_column(default=TOPIC)
    name: Mapped[str]
    key: Mapped[str]
    payload: Mapped[dict] = mapped_column(JSON)
    delay: Mapped[timedelta]


CANCEL = text("select punctual.cancel(:topic, :name)")


def place(session: Session, number: int) -> None:
    """Places an order, and reminds of it in half an hour."""
    session.add(Order(id=number))
    name, delay = f"remind-{number}", timedelta(minutes=30)
    session.add(Task(name=name, key=f"order-{number}", payload={"remind": number}, delay=delay))


engine = create_engine(os.environ["DATABASE_URL"])
with Session(engine) as session, session.begin():
    place(session, 17)
    place(session, 18)
print("orders 17 and 18: committed, with their tasks")

try:
    with Session(engine) as session, session.begin():
        place(session, 19)
        session.flush()  # The row is written, and is gone with the transaction.
        raise ValueError("out of stock")
except ValueError as error:
    print(f"order 19: rolled back, with its task ({error})")

with Session(engine) as session, session.begin():
    session.execute(CANCEL, {"topic": TOPIC, "name": "remind-18"})
print("order 18: paid, and its task cancelled")
