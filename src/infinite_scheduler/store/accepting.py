"""The port that accepts jobs and changes them: what every door asks of a store."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from infinite_scheduler.model import Accepted, Change, JobRecord, JobSpec
from infinite_scheduler.store.cluster import AppInfo


class Holder(msgspec.Struct, frozen=True):
    """The job that an idempotency key belongs to, and what its content comes down to."""

    key: bytes
    digest: bytes


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a wish to change a job; not granted means too late."""

    granted: bool
    record: JobRecord


class Accepting(ABC):
    """What doors ask of a store; any process may."""

    @abstractmethod
    async def register(self, app: str, shards: int | None = None) -> AppInfo:
        """Make the app known to the store, with its shards and tables, or find it as it is.

        Raises StoreMismatch when it exists with another number of shards than asked for.
        """

    @abstractmethod
    async def add(self, specs: Sequence[JobSpec]) -> Sequence[Accepted]:
        """Accept jobs, all or none, in order. Durable on return.

        A job whose idempotency key is known answers with the first one's id; KeyConflict if its digest differs. A lost
        answer is asked again without making a second job. Raises UnknownApp for an app that the store does not know.
        """

    @abstractmethod
    def enqueue(self, connection: Any, specs: Sequence[JobSpec]) -> Sequence[Accepted]:
        """Accept jobs in a transaction of the user's own, on a connection to the store's database.

        They exist if and when the user commits. The store need not be open.
        """

    @abstractmethod
    async def holders(self, app: str, keys: Collection[str]) -> Mapping[str, Holder]:
        """Those of these idempotency keys that belong to a job already; looking takes none of the others."""

    @abstractmethod
    async def change(
        self,
        change: Change,
        key: bytes,
        *,
        due_ms: int | None = None,
        app: str | None = None,
        patience_ms: int,
    ) -> Verdict:
        """Cancel, reschedule, run now or retry one job. Durable on return.

        A granted cancel never fires, a granted reschedule not at the old moment. Asks the owner where it decides;
        raises Unavailable when it stays silent for `patience_ms`: then nothing was and nothing will be decided. Raises
        UnknownJob.
        """
