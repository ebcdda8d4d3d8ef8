"""The port of a handler: what happens at the moment."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from zoneinfo import ZoneInfo

from infinite_scheduler.model import Job, Outcome

Report = Callable[[Job, Outcome | BaseException], None]
"""Says how the delivery of one job ended; an exception leaves it to the app's retry policy what follows."""


class Handler(ABC):
    """Takes jobs when they are due.

    At least once: the same (job id, attempt) may come again after a crash. Handlers know nothing of stores or shards.
    """

    batch: int = 1
    """The most jobs that one call takes."""

    checks: bool = False
    """Does `check` look at the data? Where it does not, doors need not decode it."""

    def check(self, data: Any) -> None:
        """Refuse data that this handler can do nothing with, at the door: raise InvalidPayload and say what to change.

        Any other error is taken for a passing one: the door tries again a few times.
        """
        del data

    def adopt(self, message: Mapping[str, Any]) -> object | None:
        """The moment in a message that has no envelope but is a job's data as it stands; None: it is none of ours.

        InvalidPayload: it would be one of ours, if it did not lack something.
        """
        del message
        return None

    def locate(self, zone: ZoneInfo) -> None:
        """Learn the zone of the node, its `time.zone`, when an app is registered; for times that name none."""
        del zone

    async def start(self) -> None:
        """Get ready; called once before the first job."""
        return

    async def stop(self) -> None:
        """Let go of everything; called once after the last job."""
        return

    @abstractmethod
    async def handle(self, jobs: Sequence[Job], report: Report) -> None:
        """Hand over these jobs, and report each of them exactly once, at the latest before returning.

        The jobs keep their place in the app's concurrency until this returns, so a handler that reports a time-out
        while the work still runs does not let more in. It is cancelled when the node must stop: then what is not
        reported is tried again.
        """

    def unfinished(self) -> Sequence[Job]:
        """Jobs whose work cannot be stopped and still runs."""
        return ()
