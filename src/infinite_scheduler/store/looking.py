"""The port that shows jobs and the cluster to people."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import msgspec

from infinite_scheduler.errors import InvalidRequest
from infinite_scheduler.model import MAX_DUE_MS, JobRecord, Status
from infinite_scheduler.store.cluster_state import View


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs to list. Their order, and the range [from_ms, to_ms), are those of one moment of each job.

    For pending jobs that is the moment at which they are due now, for all others the one for which they were accepted,
    as in the id. Newest first, jobs that are done or cancelled and whose moment is still to come follow at the end.
    """

    app: str | None = None
    status: Status | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    tag: str | None = None
    job_name: str | None = None
    group: str | None = None
    request_id: str | None = None
    idempotency_key: str | None = None  # found for as long as the key is remembered
    error: str | None = None  # a part of the last error
    newest_first: bool = False
    limit: int = 100
    most: int | None = None  # rows that one call may look at; None: as many as it takes
    attempts: bool = False  # read the attempts of the jobs that are found, too
    room: int | None = None  # bytes of payload after which no more jobs are read, but at least one; None: any number
    cursor: str | None = None  # of the page before, in the same list


def check_filters(query: Query) -> None:
    """Refuse texts and moments that no job can have: not every database, and no request, would take them."""
    for name in ("from_ms", "to_ms"):
        moment = getattr(query, name)
        if moment is not None and not 0 <= moment <= MAX_DUE_MS + 1:
            raise InvalidRequest(f"{name} {moment} is out of range: use a moment in the years 1970 to 9999")
    for name in ("tag", "job_name", "group", "request_id", "idempotency_key", "error"):
        text = getattr(query, name)
        if text is not None and ("\0" in text or text.encode("utf-8", "replace").decode() != text):
            raise InvalidRequest(f"{name} {text!r} has characters that no job can have: leave them out")


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a list; `cursor` asks for the next, and may be there although no job was found."""

    records: Sequence[JobRecord]
    cursor: str | None
    searched_to_ms: int | None = None  # up to this moment all was looked at; None: there is nothing more in any range


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
        """List jobs, a page at a time. Raises InvalidRequest for a cursor that is not of this list."""

    @abstractmethod
    async def survey(self) -> Survey:
        """Apps, nodes, shards and counts at one moment."""
