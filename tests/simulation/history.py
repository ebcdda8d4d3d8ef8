"""What is seen from outside while a scenario runs: who asked and who answered, what was handed over and committed.

Only plain values, so that whoever judges them needs none of the code that is judged.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.simulation.server import Change
from tests.simulation.world import EPOCH_MS, World


class Event(NamedTuple):
    """Something happened, at a moment of true time in milliseconds."""

    at: float
    what: str
    who: str = ""
    job: str = ""
    facts: Mapping[str, Any] = {}

    def __str__(self) -> str:
        if self.what == "committed":
            facts = "; ".join(_told(*change) for change in self.facts["changes"] if change[0] != "nodes")
        else:
            facts = "  ".join(f"{name}={_short(value)}" for name, value in self.facts.items())
        return f"{self.at - EPOCH_MS:10.3f}  {self.who:6} {self.what:12} {self.job[-8:]:8} {facts}"


def _short(value: Any) -> Any:
    """Moments as milliseconds since the beginning."""
    return f"@{value - EPOCH_MS:.0f}" if isinstance(value, int | float) and value > EPOCH_MS / 2 else value


def _told(table: str, key: Any, before: Any, after: Any) -> str:
    """One changed row in few words."""
    place = key[-8:] if isinstance(key, str) else f"{_short(key[0])} {key[1][-8:]}"
    if after is None:
        return f"{table} {place} deleted"
    changed = {name: _short(value) for name, value in after.items() if before is None or before[name] != value}
    if "jobs" in changed:
        changed["jobs"] = [job[-8:] for job in after["jobs"]]
    return f"{table} {place} " + " ".join(f"{name}={value}" for name, value in changed.items())


class History:
    """Events in the order in which they happened."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.events: list[Event] = []

    def add(self, what: str, who: str = "", job: str = "", **facts: Any) -> None:
        if not self._world.closed:
            self.events.append(Event(self._world.now_ms(), what, who, job, facts))

    def committed(self, who: str, changes: list[Change]) -> None:
        """Keep what a commit changed in the tables that matter."""
        plain = [(c.table, _key(c.table, c.key), _row(c.table, c.before), _row(c.table, c.after)) for c in changes]
        self.add("committed", who, changes=[change for change in plain if change[0] in _TABLES])


def tables(dump: Mapping[str, Mapping[Any, Any]]) -> dict[str, dict[Any, Any]]:
    """The tables that matter as plain values, and how many jobs wait for each day by the counters of all processes."""
    plain = {table: {_key(table, key): _row(table, row) for key, row in dump[table].items()} for table in _TABLES}
    waiting: dict[Any, int] = {}
    for (_, app, day), count in dump.get("counts", {}).items():
        if isinstance(day, int):
            waiting[app, day] = waiting.get((app, day), 0) + count
    return {**plain, "waiting": waiting}


_TABLES = ("jobs", "entries", "requests", "shards", "nodes")


def _key(table: str, key: Any) -> Any:
    match table:
        case "jobs":
            return key[1].hex()
        case "entries":
            return int.from_bytes(key[1][:6], "big"), key[2].hex()
        case "requests":
            return key.hex()
        case _:
            return str(key)


def _row(table: str, row: Any) -> Any:
    if row is None:
        return None
    match table:
        case "jobs":
            job = row.job
            return {
                "app": job.app,
                "shard": f"{job.app}/{job.shard}",
                "status": str(row.status),
                "attempt": job.attempt,
                "due": job.due_ms,
                "key": row.idempotency_key,
            }
        case "requests":
            change = None if row.change is None else str(row.change)
            return {"shard": str(row.shard), "change": change, "jobs": [key.hex() for key in row.keys]}
        case "shards":
            return {"nonce": row.owner.nonce, "epoch": row.owner.epoch, "line": row.line_ms, "low": row.low_ms}
        case "nodes":
            return {"beat": row.beat}
        case _:
            return {}
