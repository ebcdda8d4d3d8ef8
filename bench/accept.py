"""How many jobs per second does a client accept in bulk, durably?

    python -m bench.accept [--store sqlite|mariadb|postgres] [--jobs 100000] [--runs 5] [--keys]

Calls of `schedule_many` with 5,000 jobs each, at random times over a day, one after the other: all that a user's call
costs is in it, from the checks to the ids. The raw limit, the same rows as text that was prepared before, written by
the plain driver in transactions of the same size, is measured before each run.
"""

import asyncio
import os
import random
import statistics
import tempfile
import time
from pathlib import Path

from bench import raw_servers, raw_sqlite
from bench.raw_sqlite import INSERT
from bench.setting import APP, fresh_store, options_of, report
from infinite_scheduler import Client, NewJob
from infinite_scheduler.model import DAY_MS


async def accept(store: str, jobs: int, *, keys: bool) -> float:
    with fresh_store(store) as url:
        async with Client(url) as client:
            await client.register(APP)
            now_ms = time.time_ns() // 1_000_000
            calls = [new_jobs(INSERT, now_ms, now_ms + DAY_MS, keys=keys) for _ in range(jobs // INSERT)]
            began = time.perf_counter()
            for call in calls:
                await client.schedule_many(APP, call)
            return jobs / (time.perf_counter() - began)


def new_jobs(count: int, earliest_ms: int, latest_ms: int, *, keys: bool) -> list[NewJob]:
    """Jobs at random times, not in order, as a user makes them."""
    return [
        NewJob(
            data={"to": "+4915112345678", "text": "x" * 150},
            at=random.randint(earliest_ms, latest_ms),
            idempotency_key=os.urandom(16).hex() if keys else None,
        )
        for _ in range(count)
    ]


def raw(store: str, jobs: int, *, keys: bool) -> float:
    """Jobs per second of the plain driver, for the same rows."""
    rows = raw_sqlite.jobs(jobs, keys=keys)
    if store != "sqlite":
        return raw_servers.raw(store, rows, keys=keys)
    with tempfile.TemporaryDirectory() as folder:
        return raw_sqlite.raw(Path(folder) / "raw.db", rows, keys=keys)["insert"]


def main() -> None:
    parser = options_of(__doc__, jobs=100_000, runs=5)
    parser.add_argument("--keys", action="store_true")
    options = parser.parse_args()
    store, jobs, keys = options.store, options.jobs, options.keys
    runs = [
        {"raw": round(raw(store, jobs, keys=keys)), "jobs_per_s": round(asyncio.run(accept(store, jobs, keys=keys)))}
        for _ in range(options.runs)
    ]
    ratio = statistics.median(run["jobs_per_s"] / run["raw"] for run in runs)
    report("accept in bulk", store, keys=keys, jobs=jobs, ratio_to_raw=round(ratio, 2), runs=runs)


if __name__ == "__main__":
    main()
