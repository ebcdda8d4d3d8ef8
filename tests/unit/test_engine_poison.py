"""A job that ends its process is found by narrowing down; innocent ones lose time only."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from infinite_scheduler.clock import sleep
from infinite_scheduler.engine.quarantine import ALONE, FEW, LONGEST_SHUT_MS, MANY, WATCH_MS
from infinite_scheduler.errors import StoreUnavailable
from infinite_scheduler.model import Accepted, Change, Job, Shard, Status
from infinite_scheduler.observe import events
from tests.unit.engine_rig import APP, EngineNode, EngineRig, rig, set_back_once

POISON = "poison"


class Lives:
    """One node after the other: each lives until a poison job ends its process."""

    def __init__(
        self,
        world: EngineRig,
        *,
        batch: int | None = None,
        slow_ms: int = 0,
        dies_after_ms: int = 0,
        others: Sequence[str] = (),
        **options: Any,
    ) -> None:
        self.world = world
        self.deaths = 0
        self.nodes: list[EngineNode] = []
        self._batch = batch
        self._slow_ms = slow_ms
        self._dies_after_ms = dies_after_ms
        self._others = others
        self._options = options
        self._dead = False

    async def begin(self) -> EngineNode:
        """The next process."""
        self._dead = False
        node = self.world.node(f"n{len(self.nodes)}")
        self.nodes.append(node)
        handler: Callable[[Any], Awaitable[None]] = self._take_many(node) if self._batch else self._take(node)
        node.app(function=handler, batch=self._batch, **self._options)
        for other in self._others:
            node.app(other)
        return await node.start()

    def _take(self, node: EngineNode) -> Callable[[Job], Awaitable[None]]:
        async def take(job: Job) -> None:
            await asyncio.sleep(0)
            if job.job_name == POISON:
                await sleep(self.world.clock, self._dies_after_ms)
                await self._die(node)
            await sleep(self.world.clock, self._slow_ms)

        return take

    def _take_many(self, node: EngineNode) -> Callable[[list[Job]], Awaitable[None]]:
        async def take(jobs: list[Job]) -> None:
            if any(job.job_name == POISON for job in jobs):
                await self._die(node)

        return take

    async def _die(self, node: EngineNode) -> None:
        """The process ends in the middle of its work: from this very moment on it writes nothing."""
        node.wire.away = True
        node.engine._gate.held_shut = True
        self._dead = True
        await asyncio.Event().wait()

    async def until_settled(self, *, most: int) -> None:
        """Live and die until no job waits."""
        node = await self.begin()
        while await self.world.pending():
            await self.world.until(self._news, 120_000)
            if self._dead:
                self.deaths += 1
                assert self.deaths <= most, "too many processes ended"
                await node.crash()
                node = await self.begin()
            else:
                await self.world.advance(100)

    def _news(self) -> bool:
        """The process has ended, or its work."""
        return self._dead or not any(t.held or t.handed_over for t in self.nodes[-1].owned_shards)

    async def check(self, poison: list[Accepted], innocent: list[Accepted]) -> None:
        """Poison ends as failed and says why, all others are done, and a crash changed no delivery id."""
        assert await self.world.statuses(poison) == {Status.FAILED: len(poison)}
        assert (await self.world.statuses(innocent))[Status.DONE] == len(innocent)
        for a in poison:
            assert "ended its process" in ((await self.world.record(a)).error or "")
        assert {d.job.attempt for d in self.world.deliveries} == {1}


@pytest.mark.parametrize("innocents", [0, 1, 40, 2500])
async def test_a_poison_job_ends_failed_after_at_most_four_deaths_and_the_innocent_are_done(innocents: int) -> None:
    async with rig() as world:
        innocent = await world.add(*[1000] * innocents)
        poison = await world.add(1000, job_name=POISON)
        innocent += await world.add(*[1000] * innocents)
        lives = Lives(world, concurrency=50)
        await lives.until_settled(most=4)
        await lives.check(poison, innocent)
        assert lives.deaths == 4


async def test_a_poison_job_in_a_batch_is_found_too() -> None:
    async with rig() as world:
        innocent = await world.add(*[1000] * 300)
        poison = await world.add(1000, job_name=POISON)
        lives = Lives(world, batch=50)
        await lives.until_settled(most=4)
        await lives.check(poison, innocent)


async def test_two_poison_jobs_end_at_most_four_processes_each() -> None:
    async with rig() as world:
        innocent = await world.add(*[1000] * 200)
        poison = await world.add(1000, job_name=POISON)
        poison += await world.add(1500, job_name=POISON)
        lives = Lives(world)
        await lives.until_settled(most=8)
        await lives.check(poison, innocent)


async def test_new_jobs_that_kill_while_others_are_tried_alone_charge_nobody_else() -> None:
    async with rig() as world:
        innocent = await world.add(*[1000] * 40)
        poison = await world.add(1000, job_name=POISON)
        for n in range(6):
            poison += await world.add(1005 + 3 * n, job_name=POISON)
            innocent += await world.add(1005 + 3 * n, 1006 + 3 * n)
        lives = Lives(world, slow_ms=7, concurrency=5)
        await lives.until_settled(most=4 * len(poison))
        await lives.check(poison, innocent)


async def test_jobs_of_other_apps_go_on_while_suspects_are_tried() -> None:
    async with rig() as world:
        await world.client.register("sms", 4)
        innocent = await world.add(*[1000] * 40)
        poison = await world.add(1000, job_name=POISON)
        lives = Lives(world, others=("sms",))
        sms = await world.add(*range(900, 20_000, 10), app="sms")
        await lives.until_settled(most=4)
        await lives.check(poison, innocent)
        assert await world.statuses(sms, "sms") == {Status.DONE: len(sms)}
        assert max(d.at_ms - d.job.due_ms for d in world.deliveries if d.job.app == "sms") < 5000


async def test_a_crash_repeats_the_delivery_under_the_same_id() -> None:
    async with rig() as world:

        async def hang(job: Job) -> None:
            await asyncio.Event().wait()

        first = await world.node("n1").app(function=hang).start()
        (accepted,) = await world.add(1000)
        await world.advance(2000)
        await first.crash()
        await world.node("n2").app().start()
        await world.advance(2000)
        assert [(d.node, d.job.id, d.job.attempt) for d in world.deliveries] == [
            ("n1", accepted.id, 1),
            ("n2", accepted.id, 1),
        ]
        record = await world.record(accepted)
        assert (record.status, record.job.attempt) == (Status.DONE, 1)


async def test_a_clean_stop_makes_nobody_a_suspect() -> None:
    async with rig() as world:
        first = await world.node("n1").app().start()
        await world.add(*range(1000, 5000, 10))
        await world.advance(2000)
        await first.stop()
        second = await world.node("n2").app().start()
        await world.advance(10_000)
        assert sum(e.unclean for e in second.told_of(events.ShardsTaken)) == 0
        assert not any(t.suspects for t in second.owned_shards)
        assert set(world.times().values()) == {1}


async def test_a_job_that_becomes_due_after_the_takeover_is_no_suspect() -> None:
    async with rig() as world:
        first = await world.node("n1").app().start()
        await world.add(1000)
        await world.advance(500)
        await first.crash()
        second = await world.node("n2").app().start()
        await world.advance(5000)
        assert not second.told_of(events.SuspectsFound)
        assert world.deliveries[0].at_ms == world.deliveries[0].job.due_ms


async def suspect(world: EngineRig, deaths: int, *, name: str = POISON) -> Accepted:
    """A job that was in flight when so many processes ended."""
    (accepted,) = await world.add(1000, job_name=name)
    for n in range(deaths):

        async def hang(job: Job) -> None:
            await asyncio.Event().wait()

        node = await world.node(f"dead{n}").app(function=hang).start()
        await world.until(lambda n=n: len(world.deliveries) == n + 1)  # type: ignore[misc]
        await node.crash()
    return accepted


async def test_a_suspect_can_be_cancelled_before_it_is_tried() -> None:
    async with rig() as world:
        accepted = await suspect(world, 2)
        await world.client.pause("mail", paused=True)
        await world.node("n").app().start()
        await world.advance(1000)
        assert (await world.run(world.change(Change.CANCEL, accepted))).granted
        await world.client.pause("mail", paused=False)
        await world.advance(10_000)
        assert len(world.deliveries) == 2


@pytest.mark.parametrize("deaths", [1, 2, 3])
async def test_a_suspect_of_a_paused_app_waits(deaths: int) -> None:
    async with rig() as world:
        accepted = await suspect(world, deaths)
        await world.client.pause("mail", paused=True)
        await world.node("n").app().start()
        await world.advance(10_000)
        assert len(world.deliveries) == deaths
        await world.client.pause("mail", paused=False)
        await world.advance(5000)
        assert len(world.deliveries) == deaths + 1
        assert (await world.record(accepted)).status is Status.DONE


@pytest.mark.parametrize("deaths", [1, 2, 3])
async def test_suspects_of_a_paused_app_do_not_hold_up_those_of_others(deaths: int) -> None:
    async with rig() as world:
        await suspect(world, deaths)
        await world.client.register("sms", world.shards)
        await world.client.pause("mail", paused=True)

        async def hang(job: Job) -> None:
            await asyncio.Event().wait()

        node = await world.node("x").app().app("sms", hang).start()
        (other,) = await world.add(100, app="sms")
        await world.advance(1000)
        await node.crash()
        await world.node("y").app().app("sms").start()
        await world.advance(10_000)
        assert (await world.record(other, "sms")).status is Status.DONE


@pytest.mark.parametrize("deaths", [1, 2, 3])
async def test_a_suspect_is_never_early_when_the_wall_clock_steps_back(deaths: int) -> None:
    async with rig() as world:
        await suspect(world, deaths)
        gate = asyncio.Event()

        async def block(job: Job) -> None:
            if job.app == "sms":
                await gate.wait()

        await world.client.register("sms", world.shards)
        (_,) = await world.add(0, app="sms")
        await world.client.pause("mail", paused=True)
        await world.node("n").app(function=block).app("sms", block).start()
        await world.advance(1000)
        world.clock.step_wall(-30_000)
        await world.client.pause("mail", paused=False)
        gate.set()
        await world.advance(40_000)
        assert world.times().most_common(1)[0][1] == deaths + 1


@pytest.mark.parametrize("deaths", [1, 2, 3])
async def test_a_suspect_that_is_early_at_the_last_look_waits_and_is_not_charged(
    deaths: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig() as world:
        accepted = await suspect(world, deaths)
        set_back_once(world, 30_000, monkeypatch)
        node = await world.node("n").app().start()
        await world.until(lambda: any(isinstance(event, events.Early) for event in node.told))
        assert len(world.deliveries) == deaths
        await world.advance(60_000)
        assert world.times() == {accepted.key: deaths + 1}
        assert (await world.record(accepted)).status is Status.DONE


async def test_a_suspect_is_found_again_after_the_store_was_away() -> None:
    async with rig() as world:
        accepted = await suspect(world, 3)
        node = world.node("n").app()
        await node.start()
        node.wire.loses_answers = True
        await world.advance(300)
        node.wire.loses_answers = False
        await world.advance(20_000)
        assert (await world.record(accepted)).status is Status.DONE
        assert len(world.deliveries) == 4


async def test_a_suspect_that_never_got_to_fire_is_not_charged() -> None:
    async with rig() as world:
        accepted = await suspect(world, 3)
        for n in range(6):
            node = world.node(f"m{n}").app()
            starting = asyncio.ensure_future(node.start())
            while not (hasattr(node, "engine") and any(accepted.key in t.held for t in node.owned_shards)):  # noqa: ASYNC110
                await asyncio.sleep(0)
            for owned in node.owned_shards:
                owned.draining = True
            await starting
            await (node.crash() if n == 3 else node.stop())
        assert len(world.deliveries) == 3
        await world.node("last").app().start()
        await world.advance(10_000)
        assert (await world.record(accepted)).status is Status.DONE


class CancelsOnce(list[events.Event]):
    """Cancels a job that is handed over alone before its task has begun, as a handler of another app could."""

    cancelled = 0

    def append(self, event: events.Event) -> None:
        super().append(event)
        if isinstance(event, events.SuspectsFound) and event.batch == ALONE and not self.cancelled:
            self.cancelled = sum(task.cancel() for task in asyncio.all_tasks() if task.get_name() == APP)


async def test_a_suspect_whose_task_is_cancelled_before_its_first_step_is_handed_over_alone_again() -> None:
    async with rig() as world:
        accepted = await suspect(world, 3)
        before = len(world.deliveries)
        node = world.node("last").app()
        node.told = told = CancelsOnce()
        await node.start()
        await world.advance(10_000)
        assert told.cancelled == 1
        assert [e.batch for e in node.told_of(events.SuspectsFound)] == [ALONE] * 2
        assert (await world.record(accepted)).status is Status.DONE
        assert len(world.deliveries) == before + 1


async def hang(job: Job) -> None:
    """A handler that never ends."""
    await asyncio.Event().wait()


def hang_on(*names: str) -> Callable[[Job], Awaitable[None]]:
    """A handler that never ends for jobs of these names, and is done with others at once."""

    async def take(job: Job) -> None:
        if job.job_name in names:
            await hang(job)

    return take


async def die_hanging(world: EngineRig, times: int, **options: Any) -> None:
    """So many processes end, each with all the jobs in flight that it can have."""
    for n in range(times):
        node = await world.node(f"hanging{n}").app(function=hang, **options).start()
        await world.advance(3000)
        await node.crash()


async def marks(world: EngineRig) -> Counter[int]:
    """How many jobs of the app have which mark in the store."""
    session = world.database.session("marks")
    found = await session.read(lambda tx: tx.read_marks({Shard("mail", n) for n in range(world.shards)}))
    return Counter(size for some in found.values() for size in some.values())


async def alone(world: EngineRig, *names: str) -> list[Accepted]:
    """Jobs that must be fired alone: each was one of a few in flight when a process ended."""
    accepted = [(await world.add(1000, job_name=name))[0] for name in names]
    await die_hanging(world, 3)
    assert await marks(world) == {FEW: len(names)}
    return accepted


def meddle_with_marks(node: EngineNode, how: Callable[..., Awaitable[Any]]) -> None:
    """Let `how(real, jobs, size)` stand in for the write of marks."""
    quarantine: Any = node.engine._quarantine
    real = quarantine._mark
    quarantine._mark = lambda jobs, size: how(real, jobs, size)


async def beside_a_paused_suspect(world: EngineRig) -> tuple[EngineNode, list[Accepted]]:
    """A node that has a suspect, which waits as its app is paused, and jobs of another app for the next minute."""
    await world.client.register("sms", world.shards)
    await world.client.pause("mail", paused=True)
    node = await world.node("n").app().app("sms").start()
    others = await world.add(*range(100, 60_000, 100), app="sms")
    await world.advance(5000)
    return node, others


@pytest.mark.parametrize(("deaths", "window", "hanging"), [(1, MANY, 1), (1, MANY, 900), (2, FEW, 1), (2, FEW, 27)])
async def test_suspects_that_hang_do_not_hold_up_the_other_suspects(deaths: int, window: int, hanging: int) -> None:
    async with rig() as world:
        slow = await world.add(*[1000] * hanging, job_name="slow")
        others = await world.add(*[1001] * (3 * window))
        await die_hanging(world, deaths, concurrency=1500)
        node = await world.node("n").app(function=hang_on("slow"), concurrency=1500).start()
        await world.advance(30_000)
        assert await world.statuses(slow) == {Status.PENDING: hanging}
        assert await world.statuses(others) == {Status.DONE: 3 * window}
        assert not node.told_of(events.PoisonFailed)


@pytest.mark.parametrize("deaths", [1, 2])
async def test_no_more_suspects_are_marked_than_their_window_has_room_for(deaths: int) -> None:
    async with rig() as world:
        await world.add(*[1000] * 2500)
        await die_hanging(world, deaths, concurrency=2000)
        await world.node("n").app(function=hang, concurrency=2000).start()
        await world.advance(30_000)
        assert await marks(world) == ({MANY: 1000} if deaths == 1 else {MANY: 1970, FEW: 30})


async def test_marks_are_written_for_many_suspects_at_once() -> None:
    async with rig() as world:
        await world.add(*[1000] * 500)
        await die_hanging(world, 1)

        async def take(job: Job) -> None:
            await sleep(world.clock, 2)

        await world.client.pause("mail", paused=True)
        node = await world.node("n").app(function=take, concurrency=1).start()
        marked = list[int]()

        async def count(real: Any, jobs: Sequence[Job], size: int) -> Any:
            marked.append(len(jobs))
            return await real(jobs, size)

        meddle_with_marks(node, count)
        await world.client.pause("mail", paused=False)
        await world.until(lambda: sum(marked) == 500)
        assert len(marked) <= 500 / 25


@pytest.mark.parametrize("deaths", [1, 2])
async def test_an_app_whose_suspects_hang_leaves_room_for_those_of_others(deaths: int) -> None:
    async with rig() as world:
        await world.client.register("sms", world.shards)
        await world.add(*[1000] * 1200)
        others = await world.add(*[1500] * 60, app="sms")
        for n in range(deaths):
            node = await world.node(f"dead{n}").app(function=hang, concurrency=1200).app("sms", hang).start()
            await world.advance(3000)
            await node.crash()
        await world.node("n").app(function=hang, concurrency=1200).app("sms").start()
        await world.advance(30_000)
        assert await world.statuses(others, "sms") == {Status.DONE: 60}


@pytest.mark.parametrize("deaths", [1, 2, 3])
async def test_suspects_are_kept_when_a_bug_interrupts_their_mark(deaths: int) -> None:
    async with rig() as world:
        world.alarms_expected = (events.TaskFailed,)
        (accepted,) = await world.add(1000)
        await die_hanging(world, deaths)
        await world.client.pause("mail", paused=True)
        node = await world.node("n").app().start()
        broken = iter([ZeroDivisionError("a bug")])

        async def mark(real: Any, *args: Any) -> Any:
            for error in broken:
                raise error
            return await real(*args)

        meddle_with_marks(node, mark)
        await world.client.pause("mail", paused=False)
        await world.advance(10_000)
        assert [e.part for e in node.told_of(events.TaskFailed)] == ["quarantine"]
        assert (await world.record(accepted)).status is Status.DONE


async def test_suspects_are_fired_alone_when_the_others_have_ended() -> None:
    async with rig() as world:
        await alone(world, "x")
        await world.client.register("sms", world.shards)
        await world.client.pause("mail", paused=True)
        await world.add(*[1000] * 300, app="sms")
        node = await world.node("y").app().app("sms", hang).start()
        await world.advance(3000)
        await node.crash()

        async def take(job: Job) -> None:
            await sleep(world.clock, 200)

        await world.node("n").app().app("sms", take).start()
        await world.client.pause("mail", paused=False)
        await world.advance(10_000)
        fired = [d.job.app for d in world.deliveries if d.node == "n"]
        assert fired == ["sms"] * 300 + ["mail"]


async def test_suspects_are_alone_one_after_the_other_without_a_rest_when_nobody_else_waits() -> None:
    async with rig() as world:
        suspected = await alone(world, *"abcdefgh")
        later = await world.add(*range(100_000, 200_000, 1000))

        async def take(job: Job) -> None:
            await sleep(world.clock, 1000)

        await world.node("n").app(function=take).start()
        await world.advance(20_000)
        assert await world.statuses(suspected) == {Status.DONE: 8}
        assert await world.statuses(later) == {Status.PENDING: len(later)}


async def test_a_suspect_that_hangs_alone_stops_the_others_for_one_watch_only() -> None:
    async with rig() as world:
        (suspected,) = await alone(world, "hang")
        node = await world.node("n").app(function=hang_on("hang")).start()
        await world.until(lambda: world.deliveries[-1].node == "n")
        began_ms = world.now
        others = await world.add(*range(100, 30_000, 1000))
        await world.advance(WATCH_MS - 1000)
        assert await marks(world) == {ALONE: 1}
        assert world.deliveries[-1].job.key == suspected.key, "it is alone"
        await world.advance(2000)
        assert await marks(world) == {ALONE - 1: 1}
        assert await world.statuses(others) == {Status.DONE: len(others)}
        assert world.deliveries[-1].at_ms < began_ms + WATCH_MS + 1000
        late = await world.add(*range(0, 60_000, 500))
        await world.advance(61_000)
        assert max(d.at_ms - d.job.due_ms for d in world.deliveries[-len(late) :]) < 200, "the gate stays open"
        assert not node.told_of(events.PoisonFailed)


async def test_the_others_wait_until_it_is_durable_that_a_suspect_has_outlived_its_watch() -> None:
    async with rig() as world:
        await alone(world, "hang")
        node = await world.node("n").app(function=hang_on("hang")).start()
        await world.until(lambda: world.deliveries[-1].node == "n")
        others = await world.spread(range(100, 1000, 100))
        await world.advance(WATCH_MS - 1000)
        node.wire.loses_answers = True
        count = len(world.deliveries)
        await world.advance(6000)
        assert len(world.deliveries) == count
        node.wire.loses_answers = False
        await world.advance(6000)
        assert await world.statuses(others) == {Status.DONE: len(others)}
        assert await marks(world) == {ALONE - 1: 1}


@pytest.mark.parametrize("unanswered", [ALONE, FEW])
async def test_the_others_wait_until_it_is_known_that_a_suspect_has_no_mark_that_charges_it(unanswered: int) -> None:
    async with rig() as world:
        (suspected,) = await alone(world, "x")
        node, others = await beside_a_paused_suspect(world)
        ownership: Any = node.engine._ownership
        reload = ownership.reload
        lost = False

        async def mark(real: Any, jobs: Sequence[Job], size: int) -> Any:
            nonlocal lost
            node.wire.loses_answers = lost = size == unanswered
            try:
                return await real(jobs, size)
            finally:
                node.wire.loses_answers = False
                node.engine.dispatchers["mail"].paused = size == ALONE

        async def never(*args: Any) -> Any:
            raise StoreUnavailable("the store does not answer")

        meddle_with_marks(node, mark)
        ownership.reload = never
        await world.client.pause("mail", paused=False)
        await world.until(lambda: lost)
        delivered = len(world.deliveries)
        await world.advance(3000)
        assert len(world.deliveries) == delivered
        ownership.reload = reload
        node.engine._quarantine._mark = node.engine._mark
        await world.advance(60_000)
        assert (await world.record(suspected)).status is Status.DONE
        assert await world.statuses(others, "sms") == {Status.DONE: len(others)}


@pytest.mark.parametrize("watches", [0, 1])
async def test_a_suspect_that_is_not_fired_gets_back_the_mark_that_it_had(watches: int) -> None:
    async with rig() as world:
        (suspected,) = await alone(world, "hang")
        for n in range(watches):
            node = await world.node(f"watching{n}").app(function=hang_on("hang")).start()
            await world.advance(WATCH_MS + 5000)
            await node.crash()
        before = await marks(world)
        assert before == {ALONE - 1 if watches else FEW: 1}
        node, _ = await beside_a_paused_suspect(world)
        seen = list[Counter[int]]()

        async def mark(real: Any, jobs: Sequence[Job], size: int) -> Any:
            result = await real(jobs, size)
            node.engine.dispatchers["mail"].paused = True
            seen.append(await marks(world))
            return result

        meddle_with_marks(node, mark)
        await world.client.pause("mail", paused=False)
        await world.until(lambda: len(seen) == 2)
        assert seen == [{ALONE: 1}, before]
        node.engine._quarantine._mark = node.engine._mark
        await world.advance(10_000)
        assert (await world.record(suspected)).status is Status.DONE


async def test_a_suspect_that_outlived_its_watch_is_not_charged_but_watched_for_longer() -> None:
    async with rig() as world:
        (suspected,) = await alone(world, "hang")
        for outlived in range(4):
            node = await world.node(f"n{outlived}").app(function=hang_on("hang")).start()
            await world.until(lambda node=node: world.deliveries[-1].node == node.name)  # type: ignore[misc]
            began_ms = world.now
            (other,) = await world.add(100)
            await world.until(lambda other=other: world.deliveries[-1].job.key == other.key, 600_000)  # type: ignore[misc]
            assert WATCH_MS << outlived <= world.now - began_ms < (WATCH_MS << outlived) + 1000
            assert await marks(world) == {ALONE - 1 - outlived: 1}
            await world.advance(1000)
            await node.crash()
        last = await world.node("last").app().start()
        await world.advance(5000)
        assert (await world.record(suspected)).status is Status.DONE
        assert not await marks(world)
        assert not last.told_of(events.PoisonFailed)


@pytest.mark.parametrize(("after_ms", "deaths"), [(WATCH_MS - 1000, 4), (WATCH_MS + 1000, 5), (3 * WATCH_MS, 6)])
async def test_a_job_that_ends_its_process_late_costs_one_more_death_each_time_its_watch_doubles(
    after_ms: int, deaths: int
) -> None:
    async with rig() as world:
        innocent = await world.add(*[1000] * 50)
        poison = await world.add(1000, job_name=POISON)
        lives = Lives(world, dies_after_ms=after_ms)
        await lives.until_settled(most=deaths)
        await lives.check(poison, innocent)
        assert lives.deaths == deaths


async def test_a_suspect_that_outlived_its_watch_leaves_no_mark_when_it_ends() -> None:
    async with rig() as world:
        ended = asyncio.Event()
        (suspected,) = await alone(world, "long")

        async def take(job: Job) -> None:
            if job.job_name == "long":
                await ended.wait()

        await world.node("n").app(function=take).start()
        await world.advance(WATCH_MS + 5000)
        assert await marks(world) == {ALONE - 1: 1}
        ended.set()
        await world.advance(1000)
        assert not await marks(world)
        assert (await world.record(suspected)).status is Status.DONE


async def test_a_suspect_waits_to_be_alone_for_a_while_only_and_again_when_the_long_job_has_ended() -> None:
    async with rig() as world:
        (suspected,) = await alone(world, "x")
        await world.client.pause("mail", paused=True)
        ended = asyncio.Event()

        async def take(job: Job) -> None:
            if job.job_name == "long":
                await ended.wait()

        await world.client.register("sms", world.shards)
        node = await world.node("n").app().app("sms", take).start()
        await world.add(0, app="sms", job_name="long")
        await world.advance(1000)
        await world.client.pause("mail", paused=False)
        others = await world.add(*range(0, 200_000, 500), app="sms")
        await world.advance(200_000)
        lateness = [d.at_ms - d.job.due_ms for d in world.deliveries if d.job.app == "sms" and d.job.job_name != "long"]
        assert len(lateness) == len(others)
        assert max(lateness) <= LONGEST_SHUT_MS + 200
        assert sum(late > 200 for late in lateness) <= LONGEST_SHUT_MS / 500 + 1, "once: no use to try again"
        assert (await world.record(suspected)).status is Status.PENDING
        assert not node.engine._gate.held_shut
        ended.set()
        await world.advance(5000)
        assert (await world.record(suspected)).status is Status.DONE


async def test_a_suspect_gets_its_turn_among_jobs_that_all_take_long() -> None:
    async with rig() as world:
        (suspected,) = await alone(world, "x")

        async def take(job: Job) -> None:
            await sleep(world.clock, 25_000)

        await world.client.register("sms", world.shards)
        await world.client.pause("mail", paused=True)
        await world.node("n").app().app("sms", take, concurrency=50).start()
        await world.add(*range(0, 300_000, 1000), app="sms")
        await world.advance(25_000)
        await world.client.pause("mail", paused=False)
        await world.until(lambda: world.deliveries[-1].job.key == suspected.key, 200_000)
        await world.advance(1000)
        assert (await world.record(suspected)).status is Status.DONE


async def test_others_have_most_of_the_time_while_suspects_are_fired_one_by_one() -> None:
    async with rig() as world:
        suspects = await alone(world, *"abcdefghij")

        async def take(job: Job) -> None:
            await sleep(world.clock, 2000 if job.job_name else 0)

        await world.node("n").app(function=take).start()
        others = await world.add(*range(100, 50_000, 100))
        await world.advance(60_000)
        assert await world.statuses([*suspects, *others]) == {Status.DONE: 10 + len(others)}
        lateness = [d.at_ms - d.job.due_ms for d in world.deliveries if not d.job.job_name]
        assert sum(late < 50 for late in lateness) > 0.6 * len(lateness)
        assert max(lateness) < 3000


async def test_a_node_lifts_the_mark_of_a_job_that_was_not_fired_alone_when_it_releases_or_reloads_its_shard() -> None:
    async with rig() as world:
        node = await world.node().app().start()
        ownership: Any = node.engine._ownership
        lifted: list[tuple[str, Any]] = []
        release, reload = ownership.release, ownership.reload

        async def watched_release(*args: Any) -> Any:
            lifted.append(("release", args[-1]))
            return await release(*args)

        async def watched_reload(*args: Any) -> Any:
            lifted.append(("reload", args[-1]))
            return await reload(*args)

        ownership.release, ownership.reload = watched_release, watched_reload
        node.lane.doubt([owned.shard for owned in node.owned_shards], "a test")
        await world.advance(100)
        await node.stop()
        assert {name for name, _ in lifted} == {"release", "reload"}
        assert all(sizes == {ALONE: FEW} for _, sizes in lifted)


async def test_a_job_that_flies_alone_keeps_its_mark_when_its_shard_is_loaded_again() -> None:
    async with rig() as world:
        (suspected,) = await alone(world, "hang")
        node = await world.node("n").app(function=hang_on("hang")).start()
        await world.until(lambda: world.deliveries[-1].node == "n")
        node.lane.doubt([owned.shard for owned in node.owned_shards], "a test")
        await world.until(lambda: node.told_of(events.Reloaded))
        assert await marks(world) == {ALONE: 1}, "if the process ends now, this job has ended it"
        await node.crash()
        await world.node("next").app().start()
        await world.advance(1000)
        assert (await world.record(suspected)).status is Status.FAILED


async def test_a_marked_job_stays_a_suspect_when_its_shard_moves_by_plan() -> None:
    async with rig() as world:
        accepted = await suspect(world, 2)
        await world.client.pause("mail", paused=True)
        first = await world.node("n").app().start()
        await world.advance(1000)
        await first.stop()
        second = await world.node("m").app().start()
        await world.advance(1000)
        assert [key for owned in second.owned_shards for key in owned.quarantined] == [accepted.key]
