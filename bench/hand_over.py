"""How many overdue jobs per second are handed over to a handler that does nothing, and settled in the store?

    python -m bench.hand_over [--store sqlite|mariadb|postgres] [--jobs 50000] [--runs 5] [--herd]

Once with an async function, once with one that takes batches of 100. With --herd all jobs are due in the same
millisecond. The time counts from the start of the node to the last settled job, according to the store.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from bench.setting import APP, fresh_store, options_of, peak_mb, report, specs
from infinite_scheduler import Client, Job, Scheduler


async def one(job: Job) -> None:
    """Do nothing."""


async def many(jobs: list[Job]) -> None:
    """Do nothing."""


def done(scheduler: Scheduler) -> int:
    """How many jobs the node has settled as done."""
    return int(scheduler.counters.snapshot()["apps"].get(APP, {}).get("done", 0))


async def hand_over(store: str, jobs: int, function: Callable[..., Any], batch: int | None, *, herd: bool) -> float:
    with fresh_store(store) as url:
        async with Client(url) as client:
            await client.register(APP)
            now_ms = time.time_ns() // 1_000_000
            for _ in range(jobs // 1000):
                await client.submit(specs(1000, now_ms if herd else now_ms - 60_000, now_ms))
        scheduler = Scheduler(url)
        scheduler.app(APP, batch=batch, concurrency=200)(function)
        began = time.perf_counter()
        async with scheduler:
            while done(scheduler) < jobs:  # noqa: ASYNC110 - the counters have no event
                await asyncio.sleep(0.01)
            seconds = time.perf_counter() - began
            counts = (await scheduler.survey()).counts[APP]
        assert counts["done"] == jobs, counts
        return jobs / seconds


def main() -> None:
    parser = options_of(__doc__, jobs=50_000, runs=5)
    parser.add_argument("--herd", action="store_true")
    options = parser.parse_args()
    for name, function, batch in (("async", one, None), ("batch of 100", many, 100)):
        runs = [
            round(asyncio.run(hand_over(options.store, options.jobs, function, batch, herd=options.herd)))
            for _ in range(options.runs)
        ]
        report(
            "hand over overdue jobs",
            options.store,
            handler=name,
            herd=options.herd,
            jobs=options.jobs,
            jobs_per_s=sorted(runs)[len(runs) // 2],
            runs=runs,
            peak_mb=peak_mb(),
        )


if __name__ == "__main__":
    main()
