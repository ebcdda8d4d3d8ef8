"""What does a job cost if one, two, four or eight nodes share the work?

    python -m bench.nodes [--store sqlite|mariadb|postgres] [--jobs 100000] [--runs 3]

Node processes start together on the same backlog of overdue jobs. CPU is what the nodes and the server used, including
system time, from their start to the last settled job, without loading Python. All share the cores.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import time
from typing import Any

from bench.hand_over import one
from bench.server_load import ServerLoad
from bench.setting import APP, fresh_store, options_of, report, specs
from infinite_scheduler import Client, Scheduler

NODES = (1, 2, 4, 8)


async def serve(url: str) -> None:
    """A node that begins with the first line on its input, and ends with the next."""
    scheduler = Scheduler(url)
    scheduler.app(APP, concurrency=200)(one)
    await asyncio.to_thread(sys.stdin.readline)
    used = time.process_time()
    async with scheduler:
        await asyncio.to_thread(sys.stdin.readline)
        used = time.process_time() - used
        print(json.dumps(used), flush=True)


def start(url: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "bench.nodes", "--node", url]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def tell(node: "subprocess.Popen[bytes]") -> None:
    assert node.stdin
    node.stdin.write(b"\n")
    node.stdin.flush()


async def drain(store: str, jobs: int, count: int) -> dict[str, Any]:
    with fresh_store(store) as url:
        async with Client(url) as client:
            await client.register(APP)
            now_ms = time.time_ns() // 1_000_000
            for _ in range(jobs // 1000):
                await client.submit(specs(1000, now_ms - 60_000, now_ms))
            nodes = [start(url) for _ in range(count)]
            await asyncio.sleep(2)  # Python is loaded
            load, began = ServerLoad(store), time.perf_counter()
            for node in nodes:
                tell(node)
            while (await client.survey()).counts[APP].get("done", 0) < jobs:  # noqa: ASYNC110 - the store has no event for it
                await asyncio.sleep(0.1)
            seconds, server_s = time.perf_counter() - began, load.cpu_s()
        for node in nodes:
            tell(node)
        used = [json.loads(node.communicate()[0].splitlines()[-1]) for node in nodes]
        return {
            "cpu_us_per_job": round((sum(used) + server_s) / jobs * 1e6, 1),
            "server_us_per_job": round(server_s / jobs * 1e6, 1),
            "jobs_per_s": round(jobs / seconds),
        }


def main() -> None:
    if sys.argv[1:2] == ["--node"]:
        asyncio.run(serve(sys.argv[2]))
        return
    options = options_of(__doc__, jobs=100_000, runs=3).parse_args()
    runs = [
        {str(count): asyncio.run(drain(options.store, options.jobs, count)) for count in NODES}
        for _ in range(options.runs)
    ]
    cost = {count: statistics.median(run[str(count)]["cpu_us_per_job"] for run in runs) for count in NODES}
    server = {count: statistics.median(run[str(count)]["server_us_per_job"] for run in runs) for count in NODES}
    growth = {f"cost_of_{count}": round(cost[count] / cost[1], 2) for count in NODES[1:]}
    report(
        "cost of nodes",
        options.store,
        jobs=options.jobs,
        cpu_us_per_job=cost,
        server_us_per_job=server,
        **growth,
        runs=runs,
    )


if __name__ == "__main__":
    main()
