"""The port of a handler: what happens when a job is due."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from zoneinfo import ZoneInfo

from infinite_scheduler.model import Job, Outcome

Report = Callable[[Job, Outcome | BaseException], None]
"""Says how the delivery of one job ended; after an exception the app's retry policy decides."""


class Handler(ABC):
    """Takes jobs when they are due.

    At least once: the same (job id, attempt) may come again after a crash. Handlers know nothing of stores or shards.
    """

    batch: int = 1
    """The most jobs that one call takes."""

    checks: bool = False
    """Does `check` look at the data? If not, doors need not decode it."""

    def check(self, data: Any) -> None:
        """Refuse data that this handler cannot use, before it is accepted: raise InvalidPayload and say what to change.

        Any other error is considered temporary: the door tries again a few times.
        """
        del data

    def adopt(self, message: Mapping[str, Any]) -> object | None:
        """The time of a message without envelope that is itself a job's data; None if it is not data for this handler.

        Raises InvalidPayload if it is data for this handler but lacks something.
        """
        del message
        return None

    def locate(self, zone: ZoneInfo) -> None:
        """Learn the zone of the node, its `time.zone`, when an app is registered; for times without a zone."""
        del zone

    async def start(self) -> None:
        """Get ready; called once before the first job."""
        return

    async def stop(self) -> None:
        """Release all resources; called once after the last job."""
        return

    @abstractmethod
    async def handle(self, jobs: Sequence[Job], report: Report) -> None:
        """Hand over these jobs, and report each of them exactly once, before returning.

        The jobs count towards the app's concurrency until this returns, so a handler that reports a time-out while the
        work still runs does not let more in. It is cancelled when the node must stop: then jobs without a report are
        tried again.
        """

    def unfinished(self) -> Sequence[Job]:
        """Jobs whose work cannot be stopped and still runs."""
        return ()
