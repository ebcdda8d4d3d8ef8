"""The port that shows jobs and the cluster to people."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import msgspec

from infinite_scheduler.model import JobRecord, Status
from infinite_scheduler.store.cluster_state import View


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs to list, in the order of their ids; the range is of the moment in the id."""

    app: str | None = None
    status: Status | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    tag: str | None = None
    newest_first: bool = False
    limit: int = 100
    cursor: str | None = None


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a listing; `cursor` asks for the next."""

    records: Sequence[JobRecord]
    cursor: str | None


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about the cluster that people ask for."""

    view: View
    counts: Mapping[
        str, Mapping[str, int]
    ]  # app → accepted, done, failed, expired, cancelled, retried: within retention


class Looking(ABC):
    """What people ask of a store; looking changes nothing."""

    @abstractmethod
    async def get(self, key: bytes, *, app: str | None = None) -> JobRecord | None:
        """One job with its attempts, or None."""

    @abstractmethod
    async def find(self, query: Query) -> Found:
        """List jobs, a page at a time."""

    @abstractmethod
    async def survey(self) -> Survey:
        """Apps, nodes, shards and counts at one moment."""
