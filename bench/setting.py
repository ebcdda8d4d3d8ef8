"""What the benchmarks share: a fresh store, jobs of one size, one JSON line."""

import argparse
import json
import os
import platform
import random
import sqlite3
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from infinite_scheduler.model import JobSpec, Priority
from tests.services.catalogue import admin_url
from tests.services.databases import execute, fresh_database

APP = "bench"
STORES: Final = ("sqlite", "mariadb", "postgres")
PAYLOAD = json.dumps({"to": "+4915112345678", "text": "x" * 150}).encode()


def options_of(description: str | None, **defaults: int) -> argparse.ArgumentParser:
    """A parser for the options of every benchmark: the store, and these numbers."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=STORES, default="sqlite")
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser


@contextmanager
def fresh_store(kind: str = "sqlite") -> Iterator[str]:
    """The URL of an empty store: a file on the disk of TMPDIR, or a database on the server of this kind.

    The servers are those of TEST_MARIADB_URL and TEST_POSTGRES_URL.
    """
    if kind != "sqlite":
        with fresh_database(kind) as url:  # type: ignore[arg-type]
            yield url
    else:
        with tempfile.TemporaryDirectory(prefix="infinite-scheduler-bench-") as folder:
            yield f"sqlite:///{Path(folder) / 'jobs.db'}"


def specs(count: int, earliest_ms: int, latest_ms: int) -> list[JobSpec]:
    """Jobs at random times, not in order."""
    return [
        JobSpec(
            app=APP,
            scheduled_ms=random.randint(earliest_ms, latest_ms),
            payload=PAYLOAD,
            priority=Priority.NORMAL,
        )
        for _ in range(count)
    ]


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Median, 99th percentile and maximum."""
    ordered = sorted(values)
    return {
        "min": ordered[0],
        "p50": statistics.median(ordered),
        "p99": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
        "max": ordered[-1],
    }


def peak_mb(pid: int | str = "self") -> float:
    """The peak memory of a process, in MB; `ru_maxrss` would begin with that of its parent."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(round(int(line.split()[1]) / 1024, 1) for line in lines if line.startswith("VmHWM"))


def report(question: str, store: str, **figures: Any) -> None:
    """One JSON line: the question, the figures, and what they were measured with."""
    setting = {
        "command": " ".join(["python", *sys.argv]),
        "python": platform.python_version(),
        store: version_of(store),
        "cores": os.cpu_count(),
    }
    print(json.dumps({"question": question, "store": store, **figures, "setting": setting}), flush=True)


def version_of(store: str) -> str:
    """The version of the database, and whether its commits wait for the disk."""
    if store == "sqlite":
        return f"{sqlite3.sqlite_version}, an fsync per commit"
    asked = {
        "mariadb": "SELECT VERSION(), @@innodb_flush_log_at_trx_commit = 1",
        "postgres": "SELECT current_setting('server_version'), current_setting('fsync') = 'on'",
    }
    version, durable = execute(admin_url(store), asked[store])[0]  # type: ignore[arg-type]
    return f"{version}, {'an' if durable else 'no'} fsync per commit"
