"""An independent judge: decides from evidence outside of the scheduler whether a promise was broken.

It imports nothing of what it judges. Its evidence is what the handlers wrote down themselves when they were called,
what callers were answered, and what was done to the processes. All times are wall-clock milliseconds of one machine.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

IN_FLIGHT_MS = 1000
"""A hand-over that lies so shortly before its process was killed or frozen counts as in flight at that moment."""


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


class Verdict(NamedTuple):
    """What the evidence shows; all but `explained` must be empty."""

    lost: Sequence[str]  # accepted, not cancelled, and never handed over
    early: Sequence[HandOver]
    unexplained: Sequence[HandOver]  # repeats of a delivery that no blow to its process explains
    undead: Sequence[HandOver]  # handed over although the cancel was acknowledged
    unasked: Sequence[HandOver]  # nobody was told that such a job is accepted
    explained: Sequence[HandOver]  # repeats of what was in flight when its process was killed or frozen

    @property
    def faults(self) -> dict[str, Sequence[object]]:
        """The broken promises, by name."""
        return {
            name: found[:5] for name, found in zip(self._fields, self, strict=True) if found and name != "explained"
        }


def judge(evidence: Evidence) -> Verdict:
    """Weigh the evidence."""
    deliveries: dict[tuple[str, int], list[HandOver]] = {}
    for one in sorted(evidence.handed_over, key=lambda h: h.wall_ms):
        deliveries.setdefault((one.job, one.attempt), []).append(one)
    fired = {one.job for one in evidence.handed_over}
    gone = {job: cancel.answered_ms for job, cancel in evidence.cancels.items() if cancel.acknowledged}
    repeats = [
        (_is_explained(first, again, evidence.blows), again)
        for group in deliveries.values()
        for first, again in pairwise(group)
    ]
    return Verdict(
        lost=[job for job in evidence.promised if job not in fired and job not in gone],
        early=[one for one in evidence.handed_over if _is_early(one, evidence.promised)],
        unexplained=[again for explained, again in repeats if not explained],
        undead=[one for one in evidence.handed_over if one.job in gone and not _is_excused(one, gone, evidence.blows)],
        unasked=[one for one in evidence.handed_over if one.job not in evidence.promised],
        explained=[again for explained, again in repeats if explained],
    )


def _is_early(one: HandOver, promised: Mapping[str, int]) -> bool:
    due_ms = one.due_ms if one.attempt > 1 else max(one.due_ms, promised.get(one.job, 0))
    return one.wall_ms < due_ms


def _is_explained(first: HandOver, again: HandOver, blows: Iterable[Blow]) -> bool:
    """Was the first one in flight when its process was struck, or the second one when its process was frozen?"""
    return any(_was_in_flight(first, blow) or _woke_up(again, blow) for blow in blows)


def _is_excused(one: HandOver, gone: Mapping[str, int], blows: Iterable[Blow]) -> bool:
    """Its process died with it in flight before the cancel was decided: nobody else can know that it was called."""
    return one.wall_ms < gone[one.job] and any(_was_in_flight(one, blow) for blow in blows if blow.until_ms is None)


def _was_in_flight(one: HandOver, blow: Blow) -> bool:
    end_ms = blow.wall_ms + IN_FLIGHT_MS if blow.until_ms is None else blow.wall_ms  # the dead hand nothing over
    return one.pid == blow.pid and blow.wall_ms - IN_FLIGHT_MS <= one.wall_ms <= end_ms


def _woke_up(one: HandOver, blow: Blow) -> bool:
    """It was frozen between its last look at the lease and the hand-over, and made it when it woke up."""
    return blow.until_ms is not None and one.pid == blow.pid and 0 <= one.wall_ms - blow.until_ms <= IN_FLIGHT_MS


def read_log(path: Path) -> list[HandOver]:
    """The hand-overs that handlers wrote down, in the order of writing."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [_parsed(line) for line in lines]


def _parsed(line: str) -> HandOver:
    job, attempt, due_ms, wall_ms, pid = line.split()
    return HandOver(job, int(attempt), int(due_ms), int(wall_ms), int(pid))
