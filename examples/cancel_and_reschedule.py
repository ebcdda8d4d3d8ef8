"""Change a job: in time, and too late."""

import asyncio
import tempfile

from infinite_scheduler import Job, Scheduler, TooLate


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        scheduler = Scheduler(f"sqlite:///{folder}/jobs.db")

        @scheduler.app("reminders")
        async def remind(job: Job) -> None:
            print("fired:", job.data)

        async with scheduler:
            cancelled = await scheduler.schedule("reminders", "never seen", delay="500ms")
            print((await scheduler.cancel(cancelled.id)).status)

            moved = await scheduler.schedule("reminders", "sooner than asked", delay="1h")
            await scheduler.reschedule(moved.id, delay="300ms")
            await scheduler.wait(moved.id, timeout="30s")

            hurried = await scheduler.schedule("reminders", "at once", delay="1h")
            await scheduler.run_now(hurried.id)
            await scheduler.wait(hurried.id, timeout="30s")

            try:
                await scheduler.cancel(hurried.id)
            except TooLate as error:
                print("too late:", str(error).partition(": ")[2])

            revived = await scheduler.retry(cancelled.id)
            print("tried again:", (await scheduler.wait(revived.id, timeout="30s")).status)


if __name__ == "__main__":
    asyncio.run(main())
