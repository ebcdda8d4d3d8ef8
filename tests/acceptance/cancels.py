"""Cancels jobs at given moments, from a process of its own, and prints when and how each cancel was answered.

Run with the installed product: `cancels.py URL APP FILE`; a line of the file is a job's id and a moment in epoch ms.
"""

import asyncio
import sys
import time
from pathlib import Path

from infinite_scheduler import Client
from infinite_scheduler.errors import SchedulerError, TooLate


async def cancel(client: Client, app: str, job: str, at_ms: int) -> None:
    """Wait for the moment, cancel, and print the answer."""
    await asyncio.sleep(at_ms / 1000 - time.time())
    try:
        await client.cancel(job, app=app)
        answer = "acknowledged"
    except TooLate:
        answer = "late"
    except SchedulerError as error:
        answer = f"{type(error).__name__}: {error}"
    print(job, time.time_ns() // 1_000_000, answer)


async def main(url: str, app: str, wishes: list[list[str]]) -> None:
    """Cancel all of them, each at its moment."""
    async with Client(url) as client, asyncio.TaskGroup() as tasks:
        for job, at_ms in wishes:
            tasks.create_task(cancel(client, app, job, int(at_ms)))


asyncio.run(main(sys.argv[1], sys.argv[2], [line.split() for line in Path(sys.argv[3]).read_text().splitlines()]))
