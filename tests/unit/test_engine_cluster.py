"""Two and more nodes on one store: who owns what, joining, leaving, dying."""

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from infinite_scheduler.clock import sleep
from infinite_scheduler.errors import SchedulerError, StoreBroken, StoreUnavailable
from infinite_scheduler.model import Accepted, Change, Job, Owner, Status
from infinite_scheduler.observe import events
from infinite_scheduler.store.cluster_state import View
from infinite_scheduler.store.ownership import Grant
from infinite_scheduler.store.sql.ownership import SqlOwnership
from infinite_scheduler.store.sql.statements import Statements
from tests.unit.engine_rig import EngineNode, EngineRig, rig


def shares(*nodes: EngineNode) -> list[int]:
    return [node.engine.shards_owned for node in nodes]


async def stream(world: EngineRig, ms: int, *, every_ms: int = 50) -> list[Accepted]:
    """Jobs that come in while time passes, some for now, some for later."""
    accepted: list[Accepted] = []
    for n in range(ms // every_ms):
        accepted += await world.add(n * 37 % 4000)
        await world.advance(every_ms)
    return accepted


async def once(world: EngineRig, accepted: list[Accepted]) -> None:
    assert await world.statuses(accepted) == {Status.DONE: len(accepted)}
    assert world.times() == Counter(a.key for a in accepted)


def slow(world: EngineRig, ms: int = 200) -> object:
    async def handle(job: Job) -> None:
        await sleep(world.clock, ms)

    return handle


async def test_nodes_share_fairly() -> None:
    async with rig(shards=16) as world:
        nodes = [await world.node("n1").app().start()]
        assert shares(*nodes) == [16]
        nodes.append(await world.node("n2").app().start())
        await world.advance(10_000)
        assert shares(*nodes) == [8, 8]
        nodes.append(await world.node("n3").app().start())
        await world.advance(10_000)
        assert sorted(shares(*nodes)) == [5, 5, 6]


async def test_nodes_that_start_together_share_fairly() -> None:
    async with rig(shards=16) as world:
        nodes = await asyncio.gather(*(world.node(f"n{n}").app().start() for n in range(4)))
        await world.advance(10_000)
        assert shares(*nodes) == [4, 4, 4, 4]


async def test_a_join_and_a_leave_duplicate_nothing_and_lose_nothing() -> None:
    async with rig(shards=8) as world:
        first = await world.node("n1").app(function=slow(world)).start()  # type: ignore[arg-type]
        accepted = await stream(world, 3000)
        second = await world.node("n2").app(function=slow(world)).start()  # type: ignore[arg-type]
        accepted += await stream(world, 10_000)
        assert shares(first, second) == [4, 4]
        assert {d.node for d in world.deliveries} == {"n1", "n2"}
        assert await first.stop()
        accepted += await stream(world, 5000)
        assert shares(second) == [8]
        await world.advance(10_000)
        await once(world, accepted)
        late = [d.at_ms - d.job.due_ms for d in world.deliveries]
        assert max(late) < 3000


async def test_a_rolling_restart_duplicates_nothing_and_loses_nothing() -> None:
    async with rig(shards=6) as world:
        nodes = [await world.node(f"n{n}").app(function=slow(world)).start() for n in range(3)]  # type: ignore[arg-type]
        accepted = await stream(world, 3000)
        for n, old in enumerate(list(nodes)):
            assert await old.stop()
            nodes[n] = await world.node(f"m{n}").app(function=slow(world)).start()  # type: ignore[arg-type]
            accepted += await stream(world, 4000)
        await world.advance(15_000)
        assert shares(*nodes) == [2, 2, 2]
        await once(world, accepted)


async def survivor(world: EngineRig, lived_ms: int) -> EngineNode:
    """A node that has taken over from another, which lived for so long and has been dead for longer than a lease."""
    first = await world.node("n1").app().start()
    second = await world.node("n2").app().start()
    await world.advance(lived_ms)
    await second.crash(proven=False)
    await world.advance(15_000)
    assert shares(first) == [4]
    return first


@pytest.mark.parametrize(("lived_ms", "within_ms"), [(5000, 2000), (1000, 6500)])
async def test_what_is_given_up_for_a_new_node_does_not_wait_for_one_that_died_long_ago(
    lived_ms: int, within_ms: int
) -> None:
    async with rig(shards=4) as world:
        first = await survivor(world, lived_ms)
        third = await world.node("n3").app().start()  # to which the second looks alive, for all that it knows
        await world.advance(within_ms)
        assert shares(first, third) == [2, 2]


async def test_a_node_that_died_long_ago_does_not_come_back_to_life_when_the_store_was_away() -> None:
    async with rig(shards=4) as world:
        first = await survivor(world, 5000)
        first.wire.away = True
        await world.advance(1500)
        first.wire.away = False
        await world.advance(3000)
        assert shares(first) == [4]


async def test_a_shard_that_left_and_came_back_leaves_again_without_waiting() -> None:
    async with rig(shards=4) as world:
        first = await world.node("n1").app().start()
        second = await world.node("n2").app().start()
        await world.advance(5000)
        assert shares(first, second) == [2, 2]
        assert await second.stop()
        await world.advance(5000)
        assert shares(first) == [4]
        third = await world.node("n3").app().start()
        await world.advance(5000)
        assert shares(first, third) == [2, 2]


async def test_retries_and_changes_during_moves_lose_and_double_nothing() -> None:
    async with rig(shards=4) as world:

        async def flaky(job: Job) -> None:
            await sleep(world.clock, 100)
            if job.attempt < 3:
                raise ValueError

        await world.node("n1").app(function=flaky).start()
        accepted: list[Accepted] = []
        moved: list[Accepted] = []
        for n in range(5):
            accepted += await stream(world, 1000)
            if n == 1:
                await world.node("n2").app(function=flaky).start()
            (a,) = await world.add(2000)
            assert (await world.run(world.change(Change.RESCHEDULE, a, due_ms=world.now + 6000))).granted
            moved.append(a)
        await world.advance(30_000)
        assert await world.statuses(accepted + moved) == {Status.DONE: len(accepted) + 5}
        times = Counter((d.job.key, d.job.attempt) for d in world.deliveries)
        assert set(times.values()) == {1}
        assert len(times) == 3 * (len(accepted) + 5)


async def test_a_death_that_is_proven_is_healed_at_once() -> None:
    async with rig(shards=4) as world:
        first = await world.node("n1").app().start()
        second = await world.node("n2").app().start()
        await world.advance(10_000)
        await first.crash(proven=True)
        await world.advance(2000)
        assert shares(second) == [4]


async def test_a_death_that_is_presumed_is_healed_when_two_heartbeats_are_missing() -> None:
    async with rig(shards=4) as world:
        first = await world.node("n1").app().start()
        second = await world.node("n2").app().start()
        await world.advance(10_000)
        await first.crash(proven=False)
        world.presumed_dead.add(first.nonce)
        await world.advance(1900)
        assert shares(second) == [2]
        await world.advance(2700)  # two heartbeats and a look after its last one
        assert shares(second) == [4]


async def test_a_node_that_is_presumed_dead_keeps_its_shards_as_long_as_its_heart_beats() -> None:
    async with rig(shards=4) as world:
        first = await world.node("n1").app(function=slow(world)).start()  # type: ignore[arg-type]
        second = await world.node("n2").app(function=slow(world)).start()  # type: ignore[arg-type]
        await world.advance(10_000)
        world.presumed_dead |= {first.nonce, second.nonce}
        accepted = await stream(world, 10_000)
        await world.advance(5000)
        assert shares(first, second) == [2, 2]
        assert not first.told_of(events.ShardsLost)
        assert not second.told_of(events.ShardsLost)
        await once(world, accepted)


async def test_a_silent_node_is_replaced_after_its_lease_and_not_before() -> None:
    async with rig(shards=4) as world:
        first = await world.node("n1").app().start()
        second = await world.node("n2").app().start()
        await world.advance(10_000)
        await first.crash(proven=False)
        await world.advance(8000)
        assert shares(second) == [2]
        await world.advance(7000)
        assert shares(second) == [4]


async def test_a_node_that_starts_after_a_death_does_not_delay_the_takeover() -> None:
    async with rig(shards=8) as world:
        first = await world.node("n1").app().start()
        second = await world.node("n2").app().start()
        await world.advance(10_000)
        assert shares(first, second) == [4, 4]
        await first.crash(proven=False)
        await world.advance(6000)
        third = await world.node("n3").app().start()  # which cannot know of the death for another 10 s
        await world.until(lambda: sum(shares(second, third)) == 8, within_ms=7000)
        await world.advance(10_000)
        assert shares(second, third) == [4, 4]


async def test_what_a_death_left_behind_is_worked_off_before_its_shards_move_on() -> None:
    async with rig(shards=8) as world:
        first = await world.node("n1").app(function=slow(world)).start()  # type: ignore[arg-type]
        second = await world.node("n2").app(function=slow(world)).start()  # type: ignore[arg-type]
        await world.advance(10_000)
        accepted = [job for n in range(40) for job in await world.spread([2000 + n] * 20)]
        await second.crash(proven=False)
        await world.advance(6000)
        third = await world.node("n3").app(function=slow(world)).start()  # type: ignore[arg-type]
        await world.advance(30_000)
        assert shares(first, third) == [4, 4]
        assert not first.told_of(events.SuspectsFound)
        assert not third.told_of(events.SuspectsFound)
        await once(world, accepted)


async def test_a_shard_stays_until_it_is_read_what_a_death_left_behind_in_it() -> None:
    async with rig(shards=8) as world:
        first = await world.node("n1").app().start()
        second = await world.node("n2").app().start()
        await world.advance(10_000)
        accepted = await world.spread([2000] * 80)
        await second.crash(proven=False)
        await world.advance(6000)
        third = await world.node("n3").app().start()
        enter = first.lane.owned_shards.enter

        def stick(grants: Sequence[Grant]) -> None:
            enter(grants)
            first.wire.lanes_go_on.clear()  # and so nothing is read of them

        first.lane.owned_shards.enter = stick  # type: ignore[method-assign]
        await world.until(lambda: first.told_of(events.ShardsTaken)[-1].unclean)
        left_behind = [owned for owned in first.owned_shards if owned.suspect_until_ms > 0]
        await world.advance(3000)
        assert left_behind
        assert not any(owned.draining for owned in left_behind)
        first.wire.lanes_go_on.set()
        await world.advance(30_000)
        assert shares(first, third) == [4, 4]
        await once(world, accepted)


async def test_a_silent_node_is_replaced_as_soon_as_its_lease_is_over() -> None:
    async with rig(shards=4, lease_ms=9_200) as world:  # between two looks
        first = await world.node("n1").app().start()
        second = await world.node("n2").app().start()
        await world.advance(10_000)
        await first.crash(proven=False)
        crashed_ms = world.now
        await world.until(lambda: shares(second) == [4])
        assert world.now - crashed_ms <= 9_200 + 200


async def test_what_was_due_during_a_death_fires_late_and_is_not_lost() -> None:
    async with rig(shards=4) as world:
        first = await world.node("n1").app().start()
        await world.node("n2").app().start()
        await world.advance(10_000)
        accepted = await world.spread(range(0, 20_000, 50))
        await world.advance(3025)
        await first.crash(proven=False)
        await world.advance(40_000)
        await once(world, accepted)
        assert max(d.at_ms - d.job.due_ms for d in world.deliveries) < 16_000


async def test_a_node_that_was_cut_off_fires_nothing_of_what_others_took() -> None:
    async with rig(shards=4) as world:
        first = await world.node("n1").app().start()
        second = await world.node("n2").app().start()
        await world.advance(10_000)
        accepted = await world.spread(range(0, 60_000, 100))
        await world.advance(1000)
        cut_ms = world.now
        first.wire.away = True
        await world.advance(25_000)
        assert shares(second) == [4]
        first.wire.away = False
        await world.advance(45_000)
        assert sorted(shares(first, second)) == [2, 2]
        assert await world.statuses(accepted) == {Status.DONE: len(accepted)}
        for key in (key for key, times in world.times().items() if times > 1):
            one, two = (d for d in world.deliveries if d.job.key == key)
            assert (one.node, two.node) == ("n1", "n2")
            assert cut_ms <= one.at_ms < cut_ms + 10_000, "it was handed over under the lease and could not be settled"


async def test_a_node_that_is_cut_off_stops_firing_before_its_lease_is_over_for_others() -> None:
    async with rig(shards=2) as world:
        first = await world.node("n1").app().start()
        second = await world.node("n2").app().start()
        await world.advance(10_000)
        await world.spread(range(0, 30_000, 100))
        await world.advance(1000)
        cut_ms = world.now
        first.wire.away = True
        await world.advance(28_000)
        last = max(d.at_ms for d in world.deliveries if d.node == "n1")
        taken = [d.at_ms for d in world.deliveries if d.node == "n2" and d.at_ms - d.job.due_ms > 500]
        assert last <= cut_ms + 10_000
        assert last < min(taken)
        assert shares(second) == [2]


async def test_an_outage_of_the_store_costs_no_node_its_shards() -> None:
    """Nobody could give a sign of life, so silence says nothing about anybody."""
    async with rig(shards=4) as world:
        nodes = [await world.node(name).app().start() for name in ("n1", "n2")]
        await world.advance(10_900)  # so that each has seen the last heartbeat of the other
        assert shares(*nodes) == [2, 2]
        for node in nodes:
            node.wire.away = True
        await world.advance(15_000)
        for node in nodes:
            node.wire.away = False
            await world.advance(3000)
        await world.advance(15_000)
        assert shares(*nodes) == [2, 2]
        assert not [event for node in nodes for event in node.told_of(events.ShardsLost)]


async def test_heartbeats_whose_answers_are_lost_differ_from_each_other() -> None:
    async with rig(shards=1) as world:
        node = await world.node().app().start()
        await world.advance(5000)
        node.wire.loses_answers = True
        beats = []
        for _ in range(3):
            await world.advance(2500)
            (seen,) = (await world.client.survey()).view.nodes
            beats.append(seen.beat)
        assert beats[0] < beats[1] < beats[2], "the others see that it lives"


async def test_a_lease_counts_from_the_question_and_not_from_the_answer() -> None:
    """The others count from the heartbeat that they see: it was written long before its answer came."""
    async with rig(shards=2) as world:
        node = await world.node().app().start()
        await world.advance(5000)
        ownership: Any = node.engine._ownership
        beat = ownership.beat
        asked: list[int] = []

        async def slow(*, renew: bool, **how: Any) -> Any:
            view = await beat(renew=renew, **how)
            if renew:
                asked.append(world.now)
                await sleep(world.clock, 6000)
                node.wire.away = True
            return view

        ownership.beat = slow
        jobs = await world.spread(range(0, 25_000, 100))
        await world.advance(25_000)
        assert len(asked) == 1
        last_ms = max(d.at_ms for d in world.deliveries)
        assert asked[0] + 6000 < last_ms <= asked[0] + 10_000
        assert len(world.deliveries) < len(jobs)


async def test_a_drain_that_cannot_end_is_called_off_and_the_shard_goes_on_where_it_is() -> None:
    async with rig(shards=2) as world:
        gate = asyncio.Event()

        async def block(job: Job) -> None:
            if job.job_name == "long":
                await gate.wait()

        first = await world.node("n1").app(function=block).start()
        for _ in range(8):
            await world.add(0, job_name="long")
        await world.advance(1000)
        assert {d.job.shard for d in world.deliveries} == {0, 1}
        second = await world.node("n2").app().start()
        await world.advance(3000)
        held = await world.spread(range(0, 4000, 100))
        await world.advance(10_000)
        assert first.told_of(events.DrainCalledOff)
        assert shares(first, second) == [2, 0]
        assert await world.statuses(held) == {Status.DONE: 40}
        gate.set()
        await world.advance(60_000)
        assert shares(first, second) == [1, 1]
        assert set(world.times().values()) == {1}


async def test_a_node_owns_only_what_it_has_a_handler_for() -> None:
    async with rig(shards=4) as world:
        await world.client.register("sms", 4)
        await world.client.register("orphan", 4)
        mail = await world.node("mail").app("mail").start()
        both = await world.node("both").app("mail").app("sms").start()
        await world.advance(10_000)
        owned = Counter((n.name, t.shard.app) for n in (mail, both) for t in n.owned_shards)
        assert owned == {("mail", "mail"): 2, ("both", "mail"): 2, ("both", "sms"): 4}


@pytest.mark.parametrize("seed", range(5))
async def test_a_cancel_while_shards_move_holds(seed: int) -> None:
    async with rig(shards=4) as world:
        await world.node("n1").app(function=slow(world)).start()  # type: ignore[arg-type]
        accepted = await world.spread(3000 + n * 97 % 6000 for n in range(60))
        await world.advance(1000 + 137 * seed)
        await world.node("n2").app(function=slow(world)).start()  # type: ignore[arg-type]
        wishes = []
        for a in accepted[::3]:
            wishes.append((a, world.change(Change.CANCEL, a)))
            await world.advance(100)
        await world.advance(20_000)
        for a, wish in wishes:
            assert (await wish).granted != (a.key in world.delivered())
        assert max(world.times().values()) == 1
        assert await world.pending() == 0


async def test_an_app_that_no_node_can_run_is_told_once_when_it_begins_and_once_when_it_ends() -> None:
    async with rig(shards=4) as world:
        mail = await world.node("mail").app("mail").start()
        await world.client.register("sms", 4)
        await world.advance(10_000)
        assert [e.app for e in mail.told_of(events.OrphanApp)] == ["sms"]
        assert mail.engine.apps_without_node == 1
        sms = await world.node("sms").app("sms").start()
        await world.advance(10_000)
        assert [e.app for e in mail.told_of(events.AppServed)] == ["sms"]
        assert mail.engine.apps_without_node == 0
        assert not sms.told_of(events.OrphanApp)
        await world.client.drain("sms", draining=True)
        await world.advance(10_000)
        assert [e.app for e in mail.told_of(events.OrphanApp)] == ["sms", "sms"], "a drained node runs nothing"


async def test_a_take_that_waits_for_a_lock_does_not_stop_the_heartbeats() -> None:
    async with rig(shards=4) as world:
        first = await world.node("n1").app().start()
        second = world.node("n2").app()
        second.wire.lanes_go_on.clear()
        await second.start()
        await first.stop()
        await world.advance(60_000)
        assert second.lane.taking
        assert not second.told_of(events.LeaseLapsed)
        (row,) = (await world.client.survey()).view.nodes
        assert world.now - row.beat_ms <= 2000
        second.wire.lanes_go_on.set()
        await world.advance(2000)
        assert shares(second) == [4]


# Heartbeats that fail


class Heartbeats:
    """Those of one node: they fail for as long as there is an error to fail with, and nothing else does."""

    def __init__(self, node: EngineNode) -> None:
        self.error: SchedulerError | None = None
        ownership: Any = node.engine._ownership
        self._beat = ownership.beat
        ownership.beat = self._answer

    async def _answer(self, **kwargs: Any) -> Any:
        if self.error is not None:
            raise self.error
        return await self._beat(**kwargs)


def heartbeat_events(node: EngineNode) -> list[events.Event]:
    kinds = events.HeartbeatFailing | events.HeartbeatBack | events.LeaseLapsed | events.LeaseRenewed
    return [event for event in node.told if isinstance(event, kinds)]


@pytest.mark.parametrize("idle", [False, True], ids=["it owns shards", "it is drained"])
async def test_an_outage_of_heartbeats_is_told_once_with_its_cause_and_once_when_it_is_over(idle: bool) -> None:
    async with rig() as world:
        node = await world.node("n1").app().start()
        if idle:
            await world.client.drain("n1", draining=True)
        await world.advance(5000)
        assert shares(node) == [0 if idle else 4]
        assert heartbeat_events(node) == []
        heartbeats = Heartbeats(node)
        heartbeats.error = StoreBroken("no table scheduler_nodes")
        await world.advance(5000)
        told = [events.HeartbeatFailing(error="StoreBroken: no table scheduler_nodes")]
        assert heartbeat_events(node) == told, "the lease goes on for a while"
        heartbeats.error = StoreUnavailable("no connection is free")
        await world.advance(15_000)
        (lapsed,) = node.told_of(events.LeaseLapsed)
        assert lapsed.error == "StoreUnavailable: no connection is free", "the last cause, not the first"
        assert heartbeat_events(node) == [*told, lapsed]
        heartbeats.error = None
        await world.advance(5000)
        (back,) = node.told_of(events.HeartbeatBack)
        assert 20_000 - 2000 <= back.failing_ms <= 20_000 + 2000
        assert heartbeat_events(node) == [*told, lapsed, events.LeaseRenewed(), back]
        heartbeats.error = StoreUnavailable("away again")
        await world.advance(2000)
        assert heartbeat_events(node)[-1] == events.HeartbeatFailing(error="StoreUnavailable: away again")
        assert not node.told_of(events.StoreAway), "only heartbeats fail"


async def test_a_node_that_owns_nothing_tells_that_the_store_is_away_and_when_its_lease_lapses() -> None:
    async with rig() as world:
        await world.node("n1").app().start()
        idle = await world.node("n2").app().start()
        await world.client.drain("n2", draining=True)
        await world.advance(10_000)
        assert shares(idle) == [0]
        idle.wire.away = True
        await world.advance(12_000)
        (failing,) = idle.told_of(events.HeartbeatFailing)
        (lapsed,) = idle.told_of(events.LeaseLapsed)
        assert failing.error == lapsed.error == "StoreUnavailable: the wire is cut"
        assert lapsed.silent_ms < 12_000, "it is told when it happens, not when somebody asks"


async def test_a_first_heartbeat_that_fails_is_told() -> None:
    async with rig() as world:
        node = world.node("n1").app()
        store: Any = node.store
        register = store.register

        async def cut_after_it(*args: Any) -> None:
            await register(*args)
            node.wire.away = True

        store.register = cut_after_it
        await node.start()
        await world.advance(20_000)
        assert heartbeat_events(node) == [events.HeartbeatFailing(error="StoreUnavailable: the wire is cut")]
        node.wire.away = False
        await world.advance(3000)
        assert [type(event) for event in heartbeat_events(node)] == [events.HeartbeatFailing, events.HeartbeatBack]
        assert shares(node) == [4]


async def test_a_lapse_without_a_failed_heartbeat_names_no_cause() -> None:
    async with rig() as world:
        node = await world.node("n1").app().start()
        heartbeats = Heartbeats(node)
        heartbeats.error = StoreUnavailable("away")
        await world.advance(2000)
        heartbeats.error = None
        await world.advance(2000)
        world.clock.advance(12_000)  # as for a process that was frozen
        await world.advance(1000)
        (lapsed,) = node.told_of(events.LeaseLapsed)
        assert lapsed.error is None


async def test_a_lapse_while_the_store_neither_answers_nor_fails_says_for_how_long() -> None:
    async with rig() as world:
        node = await world.node("n1").app().start()
        await world.advance(2000)
        ownership: Any = node.engine._ownership
        beat, goes_on = ownership.beat, asyncio.Event()

        async def frozen(**options: Any) -> Any:
            await goes_on.wait()
            return await beat(**options)

        ownership.beat = frozen
        await world.add(11_500)
        await world.advance(12_000)
        (lapsed,) = node.told_of(events.LeaseLapsed)
        assert lapsed.error is not None
        said = re.fullmatch(r"the store has not answered for (\d+\.\d) s", lapsed.error)
        assert said
        assert lapsed.silent_ms - 2000 <= float(said[1]) * 1000 <= lapsed.silent_ms
        ownership.beat = beat
        goes_on.set()
        await world.advance(2000)
        assert node.told_of(events.LeaseRenewed)
        world.clock.advance(12_000)
        await world.advance(1000)
        assert [event.error for event in node.told_of(events.LeaseLapsed)][1:] == [None], "that silence is over"


async def test_while_a_take_is_under_way_no_other_is_begun() -> None:
    async with rig(shards=4) as world:
        node = world.node("n1").app()
        node.wire.lanes_go_on.clear()
        await node.start()
        takes = []
        take = node.lane.take
        node.lane.take = lambda claims: (takes.append(claims), take(claims))[1]  # type: ignore[method-assign, func-returns-value]
        await world.advance(20_000)
        assert takes == [], "the first one, which began at the start, is not over"
        node.wire.lanes_go_on.set()
        await world.advance(2000)
        assert shares(node) == [4]


async def test_a_stop_waits_for_a_take_that_is_under_way_and_gives_back_what_it_brings() -> None:
    async with rig(shards=4) as world:
        node = world.node("n1").app()
        node.wire.lanes_go_on.clear()
        await node.start()
        stopping = asyncio.ensure_future(node.engine.stop())
        await world.advance(5000)
        assert not stopping.done()
        node.wire.lanes_go_on.set()
        assert await world.run(stopping)
        assert all(info.released for info in (await world.client.survey()).view.shards)


async def test_a_shard_that_came_while_the_store_was_looked_at_is_not_doubted() -> None:
    async with rig(shards=4) as world:
        node = world.node("n1").app()
        node.wire.lanes_go_on.clear()
        await node.start()
        ownership: Any = node.engine._ownership
        beat = ownership.beat

        async def late_beat(**said: Any) -> Any:
            """What was read is older than a take that ends before it is looked at."""
            view = await beat(**said)
            node.wire.lanes_go_on.set()
            for _ in range(50):
                await asyncio.sleep(0)
            assert not node.lane.taking
            return view

        ownership.beat = late_beat
        await world.advance(5000)
        assert shares(node) == [4]
        assert not node.told_of(events.Reloaded)


# A drain that an operator asks for


async def test_a_drained_node_owns_nothing_and_nothing_is_repeated() -> None:
    async with rig(shards=8) as world:
        first = await world.node("n1").app(function=slow(world)).start()  # type: ignore[arg-type]
        second = await world.node("n2").app(function=slow(world)).start()  # type: ignore[arg-type]
        accepted = await stream(world, 10_000)
        assert shares(first, second) == [4, 4]
        assert await world.client.drain("n1", draining=True) == 1
        accepted += await stream(world, 5000)
        assert shares(first, second) == [0, 8]
        accepted += await stream(world, 10_000)
        assert shares(first, second) == [0, 8], "it takes none, heartbeat after heartbeat"
        await world.client.drain("n1", draining=False)
        accepted += await stream(world, 15_000)
        assert shares(first, second) == [4, 4]
        await world.advance(10_000)
        await once(world, accepted)
        assert len(first.told_of(events.DrainAsked)) == len(first.told_of(events.DrainLifted)) == 1


async def test_a_drain_holds_although_nobody_else_can_take_over() -> None:
    async with rig(shards=4) as world:
        node = await world.node("n1").app().start()
        await world.client.drain("n1", draining=True)
        await world.advance(3000)
        accepted = await world.add(1000)
        await world.advance(30_000)
        assert shares(node) == [0]
        assert await world.statuses(accepted) == {Status.PENDING: 1}
        await world.client.drain("n1", draining=False)
        await world.advance(5000)
        await once(world, accepted)


async def test_a_drain_waits_for_long_handlers_as_a_stop_does_and_is_tried_again() -> None:
    async with rig(shards=1, stop_timeout_ms=20_000) as world:
        node = await world.node("n1").app(function=slow(world, 40_000)).start()  # type: ignore[arg-type]
        accepted = await world.add(0)
        await world.advance(1000)
        await world.client.drain("n1", draining=True)
        await world.advance(15_000)
        held = await world.add(0)
        await world.advance(4000)
        assert await world.statuses(held) == {Status.PENDING: 1}
        assert not node.told_of(events.DrainCalledOff)
        await world.advance(4000)
        assert node.told_of(events.DrainCalledOff)
        await world.advance(100_000)
        assert shares(node) == [0]
        await once(world, accepted + held)


async def test_a_node_that_is_asked_to_go_on_calls_its_drain_off() -> None:
    async with rig(shards=1) as world:
        node = await world.node("n1").app(function=slow(world, 25_000)).start()  # type: ignore[arg-type]
        accepted = await world.add(0)
        await world.advance(1000)
        await world.client.drain("n1", draining=True)
        await world.advance(3000)
        accepted += await world.add(0)
        await world.client.drain("n1", draining=False)
        await world.advance(2000)
        assert len(world.deliveries) == 2, "it fires again although a handler still runs"
        assert shares(node) == [1]
        await world.advance(30_000)
        await once(world, accepted)


async def test_only_one_node_does_maintenance() -> None:
    async with rig() as world:
        nodes = [await world.node(f"n{n}").app().start() for n in range(3)]
        await world.advance(10_000)
        assert [node.engine.membership.leads for node in nodes] == [True, False, False]
        rounds: Counter[str] = Counter()

        def count(node: EngineNode) -> None:
            ownership: Any = node.engine._ownership
            maintain = ownership.maintain

            async def counted() -> Any:
                rounds[node.name] += 1
                return await maintain()

            ownership.maintain = counted

        for node in nodes:
            count(node)
        await world.advance(125_000)
        assert rounds == {"n0": 2}
        await nodes[0].crash()
        await world.advance(15_000)
        assert [node.engine.membership.leads for node in nodes[1:]] == [True, False]


async def test_a_node_looks_twice_per_heartbeat_alone_and_four_times_beside_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[str] = []
    beat = SqlOwnership.beat

    async def counted(ownership: SqlOwnership, **options: Any) -> View:
        looks.append(ownership._node.nonce)
        return await beat(ownership, **options)

    monkeypatch.setattr(SqlOwnership, "beat", counted)
    async with rig() as world:
        one = await world.node().app().start()
        await world.advance(5000)
        looks.clear()
        await world.advance(20_000)
        assert len(looks) == pytest.approx(20, abs=1)  # a heartbeat takes two seconds
        two = await world.node().app().start()
        await world.advance(5000)
        looks.clear()
        await world.advance(20_000)
        assert len(looks) == pytest.approx(80, abs=2)
        await two.stop()
        await one.stop()


@pytest.mark.parametrize("call", ["advance", "settle", "answer"])
async def test_a_shard_that_a_write_finds_lost_is_dropped_at_once(call: str) -> None:
    async with rig(shards=1) as world:
        node = await world.node().app().start()
        await world.add(3000)
        await world.advance(1000)

        async def nothing_to_see() -> None:
            """So that the writes alone can find it out."""

        node.engine.membership.look = nothing_to_see  # type: ignore[method-assign]
        ownership: Any = node.engine._ownership
        write = getattr(ownership, call)

        held: list[int] = []

        async def stolen(*args: Any) -> Any:
            def steal(tx: Statements) -> None:
                rows = tx.lock_shards([owned.shard for owned in node.owned_shards], exclusive=True)
                tx.write_shards(msgspec.structs.replace(row, owner=Owner("thief", 99)) for row in rows.values())

            setattr(ownership, call, write)
            await world.database.session("door").write(steal)
            answer = await write(*args)
            asyncio.get_running_loop().call_soon(lambda: held.append(len(node.owned_shards)))
            return answer

        setattr(ownership, call, stolen)
        await world.add(500)  # a wake, a delivery and its outcome; the line moves later
        await world.until(lambda: held)
        assert held == [0], "before the lane does anything else"
        assert node.told_of(events.ShardsLost)
