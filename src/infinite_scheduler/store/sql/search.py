"""Lists jobs: looks at a bounded number of rows, in the order of the list, and says how far it came."""

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final

import msgspec

from infinite_scheduler.model import JobRecord, Shard, Status, position, start_of
from infinite_scheduler.store.looking import Found, Query
from infinite_scheduler.store.ownership import Scan, named
from infinite_scheduler.store.sql.bookmark import Bookmark
from infinite_scheduler.store.sql.job_rows import after
from infinite_scheduler.store.sql.statements import LookAt, Probe, Statements
from infinite_scheduler.store.sql.tables import SqlApp

FIRST: Final = bytes(16)
LAST: Final = b"\xff" * 16

LONGEST_STRIDE: Final = 10_000
"""Rows that one look goes through. The first ones are short: most lists are long, and a page of them is soon full."""

MANY: Final = 1 << 40
"""As many rows as it takes."""

WAKES: Final = 200
"""Jobs named by requests that are looked up to find where pending ones begin."""


class Route(msgspec.Struct):
    """One of the ways on which the jobs of a list are met, and what of it is left."""

    at: LookAt
    app: str
    start: bytes
    end: bytes
    stride: int
    begun: bool = False


class Sighting(msgspec.Struct, frozen=True, order=True):
    """A job that was met, at its place in the list."""

    place: bytes
    app: str
    key: bytes
    part: int


class Search:
    """One page of a list. Of its routes, the one that is furthest behind always goes on."""

    def __init__(self, tx: Statements, query: Query, apps: Sequence[SqlApp], mark: Bookmark) -> None:
        self._tx = tx
        self._query = query
        self._apps = {app.name: app for app in apps}
        self._mark = mark
        self._wanted = query.limit + 1  # one more shows that there is another page
        self._rows_left = MANY if query.most is None else query.most

    def run(self) -> Found:
        """The page."""
        if self._query.idempotency_key is not None:
            return self._found(self._from_mark(self._holders(self._query.idempotency_key)), None)
        page: list[Sighting] = []
        parts = _parts(self._query, self._mark.now_ms)
        for part in range(self._mark.part, len(parts)):
            found, edge = self._go(part, self._routes(part, *parts[part]), self._wanted - len(page))
            page += found
            if edge is not None:
                return self._found(page, msgspec.structs.replace(self._mark, part=part, place=edge))
            if len(page) >= self._wanted:
                break
        return self._found(page, None)

    def _holders(self, key: str) -> Iterable[Sighting]:
        """The jobs that have an idempotency key: at most one per app."""
        for app in self._apps:
            holder = self._tx.read_keys(app, [key]).get(key)
            if holder is not None:
                for head in self._tx.read_heads(app, [holder[0]]):
                    place = position(head.key, head.due_ms) if self._query.status is Status.PENDING else head.key
                    yield Sighting(place, app, head.key, 0)

    def _from_mark(self, found: Iterable[Sighting]) -> Sequence[Sighting]:
        """Those at which the last page had not arrived, in order."""
        newest_first, mark = self._query.newest_first, self._mark.place
        rest = (one for one in found if not mark or (one.place < mark if newest_first else one.place >= mark))
        return sorted(rest, reverse=newest_first)

    def _routes(self, part: int, start: bytes, end: bytes) -> list[Route]:
        """The routes of a part of the list, from where the last page ended."""
        if part == self._mark.part and self._mark.place:
            start, end = (start, self._mark.place) if self._query.newest_first else (self._mark.place, end)
        ranges = self._ranges(start, end)
        begins = pending_from(self._tx, list(self._apps.values())) if self._query.status is Status.PENDING else {}
        apps = self._with_rows(start, end)
        share = self._rows_left // (2 * len(ranges) * max(1, len(apps)))  # each route gets a turn, whatever is left
        stride = max(1, min(share, 4 * self._query.limit, LONGEST_STRIDE))
        return [
            Route(at, app, max(first, start_of(begins.get(app, 0))), last, stride)
            for app in apps
            for at, (first, last) in ranges.items()
        ]

    def _ranges(self, start: bytes, end: bytes) -> Mapping[LookAt, tuple[bytes, bytes]]:
        """The kinds of routes, and what of this range each goes through.

        Jobs that failed before a version that says so in their attempts are met by their rows.
        """
        kinds = _kinds(self._query)
        known = start_of(self._tx.ends_known_from()) if LookAt.ENDED in kinds else start
        if known <= start:
            return dict.fromkeys(kinds, (start, end))
        before = start, min(known, end)
        return {LookAt.ENDED: (known, end), LookAt.ROWS: before, LookAt.LATER: before}

    def _with_rows(self, start: bytes, end: bytes) -> Sequence[str]:
        """The apps that have anything in this range."""
        if len(self._apps) < 2:
            return list(self._apps)
        scans = [Scan(app=app, shards=frozenset({0}), start=start, end=end, limit=1, room=1) for app in self._apps]
        empty = self._tx.apps_without_jobs(scans)
        return [app for app in self._apps if app not in empty]

    def _go(self, part: int, routes: list[Route], wanted: int) -> tuple[Sequence[Sighting], bytes | None]:
        """Go on until enough was found, or looked at. Returns what was met before the edge up to which all was seen.

        The edge is None if all routes were gone to their ends.
        """
        newest_first = self._query.newest_first
        found: list[Sighting] = []
        while routes := [route for route in routes if route.start < route.end]:
            behind = max(routes, key=_end) if newest_first else min(routes, key=_start)
            edge = behind.end if newest_first else behind.start
            certain = [one for one in found if (one.place >= edge if newest_first else one.place < edge)]
            enough = self._rows_left <= 0 and all(route.begun for route in routes)  # so that every page goes on
            if enough or len(certain) >= wanted:
                return sorted(certain, reverse=newest_first), edge
            found += [Sighting(place, behind.app, key, part) for place, key in self._step(behind)]
        return sorted(found, reverse=newest_first), None

    def _step(self, route: Route) -> Sequence[tuple[bytes, bytes]]:
        """Probe at the next rows of a route."""
        looked = self._tx.look(
            Probe(
                at=route.at,
                app=route.app,
                start=route.start,
                end=route.end,
                query=self._query,
                most=max(1, min(route.stride, self._rows_left)),
                limit=self._wanted,
            )
        )
        self._rows_left -= looked.rows
        route.begun = True
        route.stride = min(2 * route.stride, LONGEST_STRIDE)
        if self._query.newest_first:
            route.end = route.start if looked.left is None else looked.left
        else:
            route.start = route.end if looked.left is None else looked.left
        return looked.found

    def _found(self, page: Sequence[Sighting], mark: Bookmark | None) -> Found:
        """The records of these jobs, as many as there is room for, and the cursor of the rest."""
        query = self._query
        chosen = self._fitting(page[: query.limit])
        if len(chosen) < len(page):
            last = chosen[-1]
            place = last.place if query.newest_first else after(last.place)
            mark = msgspec.structs.replace(self._mark, part=last.part, place=place)
        if mark is None:
            searched_to_ms = query.from_ms if query.newest_first else query.to_ms
            return Found(records=self._records(chosen), cursor=None, searched_to_ms=searched_to_ms)
        searched_to_ms = int.from_bytes(mark.place[:6], "big")
        return Found(records=self._records(chosen), cursor=mark.cursor(query), searched_to_ms=searched_to_ms)

    def _fitting(self, page: Sequence[Sighting]) -> Sequence[Sighting]:
        """The first of these jobs, as many as there is room for."""
        if self._query.room is None:
            return page
        sizes = {head.key: head.size for app, keys in _by_app(page) for head in self._tx.read_heads(app, keys)}
        room = self._query.room
        for i, one in enumerate(page):
            room -= sizes.get(one.key, 0)
            if i and room < 0:
                return page[:i]
        return page

    def _records(self, page: Sequence[Sighting]) -> Sequence[JobRecord]:
        """The jobs in order, but for those that have changed since they were met."""
        records = {record.job.key: record for app, keys in _by_app(page) for record in self._tx.read_jobs(app, keys)}
        if self._query.attempts:
            for app, keys in _by_app(page):
                for key, attempts in self._tx.read_attempts_of(app, keys).items():
                    if key in records:
                        records[key] = msgspec.structs.replace(records[key], attempts=tuple(attempts))
        return [records[one.key] for one in page if one.key in records and _meets(records[one.key], one, self._query)]


def search(tx: Statements, query: Query, now_ms: int) -> Found:
    """One page of a list of jobs; the app, if one is named, must exist."""
    mark = Bookmark(part=0, place=b"", now_ms=now_ms)
    if query.cursor is not None:
        mark = Bookmark.parse(query.cursor, query)
    apps = [app for app in tx.read_apps() if query.app in (None, app.name)]
    return Search(tx, query, apps, mark).run()


def pending_from(tx: Statements, apps: Sequence[SqlApp]) -> Mapping[str, int]:
    """When the pending jobs of each app begin: at `low`, or at a job that its owner has yet to look at.

    An app that is not in the answer may have them from any time.
    """
    requests = tx.read_requests({Shard(app.name, number) for app in apps for number in range(app.shards)}, WAKES)
    lows = tx.lows(apps[0].name if len(apps) == 1 else None)  # after them: who deletes a request lowers `low`
    if named(requests) >= WAKES:
        return {}
    asked: dict[str, set[bytes]] = {}
    for request in requests:
        asked.setdefault(request.shard.app, set()).update(request.keys)
    dues = {
        app: [head.due_ms for head in tx.read_heads(app, keys) if head.status is Status.PENDING]
        for app, keys in asked.items()
    }
    return {app: min([low_ms, *dues.get(app, ())]) for app, low_ms in lows.items()}


def _parts(query: Query, now_ms: int) -> Sequence[tuple[bytes, bytes]]:
    """The ranges of a list, one after the other.

    Jobs that are done are mostly of the past, and in front of those that were run before their time lie all that wait.
    """
    start = start_of(query.from_ms or 0)
    end = LAST if query.to_ms is None else start_of(query.to_ms)
    now = start_of(now_ms)
    if query.newest_first and query.status in (Status.DONE, Status.CANCELLED) and start < now < end:
        return [(start, now), (now, end)]
    return [(start, end)]


def _kinds(query: Query) -> Sequence[LookAt]:
    match query.status:
        case Status.PENDING:
            return (LookAt.ROWS, LookAt.LATER, LookAt.MOVED)
        case Status.FAILED | Status.EXPIRED:
            return (LookAt.ENDED,)
        case _:
            return (LookAt.ROWS, LookAt.LATER)


_start: Final = attrgetter("start")
_end: Final = attrgetter("end")


def _by_app(page: Sequence[Sighting]) -> Iterable[tuple[str, list[bytes]]]:
    apps: dict[str, list[bytes]] = {}
    for one in page:
        apps.setdefault(one.app, []).append(one.key)
    return apps.items()


def _meets(record: JobRecord, one: Sighting, query: Query) -> bool:
    """Is the job still as it is looked for, and at its place?"""
    job = record.job
    at_ms = int.from_bytes(one.place[:6], "big")
    return (
        query.status in (None, record.status)
        and (query.status is not Status.PENDING or job.position == one.place)
        and (query.from_ms or 0) <= at_ms
        and (query.to_ms is None or at_ms < query.to_ms)
        and (query.tag is None or query.tag in job.tags)
        and query.job_name in (None, job.job_name)
        and query.group in (None, job.group)
        and query.request_id in (None, job.request_id)
        and query.idempotency_key in (None, record.idempotency_key)
        and (query.error is None or query.error in (record.error or ""))
    )
