"""A job that ends its process is found by narrowing down; innocent ones lose time only."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from infinite_scheduler.clock import sleep
from infinite_scheduler.model import Accepted, Change, Job, Status
from infinite_scheduler.observe import events
from tests.unit.engine_rig import Node, Rig, rig

POISON = "poison"


class Lives:
    """One node after the other: each lives until a poison job ends its process."""

    def __init__(
        self, world: Rig, *, batch: int | None = None, slow_ms: int = 0, others: Sequence[str] = (), **options: Any
    ) -> None:
        self.world = world
        self.deaths = 0
        self.nodes: list[Node] = []
        self._batch = batch
        self._slow_ms = slow_ms
        self._others = others
        self._options = options
        self._dead = False

    async def begin(self) -> Node:
        """The next process."""
        self._dead = False
        node = self.world.node(f"n{len(self.nodes)}")
        self.nodes.append(node)
        handler: Callable[[Any], Awaitable[None]] = self._take_many(node) if self._batch else self._take(node)
        node.app(function=handler, batch=self._batch, **self._options)
        for other in self._others:
            node.app(other)
        return await node.start()

    def _take(self, node: Node) -> Callable[[Job], Awaitable[None]]:
        async def take(job: Job) -> None:
            await asyncio.sleep(0)
            if job.job_name == POISON:
                await self._die(node)
            await sleep(self.world.clock, self._slow_ms)

        return take

    def _take_many(self, node: Node) -> Callable[[list[Job]], Awaitable[None]]:
        async def take(jobs: list[Job]) -> None:
            if any(job.job_name == POISON for job in jobs):
                await self._die(node)

        return take

    async def _die(self, node: Node) -> None:
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
        return self._dead or not any(t.held or t.out for t in self.nodes[-1].tenures)

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
        assert not any(t.suspects for t in second.tenures)
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


async def suspect(world: Rig, deaths: int, *, name: str = POISON) -> Accepted:
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
            while not (hasattr(node, "engine") and any(accepted.key in t.held for t in node.tenures)):  # noqa: ASYNC110
                await asyncio.sleep(0)
            for tenure in node.tenures:
                tenure.draining = True
            await starting
            await (node.crash() if n == 3 else node.stop())
        assert len(world.deliveries) == 3
        await world.node("last").app().start()
        await world.advance(10_000)
        assert (await world.record(accepted)).status is Status.DONE
