"""Schedules jobs and cancels each at about its moment, from a process of its own, and prints how that was answered.

Run with the installed product: `cancels.py URL APP JOBS SPAN_MS FILE`. So many jobs become due within a span of time,
whose beginning is written to the file once they are accepted. A line of the answer is a job's id, its due moment, when
its cancel was answered, and how.
"""

import asyncio
import random
import sys
import time
from pathlib import Path

from infinite_scheduler import Client, NewJob
from infinite_scheduler.errors import SchedulerError, TooLate

AT_ONCE = 5000
"""So many jobs in a call."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def cancel(client: Client, app: str, job: str, due_ms: int) -> None:
    """Wait until just before the moment, cancel, and print the answer."""
    # The owner hears of a cancel within its poll of 10 ms and the commit, so that most come in at the very moment; on a
    # machine that takes longer for that, some others do.
    at_ms = due_ms + (random.randint(-60, 10) if random.random() < 0.9 else random.randint(-2000, -60))
    await asyncio.sleep(at_ms / 1000 - time.time())
    try:
        await client.cancel(job, app=app)
        answer = "acknowledged"
    except TooLate:
        answer = "late"
    except SchedulerError as error:
        answer = f"{type(error).__name__}: {error}"
    print(job, due_ms, now_ms(), answer)


async def main(url: str, app: str, count: int, span_ms: int, file: Path) -> None:
    """Schedule all of them, and cancel each at its moment."""
    start_ms = now_ms() + count  # when all of them should be accepted
    jobs = [NewJob(at=start_ms + random.randrange(span_ms)) for _ in range(count)]
    async with Client(url) as client, asyncio.TaskGroup() as tasks:
        calls = [jobs[first : first + AT_ONCE] for first in range(0, count, AT_ONCE)]
        accepted = [one for call in calls for one in await client.schedule_many(app, call)]
        file.write_text(str(start_ms))  # noqa: ASYNC240 - nothing else is to be done meanwhile
        for job in accepted:
            tasks.create_task(cancel(client, app, job.id, job.due_ms))


asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5])))
