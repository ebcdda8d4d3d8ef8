"""What the benchmarks share: a fresh store, jobs of one size, one JSON line."""

import json
import os
import platform
import random
import resource
import sqlite3
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from infinite_scheduler.model import JobSpec, Priority

APP = "bench"
PAYLOAD = json.dumps({"to": "+4915112345678", "text": "x" * 150}).encode()


@contextmanager
def fresh_store() -> Iterator[str]:
    """The URL of an empty SQLite store on the disk that TMPDIR names."""
    with tempfile.TemporaryDirectory(prefix="infinite-scheduler-bench-") as folder:
        yield f"sqlite:///{Path(folder) / 'jobs.db'}"


def specs(count: int, earliest_ms: int, latest_ms: int, *, keys: bool = False) -> list[JobSpec]:
    """Jobs at random moments, not in order."""
    return [
        JobSpec(
            app=APP,
            scheduled_ms=random.randint(earliest_ms, latest_ms),
            payload=PAYLOAD,
            priority=Priority.NORMAL,
            idempotency_key=os.urandom(16).hex() if keys else None,
            digest=os.urandom(16) if keys else b"",
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


def peak_mb() -> float:
    """The most memory that this process has had, in MB."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def report(question: str, **figures: Any) -> None:
    """One JSON line: the question, the figures, and what they were measured with."""
    setting = {
        "command": " ".join(["python", *sys.argv]),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "cores": os.cpu_count(),
    }
    print(json.dumps({"question": question, **figures, "setting": setting}), flush=True)
