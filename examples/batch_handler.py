"""Many small jobs, handed over as lists; each gets an answer of its own."""

import asyncio
import tempfile
from collections import Counter
from collections.abc import Sequence

from infinite_scheduler import Done, Failed, Job, NewJob, Scheduler


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        scheduler = Scheduler(f"sqlite:///{folder}/jobs.db")
        sizes: list[int] = []

        @scheduler.app("readings", batch=50)
        async def store(jobs: Sequence[Job]) -> list[Done | Failed]:
            sizes.append(len(jobs))
            return [Done() if job.data["value"] >= 0 else Failed("below zero") for job in jobs]

        async with scheduler:
            jobs = [NewJob(data={"value": value}, delay="200ms") for value in range(-2, 198)]
            accepted = await scheduler.schedule_many("readings", jobs)
            records = [await scheduler.wait(job.id, timeout="30s") for job in accepted]
        print(f"{len(records)} jobs in {len(sizes)} calls:", dict(Counter(str(record.status) for record in records)))


if __name__ == "__main__":
    asyncio.run(main())
