"""What a client in the node's own process changes is noticed at once: nobody else's write would betray it."""

from datetime import timedelta

import pytest

from infinite_scheduler import Job, Scheduler
from infinite_scheduler.testing import Harness


async def done(job: Job) -> None:
    """Take the job."""


def wants_mail(scheduler: Scheduler) -> None:
    scheduler.app("mail")(done)


@pytest.mark.parametrize("change", ["run_now", "reschedule"])
async def test_a_job_that_is_moved_before_the_line_by_its_own_process_fires_at_once(change: str) -> None:
    async with Harness() as harness:
        wants_mail(harness.scheduler)
        await harness.start()
        job = await harness.scheduler.schedule("mail", delay=timedelta(hours=1))
        await harness.advance("1s")
        if change == "run_now":
            await harness.scheduler.run_now(job.id)
        else:
            await harness.scheduler.reschedule(job.id, delay=timedelta(milliseconds=100))
        await harness.advance("1s")
        assert [delivery.job.id for delivery in harness.delivered] == [job.id]
