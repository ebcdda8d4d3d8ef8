"""Poison jobs are narrowed down: a model of marks, batches and deaths, with batches of 4, 2 and 1 for 1000, 30 and 1.

One process at a time fires the jobs of one shard; a poison job kills it at any moment after its hand-over. See "Poison
jobs" in docs/concepts/line-protocol.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from tests.model.search import Step

RULES = {
    "unclean_is_suspect": "after a death the due jobs are fired as if nothing had happened",
    "marked_before_fired": "jobs are handed over first and marked then",
    "marks_are_durable": "marks die with the process",
    "narrows": "those of a batch that died are fired in a batch of the same size again",
    "failed_when_alone": "a job that was alone when its process died is fired again",
    "only_alone_charged": "all of a batch of two are charged with the death",
    "alone_before_marked": "a job is marked as alone while others are in flight, and fired when they have ended",
    "alone_until_settled": "others are handed over beside a job that is marked as alone",
    "settle_deletes_mark": "a retry leaves the mark of its job behind",
    "release_lifts": "a release leaves the mark 'alone' of a job that it has not handed over",
    "reload_lifts": "a reload leaves the mark 'alone' of a job that it has not handed over",
    "reload_suspects": "a reload forgets that the takeover was an unclean one",
}
PENDING, DONE, FAILED = 0, 1, 2
OWNED, RELEASED, DEAD = 0, 1, 2
NORMAL, CHARGED, UNMARKED = 0, -1, 0


@dataclass(frozen=True)
class PoisonScenario:
    """`poison` jobs kill; `late` ones become due at any moment after the start."""

    jobs: int
    poison: tuple[int, ...]
    late: tuple[int, ...] = ()
    sizes: tuple[int, ...] = (4, 2, 1)
    drain: int = 0
    doubt: int = 0
    retry: int = 0
    kill: int = 0  # deaths that no job caused, while no innocent one is marked as alone


class Job(NamedTuple):
    status: int = PENDING
    mark: int = UNMARKED  # in the store: size of the batch with which it was handed over last
    due: bool = True
    deaths: int = 0  # how often it has killed, for the bound only


class Process(NamedTuple):
    """The memory of the process that owns the shard."""

    level: tuple[int, ...] = ()  # for each job the size of its next batch, NORMAL, or CHARGED
    batch: frozenset[int] = frozenset()  # marked, not settled
    flying: frozenset[int] = frozenset()
    unclean: bool = False
    draining: bool = False
    doubt: bool = False


NOBODY = Process()


class State(NamedTuple):
    owner: int
    jobs: tuple[Job, ...]
    process: Process
    drain: int
    doubt: int
    retry: int
    kill: int


SCENARIOS: Mapping[str, PoisonScenario] = {
    "poison-one": PoisonScenario(4, (0,)),
    "poison-two": PoisonScenario(4, (1, 3)),
    "poison-late": PoisonScenario(3, (0, 2), late=(2,)),
    "poison-late-innocent": PoisonScenario(3, (0,), late=(2,)),
    "poison-retry": PoisonScenario(3, (0,), retry=1),
    "poison-retry-two": PoisonScenario(3, (0, 1), sizes=(2, 1), retry=1),
    "poison-drain": PoisonScenario(3, (0,), drain=1),
    "poison-drain-late": PoisonScenario(3, (0, 2), late=(2,), sizes=(2, 1), drain=1),
    "poison-doubt": PoisonScenario(3, (0, 1), sizes=(2, 1), doubt=1),
    "poison-killed": PoisonScenario(3, (1,), kill=1),
}
LARGE: Mapping[str, PoisonScenario] = {
    "poison-large": PoisonScenario(6, (0, 4)),
    "poison-all": PoisonScenario(4, (0, 2), late=(2,), drain=1, doubt=1, retry=1, kill=1),
    "poison-three": PoisonScenario(4, (0, 1, 2), late=(1,), sizes=(2, 1), drain=1, doubt=1),
}

# The promise that breaks first without a rule, and the scenario that shows it after the fewest states.
CAUGHT_BY: Mapping[str, tuple[str, str]] = {
    "unclean_is_suspect": ("poison-late-innocent", "narrowed"),
    "marked_before_fired": ("poison-late-innocent", "narrowed"),
    "marks_are_durable": ("poison-late-innocent", "narrowed"),
    "narrows": ("poison-late-innocent", "narrowed"),
    "failed_when_alone": ("poison-late-innocent", "narrowed"),
    "only_alone_charged": ("poison-doubt", "innocent"),
    "alone_before_marked": ("poison-late", "innocent"),
    "alone_until_settled": ("poison-late", "innocent"),
    "settle_deletes_mark": ("poison-retry", "innocent"),
    "release_lifts": ("poison-drain", "innocent"),
    "reload_lifts": ("poison-doubt", "innocent"),
    "reload_suspects": ("poison-doubt", "narrowed"),
}


class PoisonModel:
    """Invariants: an innocent job never ends as Failed; a poison one kills at most once a level, and once unmarked.

    A release forgets who is suspected and not marked yet: each may cost one death more.
    """

    def __init__(self, scenario: PoisonScenario, off: Collection[str] = ()) -> None:
        if unknown := set(off) - set(RULES):
            raise ValueError(f"unknown rules: {', '.join(sorted(unknown))}")
        self.scenario, self.sizes = scenario, scenario.sizes
        self.on = {rule: rule not in off for rule in RULES}

    def initial(self) -> State:
        s = self.scenario
        jobs = tuple(Job(due=job not in s.late) for job in range(s.jobs))
        return State(OWNED, jobs, Process((NORMAL,) * s.jobs), s.drain, s.doubt, s.retry, s.kill)

    def violation(self, state: State) -> str | None:
        bound = len(self.sizes) + 1 + self.scenario.drain - state.drain
        for number, job in enumerate(state.jobs):
            if job.status == FAILED and number not in self.scenario.poison:
                return f"innocent: job {number} has killed nobody and ends as Failed"
            if job.deaths > bound:
                return f"narrowed: job {number} has killed the process {job.deaths} times"
        return None

    def finished(self, state: State) -> bool:
        return all(
            job.status == (FAILED if number in self.scenario.poison else DONE) for number, job in enumerate(state.jobs)
        )

    def steps(self, state: State) -> list[Step]:
        out: list[Step] = []
        for number, job in enumerate(state.jobs):
            if not job.due:
                out.append(Step(("job", number, "is due"), with_job(state, number, job._replace(due=True))))
        if state.owner != OWNED:
            out.append(self._take_over(state))
            return out
        out.extend(self._settle(state))
        out.extend(self._die(state))
        if state.process.doubt:
            out.append(self._reload(state))
        elif state.process.draining:
            out.extend(self._drained(state))
        else:
            out.extend(self._fail(state))
            out.extend(self._mark(state))
            out.extend(self._fire(state))
            if state.doubt:
                doubting = state._replace(doubt=state.doubt - 1, process=state.process._replace(doubt=True))
                out.append(Step(("is in DOUBT",), doubting, progress=False))
            if state.drain:
                drained = state._replace(drain=state.drain - 1, process=state.process._replace(draining=True))
                out.append(Step(("DRAINS",), drained, progress=False))
        return out

    def _next_level(self, mark: int, suspect: bool) -> int:
        """One level below the mark; a job that was alone when its process died is charged."""
        if mark == UNMARKED:
            return self.sizes[0] if suspect and self.on["unclean_is_suspect"] else NORMAL
        if mark == 1:
            return CHARGED if self.on["failed_when_alone"] else 1
        if not self.on["only_alone_charged"] and mark == 2:
            return CHARGED
        return self.sizes[self.sizes.index(mark) + 1] if self.on["narrows"] else mark

    def _load(self, state: State, unclean: bool) -> tuple[int, ...]:
        return tuple(self._next_level(job.mark, unclean and job.due) for job in state.jobs)

    def _lifted(self, state: State, rule: str) -> State:
        """A mark 'alone' of a job not handed over goes one level up: whoever loads next saw no death of it."""
        if not self.on[rule]:
            return state
        for number in state.process.batch - state.process.flying:
            if state.jobs[number].mark == 1:
                state = with_job(state, number, state.jobs[number]._replace(mark=self.sizes[-2]))
        return state

    def _take_over(self, state: State) -> Step:
        unclean = state.owner == DEAD
        process = Process(self._load(state, unclean), unclean=unclean)
        label = "is taken over after a death" if unclean else "is taken over by plan"
        return Step(("the shard", label, process.level), state._replace(owner=OWNED, process=process))

    def _reload(self, state: State) -> Step:
        """In doubt: what was handed over stays tracked, all else is loaded again; nobody died."""
        process = state.process
        state = self._lifted(state, "reload_lifts")
        loaded = self._load(state, process.unclean and self.on["reload_suspects"])
        level = tuple(process.level[n] if n in process.flying else loaded[n] for n in range(len(loaded)))
        batch = process.batch & process.flying
        return Step(("reloads", level), state._replace(process=process._replace(level=level, batch=batch, doubt=False)))

    def _drained(self, state: State) -> Iterable[Step]:
        process = state.process
        if not process.flying:
            released = self._lifted(state, "release_lifts")._replace(owner=RELEASED, process=NOBODY)
            yield Step(("releases the shard",), released)
        yield Step(
            ("calls the DRAIN OFF",), state._replace(process=process._replace(draining=False)), None, progress=False
        )

    def _fail(self, state: State) -> Iterable[Step]:
        for number, level in enumerate(state.process.level):
            if level == CHARGED and number not in state.process.flying and state.jobs[number].status == PENDING:
                job = state.jobs[number]._replace(status=FAILED, mark=UNMARKED)
                yield Step(("job", number, "ends as FAILED"), with_job(state, number, job))

    def _mark(self, state: State) -> Iterable[Step]:
        """One batch at a time; a batch of one only when nothing else is in flight."""
        process = state.process
        if process.batch:
            return
        for size in self.sizes:
            if size == 1 and process.flying and self.on["alone_before_marked"]:
                continue
            ready = [
                number
                for number, job in enumerate(state.jobs)
                if process.level[number] == size and job.status == PENDING and job.due and number not in process.flying
            ]
            for batch in combinations(ready, min(size, len(ready))) if ready else ():
                yield from self._mark_batch(state, size, batch)

    def _mark_batch(self, state: State, size: int, batch: tuple[int, ...]) -> Iterable[Step]:
        process = state.process._replace(batch=frozenset(batch))
        marked = state
        for number in batch:
            marked = with_job(marked, number, marked.jobs[number]._replace(mark=size))
        if not self.on["marked_before_fired"]:
            yield Step(("will mark", batch, "at", size, "later"), state._replace(process=process))
        else:
            yield Step(("marks", batch, "at", size), marked._replace(process=process))
        if state.doubt:
            lost = state.process._replace(doubt=True)
            yield Step(
                ("marks", batch, "at", size, "NO ANSWER, committed"),
                marked._replace(process=lost._replace(batch=process.batch), doubt=state.doubt - 1),
                progress=False,
            )
            yield Step(
                ("marks", batch, "at", size, "NO ANSWER, rolled back"),
                state._replace(process=lost, doubt=state.doubt - 1),
                progress=False,
            )

    def _fire(self, state: State) -> Iterable[Step]:
        process = state.process
        alone = any(process.level[number] == 1 for number in process.batch)
        for number, job in enumerate(state.jobs):
            if job.status != PENDING or not job.due or number in process.flying:
                continue
            if number in process.batch:
                if process.level[number] == 1 and process.flying and self.on["alone_until_settled"]:
                    continue
            elif process.level[number] != NORMAL or (alone and self.on["alone_until_settled"]):
                continue
            flying = process._replace(flying=process.flying | {number})
            yield Step(("job", number, "is HANDED OVER"), state._replace(process=flying))

    def _settle(self, state: State) -> Iterable[Step]:
        """Innocent jobs end as Done or as a retry; the mark goes with it."""
        process = state.process
        for number in process.flying.difference(self.scenario.poison):
            job = state.jobs[number]
            level = (*process.level[:number], NORMAL, *process.level[number + 1 :])
            after = state._replace(
                process=process._replace(level=level, batch=process.batch - {number}, flying=process.flying - {number})
            )
            yield Step(("job", number, "is done"), with_job(after, number, job._replace(status=DONE, mark=UNMARKED)))
            if state.retry:
                mark = UNMARKED if self.on["settle_deletes_mark"] else job.mark
                again = with_job(after, number, job._replace(mark=mark))
                yield Step(("job", number, "will be retried"), again._replace(retry=state.retry - 1), progress=False)
        if not self.on["marked_before_fired"] and process.batch:
            yield self._mark_late(state)

    def _mark_late(self, state: State) -> Step:
        after = state
        for number in state.process.batch:
            after = with_job(after, number, after.jobs[number]._replace(mark=state.process.level[number]))
        return Step(("marks what it has handed over",), after)

    def _die(self, state: State) -> Iterable[Step]:
        for number in state.process.flying.intersection(self.scenario.poison):
            job = state.jobs[number]
            yield Step(
                ("job", number, "KILLS the process"),
                self._dead(with_job(state, number, job._replace(deaths=job.deaths + 1))),
            )
        innocent_alone = any(
            job.mark == 1 and number not in self.scenario.poison for number, job in enumerate(state.jobs)
        )
        if state.kill and not innocent_alone:
            yield Step(("the process is KILLED",), self._dead(state)._replace(kill=state.kill - 1), progress=False)

    def _dead(self, state: State) -> State:
        jobs = state.jobs if self.on["marks_are_durable"] else tuple(job._replace(mark=UNMARKED) for job in state.jobs)
        return state._replace(owner=DEAD, jobs=jobs, process=NOBODY)


def with_job(state: State, number: int, job: Job) -> State:
    return state._replace(jobs=(*state.jobs[:number], job, *state.jobs[number + 1 :]))
