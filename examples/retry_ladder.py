"""A provider that is down at first: the delivery is retried, each time a little later."""

import asyncio
import tempfile

from infinite_scheduler import Job, RetryPolicy, Scheduler


class ProviderDown(Exception):
    """Worth another attempt."""


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        scheduler = Scheduler(f"sqlite:///{folder}/jobs.db")
        ladder = RetryPolicy(delays=("200ms", "400ms", "800ms"), jitter=0, max_attempts=4, give_up_on=(ValueError,))

        @scheduler.app("sms", retry=ladder)
        async def send(job: Job) -> None:
            if "to" not in job.data:
                raise ValueError("nobody to send it to")
            if job.attempt < 3:
                raise ProviderDown("503")
            print(f"sent to {job.data['to']} by attempt {job.attempt}")

        async with scheduler:
            good = await scheduler.schedule("sms", {"to": "Ada"}, delay="100ms")
            bad = await scheduler.schedule("sms", {}, delay="100ms")
            for accepted in (good, bad):
                record = await scheduler.wait(accepted.id, timeout="30s")
                print(record.status, [f"{attempt.attempt}: {attempt.error}" for attempt in record.attempts])


if __name__ == "__main__":
    asyncio.run(main())
