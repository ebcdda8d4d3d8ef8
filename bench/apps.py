"""What do many apps cost a node, when ten of them have work?

    python -m bench.apps [--store sqlite|mariadb|postgres] [--rate 100] [--seconds 10] [--runs 3]

With 1, 100 and 1,000 apps: the time that a node takes to start if the store knows none of them; if it knows all, the
time from the start to the first hand-over of a job that is overdue; the CPU that
the idle node and the server use, in percent of one core, and the queries per second that the server answers meanwhile;
then the lateness of `rate` jobs per second in up to ten of the apps, as another process sees it.
"""

import asyncio
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.server_load import ServerLoad
from bench.setting import PAYLOAD, fresh_store, options_of, quantiles, report
from infinite_scheduler import Client, Job, Scheduler
from infinite_scheduler.model import JobSpec, Priority

APPS = (1, 100, 1000)
WITH_WORK = 10
IDLE_S = 10
SETTLED_S = 8
"""The node has been idle for so long when its idle cost is measured."""


def names(apps: int) -> list[str]:
    return [f"app_{i}" for i in range(apps)]


def serve(url: str, apps: int, address: str) -> None:
    """The node: it hands each job to a socket, and tells the CPU time it has used for each line on its input."""
    out = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    out.connect(address)
    scheduler = Scheduler(url)

    async def send(job: Job) -> None:
        out.send(job.scheduled_ms.to_bytes(8, "big"))

    for name in names(apps):
        scheduler.app(name, concurrency=200)(send)

    async def run() -> None:
        await asyncio.to_thread(sys.stdin.readline)
        async with scheduler:
            while await asyncio.to_thread(sys.stdin.readline):
                print(time.process_time(), flush=True)

    asyncio.run(run())


class Node:
    """The node's process, and the jobs that it hands over."""

    def __init__(self, url: str, apps: int, folder: str) -> None:
        address = str(Path(folder) / "out")
        self._inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._inbox.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        self._inbox.settimeout(180)
        self._inbox.bind(address)
        command = [sys.executable, "-m", "bench.apps", "--node", url, str(apps), address]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(self) -> None:
        assert self._process.stdin
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def cpu_s(self) -> float:
        self.tell()
        assert self._process.stdout
        return float(self._process.stdout.readline())

    def late_ms(self) -> float:
        """How late the next job is handed over."""
        due_ms = int.from_bytes(self._inbox.recv(8), "big")
        return time.time_ns() / 1_000_000 - due_ms

    def stop(self) -> None:
        self._process.communicate(timeout=120)


def spec(app: str, due_ms: int) -> JobSpec:
    return JobSpec(
        app=app,
        scheduled_ms=due_ms,
        payload=PAYLOAD,
        priority=Priority.NORMAL,
        idempotency_key=None,
        digest=b"",
    )


async def first_jobs(url: str, apps: int) -> None:
    async with Client(url) as client:
        for name in names(apps):
            await client.register(name)
        await client.submit([spec(name, time.time_ns() // 1_000_000) for name in names(apps)[:WITH_WORK]])


async def stream(url: str, apps: int, rate: int, seconds: int) -> None:
    start_ms = time.time_ns() // 1_000_000 + 2000
    some = names(apps)[:WITH_WORK]
    async with Client(url) as client:
        for second in range(seconds):
            moments = [start_ms + 1000 * second + random.randrange(1000) for _ in range(rate)]
            await client.submit([spec(random.choice(some), moment) for moment in moments])
            await asyncio.sleep(max(0, start_ms / 1000 + second - 1 - time.time()))


def start_with_new_apps(store: str, apps: int) -> float:
    """The seconds that a node takes to start on an empty store."""
    with fresh_store(store) as url, tempfile.TemporaryDirectory() as folder:
        node = Node(url, apps, folder)
        time.sleep(2)  # Python is loaded
        began = time.perf_counter()
        node.tell()
        node.cpu_s()  # it answers when it has started
        started_s = time.perf_counter() - began
        node.stop()
        return started_s


def measure(store: str, apps: int, rate: int, seconds: int) -> dict[str, Any]:
    new_apps_start_s = start_with_new_apps(store, apps)
    with fresh_store(store) as url, tempfile.TemporaryDirectory() as folder:
        asyncio.run(first_jobs(url, apps))
        node = Node(url, apps, folder)
        time.sleep(2)  # Python is loaded
        began = time.perf_counter()
        node.tell()
        node.late_ms()
        first_s = time.perf_counter() - began
        for _ in range(min(apps, WITH_WORK) - 1):
            node.late_ms()
        time.sleep(SETTLED_S)
        server, used_s = ServerLoad(store), node.cpu_s()
        time.sleep(IDLE_S)
        node_cpu, (server_cpu, queries) = (node.cpu_s() - used_s) / IDLE_S, server.per_second()
        feeder = subprocess.Popen(
            [sys.executable, "-m", "bench.apps", "--feed", url, str(apps), str(rate), str(seconds)]
        )
        late_ms = [node.late_ms() for _ in range(rate * seconds)]
        feeder.wait()
        node.stop()
        return {
            "new_apps_start_s": round(new_apps_start_s, 2),
            "first_s": round(first_s, 2),
            "idle_node_cpu_percent": round(100 * node_cpu, 1),
            "idle_server_cpu_percent": round(100 * server_cpu, 1),
            "idle_queries_per_s": round(queries, 1),
            "lateness_ms": {name: round(value, 2) for name, value in quantiles(late_ms).items()},
        }


def middle(runs: list[dict[str, Any]]) -> dict[str, Any]:
    plain = {name: statistics.median(run[name] for run in runs) for name in runs[0] if name != "lateness_ms"}
    return {**plain, "p99_ms": statistics.median(run["lateness_ms"]["p99"] for run in runs)}


def main() -> None:
    if sys.argv[1:2] == ["--node"]:
        serve(sys.argv[2], int(sys.argv[3]), sys.argv[4])
        return
    if sys.argv[1:2] == ["--feed"]:
        asyncio.run(stream(sys.argv[2], *map(int, sys.argv[3:6])))
        return
    options = options_of(__doc__, rate=100, seconds=10, runs=3, apps=0).parse_args()
    for apps in [options.apps] if options.apps else APPS:
        runs = [measure(options.store, apps, options.rate, options.seconds) for _ in range(options.runs)]
        report("cost of apps", options.store, apps=apps, **middle(runs), runs=runs)


if __name__ == "__main__":
    main()
