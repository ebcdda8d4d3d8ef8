"""A node on a clock that is moved by hand."""

import asyncio
import re
import textwrap
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from infinite_scheduler import Job, Retry, RetryPolicy, Status
from infinite_scheduler.client import NewJob
from infinite_scheduler.clock import sleep
from infinite_scheduler.testing import Harness

BUSY = timedelta(seconds=20)
"""How long a thread may take on a busy machine."""


async def test_the_example_in_its_docstring_runs() -> None:
    found = re.search(r"```python\n(.*?)```", Harness.__doc__ or "", re.DOTALL)
    assert found
    names: dict[str, Any] = {"Harness": Harness, "Job": Job}
    exec(textwrap.dedent(found[1]), names)
    await names["test_ann_gets_her_mail"]()


async def nothing(job: Job) -> None:
    del job


async def test_a_job_is_handed_over_at_its_very_moment() -> None:
    async with Harness() as h:
        h.scheduler.app("mail")(nothing)
        await h.start()
        accepted = await h.client.schedule("mail", delay="90s")
        await h.advance("1h")
        assert [(d.job.id, d.at_ms) for d in h.delivered] == [(accepted.id, accepted.due_ms)]


async def test_the_wall_clock_is_where_it_was_sent_to() -> None:
    async with Harness() as h:
        h.scheduler.app("mail")(nothing)
        await h.start()
        start_ms = h.clock.wall_ms()
        await h.client.schedule("mail", delay="5m")
        await h.advance(timedelta(minutes=5))
        await h.advance(0.25)
        assert h.clock.wall_ms() - start_ms == 300_250


async def test_an_overdue_job_is_handed_over_without_moving_time() -> None:
    async with Harness() as h:
        h.scheduler.app("mail")(nothing)
        await h.start()
        accepted = await h.client.schedule("mail", at="2020-01-01T00:00:00Z")
        await h.run_due()
        assert len(h.delivered) == 1
        assert (await h.client.get(accepted.id)).status is Status.DONE


async def test_retries_follow_each_other_as_time_passes() -> None:
    async def fail_twice(job: Job) -> Retry | None:
        return Retry(reason="not yet") if job.attempt < 3 else None

    async with Harness() as h:
        h.scheduler.app("mail", retry=RetryPolicy(delays=("1s", "5s"), jitter=0))(fail_twice)
        await h.start()
        accepted = await h.client.schedule("mail", delay="1m")
        await h.advance("2m")
        assert [(d.job.attempt, d.at_ms - accepted.due_ms) for d in h.delivered] == [(1, 0), (2, 1000), (3, 6000)]
        record = await h.client.get(accepted.id)
        assert (record.status, [a.error for a in record.attempts]) == (Status.DONE, ["not yet", "not yet"])


async def test_a_handler_that_really_waits_is_waited_for() -> None:
    ended = []

    async def wait(job: Job) -> None:
        await asyncio.get_running_loop().run_in_executor(None, threading.Event().wait, 0.02)
        ended.append(job.id)

    async with Harness(patience=BUSY) as h:
        h.scheduler.app("mail")(wait)
        await h.start()
        accepted = await h.client.schedule("mail", delay="5s")
        await h.advance("5s")
        assert ended == [accepted.id]
        assert (await h.client.get(accepted.id)).status is Status.DONE


async def test_a_sync_handler_is_waited_for() -> None:
    threads = []

    def work(job: Job) -> None:
        del job
        threads.append(threading.current_thread().name)

    async with Harness(patience=BUSY) as h:
        h.scheduler.app("mail")(work)
        await h.start()
        await h.client.schedule_many("mail", [NewJob(delay="5s") for _ in range(30)])
        await h.advance("5s")
        assert len(threads) == 30
        assert threading.current_thread().name not in threads


async def test_a_handler_that_waits_for_the_clock_does_not_hold_time_up() -> None:
    async with Harness(patience=timedelta(0)) as h:
        ended: list[int] = []

        async def wait(job: Job) -> None:
            del job
            await sleep(h.clock, 2000)
            ended.append(h.clock.wall_ms())

        h.scheduler.app("mail")(wait)
        await h.start()
        accepted = await h.client.schedule("mail", delay="5s")
        await h.advance("10s")
        assert ended == [accepted.due_ms + 2000]


async def test_a_handlers_time_out_is_by_the_harness_clock() -> None:
    async def hang(job: Job) -> None:
        del job
        await asyncio.Event().wait()

    async with Harness(patience=timedelta(0)) as h:
        once = RetryPolicy(max_attempts=1)
        h.scheduler.app("mail", timeout=timedelta(seconds=30), retry=once)(hang)
        await h.start()
        accepted = await h.client.schedule("mail", delay="5s")
        await h.advance("36s")
        record = await h.client.get(accepted.id)
        assert (record.status, record.finished_ms) == (Status.FAILED, accepted.due_ms + 30_000)


async def test_work_that_takes_time_is_run_to_its_end() -> None:
    async with Harness() as h:
        h.scheduler.app("mail")(nothing)
        await h.start()
        accepted = await h.client.schedule("mail", delay="5m")
        record = await h.run(h.client.wait(accepted.id))
        assert record.status is Status.DONE
        assert h.clock.wall_ms() >= accepted.due_ms


async def test_work_that_takes_too_long_is_given_up() -> None:
    async with Harness() as h:
        h.scheduler.app("mail")(nothing)
        await h.start()
        accepted = await h.client.schedule("mail", delay="5m")
        with pytest.raises(TimeoutError, match="60000 ms"):
            await h.run(h.client.wait(accepted.id), within="1m")


async def test_a_stop_is_clean_and_what_waits_is_there_for_the_next_node(tmp_path: Path) -> None:
    place = tmp_path / "jobs.db"
    async with Harness(place) as first:
        first.scheduler.app("mail")(nothing)
        await first.start()
        accepted = await first.client.schedule("mail", delay="5m")
        assert await first.stop()
    async with Harness(place, start_ms=first.clock.wall_ms()) as second:
        second.scheduler.app("mail")(nothing)
        await second.start()
        await second.advance("5m")
        assert [d.job.id for d in second.delivered] == [accepted.id]


async def test_a_cancelled_job_is_never_delivered() -> None:
    async with Harness() as h:
        h.scheduler.app("mail")(nothing)
        await h.start()
        near = await h.client.schedule("mail", delay="5s")
        far = await h.client.schedule("mail", delay="5m")
        await h.client.cancel(near.id)
        await h.client.cancel(far.id)
        await h.advance("6m")
        assert not h.delivered


async def test_a_harness_leaves_no_task_behind() -> None:
    before = asyncio.all_tasks()
    async with Harness() as h:
        h.scheduler.app("mail")(nothing)
        await h.start()
        await h.client.schedule("mail", delay="5m")
        await h.advance("10m")
    assert asyncio.all_tasks() == before
