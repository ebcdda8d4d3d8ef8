"""The port that accepts jobs and changes them: what every door asks of a store."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from infinite_scheduler.model import Accepted, Change, JobRecord, JobSpec
from infinite_scheduler.store.cluster_state import AppInfo


class Holder(msgspec.Struct, frozen=True):
    """The job that has an idempotency key, and the digest of its content."""

    key: bytes
    digest: bytes


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request to change a job; not granted means too late."""

    granted: bool
    record: JobRecord


class Accepting(ABC):
    """What doors ask of a store; any process may."""

    @abstractmethod
    async def register(self, app: str, shards: int | None = None) -> AppInfo:
        """Add the app to the store, with its shards, or return it if it exists.

        Raises StoreMismatch if it exists with another number of shards.
        """

    async def register_all(self, apps: Mapping[str, int | None]) -> Sequence[AppInfo]:
        """Add these apps, each with its number of shards if one was given, as `register` does."""
        return [await self.register(app, shards) for app, shards in apps.items()]

    @abstractmethod
    async def add(self, specs: Sequence[JobSpec]) -> Sequence[Accepted]:
        """Accept jobs, all or none, in order. Durable on return.

        A job whose idempotency key is known answers with the id of the first one; KeyConflict if its digest differs.
        After a lost answer the insert is repeated without creating a second job. Raises UnknownApp for an app that is
        not registered.
        """

    @abstractmethod
    def enqueue(self, connection: Any, specs: Sequence[JobSpec]) -> Sequence[Accepted]:
        """Accept jobs in a transaction of the user's own, on a connection to the store's database.

        They exist if and when the user commits. The store need not be open.
        """

    @abstractmethod
    async def holders(self, app: str, keys: Collection[str]) -> Mapping[str, Holder]:
        """Those of these idempotency keys that already belong to a job; the others stay free."""

    @abstractmethod
    async def change(
        self,
        change: Change,
        key: bytes,
        *,
        due_ms: int | None = None,
        app: str | None = None,
        timeout_ms: int,
    ) -> Decision:
        """Cancel, reschedule, run now or retry one job. Durable on return.

        A granted cancel is never handed over, a granted reschedule not at the old time. Asks the owner if the owner
        decides; raises Unavailable if the owner does not answer within `timeout_ms`: then nothing was and nothing will
        be decided. Raises UnknownJob.
        """
