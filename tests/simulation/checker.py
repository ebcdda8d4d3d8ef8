"""An independent judge: decides from a history and the tables at its end whether a promise was broken.

It imports nothing of what it judges. The history is evidence from outside: what clients asked and heard, what handlers
received and returned, what the database committed, and what was done to the nodes. Times are in milliseconds.

Events, and what they say:

- `joined` (nonce): a node process started · `killed` · `paused` (until) · `stepped` (by): its wall clock was set
- `observed` (event, …): what a node told
- `accepted` (due): a client heard that its job is durable
- `asked` (call, change, due) · `answered` (call, verdict: granted, too late, unavailable, unknown)
- `handed over` (attempt, due, wall) · `returned` (attempt, outcome: done, retry, failed)
- `committed` (changes): rows of the database, each as (table, key, before, after)
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from tests.simulation.history import Event

DAY_MS = 86_400_000

FROZEN_MS = 300
"""A process that was frozen between its last lease check and a hand-over makes it this soon after it wakes up."""


TAKING_MS = 5000
"""A transaction that takes a shard does not stay open for longer."""


class Violation(NamedTuple):
    """A promise that was broken: which one, when, and how."""

    promise: str
    at: float
    job: str
    how: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.how} (job {self.job or '-'}, at {self.at - 1.9e12:.3f} ms)"


class _HandOver(NamedTuple):
    at: float
    who: str
    nonce: str
    stale: bool  # by a node that had lost the shard while it was frozen


class _Call(NamedTuple):
    at: float
    job: str
    change: str
    due: int | None
    attempt: int
    due_before: int


class _Move(NamedTuple):
    """A change of a row that only a caller may have asked for."""

    at: float
    job: str
    change: str
    due: int


def judge(
    events: Sequence[Event],
    tables: Mapping[str, Mapping[Any, Any]],
    *,
    lease_ms: int = 3000,
    latest_ms: float | None = None,
) -> list[Violation]:
    """All broken promises; `latest_ms` bounds how late a hand-over may be, where nothing disturbs the nodes."""
    judge = Judge(lease_ms, latest_ms)
    for event in events:
        judge.hear(event)
    judge.close(tables)
    return judge.violations


class Judge:
    """Replays a history and keeps what it needs to know of the past."""

    def __init__(self, lease_ms: int, latest_ms: float | None) -> None:
        self.violations: list[Violation] = []
        self._lease_ms = lease_ms
        self._latest_ms = latest_ms
        self._now = 0.0
        self._rows: dict[str, dict[str, Any]] = {}
        self._ready: dict[str, float] = {}  # since when a pending job can be handed over, but for its due moment
        self._entries: set[tuple[int, str]] = set()
        self._wakes: dict[str, set[str]] = {}
        self._shards: dict[str, dict[str, Any]] = {}
        self._nonces: dict[str, str] = {}
        self._beats: dict[str, list[float]] = {}  # when each node renewed its lease
        self._killed: dict[str, float] = {}
        self._left: set[str] = set()
        self._pauses: dict[str, list[tuple[float, float]]] = {}
        self._steps: dict[str, list[tuple[float, int]]] = {}
        self._deposed: dict[tuple[str, str], list[float]] = {}  # (shard, nonce): when it was taken without a release
        self._written: dict[str, float] = {}  # when the owner of a shard last wrote something there
        self._handed: dict[tuple[str, int], list[_HandOver]] = {}
        self._returned: dict[tuple[str, int], set[str]] = {}
        self._revived: dict[str, float] = {}  # when a final job was last made pending again
        self._calls: dict[int, _Call] = {}
        self._verdicts: dict[int, str] = {}
        self._moves: list[_Move] = []
        self._accepted: dict[str, Event] = {}

    def hear(self, event: Event) -> None:
        self._now = event.at
        match event.what:
            case "joined":
                self._nonces[event.who] = event.facts["nonce"]
            case "killed" | "left":
                self._ended(event)
            case "paused":
                self._pauses.setdefault(event.who, []).append((event.at, event.facts["until"]))
            case "observed":
                self._observed(event)
            case "accepted":
                self._accept(event)
            case "asked":
                self._asked(event)
            case "answered":
                self._answered(event)
            case "handed over":
                self._handed_over(event)
            case "returned":
                self._returned.setdefault((event.job, event.facts["attempt"]), set()).add(event.facts["outcome"])
            case "committed":
                self._committed(event)
            case "stepped":
                self._steps.setdefault(event.who, []).append((event.at, event.facts["by"]))
            case _:
                assert event.what in ("away", "leaving"), event.what

    def _ended(self, event: Event) -> None:
        if event.what == "killed":
            self._killed[event.who] = event.at
        else:
            self._left.add(event.who)

    def _break(self, promise: str, job: str, how: str) -> None:
        self.violations.append(Violation(promise, self._now, job, how))

    def _observed(self, event: Event) -> None:
        bad = event.facts["event"] in ("Swept", "Early", "TaskFailed")
        excused = event.facts["event"] == "Early" and self._set_back(event.who) < 0
        if bad and not excused and not event.facts.get("error", "").startswith("StoreUnavailable"):
            self._break("nodes work as they should", "", f"{event.who} says {dict(event.facts)}")

    def _accept(self, event: Event) -> None:
        self._accepted[event.job] = event
        if event.job not in self._rows:
            self._break("durable on acknowledgement", event.job, "accepted, but no row is committed")

    def _asked(self, event: Event) -> None:
        row = self._rows.get(event.job)
        attempt, due_before = (row["attempt"], row["due"]) if row else (0, 0)
        self._calls[event.facts["call"]] = _Call(
            event.at, event.job, event.facts["change"], event.facts.get("due"), attempt, due_before
        )

    def _answered(self, event: Event) -> None:
        number, decision = event.facts["call"], event.facts["decision"]
        call = self._calls[number]
        self._verdicts[number] = decision
        if decision == "granted":
            self._check_granted(call)
        elif decision == "too late":
            self._check_too_late(call)

    def _check_granted(self, call: _Call) -> None:
        row = self._rows[call.job]
        if call.change == "cancel":
            revived = any(move.job == call.job and move.change == "retry" for move in self._moves)
            if row["status"] != "cancelled" and not revived:
                self._break("an acknowledged cancel is respected", call.job, f"granted, but the row is {row['status']}")
        elif call.change == "reschedule":
            moved = any(m.at >= call.at and m.job == call.job and m.due == call.due for m in self._moves)
            if not moved and call.due not in (call.due_before, row["due"]):
                self._break(
                    "an acknowledged reschedule is respected", call.job, f"granted, but never due at {call.due}"
                )

    def _check_too_late(self, call: _Call) -> None:
        row = self._rows.get(call.job)
        handed = any(job == call.job and attempt >= call.attempt for job, attempt in self._handed)
        was_final = self._revived.get(call.job, 0.0) >= call.at
        if row and row["status"] == "pending" and not handed and not was_final:
            self._break(
                "too late is true", call.job, f"{call.change} refused, but the job waits and was not handed over"
            )

    def _handed_over(self, event: Event) -> None:
        attempt, due, wall = event.facts["attempt"], event.facts["due"], event.facts["wall"]
        if (
            wall - self._set_back(event.who) < due
        ):  # a clock that is set back after the job was on its way does not make it early
            self._break("never early", event.job, f"{event.who} hands over {due - wall} ms too early by its own clock")
        if event.at < due:
            self._break(
                "never early", event.job, f"{event.who} hands over {due - event.at} ms too early by the store's"
            )
        row = self._rows.get(event.job)
        if row is None:
            self._break("only accepted jobs fire", event.job, "handed over without a row")
            return
        nonce = self._nonces[event.who]
        owns = self._shards[row["shard"]]["nonce"] == nonce
        stale = not owns and self._was_frozen(event.who)
        if not stale:
            self._check_current(event, row)
            if not owns:
                self._break("only the owner fires", event.job, f"{event.who} hands over without owning {row['shard']}")
        before = self._handed.setdefault((event.job, attempt), [])
        for first in before:
            if not stale and not first.stale and not self._lost(row["shard"], first):
                how = f"attempt {attempt} by {first.who} at {first.at - 1.9e12:.3f} and again by {event.who}"
                self._break("no second hand-over without an excuse", event.job, how)
        before.append(_HandOver(event.at, event.who, nonce, stale))
        late = event.at - max(due, self._ready.get(event.job, 0.0))
        if self._latest_ms is not None and late > self._latest_ms:
            self._break("on time", event.job, f"{late:.0f} ms late")

    def _set_back(self, who: str) -> int:
        """By how many milliseconds the wall clock of this process was just set back; 0 or less."""
        return min((by for at, by in self._steps.get(who, ()) if by < 0 and self._now - at < FROZEN_MS), default=0)

    def _check_current(self, event: Event, row: Mapping[str, Any]) -> None:
        """What fires is what the row says: not cancelled, not settled, not moved."""
        if row["status"] == "cancelled":
            self._break("a cancelled job never fires", event.job, f"{event.who} hands it over")
        elif row["status"] != "pending" or row["attempt"] != event.facts["attempt"]:
            how = (
                f"{event.who} hands over attempt {event.facts['attempt']}, the row is {row['status']} {row['attempt']}"
            )
            self._break("nothing settled fires", event.job, how)
        elif row["due"] != event.facts["due"]:
            how = f"{event.who} hands it over for {event.facts['due']}, but it is due at {row['due']}"
            self._break("an acknowledged reschedule is respected", event.job, how)

    def _was_frozen(self, who: str) -> bool:
        """Was the process frozen for long, until just now? The one exception that is documented."""
        pauses = self._pauses.get(who, ())
        return any(end - start >= self._lease_ms / 2 and end <= self._now <= end + FROZEN_MS for start, end in pauses)

    def _lost(self, shard: str, first: _HandOver) -> bool:
        """Was the shard taken from the node of the first hand-over, before or after it?"""
        return any(at >= first.at for at in self._deposed.get((shard, first.nonce), ()))

    def _in_flight(self, job: str, row: Mapping[str, Any]) -> _HandOver | None:
        """The hand-over of the current attempt by a node that still owns the shard."""
        nonce = self._shards[row["shard"]]["nonce"]
        for handed in self._handed.get((job, row["attempt"]), ()):
            if handed.nonce == nonce and not handed.stale and not self._lost(row["shard"], handed):
                return handed
        return None

    def _committed(self, event: Event) -> None:
        changes = event.facts["changes"]
        touched: set[str] = set()
        shards: set[str] = set()
        for table, key, before, after in changes:
            if table == "jobs":
                self._row_changed(event.who, key, before, after)
                self._rows[key] = after or before
                touched.add(key)
            elif table == "entries":
                touched.add(key[1])
                (self._entries.add if after is not None else self._entries.discard)(key)
            elif table == "requests":
                touched.update((after or before)["jobs"])
                self._request_changed(key, after)
            elif table == "shards":
                shards.add(key)
                self._shard_changed(event.who, key, before, after)
                self._shards[key] = after
            elif table == "nodes" and after is not None:
                self._beats.setdefault(key, []).append(event.at)
        touched.update(job for job, row in self._rows.items() if row["shard"] in shards)
        self._check_findable(touched)

    def _request_changed(self, key: str, after: Mapping[str, Any] | None) -> None:
        if after is None:
            self._wakes.pop(key, None)
        elif after["change"] is None:
            self._wakes[key] = set(after["jobs"])

    def _check_findable(self, jobs: Iterable[str]) -> None:
        """Whoever takes the shard next must be able to find every job that waits."""
        for job in jobs:
            row = self._rows.get(job)
            if row is None or row["status"] != "pending":
                continue
            due, shard = row["due"], self._shards[row["shard"]]
            if due != int(job[:12], 16) and (due, job) not in self._entries:
                self._break("every pending job can be found", job, f"moved to {due}, but no entry leads there")
            elif due < shard["low"] and due < shard["line"] and not any(job in named for named in self._wakes.values()):
                how = f"due at {due}, before low {shard['low']}, and no wake request names it"
                self._break("every pending job can be found", job, how)

    def _shard_changed(self, who: str, shard: str, before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> None:
        if before is None:
            return
        if after["line"] < before["line"]:
            self._break("the line never moves back", "", f"{who} moves the line of {shard} back")
        if after["nonce"] == before["nonce"] and after["epoch"] == before["epoch"]:
            self._written[shard] = self._now
            if after["nonce"] != self._nonces.get(who):
                self._break("only the owner moves line and low", "", f"{who} writes {shard} of {after['nonce']}")
        elif not after["nonce"]:
            self._released(who, shard, before)
        else:
            self._taken(who, shard, before, after)

    def _released(self, who: str, shard: str, before: Mapping[str, Any]) -> None:
        if before["nonce"] != self._nonces.get(who):
            self._break("only the owner releases", "", f"{who} releases {shard} of {before['nonce']}")
        for job, row in self._rows.items():
            if row["shard"] == shard and row["status"] == "pending" and (first := self._in_flight(job, row)):
                self._break(
                    "a planned move duplicates nothing", job, f"{shard} is released while {first.who} works on it"
                )

    def _taken(self, who: str, shard: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        if after["epoch"] != before["epoch"] + 1:
            self._break("the epoch grows by one", "", f"{shard}: {before['epoch']} to {after['epoch']}")
        former = before["nonce"]
        if not former:
            return
        self._deposed.setdefault((shard, former), []).append(self._now)
        name = next((name for name, nonce in self._nonces.items() if nonce == former), "")
        living = name not in self._killed and name not in self._left  # the answer to its last take may have been lost
        if living and former != after["nonce"] and not self._had_lapsed(shard, former):
            silent = self._now - self._beats[former][-1]
            how = f"{who} takes {shard} from {name}, which renewed its lease {silent:.0f} ms ago"
            self._break("a living node keeps its shards", "", how)

    def _had_lapsed(self, shard: str, nonce: str) -> bool:
        """Was this node silent for its lease?

        A renewal that comes while the shard is being taken is too late: the node must check first what it owns, and
        waits for whoever takes it. So it has written nothing to the shard since.
        """
        beats = [*self._beats.get(nonce, ()), self._now]
        return any(
            later - at >= self._lease_ms and (later == self._now or self._written.get(shard, 0.0) < later)
            for at, later in pairwise(beats)
            if later >= self._now - TAKING_MS
        )

    def _row_changed(
        self, who: str, job: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
    ) -> None:
        if after is None:
            self._break("never lost", job, f"{who} deletes the row")
        elif before is None:
            self._ready[job] = self._now
        elif before["status"] == "pending" and after["status"] == "pending":
            self._ready[job] = self._now
            if after["attempt"] == before["attempt"]:
                self._asked_for(job, before, "reschedule", after["due"])
            else:
                self._settled(who, job, before, "retry", after["attempt"])
        elif after["status"] == "pending":
            self._ready[job] = self._revived[job] = self._now
            self._asked_for(job, before, "retry", after["due"])
        elif before["status"] != "pending":
            self._break("final states are final", job, f"{before['status']} becomes {after['status']}")
        elif after["status"] == "cancelled":
            self._asked_for(job, before, "cancel", before["due"])
        else:
            self._settled(who, job, before, after["status"], before["attempt"] + 1)

    def _asked_for(self, job: str, before: Mapping[str, Any], change: str, due: int) -> None:
        self._moves.append(_Move(self._now, job, change, due))
        if before["status"] == "pending" and (first := self._in_flight(job, before)):
            how = f"{change} is decided after {first.who} was handed it at {first.at - 1.9e12:.3f}"
            self._break("no change of a job that is handed over", job, how)

    def _settled(self, who: str, job: str, before: Mapping[str, Any], outcome: str, attempt: int) -> None:
        if attempt != before["attempt"] + 1:
            self._break("at most one settle an attempt", job, f"attempt {before['attempt']} becomes {attempt}")
        if self._shards[before["shard"]]["nonce"] != self._nonces.get(who):
            self._break("a node that lost a shard settles nothing there", job, f"{who} settles it as {outcome}")
        self._written[before["shard"]] = self._now
        if outcome == "expired":
            return
        heard = self._returned.get((job, before["attempt"]), set())
        crashes = sum(handed.who in self._killed for handed in self._handed.get((job, before["attempt"]), ()))
        if outcome not in heard and not (outcome == "failed" and ("retry" in heard or crashes)):
            self._break(
                "final states are true", job, f"{who} settles it as {outcome}, the handler returned {heard or '-'}"
            )

    def close(self, tables: Mapping[str, Mapping[Any, Any]]) -> None:
        """Judge the end, after everything had time to come to rest."""
        for job in self._accepted:
            if job not in tables["jobs"]:
                self._break("never lost", job, "accepted, but there is no row")
        keys: dict[tuple[str, str], str] = {}
        for job, row in tables["jobs"].items():
            if row["status"] == "pending":
                shard = tables["shards"][row["shard"]]
                how = f"still pending {row['attempt']}, due {row['due']}, line {shard['line']}, low {shard['low']}"
                self._break("never lost", job, how)
            if row["key"] is not None and keys.setdefault((row["app"], row["key"]), job) != job:
                self._break("an idempotency key makes one job", job, f"key {row['key']} made two jobs")
        if "waiting" in tables:
            self._check_waiting(tables["jobs"], tables["waiting"])
        for move in self._moves:
            self._check_asked(move)

    def _check_waiting(self, jobs: Mapping[str, Any], waiting: Mapping[tuple[str, int], int]) -> None:
        """What the counters say is what a count of all rows says."""
        counted: dict[tuple[str, int], int] = {}
        for row in jobs.values():
            if row["status"] == "pending":
                place = row["app"], row["due"] // DAY_MS
                counted[place] = counted.get(place, 0) + 1
        for place in sorted(counted.keys() | waiting.keys()):
            if counted.get(place, 0) != waiting.get(place, 0):
                how = f"{waiting.get(place, 0)} wait for day {place[1]} of {place[0]}, but {counted.get(place, 0)} do"
                self._break("what waits is counted", "", how)

    def _check_asked(self, move: _Move) -> None:
        """Somebody asked for this change, and was not told that nothing is decided."""
        asked = [
            number
            for number, call in self._calls.items()
            if call.job == move.job and call.at <= move.at and _matches(call, move)
        ]
        if not asked:
            self._break("changes are asked for", move.job, f"{move.change} to {move.due}, but nobody asked")
        elif all(self._verdicts.get(number) == "unavailable" for number in asked):
            self._break(
                "unavailable means not decided", move.job, f"{move.change} to {move.due} came true all the same"
            )
        elif all(self._verdicts.get(number) == "too late" for number in asked):
            self._break("too late is true", move.job, f"{move.change} to {move.due} came true all the same")


def _matches(call: _Call, move: _Move) -> bool:
    if move.change == "reschedule":
        return call.change in ("reschedule", "run_now") and call.due == move.due
    return call.change == move.change
