"""Large payloads cost memory for what there is room for, not for what waits."""

import asyncio
import itertools
import subprocess
import sys

from infinite_scheduler.clock import SystemClock
from infinite_scheduler.model import JobSpec, start_of
from infinite_scheduler.store import open_store
from infinite_scheduler.store.ownership import Scan
from infinite_scheduler.store.sql import dialect
from infinite_scheduler.store.sql.server.drivers import server_driver
from infinite_scheduler.store.sql.server.session import Link
from infinite_scheduler.store.sql.server.table_maker import TableMaker

MIB = 1 << 20
JOBS = 100

SCANS = """
import re, sys
from pathlib import Path
from infinite_scheduler.model import start_of
from infinite_scheduler.store.sql.server.drivers import server_driver
from infinite_scheduler.store.ownership import Scan
from infinite_scheduler.store.sql.protocol import owner
from infinite_scheduler.store.sql.server.session import Link
from infinite_scheduler.store.sql.server.table_maker import TableMaker

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

driver = server_driver(sys.argv[1])
link = Link(driver, TableMaker(driver, allowed=False), "p")
link.read(lambda tx: tx.read_apps())
before, start, pages, count = peak(), start_of(0), 0, 0
while start is not None:
    wanted = Scan(app="large", shards=frozenset({0}), start=start, end=b"\\xff" * 16, room=8 << 20, limit=1000)
    page = link.read(lambda tx: owner.scan(tx, wanted))
    assert sum(len(job.payload) for job in page.jobs) < 10 << 20
    start, pages, count = page.next, pages + 1, count + len(page.jobs)
print((peak() - before) // 1024, pages, count)
"""


async def test_a_scan_of_large_jobs_is_bounded(url: str) -> None:
    store = open_store(url, SystemClock())
    await store.open()
    await store.register("large", shards=1)
    due_ms = SystemClock().wall_ms() + 3_600_000
    payload = b'"' + b"x" * (MIB - 2) + b'"'
    await store.add([JobSpec(app="large", scheduled_ms=due_ms, payload=payload) for _ in range(JOBS)])
    await store.close()
    grown_mib, pages, count = await asyncio.to_thread(_scan_elsewhere, url)
    assert count == JOBS
    assert pages >= JOBS // 9
    assert grown_mib < 60, "the whole answer was in memory"


def _scan_elsewhere(url: str) -> list[int]:
    """In a process of its own, and by a figure that begins with it: `ru_maxrss` would begin with that of the parent."""
    done = subprocess.run([sys.executable, "-c", SCANS, url], check=True, capture_output=True, text=True, timeout=100)
    return [int(number) for number in done.stdout.split()]


async def test_looks_at_many_apps_leave_no_texts_in_memory(url: str) -> None:
    apps = [f"app{number}" for number in range(8)]
    store = open_store(url, SystemClock())
    await store.open()
    await store.register_all(dict.fromkeys(apps, 1))
    await store.close()
    await asyncio.to_thread(_look_at_some, url, apps)


def _look_at_some(url: str, apps: list[str]) -> None:
    driver = server_driver(url)
    link = Link(driver, TableMaker(driver, allowed=False), "p")
    ends = {"start": start_of(0), "end": start_of(1000), "room": 1, "limit": 1}
    every = list(itertools.combinations(apps, 5))
    kept = []
    for some in every:
        scans = [Scan(app=app, shards=frozenset({0}), **ends) for app in some]  # type: ignore[arg-type]
        assert set(link.read(lambda tx, scans=scans: tx.apps_without_jobs(scans))) == set(some)  # type: ignore[misc]
        kept.append(dialect._restyled.cache_info().currsize)
    link.close()
    assert kept[-1] < kept[0] + len(every) // 2
