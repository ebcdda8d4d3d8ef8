"""The gate: calls share transactions, and each gets its own answer."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar, cast

import pytest

from infinite_scheduler.errors import InvalidRequest, KeyConflict, SchedulerError, StoreUnavailable, Unavailable
from infinite_scheduler.ingest.intake import SHARED, Intake
from infinite_scheduler.model import Accepted, JobSpec
from infinite_scheduler.observe import events
from infinite_scheduler.store.base import Store
from infinite_scheduler.testing import ManualClock

T = TypeVar("T")
CONFLICT = KeyConflict("mail", "k", "019a8b7c-3d20-8014-9f3a-5c1e2b7d4a60")


class FakeStore:
    """Accepts jobs when it is let; refuses or breaks where a job's name says so."""

    def __init__(self) -> None:
        self.adds: list[list[str]] = []
        self.committed: list[str] = []
        self.errors: dict[str, BaseException] = {}
        self.begun = asyncio.Event()
        self.free = asyncio.Event()
        self.free.set()

    async def add(self, specs: Sequence[JobSpec]) -> Sequence[Accepted]:
        names = [name_of(spec) for spec in specs]
        self.adds.append(names)
        self.begun.set()
        await self.free.wait()
        for name in names:
            if name in self.errors:
                raise self.errors[name]
        self.committed += names
        return [Accepted(name.encode(), 0) for name in names]


class Gate:
    """An intake on a fake store, and what it told."""

    def __init__(self) -> None:
        self.store = FakeStore()
        self.told: list[events.Event] = []
        self.intake = Intake(cast("Store", self.store), ManualClock(), self.told.append)

    def call(self, *names: str) -> "asyncio.Task[Sequence[Accepted]]":
        return asyncio.create_task(self.intake.accept([spec(name) for name in names]))

    async def hold(self) -> "asyncio.Task[Sequence[Accepted]]":
        """Keep the store busy with a first call, so that the next ones gather."""
        self.store.free.clear()
        first = self.call("first")
        await soon(self.store.begun.wait())
        return first

    def let_go(self) -> None:
        self.store.free.set()


@pytest.fixture
async def gate() -> Gate:
    return Gate()


def spec(name: str, app: str = "mail") -> JobSpec:
    return JobSpec(app=app, scheduled_ms=0, payload=name.encode(), request_id=name)


def name_of(spec: JobSpec) -> str:
    return spec.payload.decode()


def names_of(answers: Sequence[Accepted]) -> list[str]:
    return [answer.key.decode() for answer in answers]


async def soon(work: Awaitable[T]) -> T:
    """What must not hang."""
    return await asyncio.wait_for(work, 5)


async def ended(*calls: "asyncio.Task[Sequence[Accepted]]") -> list[Sequence[Accepted] | BaseException]:
    return await soon(asyncio.gather(*calls, return_exceptions=True))


async def test_no_jobs_need_no_transaction(gate: Gate) -> None:
    assert await gate.intake.accept([]) == ()
    assert gate.store.adds == []


async def test_one_call_is_one_transaction(gate: Gate) -> None:
    assert names_of(await gate.call("a", "b")) == ["a", "b"]
    assert gate.store.adds == [["a", "b"]]


async def test_calls_at_the_same_time_share_one_commit(gate: Gate) -> None:
    calls = [gate.call(str(i)) for i in range(100)]
    assert await ended(*calls) == [[Accepted(str(i).encode(), 0)] for i in range(100)]
    assert gate.store.adds == [[str(i) for i in range(100)]]


async def test_calls_go_on_after_the_commit_of_one_was_cancelled_before_it_began(gate: Gate) -> None:
    first = gate.call("a")
    while gate.intake._task is None:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert gate.intake._task.cancel()
    await asyncio.wait([gate.intake._task])
    assert await ended(first, gate.call("b")) == [[Accepted(b"a", 0)], [Accepted(b"b", 0)]]


async def test_calls_that_come_during_a_commit_share_the_next(gate: Gate) -> None:
    first = await gate.hold()
    others = [gate.call(name) for name in "abc"]
    gate.let_go()
    await ended(first, *others)
    assert gate.store.adds == [["first"], ["a", "b", "c"]]


async def test_calls_one_after_the_other_each_commit(gate: Gate) -> None:
    for name in "abc":
        await soon(gate.call(name))
    assert gate.store.adds == [["a"], ["b"], ["c"]]


async def test_nobody_is_answered_before_the_commit(gate: Gate) -> None:
    first = await gate.hold()
    second = gate.call("a")
    for _ in range(10):
        await asyncio.sleep(0)
    assert not first.done()
    assert not second.done()
    gate.let_go()
    await ended(first, second)


async def test_each_call_gets_its_own_answers_in_order(gate: Gate) -> None:
    calls = {size: [f"{size}-{i}" for i in range(size)] for size in (3, 1, 7, 2)}
    tasks = [gate.call(*names) for names in calls.values()]
    for task, names in zip(tasks, calls.values(), strict=True):
        assert names_of(await soon(task)) == names
    assert len(gate.store.adds) == 1


@pytest.mark.parametrize(
    ("sizes", "transactions"),
    [
        ([SHARED - 1, 1], 1),
        ([SHARED, 1], 2),
        ([SHARED + 1, 1, 1], 2),  # one large call is never divided
        ([1, SHARED, 1], 3),  # in the order in which they came
        ([SHARED // 2] * 4, 2),
    ],
)
async def test_a_shared_transaction_has_a_bound(gate: Gate, sizes: list[int], transactions: int) -> None:
    calls = [[f"{n}-{i}" for i in range(size)] for n, size in enumerate(sizes)]
    tasks = [gate.call(*names) for names in calls]
    for task, names in zip(tasks, calls, strict=True):
        assert names_of(await soon(task)) == names
    assert len(gate.store.adds) == transactions
    assert gate.store.committed == [name for names in calls for name in names]


@pytest.mark.parametrize("error", [CONFLICT, InvalidRequest("no")], ids=["KeyConflict", "InvalidRequest"])
@pytest.mark.parametrize("at", [0, 1, 2])
async def test_a_refused_call_does_not_affect_the_others(gate: Gate, error: SchedulerError, at: int) -> None:
    gate.store.errors["bad"] = error
    names = ["a", "b"]
    names.insert(at, "bad")
    answers = await ended(*(gate.call(name, f"{name}+") for name in names))
    assert answers[at] is error
    assert [names_of(cast("Sequence[Accepted]", a)) for i, a in enumerate(answers) if i != at] == [
        ["a", "a+"],
        ["b", "b+"],
    ]
    assert gate.store.committed == ["a", "a+", "b", "b+"]
    assert gate.store.adds[0] == [n for name in names for n in (name, f"{name}+")]


async def test_calls_after_a_refused_one_share_again(gate: Gate) -> None:
    gate.store.errors["bad"] = CONFLICT
    await ended(gate.call("bad"), gate.call("a"))
    gate.store.adds.clear()
    await ended(gate.call("b"), gate.call("c"))
    assert gate.store.adds == [["b", "c"]]


async def test_a_lone_refused_call_is_tried_once(gate: Gate) -> None:
    gate.store.errors["bad"] = CONFLICT
    assert await ended(gate.call("bad")) == [CONFLICT]
    assert gate.store.adds == [["bad"]]


async def test_unavailable_reaches_every_caller(gate: Gate) -> None:
    error = StoreUnavailable("away")
    gate.store.errors["b"] = error
    assert await ended(*(gate.call(name) for name in "abc")) == [error] * 3
    assert gate.store.adds == [["a", "b", "c"]]  # nothing is tried again: who knows what was committed


async def test_unavailable_ends_with_its_transaction(gate: Gate) -> None:
    first = await gate.hold()
    gate.store.errors["first"] = StoreUnavailable("away")
    second = gate.call("a")
    gate.let_go()
    assert await ended(first, second) == [gate.store.errors["first"], [Accepted(b"a", 0)]]


async def test_each_alone_may_find_the_store_away(gate: Gate) -> None:
    gate.store.errors |= {"bad": CONFLICT, "b": StoreUnavailable("away")}
    answers = await ended(*(gate.call(name) for name in ("a", "bad", "b", "c")))
    assert answers == [[Accepted(b"a", 0)], CONFLICT, gate.store.errors["b"], [Accepted(b"c", 0)]]


async def test_a_bug_leaves_nobody_waiting(gate: Gate) -> None:
    """Those of the same transaction hear of it, those that gathered behind it are served."""
    first = await gate.hold()
    gate.store.errors["first"] = RuntimeError("a bug")
    second = gate.call("a")
    await asyncio.sleep(0)
    gate.let_go()
    failed, _ = await ended(first, second)
    assert isinstance(failed, BaseException)


async def test_a_bug_while_each_is_tried_alone_leaves_nobody_waiting(gate: Gate) -> None:
    first = await gate.hold()
    gate.store.errors |= {"bad": CONFLICT, "a": RuntimeError("a bug")}
    calls = [gate.call(name) for name in ("bad", "a", "b")]
    await asyncio.sleep(0)
    gate.let_go()
    _, refused, failed, _ = await ended(first, *calls)
    assert refused is CONFLICT
    assert isinstance(failed, BaseException)


async def test_a_bug_is_told_to_the_caller_as_it_is(gate: Gate) -> None:
    """CancelledError would say that the caller itself was cancelled, and a task would end in silence."""
    gate.store.errors["a"] = RuntimeError("a bug")
    with pytest.raises(RuntimeError, match="a bug"):
        await soon(gate.call("a"))


async def test_close_waits_for_what_has_come_in(gate: Gate) -> None:
    first = await gate.hold()
    second = gate.call("a")
    await asyncio.sleep(0)
    closing = asyncio.create_task(gate.intake.close())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not closing.done()
    gate.let_go()
    await soon(closing)
    assert gate.store.committed == ["first", "a"]
    assert await ended(first, second) == [[Accepted(b"first", 0)], [Accepted(b"a", 0)]]


async def test_close_with_nothing_under_way(gate: Gate) -> None:
    await soon(gate.call("a"))
    await soon(gate.intake.close())
    await soon(gate.intake.close())
    assert gate.store.committed == ["a"]


async def test_close_does_not_tell_what_callers_were_told(gate: Gate) -> None:
    first = await gate.hold()
    gate.store.errors["first"] = StoreUnavailable("away")
    closing = asyncio.create_task(gate.intake.close())
    gate.let_go()
    await soon(closing)
    assert await ended(first) == [gate.store.errors["first"]]


async def test_a_cancelled_caller_does_not_break_the_others(gate: Gate) -> None:
    first = await gate.hold()
    calls = [gate.call(name) for name in "abc"]
    await asyncio.sleep(0)
    calls[1].cancel()
    await asyncio.sleep(0)
    gate.let_go()
    answers = await ended(first, *calls)
    assert isinstance(answers[2], asyncio.CancelledError)
    assert [answers[0], answers[1], answers[3]] == [[Accepted(n.encode(), 0)] for n in ("first", "a", "c")]


@pytest.mark.parametrize("error", [None, CONFLICT, StoreUnavailable("away")], ids=["accepted", "refused", "away"])
async def test_a_caller_cancelled_during_its_commit(gate: Gate, error: SchedulerError | None) -> None:
    first = await gate.hold()
    if error:
        gate.store.errors["first"] = error
    second = gate.call("a")
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    gate.let_go()
    answers = await ended(first, second)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert answers[1] == [Accepted(b"a", 0)]


async def test_a_refused_caller_that_has_gone(gate: Gate) -> None:
    first = await gate.hold()
    gate.store.errors["bad"] = CONFLICT
    calls = [gate.call(name) for name in ("bad", "a")]
    await asyncio.sleep(0)
    calls[0].cancel()
    await asyncio.sleep(0)
    gate.let_go()
    answers = await ended(first, *calls)
    assert isinstance(answers[1], asyncio.CancelledError)
    assert answers[2] == [Accepted(b"a", 0)]


async def test_each_accepted_call_is_told_once_for_an_app(gate: Gate) -> None:
    gate.store.errors["bad"] = CONFLICT
    mixed = asyncio.create_task(gate.intake.accept([spec("a"), spec("b", "sms"), spec("c")]))
    await ended(mixed, gate.call("bad"), gate.call("d"))
    told = [(e.app, e.count, list(e.request_ids)) for e in gate.told if isinstance(e, events.JobsAccepted)]
    assert told == [("mail", 2, ["a", "c"]), ("sms", 1, ["b"]), ("mail", 1, ["d"])]


async def test_a_call_that_comes_after_the_close_has_begun_is_refused() -> None:
    gate = Gate()
    first = await gate.hold()
    closing = asyncio.create_task(gate.intake.close())
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="no job was accepted"):
        await gate.intake.accept([spec("late")])
    gate.let_go()
    await soon(closing)
    assert len(await first) == 1
    assert gate.store.committed == ["first"]
