"""Tables that somebody drops by hand while a node works."""

from collections.abc import Callable

import pytest

from infinite_scheduler.errors import StoreBroken, StoreUnavailable
from infinite_scheduler.model import JobId
from infinite_scheduler.observe.events import StoreAway, StoreBack
from infinite_scheduler.store.sql.rows import RunAgain, TablesMissing
from infinite_scheduler.store.sql.schema import SHARED, create_table
from infinite_scheduler.store.sql.server.drivers import server_driver
from infinite_scheduler.store.sql.server.session import Link
from infinite_scheduler.store.sql.server.table_maker import TableMaker
from infinite_scheduler.store.sql.statements import Statements
from tests.servers.node_rig import APP, NodeRig
from tests.services.databases import execute, kind_of


def job_tables(url: str) -> list[str]:
    schema = "DATABASE()" if kind_of(url) == "mariadb" else "current_schema()"
    found = execute(url, f"SELECT table_name FROM information_schema.tables WHERE table_schema = {schema}")
    return [name for (name,) in found if name.startswith(f"{APP}_scheduled_jobs_2")]


async def test_a_table_of_jobs_that_was_dropped_is_named_and_made_anew(rig: NodeRig, url: str) -> None:
    await rig.done(await rig.add(10))
    await rig.add(5, "1h")
    tables = job_tables(url)
    for table in tables:
        execute(url, f"DROP TABLE {table}")
    rig.deliveries.clear()
    with pytest.raises(StoreBroken, match=f"({'|'.join(tables)}).*dropped .*not by the scheduler"):
        await rig.add(10, "100ms")
    await rig.done(await rig.add(10, "100ms"))
    assert await rig.statuses() == {"done": 10}, "what was in it is gone, by the operator's deed"


@pytest.mark.parametrize("told", [True, False])
async def test_only_a_drop_that_the_database_was_not_told_of_is_an_alarm(rig: NodeRig, url: str, told: bool) -> None:
    """Maintenance of another node may drop a table between the look at what there is and the statement that uses it."""
    (job,) = await rig.add(1)
    await rig.done([job])
    keys, driver = [bytes(JobId.parse(job))], server_driver(url)
    link = Link(driver, TableMaker(driver, allowed=True), "p")
    tables = job_tables(url)

    def body(tx: Statements) -> int:
        assert tx.has_tables_of(APP)  # it looks at what there is
        while tables:
            execute(url, f"DROP TABLE {tables.pop()}")
            if told:
                execute(url, "UPDATE scheduler_schema SET tables = tables + 1")
        return len(tx.read_heads(APP, keys))

    if told:
        assert link.write(body) == 0
    else:
        with pytest.raises(StoreBroken, match="not by the scheduler"):
            link.write(body)
        assert link.write(body) == 0
    link.close()


def repeat(tx: Statements) -> None:
    for _ in range(2):
        tx.cursor.execute("INSERT INTO scheduler_counters VALUES ('p', 'a', 1, 'x', 1, NULL)")  # type: ignore[attr-defined]


def begin_anew(_: Statements) -> None:
    raise RunAgain


def miss(_: Statements) -> None:
    raise TablesMissing({"work_lost": "SELECT 1"})


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (repeat, "a row that already exists"),
        (begin_anew, "rows that others changed meanwhile"),
        (miss, "tables that were created and are missing again: work_lost"),
    ],
    ids=["repeat", "begin_anew", "miss"],
)
async def test_a_transaction_that_is_given_up_says_why(
    rig: NodeRig, url: str, body: Callable[[Statements], None], why: str
) -> None:
    driver = server_driver(url)
    link = Link(driver, TableMaker(driver, allowed=True), "p")
    with pytest.raises(StoreUnavailable, match=f"given up after 12 tries, the last one because of {why}; nothing was"):
        link.write(body)
    link.close()


async def test_a_table_of_the_scheduler_that_was_dropped_is_named_until_it_is_back(rig: NodeRig, url: str) -> None:
    await rig.done(first := await rig.add(10))
    execute(url, "DROP TABLE scheduler_counters")
    with pytest.raises(StoreBroken, match=r"scheduler_counters.*dropped .*not by the scheduler"):
        await rig.add(1)
    with pytest.raises(StoreBroken, match=r"scheduler_counters.*was it dropped"):
        await rig.add(1)
    columns, key = SHARED["scheduler_counters"]
    dialect = server_driver(url).dialect
    execute(url, create_table(dialect, "scheduler_counters", [*columns, ("at_ms", "int")], key))
    second = await rig.add(10)
    await rig.done([*first, *second])
    assert not rig.told(StoreAway) or rig.told(StoreBack)
