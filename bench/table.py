"""Writes the table of figures in README.md from the JSON lines that the benchmarks print.

    python -m bench.table bench.jsonl [--page README.md]

Every line becomes at most one row; a row has one figure per store, in short cells. The table replaces what is between
the two markers of the page. The version of the code is taken from git.
"""

import argparse
import json
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from textwrap import fill
from typing import Any, Final

BEGIN: Final = "<!-- figures: begin (written by `make bench`) -->"
END: Final = "<!-- figures: end -->"
STORES: Final = {"sqlite": "SQLite", "mariadb": "MariaDB", "postgres": "PostgreSQL"}
NONE: Final = "-"
WIDTH: Final = 120
"""How long a line of text may be."""

Line = Mapping[str, Any]
Row = tuple[str, str, str]
"""The question, the figure, and the command that measures it."""


def row(line: Line) -> Row:
    """The row of one JSON line; KeyError for a question that this table does not know."""
    return _ROWS[line["question"]](line)


def table(lines: Iterable[Line], version: str) -> str:
    """All figures as Markdown: questions down, stores across."""
    figures: dict[tuple[str, str], dict[str, str]] = {}
    settings: dict[str, str] = {}
    cores = 0
    for line in lines:
        question, figure, command = row(line)
        figures.setdefault((question, command), {})[line["store"]] = figure
        settings[line["store"]] = str(line["setting"][line["store"]])
        cores = line["setting"]["cores"]
    head = [f"Version {version}, {cores} cores, shared with the load generator and the database.", ""]
    head += [
        f"| question | {' | '.join(STORES.values())} | command |",
        f"|---|{'---|' * len(STORES)}---|",
    ]
    body = [
        f"| {question} | {' | '.join(by_store.get(store, NONE) for store in STORES)} | `{command}` |"
        for (question, command), by_store in figures.items()
    ]
    versions = "; ".join(f"{STORES[store]} {settings[store]}" for store in STORES if store in settings)
    return "\n".join([*head, *body, "", fill(f"{versions}.", WIDTH, break_long_words=False, break_on_hyphens=False)])


def replaced(page: str, text: str) -> str:
    """The page with this text between its markers; ValueError if it does not have both."""
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    if not pattern.search(page):
        raise ValueError(f"the page has no place for figures: write {BEGIN} and {END}")
    return pattern.sub(lambda _: f"{BEGIN}\n{text}\n{END}", page)


def _accept(line: Line) -> Row:
    rate = _median(run["jobs_per_s"] for run in line["runs"])
    keys = line["keys"]
    question = f"accept in bulk{', with idempotency keys' * keys}: jobs/s, ratio to plain driver"
    return question, f"{_round(rate)}, {line['ratio_to_raw']}", f"bench.accept{' --keys' * keys}"


def _hand_over(line: Line) -> Row:
    when = "due in one millisecond" if line["herd"] else "overdue"
    question = f"hand over {line['jobs']:,} jobs, {when}, {line['handler']}: jobs/s"
    command = f"bench.hand_over{' --herd' * line['herd']} --jobs {line['jobs']}"
    return question, _round(line["jobs_per_s"]), command


def _lateness(line: Line) -> Row:
    rate, waiting = line["rate"], line["waiting"]
    question = f"lateness at {rate:,} jobs/s{f', {waiting:,} jobs waiting' if waiting else ''}: p50, p99"
    command = f"bench.lateness{f' --waiting {waiting}' if waiting else ''}"
    return question, f"{line['p50']:.1f}, {line['p99']:.1f} ms", command


def _nodes(line: Line) -> Row:
    costs = {name.removeprefix("cost_of_"): cost for name, cost in line.items() if name.startswith("cost_of_")}
    question = f"CPU per job, server included: {' and '.join(costs)} nodes to one"
    return question, ", ".join(map(str, costs.values())), "bench.nodes"


def _apps(line: Line) -> Row:
    question = f"{line['apps']:,} apps: idle CPU, queries/s; first hand-over; lateness p99"
    idle = f"{line['idle_node_cpu_percent']:.1f} %, {line['idle_queries_per_s']:.0f}"
    return question, f"{idle}; {line['first_s']:.1f} s; {line['p99_ms']:.1f} ms", "bench.apps"


def _stream(line: Line) -> Row:
    late = line["late_ms"]
    question = f"topic to topic at {line['rate']:,} jobs/s: in, out; late p50, p99"
    figure = (
        f"{_round(line['accepted_per_s'])}, {_round(line['handed_over_per_s'])}; {_ms(late['p50'])}, {_ms(late['p99'])}"
    )
    return question, figure, f"bench.stream --seconds {line['seconds']}"


def _urgent(line: Line) -> Row:
    late = line["late_ms"]
    return (
        "a job due in 200 ms, topic to topic: late p50, max",
        f"{_ms(late['p50'])}, {_ms(late['max'])}",
        "bench.stream --urgent",
    )


_ROWS: Final[Mapping[str, Callable[[Line], Row]]] = {
    "accept in bulk": _accept,
    "hand over overdue jobs": _hand_over,
    "lateness in ms": _lateness,
    "cost of nodes": _nodes,
    "cost of apps": _apps,
    "from topic to topic": _stream,
    "a job due in 200 ms through a topic": _urgent,
}


def _median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def _round(rate: float) -> str:
    """Two or three digits: more would claim a precision that the machine does not have."""
    step = 10 ** max(0, len(str(round(rate))) - 2)
    return f"{round(rate / step) * step:,}"


def _ms(value: float) -> str:
    return f"{value / 1000:.1f} s" if value >= 1000 else f"{value:.0f} ms"


def _version() -> str:
    return subprocess.run(
        ["git", "describe", "--always", "--dirty"], check=True, capture_output=True, text=True
    ).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", type=Path)
    parser.add_argument("--page", type=Path, default=Path("README.md"))
    options = parser.parse_args()
    found = [
        json.loads(line) for line in options.lines.read_text(encoding="utf-8").splitlines() if line.startswith("{")
    ]
    page = options.page.read_text(encoding="utf-8")
    options.page.write_text(replaced(page, table(found, _version())), encoding="utf-8")


if __name__ == "__main__":
    main()
