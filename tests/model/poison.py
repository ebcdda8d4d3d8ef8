"""Poison jobs are narrowed down: a model of marks, windows and deaths, with windows of 4, 2 and 1 for 1000, 30 and 1.

One process at a time fires the jobs of one shard; a poison job kills it at any moment after its hand-over. There is no
time: a job outlives as many watches as its scenario says, and one that hangs never ends. See "Poison jobs" in
docs/concepts/line-protocol.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from tests.model.search import Step

RULES = {
    "unclean_takeover_makes_suspects": "after a death the due jobs are fired as if nothing had happened",
    "marked_before_handed_over": "jobs are handed over first and marked then",
    "marks_are_durable": "marks die with the process",
    "window_narrows_after_death": "those of a window that died are fired in a window of the same size again",
    "window_is_bounded": "all suspects of a level are marked at once",
    "window_rolls": "suspects are marked when all that are marked have ended",
    "alone_at_death_is_failed": "a job that was alone when its process died is fired again",
    "only_alone_is_charged": "all of a window of two are charged with the death",
    "alone_before_marked": "a job is marked as alone while others are in flight, and fired when they have ended",
    "alone_until_settled": "others are handed over beside a job that is marked as alone",
    "mark_of_unfired_is_put_back": "the gate opens for others while a job not handed over has the mark 'alone'",
    "wait_to_be_alone_ends": "the gate stays shut until all others have ended, however long that takes",
    "watch_ends": "the gate stays shut until the job that is alone has ended, however long that takes",
    "mark_is_replaced_before_gate_opens": "the gate opens at the end of a watch, and the mark 'alone' is replaced then",
    "outlived_is_not_charged": "a job that has outlived a watch is charged with the next death",
    "outlived_is_alone_again": "a job that has outlived a watch is fired beside others after the next death",
    "watch_grows": "a job that has outlived a watch is watched for as long as before",
    "settle_deletes_mark": "a retry leaves the mark of its job behind",
    "release_puts_mark_back": "a release leaves the mark 'alone' of a job that it has not handed over",
    "reload_puts_mark_back": "a reload leaves the mark 'alone' of a job that it has not handed over",
    "reload_keeps_suspects": "a reload forgets that the takeover was an unclean one",
}
PENDING, DONE, FAILED = 0, 1, 2
OWNED, RELEASED, DEAD = 0, 1, 2
ALONE = 1  # a mark of 0, -1, -2 ... says that the job has outlived so many watches, 1 - mark
NORMAL, CHARGED, UNMARKED = 100, 101, 100
OPEN = -1


@dataclass(frozen=True)
class PoisonScenario:
    """`poison` jobs kill; `late` ones become due at any moment after the start; those in `hangs` never end."""

    jobs: int
    poison: tuple[int, ...]
    late: tuple[int, ...] = ()
    hangs: tuple[int, ...] = ()
    outlives: int = 0  # so many watches, each longer than the one before, may end before a job does
    sizes: tuple[int, ...] = (4, 2, 1)
    drain: int = 0
    doubt: int = 0
    retry: int = 0
    kill: int = 0  # deaths that no job caused, while no innocent one is marked as alone


class Job(NamedTuple):
    status: int = PENDING
    mark: int = UNMARKED  # in the store: size of the window in which it was handed over last, or of watches outlived
    due: bool = True
    deaths: int = 0  # how often it has killed, for the bound only
    lifts: int = 0  # how often its mark 'alone' was lifted, for the bound only


class Process(NamedTuple):
    """The memory of the process that owns the shard."""

    level: tuple[int, ...] = ()  # for each job the size of its window, NORMAL, or CHARGED; alone from 1 downwards
    marked: frozenset[int] = frozenset()  # and not settled
    flying: frozenset[int] = frozenset()
    unclean: bool = False
    draining: bool = False
    doubt: bool = False
    gate: int = OPEN  # or the job for which it is shut


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
    "poison-slow": PoisonScenario(3, (0,), late=(2,), sizes=(2, 1), outlives=2),
    "poison-slow-two": PoisonScenario(3, (0, 1), sizes=(2, 1), outlives=1),
    "poison-slow-doubt": PoisonScenario(3, (0,), sizes=(2, 1), outlives=1, doubt=1),
    "poison-slow-drain": PoisonScenario(3, (0,), sizes=(2, 1), outlives=1, drain=1),
    "poison-slow-retry": PoisonScenario(3, (0,), sizes=(2, 1), outlives=1, retry=1),
    "poison-hang": PoisonScenario(4, (0,), late=(3,), hangs=(1,), sizes=(2, 1)),
    "poison-hang-killed": PoisonScenario(3, (), late=(2,), hangs=(0,), sizes=(2, 1), kill=3),
}
LARGE: Mapping[str, PoisonScenario] = {
    "poison-large": PoisonScenario(6, (0, 4)),
    "poison-all": PoisonScenario(3, (0, 2), late=(2,), sizes=(2, 1), drain=1, doubt=1, retry=1, kill=1),
    "poison-three": PoisonScenario(4, (0, 1, 2), late=(1,), sizes=(2, 1), drain=1),
    "poison-slow-all": PoisonScenario(3, (0, 2), late=(2,), sizes=(2, 1), outlives=1, drain=1, doubt=1),
    "poison-hang-all": PoisonScenario(4, (0, 3), late=(3,), hangs=(1,), sizes=(2, 1), doubt=1, kill=1),
}

# The promise that breaks first without a rule, and the scenario that shows it after the fewest states.
CAUGHT_BY: Mapping[str, tuple[str, str]] = {
    "unclean_takeover_makes_suspects": ("poison-late-innocent", "narrowed"),
    "marked_before_handed_over": ("poison-late-innocent", "narrowed"),
    "marks_are_durable": ("poison-late-innocent", "narrowed"),
    "window_narrows_after_death": ("poison-late-innocent", "narrowed"),
    "window_is_bounded": ("poison-slow-two", "bounded"),
    "window_rolls": ("poison-hang-killed", "never lost"),
    "alone_at_death_is_failed": ("poison-late-innocent", "narrowed"),
    "only_alone_is_charged": ("poison-slow-two", "innocent"),
    "alone_before_marked": ("poison-slow", "innocent"),
    "alone_until_settled": ("poison-slow-two", "innocent"),
    "mark_of_unfired_is_put_back": ("poison-slow", "innocent"),
    "wait_to_be_alone_ends": ("poison-hang-killed", "never lost"),
    "watch_ends": ("poison-hang-killed", "never lost"),
    "mark_is_replaced_before_gate_opens": ("poison-slow-two", "innocent"),
    "outlived_is_not_charged": ("poison-hang-killed", "innocent"),
    "outlived_is_alone_again": ("poison-slow", "narrowed"),
    "watch_grows": ("poison-slow", "narrowed"),
    "settle_deletes_mark": ("poison-retry", "innocent"),
    "release_puts_mark_back": ("poison-slow-drain", "innocent"),
    "reload_puts_mark_back": ("poison-slow-doubt", "innocent"),
    "reload_keeps_suspects": ("poison-doubt", "narrowed"),
}


class PoisonModel:
    """Invariants: no innocent job ends as Failed; a poison one kills once a level, unmarked, and once a watch outlived.

    A release forgets who is suspected and not marked yet: each may cost one death more. A mark 'alone' that is lifted
    costs one more, too, and the watches again. No more than a window is marked at a time. Whatever hangs, all others
    end; only a suspect that has to be alone waits for it.
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
        s, process = self.scenario, state.process
        usual = len(self.sizes) + 1 + s.outlives + s.drain - state.drain
        for number, job in enumerate(state.jobs):
            if job.status == FAILED and number not in s.poison:
                return f"innocent: job {number} has killed nobody and ends as Failed"
            if job.deaths > usual + job.lifts * (1 + s.outlives):
                return f"narrowed: job {number} has killed the process {job.deaths} times"
        for size in self.sizes[:-1]:
            marked = sum(process.level[number] == size for number in process.marked)
            if marked > size:
                return f"bounded: {marked} jobs are marked at {size} at once"
        return None

    def finished(self, state: State) -> bool:
        s, process = self.scenario, state.process
        hanging = process.flying.intersection(s.hangs)
        return all(
            number in s.hangs
            or job.status == (FAILED if number in s.poison else DONE)
            or (hanging and process.level[number] <= ALONE)
            for number, job in enumerate(state.jobs)
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
            out.extend(self._roll(state))
            out.extend(self._shut(state))
            out.extend(self._watch(state))
            out.extend(self._fire(state))
            if state.doubt:
                doubting = state._replace(doubt=state.doubt - 1, process=state.process._replace(doubt=True))
                out.append(Step(("is in DOUBT",), doubting, progress=False))
            if state.drain:
                drained = state._replace(drain=state.drain - 1, process=state.process._replace(draining=True))
                out.append(Step(("DRAINS",), drained, progress=False))
        return out

    # Ownership

    def _next_level(self, mark: int, suspect: bool) -> int:
        """One level below the mark; a job that was alone when its process died is charged."""
        if mark == UNMARKED:
            return self.sizes[0] if suspect and self.on["unclean_takeover_makes_suspects"] else NORMAL
        if mark < ALONE:
            return self._next_watch(mark)
        if mark == ALONE:
            return CHARGED if self.on["alone_at_death_is_failed"] else ALONE
        if not self.on["only_alone_is_charged"] and mark == 2:
            return CHARGED
        return self.sizes[self.sizes.index(mark) + 1] if self.on["window_narrows_after_death"] else mark

    def _next_watch(self, mark: int) -> int:
        """Others were in flight when the process died: the job is alone again, and for longer."""
        if not self.on["outlived_is_not_charged"]:
            return CHARGED
        if not self.on["outlived_is_alone_again"]:
            return NORMAL
        return mark if self.on["watch_grows"] else ALONE

    def _load(self, state: State, unclean: bool) -> tuple[int, ...]:
        return tuple(self._next_level(job.mark, unclean and job.due) for job in state.jobs)

    def _lifted(self, state: State, rule: str) -> State:
        """A mark 'alone' of a job not handed over goes one level up: whoever loads next saw no death of it."""
        if not self.on[rule]:
            return state
        for number, job in enumerate(state.jobs):
            if job.mark == ALONE and number not in state.process.flying:
                state = with_job(state, number, job._replace(mark=self.sizes[-2], lifts=job.lifts + 1))
        return state

    def _take_over(self, state: State) -> Step:
        unclean = state.owner == DEAD
        process = Process(self._load(state, unclean), unclean=unclean)
        label = "is taken over after a death" if unclean else "is taken over by plan"
        return Step(("the shard", label, process.level), state._replace(owner=OWNED, process=process))

    def _reload(self, state: State) -> Step:
        """In doubt: what was handed over stays tracked, all else is loaded again; nobody died."""
        process = state.process
        state = self._lifted(state, "reload_puts_mark_back")
        loaded = self._load(state, process.unclean and self.on["reload_keeps_suspects"])
        after = process._replace(
            level=tuple(process.level[n] if n in process.flying else loaded[n] for n in range(len(loaded))),
            marked=process.marked & process.flying,
            gate=process.gate if process.gate in process.flying else OPEN,
            doubt=False,
        )
        return Step(("reloads", after.level), state._replace(process=after))

    def _drained(self, state: State) -> Iterable[Step]:
        process = state.process
        if not process.flying:
            released = self._lifted(state, "release_puts_mark_back")._replace(owner=RELEASED, process=NOBODY)
            yield Step(("releases the shard",), released)
        yield Step(
            ("calls the DRAIN OFF",), state._replace(process=process._replace(draining=False)), None, progress=False
        )

    # Marks

    def _ready(self, state: State) -> Iterable[int]:
        """Suspects that may be marked."""
        for number, job in enumerate(state.jobs):
            if job.status == PENDING and job.due and number not in state.process.flying | state.process.marked:
                yield number

    def _roll(self, state: State) -> Iterable[Step]:
        """As many suspects are marked as their window has free places."""
        process = state.process
        if process.gate != OPEN or (process.marked and not self.on["window_rolls"]):
            return
        for size in self.sizes[:-1]:
            ready = [number for number in self._ready(state) if process.level[number] == size]
            under_way = sum(process.level[number] == size for number in process.marked)
            most = min(size - under_way, len(ready)) if self.on["window_is_bounded"] else len(ready)
            for batch in combinations(ready, most) if most else ():
                yield from self._mark(state, size, batch)

    def _shut(self, state: State) -> Iterable[Step]:
        """A suspect that has to be alone shuts the gate, and is marked when nothing else is in flight."""
        process, number = state.process, state.process.gate
        if number == OPEN:
            for suspect in self._ready(state):
                if process.level[suspect] <= ALONE:
                    yield Step(
                        ("the gate is SHUT for job", suspect), state._replace(process=process._replace(gate=suspect))
                    )
            return
        if number in process.marked:
            if number not in process.flying:
                yield self._put_back(state, number)
            return
        if process.flying and self.on["wait_to_be_alone_ends"]:
            yield Step(("others take long, the gate OPENS",), state._replace(process=process._replace(gate=OPEN)))
        if not process.flying or not self.on["alone_before_marked"]:
            yield from self._mark(state, ALONE, (number,))

    def _put_back(self, state: State, number: int) -> Step:
        """It may not fire after all, as its app is paused or the clock stepped back."""
        process, mark = state.process, state.jobs[number].mark
        if self.on["mark_of_unfired_is_put_back"]:
            mark = self.sizes[-2] if process.level[number] == ALONE else process.level[number]
        after = with_job(state, number, state.jobs[number]._replace(mark=mark))
        opened = process._replace(marked=process.marked - {number}, gate=OPEN)
        return Step(("job", number, "is PUT BACK"), after._replace(process=opened), progress=False)

    def _mark(self, state: State, size: int, batch: tuple[int, ...]) -> Iterable[Step]:
        process = state.process._replace(marked=state.process.marked.union(batch))
        marked = state
        for number in batch:
            marked = with_job(marked, number, marked.jobs[number]._replace(mark=size))
        if not self.on["marked_before_handed_over"]:
            yield Step(("will mark", batch, "at", size, "later"), state._replace(process=process))
        else:
            yield Step(("marks", batch, "at", size), marked._replace(process=process))
        yield from self._unanswered(("marks", batch, "at", size), state, marked)

    def _unanswered(self, label: tuple[object, ...], before: State, after: State) -> Iterable[Step]:
        """A write whose answer is lost: it counts or not, and the process does not know."""
        if before.doubt:
            lost = before.process._replace(doubt=True)
            for how, state in (("committed", after), ("rolled back", before)):
                doubting = state._replace(process=lost, doubt=before.doubt - 1)
                yield Step((*label, "NO ANSWER,", how), doubting, progress=False)

    def _watch(self, state: State) -> Iterable[Step]:
        """The job that is alone runs on: its mark is replaced, then the gate opens."""
        process = state.process
        if not self.on["mark_is_replaced_before_gate_opens"]:
            yield from self._replace_late(state)
        number = process.gate
        if number not in process.flying or not self.on["watch_ends"]:
            return
        watches = ALONE - process.level[number]
        if watches >= self.scenario.outlives and number not in self.scenario.hangs:
            return
        opened = process._replace(gate=OPEN)
        marked = with_job(state, number, state.jobs[number]._replace(mark=process.level[number] - 1))
        if not self.on["mark_is_replaced_before_gate_opens"]:
            yield Step(("the gate OPENS beside job", number), state._replace(process=opened))
        else:
            yield Step(("job", number, "OUTLIVES watch", watches + 1), marked._replace(process=opened))
            yield from self._unanswered(("job", number, "OUTLIVES watch", watches + 1), state, marked)

    def _replace_late(self, state: State) -> Iterable[Step]:
        process = state.process
        for number in process.flying & process.marked - {process.gate}:
            if state.jobs[number].mark == ALONE:
                job = state.jobs[number]._replace(mark=process.level[number] - 1)
                yield Step(("replaces the mark of job", number), with_job(state, number, job))

    # Deliveries

    def _fail(self, state: State) -> Iterable[Step]:
        for number, level in enumerate(state.process.level):
            if level == CHARGED and number not in state.process.flying and state.jobs[number].status == PENDING:
                job = state.jobs[number]._replace(status=FAILED, mark=UNMARKED)
                yield Step(("job", number, "ends as FAILED"), with_job(state, number, job))

    def _fire(self, state: State) -> Iterable[Step]:
        process = state.process
        for number, job in enumerate(state.jobs):
            if job.status == PENDING and job.due and number not in process.flying and self._may_fire(number, process):
                flying = process._replace(flying=process.flying | {number})
                yield Step(("job", number, "is HANDED OVER"), state._replace(process=flying))

    def _may_fire(self, number: int, process: Process) -> bool:
        if process.level[number] != NORMAL and number not in process.marked:
            return False
        if process.gate == number:
            return not process.flying or not self.on["alone_until_settled"]
        if process.gate == OPEN:
            return True
        return process.gate in process.marked and not self.on["alone_until_settled"]

    def _settle(self, state: State) -> Iterable[Step]:
        """Innocent jobs end as Done or as a retry; the mark goes with it."""
        process = state.process
        for number in process.flying.difference(self.scenario.poison, self.scenario.hangs):
            job = state.jobs[number]
            after = state._replace(
                process=process._replace(
                    level=(*process.level[:number], NORMAL, *process.level[number + 1 :]),
                    marked=process.marked - {number},
                    flying=process.flying - {number},
                    gate=OPEN if process.gate == number else process.gate,
                )
            )
            yield Step(("job", number, "is done"), with_job(after, number, job._replace(status=DONE, mark=UNMARKED)))
            if state.retry:
                mark = UNMARKED if self.on["settle_deletes_mark"] else job.mark
                again = with_job(after, number, job._replace(mark=mark))
                yield Step(("job", number, "will be retried"), again._replace(retry=state.retry - 1), progress=False)
        if not self.on["marked_before_handed_over"] and process.marked:
            yield self._mark_late(state)

    def _mark_late(self, state: State) -> Step:
        after = state
        for number in state.process.marked:
            mark = max(ALONE, state.process.level[number])
            after = with_job(after, number, after.jobs[number]._replace(mark=mark))
        return Step(("marks what it has handed over",), after)

    def _die(self, state: State) -> Iterable[Step]:
        for number in state.process.flying.intersection(self.scenario.poison):
            job = state.jobs[number]
            yield Step(
                ("job", number, "KILLS the process"),
                self._dead(with_job(state, number, job._replace(deaths=job.deaths + 1))),
            )
        innocent_alone = any(
            job.mark == ALONE and number not in self.scenario.poison for number, job in enumerate(state.jobs)
        )
        if state.kill and not innocent_alone:
            yield Step(("the process is KILLED",), self._dead(state)._replace(kill=state.kill - 1), progress=False)

    def _dead(self, state: State) -> State:
        jobs = state.jobs if self.on["marks_are_durable"] else tuple(job._replace(mark=UNMARKED) for job in state.jobs)
        return state._replace(owner=DEAD, jobs=jobs, process=NOBODY)


def with_job(state: State, number: int, job: Job) -> State:
    return state._replace(jobs=(*state.jobs[:number], job, *state.jobs[number + 1 :]))
