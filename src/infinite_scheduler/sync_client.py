"""The client for programs without an event loop: one thin facade, in a thread with a loop of its own."""

from collections.abc import Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from infinite_scheduler.bulk_change.job_changes import BulkPreview, BulkResult
from infinite_scheduler.client import Client, NewJob
from infinite_scheduler.config import Settings
from infinite_scheduler.loop_thread import LoopThread
from infinite_scheduler.model import Accepted, Change, JobRecord
from infinite_scheduler.store.abilities import Abilities
from infinite_scheduler.store.cluster_state import AppInfo
from infinite_scheduler.store.looking import Found, Survey

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

T = TypeVar("T")


class SyncClient:
    """The client for programs without an event loop: the calls of `Client`, each of which waits for its result.

    Use it as `with SyncClient("sqlite:///scheduler.db") as client`. It may be shared between threads.
    """

    def __init__(self, url: str | None = None, *, settings: Settings | Mapping[str, Any] | None = None) -> None:
        self._client = Client(url, settings=settings)
        self._thread = LoopThread(
            "infinite-scheduler-client",
            idle="the client is not open: use `with SyncClient(...) as client`",
            ended="the client was closed while it waited",
        )

    def __enter__(self) -> Self:
        self._thread.begin()
        try:
            self._run(self._client.open())
        except BaseException:
            self._thread.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._run(self._client.close())
        finally:
            self._thread.end()

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._thread.run(call)

    @property
    def abilities(self) -> Abilities:
        """See Client.abilities."""
        return self._client.abilities

    def register(self, app: str, shards: int | None = None) -> AppInfo:
        """See Client.register."""
        return self._run(self._client.register(app, shards))

    def schedule(self, app: str, data: Any = None, **options: Any) -> Accepted:
        """See Client.schedule."""
        return self._run(self._client.schedule(app, data, **options))

    def schedule_many(self, app: str, jobs: Iterable[NewJob]) -> Sequence[Accepted]:
        """See Client.schedule_many."""
        return self._run(self._client.schedule_many(app, jobs))

    def enqueue(self, connection: "Connection", app: str, jobs: Iterable[NewJob]) -> Sequence[Accepted]:
        """See Client.enqueue."""
        return self._client.enqueue(connection, app, jobs)

    def cancel(self, job_id: str, **options: Any) -> JobRecord:
        """See Client.cancel."""
        return self._run(self._client.cancel(job_id, **options))

    def reschedule(self, job_id: str, **options: Any) -> JobRecord:
        """See Client.reschedule."""
        return self._run(self._client.reschedule(job_id, **options))

    def run_now(self, job_id: str, **options: Any) -> JobRecord:
        """See Client.run_now."""
        return self._run(self._client.run_now(job_id, **options))

    def retry(self, job_id: str, **options: Any) -> JobRecord:
        """See Client.retry."""
        return self._run(self._client.retry(job_id, **options))

    def preview_change(self, change: Change | str, **filters: Any) -> BulkPreview:
        """See Client.bulk_change and its preview."""
        return self._run(self._client.bulk_change(change, **filters).preview())

    def change_jobs(self, change: Change | str, *, cursor: str | None = None, **filters: Any) -> BulkResult:
        """See Client.bulk_change and its run; with a cursor it goes on where an earlier one was stopped."""
        return self._run(self._client.bulk_change(change, **filters).run(cursor))

    def get(self, job_id: str, **options: Any) -> JobRecord:
        """See Client.get."""
        return self._run(self._client.get(job_id, **options))

    def find(self, app: str | None = None, **filters: Any) -> Found:
        """See Client.find."""
        return self._run(self._client.find(app, **filters))

    def wait(self, job_id: str, **options: Any) -> JobRecord:
        """See Client.wait."""
        return self._run(self._client.wait(job_id, **options))

    def pause(self, app: str) -> None:
        """See Client.pause."""
        self._run(self._client.pause(app))

    def resume(self, app: str) -> None:
        """See Client.resume."""
        self._run(self._client.resume(app))

    def drain_node(self, node_id: str) -> int:
        """See Client.drain_node."""
        return self._run(self._client.drain_node(node_id))

    def resume_node(self, node_id: str) -> int:
        """See Client.resume_node."""
        return self._run(self._client.resume_node(node_id))

    def survey(self) -> Survey:
        """See Client.survey."""
        return self._run(self._client.survey())
