"""The store against a dictionary: in whatever order things are done, every pending job is found, and nothing else."""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import hypothesis.strategies as st
import msgspec
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from infinite_scheduler.errors import InvalidRequest, StoreUnavailable, Unavailable
from infinite_scheduler.model import (
    DAY_MS,
    Accepted,
    Change,
    Job,
    JobSpec,
    Owner,
    Priority,
    Shard,
    Status,
    position,
    shard_of,
    start_of,
)
from infinite_scheduler.store.accepting import Decision
from infinite_scheduler.store.cluster_state import NodeInfo
from infinite_scheduler.store.looking import Query
from infinite_scheduler.store.ownership import Claim, Request, Scan, Settlement, Step
from infinite_scheduler.store.sql.sqlite.database import SqliteDatabase
from infinite_scheduler.store.sql.statements import Body, Session
from infinite_scheduler.store.sql.store import SqlStore
from infinite_scheduler.testing import ManualClock

T = TypeVar("T")

APP = "mail"
SHARDS = 2
END_MS = (1 << 48) - 1
MIDNIGHT_MS = 1_794_787_200_000
"""2026-11-16 00:00 UTC: jobs are due on both sides of it."""


delays = st.sampled_from([0, 1, 2, 3, 5, 8, 8, 20, 86_400_000, 40 * 86_400_000])
leads = st.sampled_from([1, 4, 9, 9, 30])
priorities = st.sampled_from(Priority)


class Known(msgspec.Struct):
    """A job as the model has it."""

    key: bytes
    status: Status
    due_ms: int
    attempt: int = 1

    @property
    def place(self) -> bytes:
        return position(self.key, self.due_ms)

    @property
    def shard(self) -> int:
        return shard_of(self.key)

    @property
    def priority(self) -> int:
        return (self.key[7] >> 2) & 3

    @property
    def pending(self) -> bool:
        return self.status is Status.PENDING


class Memory(msgspec.Struct):
    """What the owner of a shard knows: its reign, the line, the jobs it holds, and from where on it has not read."""

    owner: Owner
    line_ms: int
    low_ms: int
    cursors: list[bytes]
    held: dict[bytes, Job] = {}

    def safe_low(self, now_ms: int) -> int:
        unread_ms = int.from_bytes(min(self.cursors)[:6], "big")
        return min([now_ms, self.line_ms, unread_ms, *(job.due_ms for job in self.held.values())])


class Forgetful:
    """A session that can lose the answer to a commit."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.forgets = False

    async def write(self, body: Body[T]) -> T:
        result = await self._session.write(body)
        if self.forgets:
            self.forgets = False
            raise StoreUnavailable("the answer was lost")
        return result


class StoreMachine(RuleBasedStateMachine):
    """One node that follows the protocol, or crashes, and callers who do what they like."""

    def __init__(self) -> None:
        super().__init__()
        self.urandom, os.urandom = os.urandom, random.Random(0).randbytes  # the same ids when steps are replayed
        random.seed(0)
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock(MIDNIGHT_MS - 5)
        self.store = SqlStore(SqliteDatabase(":memory:", inline=True), self.clock)
        self.run(self.store.open())
        self.door = self.store._door = Forgetful(self.store._door)  # type: ignore[assignment]
        self.run(self.store.register(APP, SHARDS))
        node = NodeInfo(nonce="0123456789abcdef", node_id="n1", apps=frozenset({APP}), started_ms=self.now)
        self.node = self.store.ownership(node, lambda _: None)
        self.run(self.node.beat())
        self.jobs: dict[bytes, Known] = {}
        self.memory: dict[int, Memory] = {}
        self.counts: Counter[str] = Counter()

    def teardown(self) -> None:
        os.urandom = self.urandom
        self.run(self.store.close())
        self.loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    @property
    def now(self) -> int:
        return self.clock.wall_ms()

    # Callers

    @rule(
        delays=st.lists(delays, min_size=1, max_size=4),
        priority=priorities,
        late_ms=st.sampled_from([0, 0, 0, 50]),
        lost=st.sampled_from([False, False, False, True]),
    )
    def insert(self, delays: list[int], priority: Priority, late_ms: int, lost: bool) -> None:
        now = self.now
        specs = [
            JobSpec(app=APP, scheduled_ms=now + delay - late_ms, payload=b"{}", priority=priority) for delay in delays
        ]
        self.door.forgets = lost
        for spec, accepted in zip(specs, self.run(self.added(specs)), strict=True):
            due_ms = max(now, spec.scheduled_ms)
            assert accepted.due_ms == due_ms
            self.jobs[accepted.key] = Known(accepted.key, Status.PENDING, due_ms)
            self.counts["accepted"] += 1

    async def added(self, specs: list[JobSpec]) -> Sequence[Accepted]:
        """Accept jobs, with the time that it takes to try again."""
        adding = self.loop.create_task(self.store.add(specs))
        while not adding.done():
            await asyncio.sleep(0)
            if self.door.forgets is False and not adding.done():
                self.clock.advance(10)
        return await adding

    @precondition(lambda self: self.jobs)
    @rule(
        data=st.data(),
        change=st.sampled_from([Change.CANCEL, Change.RESCHEDULE, Change.RUN_NOW]),
        delay=delays,
        fate=st.sampled_from(["answered", "handed over", "silent"]),
    )
    def ask(self, data: st.DataObject, change: Change, delay: int, fate: str) -> None:
        job = self.jobs[data.draw(st.sampled_from(sorted(self.jobs)))]
        due_ms = None if change is Change.RUN_NOW else self.now + delay
        change_request = self.loop.create_task(
            self.store.change(
                change, job.key, due_ms=due_ms if change is Change.RESCHEDULE else None, timeout_ms=15_000
            )
        )
        memory = self.memory.get(job.shard)
        self.spin()
        if memory is None or not job.pending or job.due_ms >= self.line(job.shard):
            if not change_request.done():  # its owner has crashed: nobody answers
                assert job.pending
                assert not self.released(job.shard)
                self.give_up(change_request)
                return
            self.expect(job, change, due_ms, self.run(self.decision(change_request)))
            return
        requests = self.requests(job.shard)
        assert any(q.change is change and q.keys == (job.key,) for q in requests)
        if fate == "silent":
            self.give_up(change_request)
        elif fate == "handed over" and job.key in memory.held:
            self.decide(job.shard, requests, handed_over=[job.key])
            decision = self.run(self.decision(change_request))
            assert not decision.granted
        else:
            self.decide(job.shard, requests)
            self.expect(job, change, due_ms, self.run(self.decision(change_request)))
            self.decided(job, memory)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def retry_by_hand(self, data: st.DataObject) -> None:
        job = self.jobs[data.draw(st.sampled_from(sorted(self.jobs)))]
        try:
            decision = self.run(self.store.change(Change.RETRY, job.key, timeout_ms=15_000))
        except InvalidRequest:
            assert job.status in (Status.PENDING, Status.DONE)
            return
        assert decision.granted
        assert job.status in (Status.FAILED, Status.EXPIRED, Status.CANCELLED)
        job.status, job.due_ms, job.attempt = Status.PENDING, self.now, job.attempt + 1
        self.counts["revived"] += 1

    def expect(self, job: Known, change: Change, due_ms: int | None, decision: Decision) -> None:
        """The verdict is the model's, and the model follows."""
        if not job.pending:
            assert decision.granted == (change is Change.CANCEL and job.status is Status.CANCELLED)
            return
        assert decision.granted
        if change is Change.CANCEL:
            job.status = Status.CANCELLED
            self.counts["cancelled"] += 1
        elif change is Change.RESCHEDULE:
            assert due_ms is not None
            job.due_ms = due_ms
            self.counts["rescheduled"] += 1
        elif job.due_ms > self.now:
            job.due_ms = self.now
            self.counts["rescheduled"] += 1

    def decided(self, job: Known, memory: Memory) -> None:
        """The owner's memory follows its own decision."""
        memory.held.pop(job.key, None)
        if job.pending and job.due_ms < memory.line_ms:
            record = self.run(self.store.get(job.key))
            assert record is not None
            memory.held[job.key] = record.job

    def give_up(self, change_request: "asyncio.Task[Decision]") -> None:
        self.clock.advance(20_000)
        self.spin()
        self.clock.advance(100)
        try:
            self.run(self.decision(change_request))
        except Unavailable:
            return
        raise AssertionError("nobody answered, and yet there was a verdict")

    async def decision(self, change_request: "asyncio.Task[Decision]") -> Decision:
        return await asyncio.wait_for(change_request, 5)

    def spin(self) -> None:
        async def rounds() -> None:
            for _ in range(20):
                await asyncio.sleep(0)

        self.run(rounds())

    # The node

    @initialize(number=st.integers(0, SHARDS - 1))
    def begin(self, number: int) -> None:
        self.own(number)

    @precondition(lambda self: len(self.memory) < SHARDS)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        self.own(data.draw(st.sampled_from([n for n in range(SHARDS) if n not in self.memory])))

    def own(self, number: int) -> None:
        info = self.shard_row(number)
        claim = Claim(shard=Shard(APP, number), seen=info.owner, dead=True)
        (grant,) = self.run(self.node.take([claim]))
        assert grant.unclean == (not info.released)
        cursor = start_of(min(grant.low_ms, grant.line_ms))
        self.memory[number] = Memory(grant.owner, grant.line_ms, grant.low_ms, [cursor] * 3, {})

    def draw(self, data: st.DataObject) -> tuple[int, Memory]:
        """One of the shards that are owned."""
        number = data.draw(st.sampled_from(sorted(self.memory)))
        return number, self.memory[number]

    @precondition(lambda self: self.memory)
    @rule(data=st.data(), crashes=st.booleans())
    def give_shard_up(self, data: st.DataObject, crashes: bool) -> None:
        number, memory = self.draw(data)
        del self.memory[number]
        if not crashes:
            shard = Shard(APP, number)
            self.run(self.node.release({shard: memory.owner}, {shard: memory.safe_low(self.now)}, {}))

    @precondition(lambda self: self.memory)
    @rule(data=st.data(), lead=leads)
    def advance(self, data: st.DataObject, lead: int) -> None:
        number, memory = self.draw(data)
        line_ms = max(memory.line_ms, self.now + lead)
        low_ms = memory.safe_low(self.now)
        step = Step(shard=Shard(APP, number), owner=memory.owner, line_ms=line_ms, low_ms=low_ms)
        assert not self.run(self.node.advance([step]))
        memory.line_ms, memory.low_ms = line_ms, low_ms

    @precondition(lambda self: self.memory)
    @rule(data=st.data(), priority=st.sampled_from([None, None, *Priority]), limit=st.integers(1, 9))
    def scan(self, data: st.DataObject, priority: Priority | None, limit: int) -> None:
        number, memory = self.draw(data)
        wanted = range(3) if priority is None else [priority]
        start = min(memory.cursors[p] for p in wanted)
        end = start_of(memory.line_ms)
        if start >= end:
            return
        page = self.run(
            self.node.scan(
                Scan(
                    app=APP,
                    shards=frozenset({number}),
                    start=start,
                    end=end,
                    priority=priority,
                    limit=limit,
                    room=8 << 20,
                )
            )
        )
        assert page.next is None or start < page.next
        for job in page.jobs:
            assert start <= job.position < (page.next or end)
            known = memory.held.setdefault(job.key, job)
            assert known == job, "held as it was, and as the store has it"
        for p in wanted:
            memory.cursors[p] = max(memory.cursors[p], page.next or end)

    @precondition(lambda self: self.memory)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        number, _ = self.draw(data)
        self.decide(number, self.requests(number))
        assert not self.requests(number)

    def decide(self, number: int, requests: list[Request], handed_over: list[bytes] | None = None) -> None:
        """Wakes go onto the wheel; changes are those of the rule that asked."""
        memory = self.memory[number]
        shard = Shard(APP, number)
        answers = self.run(self.node.answer({shard: memory.owner}, requests, handed_over or [], 8 << 20))
        assert not answers.lost
        memory.low_ms = answers.low_ms[shard]
        changed = {decision.request.keys[0] for decision in answers.decisions}
        for job in answers.woken:
            assert job.due_ms < memory.line_ms
            if job.key not in changed:
                assert memory.held.setdefault(job.key, job) == job

    @precondition(lambda self: any(job.due_ms <= self.now for m in self.memory.values() for job in m.held.values()))
    @rule(
        status=st.sampled_from([Status.DONE, Status.FAILED, Status.EXPIRED, Status.PENDING]),
        delay=delays,
        data=st.data(),
    )
    def settle(self, status: Status, delay: int, data: st.DataObject) -> None:
        number, memory = self.draw(data)
        due = sorted(key for key, job in memory.held.items() if job.due_ms <= self.now)
        if not due:
            return
        chosen = data.draw(st.lists(st.sampled_from(due), min_size=1, max_size=3, unique=True))
        again_ms = self.now + delay
        settlements = [
            Settlement(
                job=memory.held.pop(key),
                status=status,
                started_ms=self.now,
                finished_ms=self.now,
                due_ms=again_ms,
                error=None if status is Status.DONE else "no",
            )
            for key in chosen
        ]
        settled = self.run(self.node.settle({Shard(APP, number): memory.owner}, settlements))
        assert not settled.lost | settled.missed
        for s in settlements:
            job = self.jobs[s.job.key]
            job.status = status
            self.counts["retried" if status is Status.PENDING else status.value] += 1
            if status is Status.PENDING:
                job.due_ms, job.attempt = again_ms, job.attempt + 1
                if again_ms < memory.line_ms:
                    memory.held[job.key] = msgspec.structs.replace(s.job, due_ms=again_ms, attempt=job.attempt)
        memory.low_ms = settled.low_ms.get(Shard(APP, number), memory.low_ms)

    @rule(ms=st.sampled_from([1, 2, 3, 5, 9]))
    def time_passes(self, ms: int) -> None:
        self.clock.advance(ms)

    # What always holds

    def shard_row(self, number: int) -> Any:
        view = self.run(self.node.beat(renew=False))
        return next(info for info in view.shards if info.shard.number == number)

    def line(self, number: int) -> int:
        return int(self.shard_row(number).line_ms)

    def released(self, number: int) -> bool:
        return bool(self.shard_row(number).released)

    def requests(self, number: int) -> list[Request]:
        return list(self.run(self.node.requests([Shard(APP, number)], poked=True, limit=1000)))

    @invariant()
    def a_scan_of_everything_finds_each_pending_job_once_where_it_is_due(self) -> None:
        scan = Scan(
            app=APP, shards=frozenset(range(SHARDS)), start=start_of(0), end=start_of(END_MS), limit=4, room=8 << 20
        )
        found: list[Job] = []
        while True:
            page = self.run(self.node.scan(scan))
            found += page.jobs
            if page.next is None:
                break
            scan = msgspec.structs.replace(scan, start=page.next)
        expected = sorted((job.place, job.key, job.attempt) for job in self.jobs.values() if job.pending)
        assert [(job.position, job.key, job.attempt) for job in found] == expected

    @invariant()
    def an_owner_holds_or_will_meet_every_pending_job_before_its_line(self) -> None:
        for number, memory in self.memory.items():
            named = {key for q in self.requests(number) if q.change is None for key in q.keys}
            pending = {job.key: job for job in self.jobs.values() if job.shard == number and job.pending}
            for key, held in memory.held.items():
                assert key in pending, "what is settled is not held"
                assert (held.due_ms, held.attempt) == (pending[key].due_ms, pending[key].attempt)
            for key, job in pending.items():
                if job.due_ms < memory.line_ms:
                    assert key in memory.held or job.place >= memory.cursors[job.priority] or key in named

    @invariant()
    def the_next_owner_will_meet_every_pending_job(self) -> None:
        for number in range(SHARDS):
            info = self.shard_row(number)
            named = {key for q in self.requests(number) if q.change is None for key in q.keys}
            for job in self.jobs.values():
                if job.shard == number and job.pending:
                    assert job.due_ms >= info.low_ms or job.key in named

    @invariant()
    def rows_and_counts_are_those_of_the_model(self) -> None:
        for job in self.jobs.values():
            record = self.run(self.store.get(job.key))
            assert record is not None
            assert (record.status, record.job.due_ms, record.job.attempt) == (job.status, job.due_ms, job.attempt)
        counts = self.run(self.store.survey()).counts.get(APP, {})
        assert {what: n for what, n in counts.items() if n} == {what: n for what, n in self.counts.items() if n}

    @invariant()
    def what_waits_is_counted_and_listed(self) -> None:
        pending = sorted((job.place, job.key, job.due_ms) for job in self.jobs.values() if job.pending)
        waiting = self.run(self.store.ledger().waiting()).get(APP, {})
        assert waiting == Counter(due_ms // DAY_MS * DAY_MS for _, _, due_ms in pending)
        found = self.run(self.store.find(Query(app=APP, status=Status.PENDING, limit=len(pending) + 1)))
        assert [record.job.key for record in found.records] == [key for _, key, _ in pending]


TestStoreModel = StoreMachine.TestCase
TestStoreModel.settings = settings(
    stateful_step_count=50,
    max_examples=2_000 if os.environ.get("INFINITE_SCHEDULER_SOAK") else settings().max_examples,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
