"""A node inside a program: it may be stopped at any time, and leaves nothing behind."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from infinite_scheduler import Client, Job, Scheduler
from infinite_scheduler.errors import InvalidRequest, Unavailable
from infinite_scheduler.handlers.base import Handler, Report

BOUND_S = 20


@pytest.fixture(autouse=True)
async def nothing_is_left() -> AsyncIterator[None]:
    gc.collect()
    threads = set(threading.enumerate())
    yield
    assert asyncio.all_tasks() == {asyncio.current_task()}, "a task was left behind"
    assert set(threading.enumerate()) <= threads, "a thread was left behind"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'jobs.db'}"


class Inbox:
    """A node that notes what it is given."""

    def __init__(self, url: str) -> None:
        self.scheduler = Scheduler(url)
        self.seen: list[str] = []
        self.scheduler.app("mail", shards=4)(self.take)

    def take(self, job: Job) -> None:
        self.seen.append(job.id)


async def check_free(url: str) -> None:
    """No node is known, and no shard is owned."""
    async with Client(url) as client:
        view = (await client.survey()).view
    assert not view.nodes
    assert all(info.released for info in view.shards)


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144])
async def test_a_stop_during_the_start_waits_for_it_and_leaves_nothing(url: str, turns: int) -> None:
    async with Client(url) as client:
        await client.register("mail", 4)
        job = await client.schedule("mail", 1, delay="1h")
    node = Inbox(url)
    starting = asyncio.create_task(node.scheduler.start())
    for _ in range(turns):
        await asyncio.sleep(0)
    if not turns:
        await asyncio.sleep(0)  # the start has begun, and done nothing yet
    assert await asyncio.wait_for(node.scheduler.stop(), BOUND_S)
    assert starting.done()
    await starting
    await check_free(url)
    async with Client(url) as client:
        assert (await client.get(job.id)).status == "pending"


async def test_a_stop_of_what_never_started_does_nothing(tmp_path: Path, url: str) -> None:
    node = Inbox(url)
    assert await node.scheduler.stop()
    assert await node.scheduler.stop()
    assert not list(tmp_path.iterdir())  # noqa: ASYNC240


async def test_stops_at_once_and_afterwards_answer_alike(url: str) -> None:
    node = Inbox(url)
    await node.scheduler.start()
    job = await node.scheduler.schedule("mail", 1, delay=0)
    await node.scheduler.wait(job.id, timeout=BOUND_S)
    assert await asyncio.gather(*(node.scheduler.stop() for _ in range(3))) == [True] * 3
    assert await node.scheduler.stop()
    assert node.seen == [job.id]
    await check_free(url)
    with pytest.raises(Unavailable, match="not open"):
        await node.scheduler.schedule("mail", 1, delay=0)


async def test_every_stop_says_that_something_was_left(url: str) -> None:
    scheduler, begun, go_on = Scheduler(url, settings={"node.stop_timeout": 0}), asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @scheduler.app("mail", shards=1)
    def stubborn(job: Job) -> None:
        loop.call_soon_threadsafe(begun.set)
        go_on.wait(BOUND_S)

    await scheduler.start()
    await scheduler.schedule("mail", 1, delay=0)
    await asyncio.wait_for(begun.wait(), BOUND_S)
    try:
        assert not any(await asyncio.gather(scheduler.stop(), scheduler.stop()))
    finally:
        go_on.set()
    for thread in threading.enumerate():
        if "stubborn" in thread.name:
            thread.join(BOUND_S)


async def test_a_node_can_be_started_again_after_a_stop(url: str) -> None:
    node = Inbox(url)
    for count in (1, 2):
        await node.scheduler.start()
        with pytest.raises(InvalidRequest, match="already running"):
            await node.scheduler.start()
        job = await node.scheduler.schedule("mail", count, delay=0)
        await node.scheduler.wait(job.id, timeout=BOUND_S)
        assert await node.scheduler.stop()
    assert len(node.seen) == 2


class Slow(Handler):
    """A handler that takes as long to begin as the test wants."""

    def __init__(self) -> None:
        self.batch = 1
        self.begins, self.may_begin = asyncio.Event(), asyncio.Event()
        self.stopped = 0

    async def start(self) -> None:
        self.begins.set()
        await self.may_begin.wait()

    async def stop(self) -> None:
        self.stopped += 1

    async def handle(self, jobs: Sequence[Job], report: Report) -> None:
        raise AssertionError("nothing is due")

    def unfinished(self) -> Sequence[Job]:
        return ()


async def test_a_stop_waits_for_handlers_that_begin(url: str) -> None:
    scheduler, handler = Scheduler(url), Slow()
    scheduler.add_app("mail", handler, shards=1)
    starting = asyncio.create_task(scheduler.start())
    await asyncio.wait_for(handler.begins.wait(), BOUND_S)
    stopping = asyncio.create_task(scheduler.stop())
    await asyncio.sleep(0)
    handler.may_begin.set()
    assert await asyncio.wait_for(stopping, BOUND_S)
    await starting
    assert handler.stopped == 1
    await check_free(url)


async def test_a_start_that_is_cancelled_stops_the_handlers_that_had_begun(url: str) -> None:
    scheduler, handler = Scheduler(url), Slow()
    scheduler.add_app("mail", handler, shards=1)
    starting = asyncio.create_task(scheduler.start())
    await asyncio.wait_for(handler.begins.wait(), BOUND_S)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert handler.stopped == 1
    assert await scheduler.stop()
    await check_free(url)
