"""Whatever a handler does or a policy is, its job ends, and the others are not held up."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from infinite_scheduler import Failed, HandlerError, InvalidRequest, Job, Retry, RetryPolicy, Status
from infinite_scheduler.engine import lane
from infinite_scheduler.store.ownership import Settlement
from infinite_scheduler.store.sql.protocol import owner
from infinite_scheduler.testing import Harness


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even its text")


class Undecided(Exception):
    @property
    def retryable(self) -> bool:
        raise RuntimeError("it does not know")


def raising(error: BaseException) -> Any:
    async def handler(job: Job) -> None:
        raise error

    return handler


def returning(make: Any) -> Any:
    async def handler(job: Job) -> Any:
        return make()

    return handler


ONCE = RetryPolicy(max_attempts=1)

HANDLERS = {
    "an error that is no text": raising(ValueError("file \udcff")),
    "an error that cannot be shown": raising(Unspeakable()),
    "an error that raises when asked": raising(Undecided()),
    "a retry after a text": returning(lambda: Retry(after="5m")),  # type: ignore[arg-type]
    "a retry at a naive moment": returning(lambda: Retry(at=datetime(2030, 1, 1))),  # noqa: DTZ001
    "a reason that is no text": returning(lambda: Failed(123)),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", HANDLERS)
async def test_a_job_ends_whatever_its_handler_does_and_the_others_go_on(name: str) -> None:
    async with Harness() as harness:
        harness.scheduler.app("odd", retry=ONCE)(HANDLERS[name])
        harness.scheduler.app("plain")(returning(lambda: None))
        await harness.start()
        odd = await harness.client.schedule("odd", delay="1s")
        await harness.advance("2s")
        plain = await harness.client.schedule("plain", delay="1s")
        await harness.advance("2s")
        record = await harness.client.get(odd.id)
        assert record.status is Status.FAILED
        assert record.error
        assert (await harness.client.get(plain.id)).status is Status.DONE


@pytest.mark.parametrize(
    "wish",
    [Retry(after=timedelta.max), Retry(after=timedelta(days=9000 * 365)), Retry(at=datetime.max.replace(tzinfo=UTC))],
)
async def test_a_retry_beyond_all_time_waits_until_its_end(wish: Retry) -> None:
    async with Harness() as harness:
        harness.scheduler.app("odd")(returning(lambda: wish))
        await harness.start()
        job = await harness.client.schedule("odd", delay="1s")
        await harness.advance("2s")
        record = await harness.client.get(job.id)
        assert record.status is Status.PENDING
        assert record.job.due_at.year == 9999
        assert await harness.stop()


async def test_an_outcome_that_the_store_cannot_record_fails_its_job_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = owner.update_of
    bad: list[bytes] = []

    def update_of(s: Settlement) -> Any:
        if s.job.key in bad and s.status is Status.DONE:
            raise UnicodeEncodeError("utf-8", "", 0, 1, "no")
        return recorded(s)

    monkeypatch.setattr(owner, "update_of", update_of)
    monkeypatch.setattr(lane, "BACK_OFF_MS", (1, 2))
    async with Harness() as harness:
        harness.scheduler.app("odd")(returning(lambda: None))
        await harness.start()
        jobs = [await harness.client.schedule("odd", delay="1s") for _ in range(5)]
        bad.append(jobs[2].key)
        await harness.advance("30s")
        statuses = [(await harness.client.get(job.id)).status for job in jobs]
        assert statuses == [Status.DONE, Status.DONE, Status.FAILED, Status.DONE, Status.DONE]
        assert "could not be recorded" in ((await harness.client.get(jobs[2].id)).error or "")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"misfire": "skip"}, "expected FireNow"),
        ({"retry": 3}, "expected a RetryPolicy"),
        ({"retry": {"max_attempts": 2}}, "expected a RetryPolicy"),
    ],
)
async def test_a_policy_of_the_wrong_kind_is_refused_at_once(options: dict[str, Any], says: str) -> None:
    async with Harness() as harness:
        with pytest.raises(HandlerError, match=says):
            harness.scheduler.app("odd", **options)(returning(lambda: None))


def test_errors_that_are_no_classes_are_refused_and_a_list_of_them_is_taken() -> None:
    with pytest.raises(ValueError, match="a tuple of exception classes"):
        RetryPolicy(give_up_on=("ValueError",))  # type: ignore[arg-type]
    assert RetryPolicy(give_up_on=[ValueError]).give_up_on == (ValueError,)  # type: ignore[arg-type]


@pytest.mark.parametrize("shards", [0, -1, 257, 5000])
async def test_a_number_of_shards_that_no_id_can_name_is_refused(shards: int) -> None:
    async with Harness() as harness:
        await harness.start()
        with pytest.raises(InvalidRequest, match="expected 1 to 256"):
            await harness.client.register("odd", shards)
        assert "odd" not in {app.name for app in (await harness.client.survey()).view.apps}
