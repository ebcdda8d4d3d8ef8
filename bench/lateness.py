"""How late are jobs at a steady rate, as another process sees it, and what do many waiting jobs change?

    python -m bench.lateness [--store sqlite|mariadb|postgres] [--rate 1000] [--seconds 20] [--waiting 0] [--runs 5]

A node in a process of its own sends each job's due time to this process over a socket; this process reads its own clock
when it arrives. With --waiting, that many more jobs wait for a day or longer. Memory is the peak of the node's process.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from bench.setting import APP, fresh_store, options_of, peak_mb, quantiles, report, specs
from infinite_scheduler import Client, Job, Scheduler
from infinite_scheduler.model import DAY_MS


def serve(url: str, address: str) -> None:
    """The node: it hands each job to a socket."""
    out = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    out.connect(address)
    scheduler = Scheduler(url)

    @scheduler.app(APP, concurrency=200)
    async def send(job: Job) -> None:
        out.send(job.scheduled_ms.to_bytes(8, "big"))

    asyncio.run(scheduler.run())
    print(json.dumps({"peak_mb": peak_mb(), "early": scheduler.counters.snapshot()["apps"][APP]["early"]}))


def listen(inbox: socket.socket, late_ms: list[float], count: int) -> None:
    while len(late_ms) < count:
        due_ms = int.from_bytes(inbox.recv(8), "big")
        late_ms.append(time.time_ns() / 1_000_000 - due_ms)


async def fill(url: str, waiting: int) -> None:
    async with Client(url) as client:
        await client.register(APP)
        now_ms = time.time_ns() // 1_000_000
        for start in range(0, waiting, 5000):
            await client.submit(specs(min(5000, waiting - start), now_ms + DAY_MS, now_ms + 5 * DAY_MS))


async def schedule(url: str, rate: int, seconds: int) -> None:
    """Schedule jobs while others become due: each second those that are due about ten seconds later."""
    async with Client(url) as client:
        start_ms = time.time_ns() // 1_000_000 + 10_000
        for second in range(seconds):
            await client.submit(specs(rate, start_ms + 1000 * second, start_ms + 1000 * second + 999))
            await asyncio.sleep(max(0, start_ms / 1000 + second - 9 - time.time()))


def measure(store: str, rate: int, seconds: int, waiting: int) -> dict[str, float]:
    with fresh_store(store) as url, tempfile.TemporaryDirectory() as folder:
        asyncio.run(fill(url, waiting))
        address = str(Path(folder) / "out")
        inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        inbox.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        inbox.bind(address)
        late_ms: list[float] = []
        listener = threading.Thread(target=listen, args=(inbox, late_ms, rate * seconds), daemon=True)
        listener.start()
        began = time.perf_counter()
        this = [sys.executable, "-m", "bench.lateness"]
        node = subprocess.Popen([*this, "--node", url, address], stdout=subprocess.PIPE)
        feeder = subprocess.Popen([*this, "--feed", url, str(rate), str(seconds)])
        listener.join(timeout=seconds + 60)
        feeder.wait()
        node.terminate()
        said = json.loads(node.communicate(timeout=60)[0].splitlines()[-1])
        assert len(late_ms) == rate * seconds, f"{len(late_ms)} of {rate * seconds} arrived"
        figures = {name: round(value, 2) for name, value in quantiles(late_ms).items()}
        return {
            **figures,
            "peak_mb": said["peak_mb"],
            "early": said["early"],
            "took_s": round(time.perf_counter() - began, 1),
        }


def main() -> None:
    if sys.argv[1:2] == ["--node"]:
        serve(sys.argv[2], sys.argv[3])
        return
    if sys.argv[1:2] == ["--feed"]:
        asyncio.run(schedule(sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
        return
    options = options_of(__doc__, rate=1000, seconds=20, waiting=0, runs=5).parse_args()
    runs = [measure(options.store, options.rate, options.seconds, options.waiting) for _ in range(options.runs)]
    middle = sorted(runs, key=lambda run: run["p99"])[len(runs) // 2]
    report("lateness in ms", options.store, rate=options.rate, waiting=options.waiting, **middle, runs=runs)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).parent.parent))
    main()
