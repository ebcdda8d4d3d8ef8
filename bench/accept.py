"""How many jobs a second does a client accept in bulk, durably?

    python bench/accept.py [--jobs 100000] [--runs 5] [--keys]

Calls of 5,000 jobs with random due times over a day, one after the other, on SQLite with an fsync a commit. The raw
limit, the same rows by the plain driver in transactions of the same size, is measured before each run.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from bench.raw_sqlite import INSERT, raw
from bench.raw_sqlite import jobs as raw_jobs
from bench.setting import APP, fresh_store, report, specs
from infinite_scheduler import Client
from infinite_scheduler.model import DAY_MS


async def accept(jobs: int, *, keys: bool) -> float:
    with fresh_store() as url:
        async with Client(url) as client:
            await client.register(APP)
            now_ms = time.time_ns() // 1_000_000
            calls = [specs(INSERT, now_ms, now_ms + DAY_MS, keys=keys) for _ in range(jobs // INSERT)]
            began = time.perf_counter()
            for call in calls:
                await client.submit(call)
            return jobs / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--keys", action="store_true")
    options = parser.parse_args()
    runs = []
    for _ in range(options.runs):
        with tempfile.TemporaryDirectory() as folder:
            rows = raw_jobs(options.jobs, keys=options.keys)
            limit = raw(Path(folder) / "raw.db", rows, keys=options.keys)["insert"]
        runs.append({"raw": round(limit), "jobs_per_s": round(asyncio.run(accept(options.jobs, keys=options.keys)))})
    ratio = statistics.median(run["jobs_per_s"] / run["raw"] for run in runs)
    report("accept in bulk", keys=options.keys, jobs=options.jobs, ratio_to_raw=round(ratio, 2), runs=runs)


if __name__ == "__main__":
    main()
