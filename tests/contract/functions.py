"""Functions for the contract of handlers; what they did is seen in a folder.

Worker processes import them by their names, so that this module imports little.
"""

import asyncio
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from infinite_scheduler.errors import DestinationAway
from infinite_scheduler.model import Job


def arrive(job: Job) -> None:
    if job.data["bad"]:
        raise ValueError("bad data")
    Path(job.data["folder"], job.id).touch()


async def arrive_async(job: Job) -> None:
    arrive(job)


def arrive_all(jobs: Sequence[Job]) -> Sequence[Exception | None]:
    return [_error(job) for job in jobs]


async def arrive_all_async(jobs: Sequence[Job]) -> Sequence[Exception | None]:
    return arrive_all(jobs)


def _error(job: Job) -> Exception | None:
    try:
        arrive(job)
    except ValueError as error:
        return error
    return None


def away(work: Job | Sequence[Job]) -> None:
    del work
    raise DestinationAway("the gateway is closed", retry_after=timedelta(seconds=90))


async def away_async(work: Job | Sequence[Job]) -> None:
    away(work)


GATE = threading.Event()


def hang(work: Job | Sequence[Job]) -> None:
    arrive(work if isinstance(work, Job) else work[0])
    GATE.wait()


def hang_in_process(work: Job | Sequence[Job]) -> None:
    arrive(work if isinstance(work, Job) else work[0])
    time.sleep(600)


async def hang_async(work: Job | Sequence[Job]) -> None:
    arrive(work if isinstance(work, Job) else work[0])
    await asyncio.Event().wait()
