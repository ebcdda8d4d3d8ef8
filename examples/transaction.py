"""An order and its reminder: both exist, or neither. The orders are in the same SQLite file as the store."""

import asyncio
import tempfile

import sqlalchemy as sa

from infinite_scheduler import Job, NewJob, Scheduler

orders = sa.Table("orders", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True), sa.Column("item", sa.String))


def place_order(engine: sa.Engine, scheduler: Scheduler, item: str) -> str:
    """Store an order and its reminder in one transaction."""
    with engine.begin() as connection:
        order = connection.execute(sa.insert(orders).values(item=item)).lastrowid
        reminder = NewJob(data={"order": order, "item": item}, delay="300ms", tags=["order"])
        (job,) = scheduler.enqueue(connection, "reminders", [reminder])
        if item == "nothing":
            raise ValueError("an order needs an item")
    return job.id


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/shop.db"
        engine = sa.create_engine(url)
        orders.metadata.create_all(engine)
        scheduler = Scheduler(url)

        @scheduler.app("reminders")
        async def remind(job: Job) -> None:
            print("reminder for order", job.data["order"], "of", job.data["item"])

        async with scheduler:
            job_id = place_order(engine, scheduler, "tea")
            try:
                place_order(engine, scheduler, "nothing")
            except ValueError as error:
                print("rolled back:", error)
            await scheduler.wait(job_id, timeout="30s")
            found = await scheduler.find("reminders", tag="order")
            print("jobs:", [str(record.status) for record in found.records])
        engine.dispose()


if __name__ == "__main__":
    asyncio.run(main())
