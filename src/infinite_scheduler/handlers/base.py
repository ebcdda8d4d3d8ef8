"""The port of a handler: what happens at the moment."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from infinite_scheduler.model import Job, Outcome

Report = Callable[[Job, Outcome | BaseException], None]
"""Says how the delivery of one job ended; an exception leaves it to the app's retry policy what follows."""


class Handler(ABC):
    """Takes jobs when they are due.

    At least once: the same (job id, attempt) may come again after a crash. Handlers know nothing of stores or shards.
    """

    batch: int = 1
    """The most jobs that one call takes."""

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
