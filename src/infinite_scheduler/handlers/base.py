"""The port of a handler: what happens when a job is due."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from zoneinfo import ZoneInfo

from infinite_scheduler.model import Job, Outcome

Report = Callable[[Job, Outcome | BaseException], None]
"""Says how the delivery of one job ended; after an exception the app's retry policy decides.

It is called in the thread of the event loop, with the very job that came: a copy is not recognised.
"""


class Handler(ABC):
    """Takes jobs when they are due.

    At least once: the same (job id, attempt) may come again after a crash. Handlers know nothing of stores or shards.
    `HandlerContract` in `infinite_scheduler.testing` states every promise as a test.
    """

    batch: int = 1
    """The most jobs that one call takes."""

    checks: bool = False
    """Does `check` look at the data? If not, doors need not decode it."""

    def check(self, data: Any) -> None:
        """Refuse data that this handler cannot use, before it is accepted: raise InvalidPayload and say what to change.

        Data that can be handed over is accepted, and nothing is refused unless `checks` is set. Any other error is
        considered temporary: the door tries again a few times.
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
        """Get ready; called before the first job, and again when a node that was stopped is started again."""
        return

    async def stop(self) -> None:
        """Release all resources: no thread, task or process is left except what `unfinished` names.

        Called after the last job, and without a start when another part of the node could not start: then there is
        nothing to do. Deliveries that hang are not waited for.
        """
        return

    async def ready(self) -> None:
        """Raise DestinationAway if jobs could not be handed over now.

        It is asked after a start, to warn people, and instead of a probe while the app is held back and none of its
        jobs is due. It may take its time, and is cancelled by a stop. By default nothing is looked at.
        """
        return

    @abstractmethod
    async def handle(self, jobs: Sequence[Job], report: Report) -> None:
        """Hand over these jobs, up to `batch`, and report each of them exactly once, before returning.

        Calls run at the same time, each with its own jobs. A job is reported as done when it has arrived. That one
        fails is reported, not raised, and leaves the others of the call alone. A handler that has a time-out reports it
        as an error that is worth another attempt. That no job could be handed over is reported as DestinationAway for
        each that was not: these come again, as they were, when the destination may be back.

        The jobs count towards the app's concurrency until this returns, so a handler that reports a time-out while the
        work still runs does not let more in. It is cancelled when the node must stop: then it ends as cancelled and
        reports nothing more, and jobs without a report are tried again.
        """

    def unfinished(self) -> Sequence[Job]:
        """Jobs whose work runs and does not end when their call is cancelled; a node that stops leaves them to it."""
        return ()
