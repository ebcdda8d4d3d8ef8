"""Promises about cancel, reschedule, run now and retry."""

import pytest

from infinite_scheduler.errors import InvalidRequest, Unavailable, UnknownJob
from infinite_scheduler.model import Accepted, Change, JobId, Status
from infinite_scheduler.store.abilities import Ability
from infinite_scheduler.testing.store_contract.contract_bench import (
    APP,
    SHARD,
    Bench,
    Promises,
    counts,
    keys,
    needing,
    refused,
)
from infinite_scheduler.testing.store_contract.scanning import LARGE

MINUTE_MS = 60_000


class ChangingContract(Promises):
    """What `change` promises of jobs that wait, and what an owner's `answer` does to it."""

    needs = frozenset({Ability.CANCEL, Ability.RESCHEDULE, Ability.RUN_NOW})

    # At or after the line: the row decides

    async def test_a_cancel_after_the_line_needs_no_owner(self, bench: Bench) -> None:
        owner = await bench.owner(line_in_ms=30_000)
        (accepted,) = await bench.add(30_000)
        decision = await bench.changed(Change.CANCEL, accepted.key)
        assert (decision.granted, decision.record.status) == (True, Status.CANCELLED)
        assert decision.record.finished_ms == bench.now
        assert not await owner.requests()
        assert not await owner.scan()

    async def test_a_reschedule_after_the_line_needs_no_owner(self, bench: Bench) -> None:
        owner = await bench.owner(line_in_ms=30_000)
        (accepted,) = await bench.add(MINUTE_MS)
        decision = await bench.changed(Change.RESCHEDULE, accepted.key, due_ms=bench.now + 90_000)
        assert decision.granted
        job = await bench.job(accepted)
        assert (job.due_ms, job.scheduled_ms, job.attempt) == (bench.now + 90_000, bench.now + 90_000, 1)
        assert not await owner.requests()

    async def test_a_reschedule_to_before_the_line_wakes_the_owner(self, bench: Bench) -> None:
        owner = await bench.owner(line_in_ms=30_000)
        (accepted,) = await bench.add(MINUTE_MS)
        assert (await bench.changed(Change.RESCHEDULE, accepted.key, due_ms=bench.now + 1000)).granted
        answers = await owner.answer(await owner.requests())
        assert [(job.key, job.due_ms) for job in answers.woken] == [(accepted.key, bench.now + 1000)]
        assert (await bench.shard()).low_ms <= bench.now + 1000

    # Before the line: the owner decides

    @pytest.mark.parametrize("elsewhere", [False, True], ids=["same process", "other process"])
    async def test_a_cancel_before_the_line_waits_for_the_owner(self, bench: Bench, elsewhere: bool) -> None:
        owner = await bench.owner(line_in_ms=30_000)
        (accepted,) = await bench.add(1000)
        await owner.answer(await owner.requests())
        asking = bench.change(Change.CANCEL, accepted, store=await bench.process() if elsewhere else None)
        requests = await owner.asked()
        assert [(q.change, q.keys) for q in requests] == [(Change.CANCEL, (accepted.key,))]
        assert not asking.done()
        (owner_decision,) = (await owner.answer(requests)).decisions
        assert (owner_decision.claimed, owner_decision.granted, owner_decision.job) == (True, True, None)
        decision = await bench.decision(asking)
        assert (decision.granted, decision.record.status) == (True, Status.CANCELLED)
        assert not await owner.scan()

    async def test_the_line_itself_is_the_first_moment_that_needs_no_owner(self, bench: Bench) -> None:
        owner = await bench.owner(line_in_ms=30_000)
        before, at = await bench.add(29_999, 30_000)
        assert (await bench.changed(Change.CANCEL, at.key)).granted
        asking = bench.change(Change.CANCEL, before)
        (request,) = await owner.asked(Change.CANCEL)
        assert request.keys == (before.key,)
        await owner.answer([request])
        assert (await bench.decided(asking)).granted

    async def test_a_reschedule_before_the_line_is_decided_by_the_owner(self, bench: Bench) -> None:
        owner = await bench.owner(line_in_ms=30_000)
        (accepted,) = await bench.add(1000)
        asking = bench.change(Change.RESCHEDULE, accepted, due_ms=bench.now + 5000)
        (owner_decision,) = (await owner.answer(await owner.asked(Change.RESCHEDULE))).decisions
        assert owner_decision.granted
        assert owner_decision.job is not None
        assert owner_decision.job.due_ms == bench.now + 5000
        decision = await bench.decided(asking)
        assert (decision.granted, decision.record.job.due_ms) == (True, bench.now + 5000)
        (job,) = await owner.scan()
        assert (job.due_ms, job.scheduled_ms) == (bench.now + 5000, bench.now + 5000)

    async def test_requests_about_one_job_that_are_answered_together_leave_it_where_the_last_one_said(
        self, bench: Bench
    ) -> None:
        owner = await bench.owner(line_in_ms=30_000)
        (accepted,) = await bench.add(1000)
        await owner.answer(await owner.requests())
        askings = [bench.change(Change.RESCHEDULE, accepted, due_ms=bench.now + ms) for ms in (5000, 6000, 7000)]
        requests = await owner.asked()
        while len(requests) < 3:
            requests = await owner.asked()
        answers = await owner.answer(requests)
        assert all([(await bench.decided(asking)).granted for asking in askings])
        job = await bench.job(accepted)
        assert job.due_ms == answers.decisions[-1].request.due_ms
        assert [owner_decision.job for owner_decision in answers.decisions] == [job] * 3
        assert keys(await owner.scan()) == [accepted.key]

    @pytest.mark.parametrize("change", [Change.CANCEL, Change.RESCHEDULE, Change.RUN_NOW])
    async def test_a_change_of_a_job_that_is_handed_over_is_too_late(self, bench: Bench, change: Change) -> None:
        owner = await bench.owner(line_in_ms=30_000)
        (accepted,) = await bench.add(1000)
        before = await bench.record(accepted)
        asking = bench.change(change, accepted, due_ms=bench.now + 5000)
        (owner_decision,) = (await owner.answer(await owner.asked(change), handed_over=[accepted.key])).decisions
        assert (owner_decision.claimed, owner_decision.granted) == (True, False)
        decision = await bench.decided(asking)
        assert (decision.granted, decision.record) == (False, before)

    async def test_a_decision_lowers_low_to_the_new_moment(self, bench: Bench) -> None:
        owner = await bench.owner(line_in_ms=30_000)
        (accepted,) = await bench.add(20_000)
        await owner.answer(await owner.requests())
        await owner.advance(bench.now + 30_000, bench.now + 15_000)
        asking = bench.change(Change.RESCHEDULE, accepted, due_ms=bench.now + 1000)
        await owner.answer(await owner.asked(Change.RESCHEDULE))
        assert (await bench.decided(asking)).granted
        assert (await bench.shard()).low_ms == bench.now + 1000

    async def test_a_request_without_an_answer_is_withdrawn_and_nothing_is_decided(self, bench: Bench) -> None:
        owner = await bench.owner(line_in_ms=30_000)
        (accepted,) = await bench.add(1000)
        await owner.answer(await owner.requests())
        before = await bench.record(accepted)
        asking = bench.change(Change.CANCEL, accepted, timeout_ms=200)
        requests = await owner.asked()
        with refused(Unavailable):
            await bench.decision(asking)
        assert not await owner.requests()
        (owner_decision,) = (await owner.answer(requests)).decisions
        assert not owner_decision.claimed, "it was read before it was taken back; even so it is not decided"
        assert await bench.record(accepted) == before
        assert keys(await owner.scan()) == [accepted.key]

    async def test_a_process_that_closes_withdraws_its_requests_and_says_so(self, bench: Bench) -> None:
        owner = await bench.owner(line_in_ms=30_000)
        (accepted,) = await bench.add(1000)
        await owner.answer(await owner.requests())
        elsewhere = await bench.process()
        asking = bench.change(Change.CANCEL, accepted, store=elsewhere)
        await owner.asked(Change.CANCEL)
        await elsewhere.close()
        with refused(Unavailable, "nothing was changed"):
            await asking
        assert not await owner.requests()

    async def test_a_request_is_waited_for_as_long_as_asked(self, bench: Bench) -> None:
        owner = await bench.owner(line_in_ms=30_000)
        (accepted,) = await bench.add(1000)
        asking = bench.change(Change.CANCEL, accepted, timeout_ms=10_000)
        await owner.asked(Change.CANCEL)
        await bench.passing(500)
        assert not asking.done()
        await owner.answer(await owner.requests())
        assert (await bench.decided(asking)).granted

    async def test_a_decision_counts_even_if_the_time_out_is_over_when_it_is_seen(self, bench: Bench) -> None:
        owner = await bench.owner(line_in_ms=30_000)
        elsewhere = await bench.process()
        (accepted,) = await bench.add(1000)
        asking = bench.change(Change.CANCEL, accepted, store=elsewhere, timeout_ms=200)
        await owner.answer(await owner.asked(Change.CANCEL))
        bench.clock.advance(5000)
        decision = await bench.decision(asking)
        assert (decision.granted, decision.record.status) == (True, Status.CANCELLED)

    async def test_a_released_shard_is_decided_by_who_asks(self, bench: Bench) -> None:
        owner = await bench.owner(line_in_ms=30_000)
        moved, cancelled = await bench.add(1000, 2000)
        await owner.release(bench.now)
        decision = await bench.changed(Change.RESCHEDULE, moved.key, due_ms=bench.now + 9000)
        assert (decision.granted, decision.record.job.due_ms) == (True, bench.now + 9000)
        decision = await bench.changed(Change.CANCEL, cancelled.key)
        assert (decision.granted, decision.record.status) == (True, Status.CANCELLED)
        successor = await bench.owner("n2")
        found = await successor.scan(bench.now, bench.now + 30_000)
        assert [(job.key, job.due_ms) for job in found] == [(moved.key, bench.now + 9000)]

    # In any place

    async def test_of_two_reschedules_the_last_acknowledged_holds(self, bench: Bench) -> None:
        owner = await bench.owner(line_in_ms=30_000)
        far, near = await bench.add(MINUTE_MS, 1000)
        for delay in (70_000, 50_000, 65_000):
            await bench.changed(Change.RESCHEDULE, far.key, due_ms=bench.now + delay)
        for delay in (9000, 5000, 7000):
            asking = bench.change(Change.RESCHEDULE, near, due_ms=bench.now + delay)
            await owner.answer(await owner.asked(Change.RESCHEDULE))
            assert (await bench.decided(asking)).granted
        assert [job.due_ms - bench.now for job in await owner.scan()] == [7000, 65_000]

    async def test_two_reschedules_at_once_are_both_decided(self, bench: Bench) -> None:
        owner = await bench.owner(line_in_ms=30_000)
        (accepted,) = await bench.add(1000)
        await owner.answer(await owner.requests())
        moments = [bench.now + 5000, bench.now + 9000]
        askings = [bench.change(Change.RESCHEDULE, accepted, due_ms=due_ms) for due_ms in moments]
        granted = 0
        while granted < len(askings):
            answers = await owner.answer(await owner.asked())
            granted += sum(owner_decision.granted for owner_decision in answers.decisions)
        assert all([(await bench.decided(asking)).granted for asking in askings])
        (job,) = await owner.scan()
        assert job.due_ms in moments

    async def test_run_now_keeps_the_scheduled_time(self, bench: Bench) -> None:
        (accepted,) = await bench.add(MINUTE_MS)
        decision = await bench.changed(Change.RUN_NOW, accepted.key)
        assert decision.granted
        job = await bench.job(accepted)
        assert (job.due_ms, job.scheduled_ms, job.attempt) == (bench.now, accepted.due_ms, 1)

    async def test_run_now_of_a_due_job_is_granted_and_changes_nothing(self, bench: Bench) -> None:
        (accepted,) = await bench.add(0)
        bench.clock.advance(40)
        before = await bench.record(accepted)
        assert (await bench.changed(Change.RUN_NOW, accepted.key)).granted
        assert await bench.record(accepted) == before

    async def test_a_reschedule_into_the_past_means_now(self, bench: Bench) -> None:
        (accepted,) = await bench.add(MINUTE_MS)
        decision = await bench.changed(Change.RESCHEDULE, accepted.key, due_ms=bench.now - 5000)
        assert (decision.granted, decision.record.job.due_ms) == (True, bench.now)

    async def test_a_job_cancelled_twice_is_granted_twice(self, bench: Bench) -> None:
        (accepted,) = await bench.add(MINUTE_MS)
        for _ in range(2):
            assert (await bench.changed(Change.CANCEL, accepted.key)).granted
        assert counts((await bench.store.survey()).counts) == {"accepted": 1, "cancelled": 1}

    @pytest.mark.parametrize("status", [Status.DONE, Status.FAILED, Status.EXPIRED])
    @pytest.mark.parametrize("change", [Change.CANCEL, Change.RESCHEDULE, Change.RUN_NOW])
    async def test_a_change_of_a_settled_job_is_too_late(self, bench: Bench, change: Change, status: Status) -> None:
        accepted = await settled(bench, status)
        decision = await bench.changed(change, accepted.key, due_ms=bench.now + 5000)
        assert (decision.granted, decision.record.status) == (False, status)

    async def test_a_reschedule_of_a_cancelled_job_is_too_late(self, bench: Bench) -> None:
        (accepted,) = await bench.add(MINUTE_MS)
        await bench.changed(Change.CANCEL, accepted.key)
        decision = await bench.changed(Change.RESCHEDULE, accepted.key, due_ms=bench.now + 5000)
        assert (decision.granted, decision.record.status) == (False, Status.CANCELLED)

    @pytest.mark.parametrize("app", [APP, None])
    async def test_a_change_of_an_unknown_job_is_refused(self, bench: Bench, app: str | None) -> None:
        key = JobId.make(bench.now + 1000, 0, 1)
        with refused(UnknownJob, str(key)):
            await bench.changed(Change.CANCEL, key, app=app)

    async def test_a_job_of_any_app_can_be_changed_by_its_id_alone(self, bench: Bench) -> None:
        await bench.store.register("sms", 2)
        (accepted,) = await bench.add(MINUTE_MS, app="sms")
        assert (await bench.changed(Change.CANCEL, accepted.key)).granted

    async def test_a_change_is_decided_even_if_there_is_no_room_to_read_the_job(self, bench: Bench) -> None:
        owner = await bench.owner(line_in_ms=30_000)
        cancelled, *moved = await bench.add(1000, 2000, 3000, payload=LARGE)
        await owner.answer(await owner.requests())
        askings = [bench.change(Change.CANCEL, cancelled)]
        askings += [bench.change(Change.RESCHEDULE, a, due_ms=a.due_ms + 5000) for a in moved]
        requests = await owner.asked(Change.RESCHEDULE)
        while len(requests) < 3:
            requests = await owner.asked()
        answers = await owner.answer(requests, room=1)
        assert all([(await bench.decided(asking)).granted for asking in askings])
        first, second = [await bench.job(a) for a in moved]
        assert [owner_decision.job for owner_decision in answers.decisions if owner_decision.job] == [first]
        assert list(answers.left) == [(SHARD, second.position)]
        assert (await bench.record(cancelled)).status is Status.CANCELLED

    async def test_a_job_that_is_due_after_the_line_by_then_is_left_to_the_scan(self, bench: Bench) -> None:
        owner = await bench.owner(line_in_ms=30_000)
        (accepted,) = await bench.add(1000)
        wake = await owner.requests()
        asking = bench.change(Change.RESCHEDULE, accepted, due_ms=bench.now + 60_000)
        await owner.answer(await owner.asked(Change.RESCHEDULE))
        assert (await bench.decided(asking)).granted
        assert not (await owner.answer(wake)).woken
        assert keys(await owner.scan(bench.now + 30_000)) == [accepted.key]


class RetryingContract(Promises):
    """What `change` promises of jobs that are settled."""

    needs = frozenset({Ability.RETRY})

    @pytest.mark.parametrize("status", [Status.FAILED, Status.EXPIRED])
    async def test_a_retry_by_hand_goes_on_counting(self, bench: Bench, status: Status) -> None:
        accepted = await settled(bench, status)
        bench.clock.advance(5000)
        decision = await bench.changed(Change.RETRY, accepted.key)
        assert decision.granted
        record = await bench.record(accepted)
        assert (record.status, record.job.attempt, record.job.due_ms) == (Status.PENDING, 2, bench.now)
        assert record.job.scheduled_ms == accepted.due_ms
        assert [a.error for a in record.attempts] == ["no"]
        assert record.finished_ms is None

    async def test_a_retry_by_hand_before_the_line_wakes_the_owner(self, bench: Bench) -> None:
        accepted = await settled(bench, Status.FAILED)
        successor = await bench.owner("n2", line_in_ms=30_000)
        assert (await bench.changed(Change.RETRY, accepted.key)).granted
        answers = await successor.answer(await successor.requests())
        assert [(job.key, job.attempt) for job in answers.woken] == [(accepted.key, 2)]

    @needing(Ability.CANCEL)
    async def test_a_cancelled_job_can_be_tried_again(self, bench: Bench) -> None:
        (accepted,) = await bench.add(MINUTE_MS)
        await bench.changed(Change.CANCEL, accepted.key)
        assert (await bench.changed(Change.RETRY, accepted.key)).granted
        owner = await bench.owner()
        assert keys(await owner.scan()) == [accepted.key]

    async def test_a_retry_of_a_job_that_waits_or_is_done_is_refused(self, bench: Bench) -> None:
        (pending,) = await bench.add(MINUTE_MS)
        with refused(InvalidRequest, pending.id, "pending"):
            await bench.changed(Change.RETRY, pending.key)
        done = await settled(bench, Status.DONE)
        with refused(InvalidRequest, done.id, "done"):
            await bench.changed(Change.RETRY, done.key)
        assert (await bench.record(done)).status is Status.DONE


async def settled(bench: Bench, status: Status) -> Accepted:
    """A job that ended like this."""
    (accepted,) = await bench.add(0)
    owner = await bench.owner()
    job = await bench.job(accepted)
    await owner.settle(owner.ended(job, status, error=None if status is Status.DONE else "no"))
    return accepted
