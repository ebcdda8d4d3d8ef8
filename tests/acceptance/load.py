"""Brings jobs in for as long as it runs, from a process of its own, and prints every job that was accepted.

Run with the installed product: `load.py URL AHEAD_MS APP:RATE:DATA…`; SIGTERM lets it end in good order. So many jobs
of an app become due in each second, asked for up to AHEAD_MS before. A line of the answer is the job's id, its app, its
due moment, and when it was accepted. A store that does not answer is asked again: each job has a key, so that asking
twice does not make two jobs.
"""

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Iterator

from infinite_scheduler import Client, NewJob
from infinite_scheduler.errors import Unavailable

STEP_S = 0.1
"""Jobs are asked for in steps; those of one step and app together."""

LEAST_AHEAD_MS = 100
AT_ONCE = 1000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Stream:
    """The jobs of one app."""

    def __init__(self, words: str, ahead_ms: int) -> None:
        self.app, rate, data = words.split(":")
        self._per_ms = int(rate) / 1000
        self._data = int(data)
        self._ahead_ms = ahead_ms
        self._until_ms = now_ms() - ahead_ms  # as if it had begun long ago: so many are due at once as later on

    def jobs(self, until_ms: int) -> Iterator[NewJob]:
        """Those to be asked for up to a moment; without what would be due by now already."""
        for _ in range(round(until_ms * self._per_ms) - round(self._until_ms * self._per_ms)):
            asked_ms = random.randint(self._until_ms, until_ms)
            due_ms = asked_ms + random.randint(LEAST_AHEAD_MS, self._ahead_ms)
            if due_ms >= until_ms:
                yield NewJob(data=self._data, at=due_ms, idempotency_key=os.urandom(12).hex())
        self._until_ms = until_ms


async def ask(client: Client, app: str, jobs: list[NewJob]) -> None:
    """Schedule jobs of one app, and print what was answered."""
    answers = None
    while answers is None:
        try:
            answers = await client.schedule_many(app, jobs)
        except Unavailable:
            await asyncio.sleep(0.2)
    accepted_ms = now_ms()
    lines = [f"{answer.id} {app} {job.at} {accepted_ms}\n" for job, answer in zip(jobs, answers, strict=True)]
    sys.stdout.write("".join(lines))
    sys.stdout.flush()


async def main(url: str, streams: list[Stream]) -> None:
    """Ask for jobs until somebody says that it is enough."""
    enough = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, enough.set)
    async with Client(url) as client, asyncio.TaskGroup() as tasks:
        while not enough.is_set():
            for stream in streams:
                jobs = list(stream.jobs(now_ms()))
                for start in range(0, len(jobs), AT_ONCE):
                    tasks.create_task(ask(client, stream.app, jobs[start : start + AT_ONCE]))
            await asyncio.sleep(STEP_S)


asyncio.run(main(sys.argv[1], [Stream(words, int(sys.argv[2])) for words in sys.argv[3:]]))
