"""Half an hour of reminders, tested in a moment: the clock of the harness moves only when the test says so."""

import asyncio

from infinite_scheduler import ExpireAfter, Job, RetryPolicy
from infinite_scheduler.testing import Harness


async def test_a_reminder_is_tried_again_after_ten_minutes() -> None:
    sent: list[int] = []

    async def remind(job: Job) -> None:
        if job.attempt == 1:
            raise ConnectionError("no route")
        sent.append(job.attempt)

    async with Harness() as h:
        h.scheduler.app("reminders", retry=RetryPolicy(delays=["10m"], jitter=0))(remind)
        await h.start()
        job = await h.client.schedule("reminders", {"to": "Ada"}, delay="20m")
        await h.advance("29m59s")
        assert sent == []
        await h.advance("1s")
        assert sent == [2]
        assert (await h.client.get(job.id)).status == "done"
        late_ms = [delivery.at_ms - delivery.job.due_ms for delivery in h.delivered]
        assert late_ms == [0, 0]


async def test_a_code_that_waited_too_long_is_not_sent() -> None:
    async def send(job: Job) -> None:
        raise AssertionError("it should have expired")

    async with Harness() as h:
        h.scheduler.app("codes", misfire=ExpireAfter("5m"))(send)
        await h.start()
        await h.client.pause("codes")
        await h.advance("5s")  # nodes see a pause at their next heartbeat
        job = await h.client.schedule("codes", "4711", delay="1m")
        await h.advance("10m")
        await h.client.resume("codes")
        await h.advance("5s")
        assert (await h.client.get(job.id)).status == "expired"


async def main() -> None:
    await test_a_reminder_is_tried_again_after_ten_minutes()
    await test_a_code_that_waited_too_long_is_not_sent()
    print("2 tests passed")


if __name__ == "__main__":
    asyncio.run(main())
