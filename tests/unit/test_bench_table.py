"""The table of figures in README.md, written from the JSON lines of the benchmarks."""

import pytest

from bench.table import BEGIN, END, replaced, row, table
from tests.snippets import ROOT

SQLITE = {"python": "3.11.7", "sqlite": "3.40.1, an fsync per commit", "cores": 2}
POSTGRES = {"python": "3.11.7", "postgres": "15.8, an fsync per commit", "cores": 2}
LATE = {"min": 0.2, "p50": 54.6, "p99": 612.0, "max": 1480.0}
LINES = [
    {"question": "accept in bulk", "store": "sqlite", "keys": False, "jobs": 100_000, "ratio_to_raw": 0.79,
     "runs": [{"jobs_per_s": 53_911}, {"jobs_per_s": 60_000}, {"jobs_per_s": 41_000}], "setting": SQLITE},
    {"question": "accept in bulk", "store": "postgres", "keys": False, "jobs": 100_000, "ratio_to_raw": 0.49,
     "runs": [{"jobs_per_s": 111_234}], "setting": POSTGRES},
    {"question": "accept in bulk", "store": "sqlite", "keys": True, "jobs": 100_000, "ratio_to_raw": 0.68,
     "runs": [{"jobs_per_s": 37_456}], "setting": SQLITE},
    {"question": "hand over overdue jobs", "store": "sqlite", "handler": "async", "herd": False, "jobs": 50_000,
     "jobs_per_s": 35_100, "runs": [35_100], "peak_mb": 80.0, "setting": SQLITE},
    {"question": "hand over overdue jobs", "store": "sqlite", "handler": "batch of 100", "herd": True, "jobs": 100_000,
     "jobs_per_s": 52_400, "runs": [52_400], "peak_mb": 101.0, "setting": SQLITE},
    {"question": "lateness in ms", "store": "sqlite", "rate": 1000, "waiting": 0, "p50": 0.91, "p99": 2.23, "runs": [],
     "setting": SQLITE},
    {"question": "lateness in ms", "store": "sqlite", "rate": 1000, "waiting": 1_000_000, "p50": 0.92, "p99": 2.4,
     "runs": [], "setting": SQLITE},
    {"question": "cost of nodes", "store": "postgres", "jobs": 100_000, "cpu_us_per_job": {"1": 90.0, "2": 81.0},
     "cost_of_2": 0.9, "cost_of_4": 1.03, "runs": [], "setting": POSTGRES},
    {"question": "cost of apps", "store": "postgres", "apps": 1000, "first_s": 1.84, "idle_node_cpu_percent": 3.84,
     "idle_queries_per_s": 14.6, "p99_ms": 4.96, "runs": [], "setting": POSTGRES},
    {"question": "from topic to topic", "store": "postgres", "rate": 10_000, "seconds": 60, "accepted_per_s": 9_812,
     "handed_over_per_s": 9_991, "late_ms": LATE, "runs": [], "setting": POSTGRES},
    {"question": "a job due in 200 ms through a topic", "store": "postgres", "jobs": 50, "late_ms": LATE,
     "setting": POSTGRES},
]  # fmt: skip


def test_every_question_is_a_row_with_a_figure_per_store() -> None:
    text = table(LINES, "1a2b3c4")
    assert text.splitlines()[0] == "Version 1a2b3c4, 2 cores, shared with the load generator and the database."
    bulk = "| accept in bulk: jobs/s, ratio to plain driver | 54,000, 0.79 | - | 110,000, 0.49 | `bench.accept` |"
    assert bulk in text
    keys = "| accept in bulk, with idempotency keys: jobs/s, ratio to plain driver | 37,000, 0.68 | - | - |"
    assert keys in text
    assert "| hand over 50,000 jobs, overdue, async: jobs/s | 35,000 | - | - |" in text
    assert "| hand over 100,000 jobs, due in one millisecond, batch of 100: jobs/s | 52,000 |" in text
    assert "| lateness at 1,000 jobs/s: p50, p99 | 0.9, 2.2 ms |" in text
    assert "| lateness at 1,000 jobs/s, 1,000,000 jobs waiting: p50, p99 | 0.9, 2.4 ms |" in text
    assert "| CPU per job, server included: 2 and 4 nodes to one | - | - | 0.9, 1.03 |" in text
    assert (
        "| 1,000 apps: idle CPU, queries/s; first hand-over; lateness p99 | - | - | 3.8 %, 15; 1.8 s; 5.0 ms |" in text
    )
    assert "| - | - | 9,800, 10,000; 55 ms, 612 ms |" in text
    assert "| a job due in 200 ms, topic to topic: late p50, max | - | - | 55 ms, 1.5 s |" in text
    assert text.endswith("SQLite 3.40.1, an fsync per commit; PostgreSQL 15.8, an fsync per commit.")


def test_what_is_no_table_is_wrapped_as_all_text_is() -> None:
    long = {**LINES[1], "setting": {**POSTGRES, "postgres": "15.18 (Debian 15.18-0+deb12u1), an fsync per commit" * 3}}
    text = table([LINES[0], long], "1a2b3c4")
    assert max(len(line) for line in text.splitlines() if not line.startswith("|")) <= 120


def test_cells_are_short() -> None:
    cells = [cell for line in LINES for cell in row(line)]
    assert max(len(cell.split()) for cell in cells) <= 12


def test_a_question_that_the_table_does_not_know_is_an_error() -> None:
    with pytest.raises(KeyError):
        row({"question": "how many angels", "store": "sqlite"})


def test_the_table_replaces_what_is_between_the_markers_and_nothing_else() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert replaced(page, "new") == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    with pytest.raises(ValueError, match="has no place for figures"):
        replaced("a page without markers", "new")


def test_the_readme_has_the_markers() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "54,000, 0.79" in replaced(page, table(LINES, "1a2b3c4"))
