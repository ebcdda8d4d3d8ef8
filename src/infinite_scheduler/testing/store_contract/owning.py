"""Promises about the ownership of shards."""

from infinite_scheduler.model import Shard, Status
from infinite_scheduler.store.abilities import Ability
from infinite_scheduler.store.cluster_state import VITALS_BYTES, HeldBack
from infinite_scheduler.store.ownership import Claim
from infinite_scheduler.testing.store_contract.contract_bench import (
    APP,
    LIFTED,
    SHARD,
    Bench,
    Promises,
    keys,
)

WIDE = "wide"
FOUR = tuple(Shard(WIDE, number) for number in range(4))


class OwningContract(Promises):
    """What heartbeats, take, release, reload and advance promise, and that a takeover fences the former owner."""

    needs = frozenset({Ability.OWNERSHIP})

    async def test_a_node_is_seen_by_all(self, bench: Bench) -> None:
        node = await bench.node("n1")
        elsewhere = await bench.process()
        other = await bench.node("n2", store=elsewhere)
        view = await node.ownership.beat()
        assert {n.node_id: n.apps for n in view.nodes} == {"n1": frozenset({APP}), "n2": frozenset({APP})}
        assert {other.info.nonce, node.info.nonce} == {n.nonce for n in view.nodes}
        assert not view.dead

    async def test_a_sign_of_life_changes_the_heartbeat_and_a_look_does_not(self, bench: Bench) -> None:
        node = await bench.node()
        (before,) = (await node.ownership.beat(renew=False)).nodes
        (looked,) = (await node.ownership.beat(renew=False)).nodes
        (renewed,) = (await node.ownership.beat()).nodes
        assert looked.beat == before.beat
        assert renewed.beat != before.beat

    async def test_a_node_that_drains_says_so(self, bench: Bench) -> None:
        node = await bench.node()
        (seen,) = (await node.ownership.beat(draining=True)).nodes
        assert seen.draining

    async def test_a_node_says_which_apps_it_holds_back_and_why(self, bench: Bench) -> None:
        node = await bench.node()
        held_back = {"mail": HeldBack(since_ms=1_762_207_200_000, reason="the 'gateway' is closed \N{EM DASH} \"so\"")}
        (seen,) = (await node.ownership.beat(held_back=held_back)).nodes
        assert seen.held_back == held_back
        (seen,) = (await node.ownership.beat()).nodes
        assert not seen.held_back

    async def test_a_survey_has_the_vitals_of_each_node_and_a_heartbeat_has_none(self, bench: Bench) -> None:
        node = await bench.node()
        vitals = '{"mail":{"done":7},"näme":null}'.encode()
        (seen,) = (await node.ownership.beat(vitals=vitals)).nodes
        assert seen.vitals is None
        assert [n.vitals for n in (await bench.store.survey()).view.nodes] == [vitals]
        await node.ownership.beat(renew=False, vitals=b"{}")
        assert [n.vitals for n in (await bench.store.survey()).view.nodes] == [vitals]
        await node.ownership.beat()
        assert [n.vitals for n in (await bench.store.survey()).view.nodes] == [None]

    async def test_vitals_that_are_too_large_are_left_out_and_the_heartbeat_counts(self, bench: Bench) -> None:
        node = await bench.node()
        (before,) = (await node.ownership.beat(vitals=b"1" * VITALS_BYTES)).nodes
        assert [len(n.vitals or b"") for n in (await bench.store.survey()).view.nodes] == [VITALS_BYTES]
        (after,) = (await node.ownership.beat(vitals=b"1" * (VITALS_BYTES + 1))).nodes
        assert after.beat != before.beat
        assert [n.vitals for n in (await bench.store.survey()).view.nodes] == [None]

    async def test_a_node_says_how_far_its_clock_is_off(self, bench: Bench) -> None:
        node = await bench.node()
        (seen,) = (await node.ownership.beat(clock_off=True, clock_offset_ms=-7000)).nodes
        assert (seen.clock_off, seen.clock_offset_ms) == (True, -7000)
        (seen,) = (await node.ownership.beat()).nodes
        assert (seen.clock_off, seen.clock_offset_ms) == (False, None)

    async def test_the_stores_clock_is_read_between_question_and_answer(self, bench: Bench) -> None:
        node = await bench.node()
        for view in (await node.ownership.beat(renew=False), (await bench.store.survey()).view):
            assert (view.clock is not None) == (Ability.CLOCK in bench.abilities)
            if view.clock is not None:
                assert view.clock.asked_us <= view.clock.answered_us
                assert view.clock.store_ms > 0

    async def test_a_node_that_left_is_gone(self, bench: Bench) -> None:
        node, other = await bench.node("n1"), await bench.node("n2")
        await node.ownership.leave()
        view = await other.ownership.beat()
        assert [n.node_id for n in view.nodes] == ["n2"]

    async def test_a_new_app_has_released_shards(self, bench: Bench) -> None:
        await bench.store.register(WIDE, 4)
        view = (await bench.store.survey()).view
        wide = [info for info in view.shards if info.shard.app == WIDE]
        assert [info.shard for info in wide] == list(FOUR)
        assert all(info.released for info in wide)

    # Taking

    async def test_taking_a_shard_raises_its_epoch(self, bench: Bench) -> None:
        before = await bench.shard()
        node = await bench.node()
        (grant,) = await node.take(SHARD)
        after = await bench.shard()
        assert (grant.owner.nonce, grant.owner.epoch) == (node.info.nonce, before.owner.epoch + 1)
        assert after.owner == grant.owner
        assert (grant.line_ms, grant.low_ms) == (before.line_ms, before.low_ms)

    async def test_of_two_nodes_that_saw_the_same_one_gets_the_shard(self, bench: Bench) -> None:
        first, second = await bench.node("n1"), await bench.node("n2", store=await bench.process())
        claims = await second.claims(SHARD)
        await first.take(SHARD)
        assert not await second.take_as_seen(claims)
        assert (await bench.shard()).owner.nonce == first.info.nonce

    async def test_a_claim_on_what_has_changed_is_refused(self, bench: Bench) -> None:
        first, second = await bench.node("n1"), await bench.node("n2")
        claims = await second.claims(SHARD)
        await first.take(SHARD)
        await first.release()
        assert not await second.take_as_seen(claims), "it is released again, but with another epoch"

    async def test_a_claim_is_refused_when_the_owner_has_given_a_sign_of_life(self, bench: Bench) -> None:
        owner = await bench.owner("n1")
        (seen,) = (await owner.ownership.beat()).nodes
        taker = await bench.node("n2")
        claims = await taker.claims(SHARD, beat=seen.beat)
        await owner.ownership.beat()
        assert not await taker.take_as_seen(claims)
        assert (await bench.shard()).owner == owner.owners[SHARD]

    async def test_a_claim_is_granted_when_the_owner_stayed_silent(self, bench: Bench) -> None:
        owner = await bench.owner("n1")
        (seen,) = (await owner.ownership.beat()).nodes
        taker = await bench.node("n2")
        (grant,) = await taker.take_as_seen(await taker.claims(SHARD, beat=seen.beat))
        assert grant.owner.epoch == owner.owners[SHARD].epoch + 1

    async def test_a_claim_that_saw_no_node_is_refused_when_there_is_one_now(self, bench: Bench) -> None:
        owner, taker = await bench.owner("n1"), await bench.node("n2")
        claims = await taker.claims(SHARD, dead=False)
        await owner.ownership.beat()
        assert not await taker.take_as_seen(claims), "its owner has just joined"

    async def test_a_shard_whose_owner_has_no_node_row_is_granted(self, bench: Bench) -> None:
        owner, taker = await bench.owner("n1"), await bench.node("n2")
        await owner.ownership.leave()
        assert await taker.take_as_seen(await taker.claims(SHARD, dead=False))

    async def test_a_shard_that_does_not_exist_is_not_granted(self, bench: Bench) -> None:
        node = await bench.node()
        (claim,) = await node.claims(SHARD)
        assert not await node.ownership.take([Claim(shard=Shard(APP, 9), seen=claim.seen, beat=None)])

    async def test_taking_after_a_release_is_clean(self, bench: Bench) -> None:
        first, second = await bench.owner("n1"), await bench.node("n2")
        await first.release()
        assert (await bench.shard()).released
        (grant,) = await second.take(SHARD)
        assert not grant.unclean

    async def test_taking_without_a_release_is_unclean(self, bench: Bench) -> None:
        await bench.owner("n1")
        second = await bench.node("n2")
        (grant,) = await second.take(SHARD)
        assert grant.unclean

    async def test_a_release_leaves_line_and_low_for_the_next_owner(self, bench: Bench) -> None:
        first, second = await bench.owner("n1"), await bench.node("n2")
        await first.advance(bench.now + 30_000, bench.now)
        await first.release(bench.now - 5)
        (grant,) = await second.take(SHARD)
        assert (grant.line_ms, grant.low_ms) == (bench.now + 30_000, bench.now - 5)

    # Reloading

    async def test_reload_keeps_the_epoch_and_says_where_it_stands(self, bench: Bench) -> None:
        owner = await bench.owner()
        await owner.advance(bench.now + 30_000, bench.now - 5)
        (grant,) = await owner.ownership.reload(owner.owners, (), LIFTED)
        assert (grant.shard, grant.owner) == (SHARD, owner.owners[SHARD])
        assert (grant.line_ms, grant.low_ms, grant.unclean) == (bench.now + 30_000, bench.now - 5, False)
        assert (await bench.shard()).owner == grant.owner

    async def test_reload_leaves_out_what_was_lost(self, bench: Bench) -> None:
        await bench.store.register(WIDE, 4)
        first, second = await bench.node("n1", apps=(WIDE,)), await bench.node("n2", apps=(WIDE,))
        await first.take(FOUR[0], FOUR[2])
        await second.take(FOUR[2])
        grants = await first.ownership.reload(first.owners, (), LIFTED)
        assert [grant.shard for grant in grants] == [FOUR[0]]

    # Advancing

    async def test_advance_moves_line_and_low(self, bench: Bench) -> None:
        owner = await bench.owner()
        assert not await owner.advance(bench.now + 30_000, bench.now - 7)
        info = await bench.shard()
        assert (info.line_ms, info.low_ms) == (bench.now + 30_000, bench.now - 7)

    async def test_a_line_never_moves_back(self, bench: Bench) -> None:
        owner = await bench.owner()
        await owner.advance(bench.now + 30_000)
        await owner.advance(bench.now + 10_000)
        assert (await bench.shard()).line_ms == bench.now + 30_000

    # A node that lost a shard

    async def test_a_node_that_lost_a_shard_settles_nothing_there(self, bench: Bench) -> None:
        (accepted,) = await bench.add(0)
        former = await bench.owner("n1")
        (job,) = await former.scan()
        await bench.owner("n2")
        settled = await former.settle(former.ended(job, Status.FAILED, error="late"))
        assert settled.lost == {SHARD}
        record = await bench.record(accepted)
        assert (record.status, record.attempts) == (Status.PENDING, ())

    async def test_a_node_that_lost_a_shard_and_has_it_again_settles_nothing_of_its_former_time(
        self, bench: Bench
    ) -> None:
        (accepted,) = await bench.add(0)
        node = await bench.owner("n1")
        (job,) = await node.scan()
        former = dict(node.owners)
        await bench.owner("n2")
        await node.take(SHARD)
        settled = await node.ownership.settle(former, [node.ended(job)])
        assert settled.lost == {SHARD}, "the epoch is another, though the node is the same"
        assert (await bench.record(accepted)).status is Status.PENDING

    async def test_a_node_that_lost_a_shard_advances_nothing_there(self, bench: Bench) -> None:
        former = await bench.owner("n1")
        await bench.owner("n2")
        before = await bench.shard()
        assert await former.advance(bench.now + 99_000, bench.now + 99_000) == {SHARD}
        assert await bench.shard() == before

    async def test_a_node_that_lost_a_shard_answers_nothing_there(self, bench: Bench) -> None:
        former = await bench.owner("n1", line_in_ms=30_000)
        await bench.add(1000)
        requests = await former.requests()
        successor = await bench.owner("n2")
        answers = await former.answer(requests)
        assert answers.lost == {SHARD}
        assert not answers.woken
        assert not answers.decisions
        assert await successor.requests() == requests, "the wake is there for its owner"

    async def test_a_node_that_lost_a_shard_releases_nothing_there(self, bench: Bench) -> None:
        former = await bench.owner("n1")
        successor = await bench.owner("n2")
        await former.release(bench.now + 99_000)
        assert (await bench.shard()).owner == successor.owners[SHARD]

    async def test_a_node_that_lost_a_shard_reloads_nothing_there(self, bench: Bench) -> None:
        former = await bench.owner("n1")
        await bench.owner("n2")
        assert not await former.ownership.reload(former.owners, (), LIFTED)

    async def test_the_loss_of_one_shard_leaves_the_others_recorded(self, bench: Bench) -> None:
        await bench.store.register(WIDE, 4)
        node, taker = await bench.node("n1", apps=(WIDE,)), await bench.node("n2", apps=(WIDE,))
        await node.take(FOUR[0], FOUR[2])
        for _ in range(8):
            await bench.add(0, app=WIDE)
        jobs = await node.scan(app=WIDE, shards=frozenset({0, 2}))
        assert {job.shard for job in jobs} == {0, 2}
        await taker.take(FOUR[2])
        settled = await node.settle(*(node.ended(job) for job in jobs))
        assert settled.lost == {FOUR[2]}
        left = await taker.scan(app=WIDE, shards=frozenset({0, 2}))
        assert keys(left) == keys([job for job in jobs if job.shard == 2])
