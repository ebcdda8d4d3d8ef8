"""Tables that somebody drops by hand while a node works."""

from collections.abc import AsyncIterator

import pytest

from infinite_scheduler.errors import StoreBroken
from infinite_scheduler.observe.events import StoreAway, StoreBack
from infinite_scheduler.store import server_driver
from infinite_scheduler.store.sql.schema import SHARED, create_table
from tests.servers.rig import APP, Rig
from tests.services.databases import execute, kind_of


@pytest.fixture(params=["mariadb_url", "postgres_url"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param)
    return found


@pytest.fixture
async def rig(url: str) -> AsyncIterator[Rig]:
    rig = Rig(url)
    async with rig.scheduler:
        yield rig


def job_tables(url: str) -> list[str]:
    schema = "DATABASE()" if kind_of(url) == "mariadb" else "current_schema()"
    found = execute(url, f"SELECT table_name FROM information_schema.tables WHERE table_schema = {schema}")
    return [name for (name,) in found if name.startswith(f"{APP}_scheduled_jobs_2")]


async def test_a_table_of_jobs_that_was_dropped_is_named_and_made_anew(rig: Rig, url: str) -> None:
    await rig.done(await rig.add(10))
    await rig.add(5, "1h")
    tables = job_tables(url)
    for table in tables:
        execute(url, f"DROP TABLE {table}")
    rig.deliveries.clear()
    with pytest.raises(StoreBroken, match=f"{tables[0]}.*dropped .*by somebody else"):
        await rig.add(10, "100ms")
    await rig.done(await rig.add(10, "100ms"))
    assert await rig.statuses() == {"done": 10}, "what was in it is gone, by the operator's deed"


async def test_retention_that_drops_a_table_is_no_alarm(rig: Rig, url: str) -> None:
    await rig.done(await rig.add(10))
    for table in job_tables(url):
        execute(url, f"DROP TABLE {table}")
    execute(url, "UPDATE scheduler_schema SET tables = tables + 1")  # as maintenance does
    rig.deliveries.clear()
    await rig.done(await rig.add(10, "100ms"))
    assert not rig.told(StoreAway)


async def test_a_table_of_the_scheduler_that_was_dropped_is_named_until_it_is_back(rig: Rig, url: str) -> None:
    await rig.done(first := await rig.add(10))
    execute(url, "DROP TABLE scheduler_counters")
    with pytest.raises(StoreBroken, match=r"scheduler_counters.*dropped .*by somebody else"):
        await rig.add(1)
    with pytest.raises(StoreBroken, match=r"scheduler_counters.*did somebody drop it"):
        await rig.add(1)
    columns, key = SHARED["scheduler_counters"]
    execute(url, create_table(server_driver(url).dialect, "scheduler_counters", columns, key))
    second = await rig.add(10)
    await rig.done([*first, *second])
    assert not rig.told(StoreAway) or rig.told(StoreBack)
