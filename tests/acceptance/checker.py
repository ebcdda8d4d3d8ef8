"""An independent judge: decides from evidence outside of the scheduler whether a promise was broken.

It imports nothing of what it judges. Its evidence is what the handlers wrote down themselves when they were called,
what callers were answered, what a broker has on its topics, what plain SQL finds in the store, and what was done to the
processes. All times are wall-clock milliseconds of one machine.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

IN_FLIGHT_MS = 10_000
"""A call that returned longer before its process was killed or frozen was written down: a slow disk takes seconds."""

MOMENT_MS = 3000
"""What a process may still do after it was noted that it is killed, or that it may go on: the machine may be busy."""


class HandOver(NamedTuple):
    """One call of a handler, as the handler's own process saw it."""

    job: str
    attempt: int
    due_ms: int
    wall_ms: int
    pid: int


class Blow(NamedTuple):
    """What was done to a process: killed, or frozen until a moment."""

    pid: int
    wall_ms: int
    until_ms: int | None = None
    unsettled: Collection[tuple[str, int]] | None = None  # by plain SQL at that moment; None where nobody looked
    alone: Collection[
        str
    ] = ()  # jobs in the hands of a process that had nothing else by then: a death is blamed on them


class Stall(NamedTuple):
    """A time in which the store may have taken no writes: it was stopped, or a frozen process held its lock."""

    from_ms: int
    until_ms: int


class Cancel(NamedTuple):
    """What a caller who wanted to cancel a job was answered, and when."""

    acknowledged: bool  # or too late
    answered_ms: int


class Evidence(NamedTuple):
    """All that the judge is shown."""

    promised: Mapping[str, int]  # the id of every accepted job, and the moment it was accepted for
    handed_over: Sequence[HandOver]
    blows: Sequence[Blow] = ()
    cancels: Mapping[str, Cancel] = {}
    ended: Sequence[HandOver] | None = None  # when calls returned; None where that is at once
    stalls: Sequence[Stall] = ()


class Verdict(NamedTuple):
    """What the evidence shows; all but the last two must be empty."""

    lost: Sequence[str]  # accepted, not cancelled, and never handed over
    early: Sequence[HandOver]
    unexplained: Sequence[HandOver]  # repeats of a delivery that no blow to its process explains
    undead: Sequence[HandOver]  # handed over although the cancel was acknowledged
    unasked: Sequence[HandOver]  # nobody was told that such a job is accepted
    explained: Sequence[HandOver]  # repeats of what was in flight when its process was killed or frozen
    woken: Sequence[HandOver]  # repeats that a frozen process had begun, and made when it woke up: a few at most

    @property
    def faults(self) -> dict[str, Sequence[object]]:
        """The broken promises, by name."""
        return {
            name: found[:5]
            for name, found in zip(self._fields, self, strict=True)
            if found and name not in ("explained", "woken")
        }


def judge(evidence: Evidence) -> Verdict:
    """Weigh the evidence."""
    deliveries: dict[tuple[str, int], list[HandOver]] = {}
    for one in sorted(evidence.handed_over, key=lambda h: h.wall_ms):
        deliveries.setdefault((one.job, one.attempt), []).append(one)
    fired = {one.job for one in evidence.handed_over}
    struck = _Struck(evidence)
    gone = {job: cancel.answered_ms for job, cancel in evidence.cancels.items() if cancel.acknowledged}
    repeats: dict[str, list[HandOver]] = {"unexplained": [], "explained": [], "woken": []}
    for group in deliveries.values():
        for first, again in pairwise(group):
            repeats[struck.reason(first, again)].append(again)
    return Verdict(
        lost=[job for job in evidence.promised if job not in fired and job not in gone],
        early=[one for one in evidence.handed_over if _is_early(one, evidence.promised)],
        unexplained=repeats["unexplained"],
        undead=[one for one in evidence.handed_over if one.job in gone and not struck.excuses(one, gone[one.job])],
        unasked=[one for one in evidence.handed_over if one.job not in evidence.promised],
        explained=repeats["explained"],
        woken=repeats["woken"],
    )


def _is_early(one: HandOver, promised: Mapping[str, int]) -> bool:
    due_ms = one.due_ms if one.attempt > 1 else max(one.due_ms, promised.get(one.job, 0))
    return one.wall_ms < due_ms


class _Struck:
    """What the blows to processes explain."""

    def __init__(self, evidence: Evidence) -> None:
        self._blows = evidence.blows
        self._stalls = evidence.stalls
        ended = evidence.handed_over if evidence.ended is None else evidence.ended
        self._ended_ms = {(one.job, one.attempt, one.pid): one.wall_ms for one in ended}

    def reason(self, first: HandOver, again: HandOver) -> str:
        """Was the first one in flight when its process was struck, or the second one when its process was frozen?"""
        if any(self._was_in_flight(first, blow) for blow in self._blows):
            return "explained"
        return "woken" if any(_woke_up(again, blow) for blow in self._blows) else "unexplained"

    def excuses(self, one: HandOver, cancelled_ms: int) -> bool:
        """Its process died with it in flight before the cancel was decided: nobody else can know that it was called."""
        killed = (blow for blow in self._blows if blow.until_ms is None)
        return one.wall_ms < cancelled_ms and any(self._was_in_flight(one, blow) for blow in killed)

    def _was_in_flight(self, one: HandOver, blow: Blow) -> bool:
        if one.pid != blow.pid or one.wall_ms > blow.wall_ms + (MOMENT_MS if blow.until_ms is None else 0):
            return False
        if blow.unsettled is not None and (one.job, one.attempt) not in blow.unsettled:
            return False
        ended_ms = self._ended_ms.get((one.job, one.attempt, one.pid))
        if ended_ms is None or ended_ms >= blow.wall_ms - IN_FLIGHT_MS:
            return True
        return any(
            stall.from_ms - IN_FLIGHT_MS <= ended_ms and blow.wall_ms <= stall.until_ms + IN_FLIGHT_MS
            for stall in self._stalls
        )


def _woke_up(one: HandOver, blow: Blow) -> bool:
    """It was frozen between its last look at the lease and the hand-over, and made it when it woke up."""
    return blow.until_ms is not None and one.pid == blow.pid and 0 <= one.wall_ms - blow.until_ms <= MOMENT_MS


def read_log(path: Path) -> list[HandOver]:
    """The hand-overs that handlers wrote down, in the order of writing."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [_parsed(line) for line in lines]


def _parsed(line: str) -> HandOver:
    job, attempt, due_ms, wall_ms, pid = line.split()
    return HandOver(job, int(attempt), int(due_ms), int(wall_ms), int(pid))


# What a topic asks for, and what the store has taken


class Message(NamedTuple):
    """One message that asks for a job, as its topic has it; what it asks for carries a number of its own."""

    number: int
    due_ms: int
    partition: int
    offset: int


class Row(NamedTuple):
    """One job as the store has it, by the number in its data."""

    number: int
    due_ms: int


class Intake(NamedTuple):
    """All that is shown to who judges what became of a topic."""

    messages: Sequence[Message]
    rows: Sequence[Row]
    positions: Mapping[int, int]  # by partition: the first offset that the store does not count as read


class Taken(NamedTuple):
    """What this shows; all of it must be empty."""

    missing: Sequence[Message]  # there is no job of it
    doubled: Sequence[Row]  # jobs beyond as many as there are messages for
    altered: Sequence[Row]  # at another moment than the message says
    unasked: Sequence[Row]  # no message has its number
    misplaced: Sequence[int]  # partitions whose position is not right after their last message

    @property
    def faults(self) -> dict[str, Sequence[object]]:
        """The broken promises, by name."""
        return {name: found[:5] for name, found in zip(self._fields, self, strict=True) if found}


def judge_intake(intake: Intake) -> Taken:
    """Has every message become one job, and none more than one?"""
    asked: dict[int, list[Message]] = {}
    ends: dict[int, int] = {}
    for message in intake.messages:
        asked.setdefault(message.number, []).append(message)
        ends[message.partition] = max(ends.get(message.partition, 0), message.offset + 1)
    found: Counter[int] = Counter()
    doubled = []
    for row in intake.rows:
        found[row.number] += 1
        if row.number in asked and found[row.number] > len(asked[row.number]):
            doubled.append(row)
    return Taken(
        missing=[message for number, of in asked.items() for message in of[found[number] :]],
        doubled=doubled,
        altered=[row for row in intake.rows if row.number in asked and row.due_ms not in _moments(asked[row.number])],
        unasked=[row for row in intake.rows if row.number not in asked],
        misplaced=sorted(each for each, end in ends.items() if intake.positions.get(each) != end),
    )


def _moments(messages: Sequence[Message]) -> set[int]:
    return {message.due_ms for message in messages}
