"""A store that nodes work on elsewhere: the port over API v1 of a server there."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from infinite_scheduler.clock import Clock
from infinite_scheduler.errors import IdRefused, TooLate, UnknownApp, UnknownJob, UnknownNode
from infinite_scheduler.model import MAX_DUE_MS, Accepted, Change, JobId, JobRecord, JobSpec, check_app_name, key_text
from infinite_scheduler.store.abilities import EVERYTHING, Abilities, Ability
from infinite_scheduler.store.accepting import Decision, Holder
from infinite_scheduler.store.base import Store
from infinite_scheduler.store.cluster_state import AppInfo
from infinite_scheduler.store.http.drawn_ids import DrawnIds
from infinite_scheduler.store.http.http_inbox import HttpInbox
from infinite_scheduler.store.http.http_ledger import HttpLedger
from infinite_scheduler.store.http.http_session import HttpRequest, HttpSession, path
from infinite_scheduler.store.http.wire import (
    AcceptedJob,
    AcceptedJobs,
    Anything,
    ShownDrain,
    ShownHolders,
    ShownJob,
    ShownPage,
    ShownSurvey,
    moment_ms,
    moment_text,
    sent_job,
)
from infinite_scheduler.store.looking import Found, Query, Survey, check_filters

OWN_URL: Final = (
    "use the store's own URL, such as postgresql://USER@HOST/DATABASE, since http:// speaks for a store that nodes "
    "work on elsewhere"
)

ABILITIES: Final = Abilities(
    "HTTP",
    EVERYTHING
    - {
        Ability.OWNERSHIP,
        Ability.MARKS,
        Ability.CLOCK,
        Ability.OWN_TRANSACTION,
        Ability.INBOX,
        Ability.RECORDS,
        Ability.TOKENS,
    },
    OWN_URL,
)

MOST_JOBS: Final = 1000
MOST_ROWS: Final = 50_000
MOST_BYTES: Final = 8 << 20
"""What one page may ask for: the server takes no larger numbers."""

KEYS: Final = 1000
"""How many idempotency keys one request looks for."""

_PATHS: Final = {
    Change.CANCEL: "cancel",
    Change.RESCHEDULE: "reschedule",
    Change.RUN_NOW: "run-now",
    Change.RETRY: "retry",
}
_FILTERS: Final = {
    "app": "app",
    "status": "status",
    "tag": "tag",
    "job_name": "name",
    "group": "group",
    "request_id": "request_id",
    "idempotency_key": "idempotency_key",
    "error": "error",
    "cursor": "cursor",
}
"""What a query says as text, and the names of the parameters."""

_survey = msgspec.json.Decoder(ShownSurvey)
_app = msgspec.json.Decoder(AppInfo)
_one = msgspec.json.Decoder(AcceptedJob)
_jobs = msgspec.json.Decoder(AcceptedJobs)
_job = msgspec.json.Decoder(ShownJob)
_page = msgspec.json.Decoder(ShownPage)
_holders = msgspec.json.Decoder(ShownHolders)
_drain = msgspec.json.Decoder(ShownDrain)
_anything = msgspec.json.Decoder(Anything)


class HttpStore(Store):
    """Accepts, changes and shows jobs by asking a server."""

    def __init__(self, session: HttpSession, clock: Clock) -> None:
        self._session = session
        self._clock = clock
        self._ids = DrawnIds(clock)

    @property
    def abilities(self) -> Abilities:
        return ABILITIES

    async def open(self) -> None:
        await self._session.open()
        try:
            await self.survey()
        except BaseException:
            await self._session.close()
            raise

    async def close(self) -> None:
        await self._session.close()

    # Accepting

    async def register(self, app: str, shards: int | None = None) -> AppInfo:
        return (await self.register_all({app: shards}))[0]

    async def register_all(self, apps: Mapping[str, int | None]) -> Sequence[AppInfo]:
        """Those that exist need no right to add any."""
        known = {info.name: info for info in (await self.survey()).view.apps}
        found = []
        for app, shards in apps.items():
            info = known.get(check_app_name(app))
            if info is None or shards not in {None, info.shards}:
                body = msgspec.json.encode({"app": app, "shards": shards})
                info = await self._session.ask(HttpRequest(method="POST", path=path("apps"), body=body), _app)
            self._ids.shards[app] = info.shards
            found.append(info)
        return found

    async def add(self, specs: Sequence[JobSpec]) -> Sequence[Accepted]:
        """Accept jobs under ids that are drawn here: if the answer is lost, the same are sent again.

        Where the server cannot take such ids they are drawn anew, by its clock and apps as they are now, and for no
        table that may be missing; if even those are refused, it draws them itself, and a lost answer is reported as
        unknown.
        """
        await self._know({spec.app for spec in specs})
        try:
            return await self._send_jobs(specs, self._ids.draw(specs))
        except IdRefused:
            await self.survey()
        try:
            return await self._send_jobs(specs, self._ids.draw(specs, later=True))
        except IdRefused:
            return await self._send_jobs(specs, [None] * len(specs))

    async def _send_jobs(self, specs: Sequence[JobSpec], keys: Sequence[bytes | None]) -> Sequence[Accepted]:
        jobs = [sent_job(spec, key) for spec, key in zip(specs, keys, strict=True)]
        repeatable = all(
            key is not None or spec.idempotency_key is not None for spec, key in zip(specs, keys, strict=True)
        )
        if len(jobs) == 1:  # one alone is refused for its own reason
            alone = HttpRequest(
                method="POST", path=path("jobs"), body=msgspec.json.encode(jobs[0]), repeatable=repeatable
            )
            return [(await self._session.ask(alone, _one)).accepted()]
        request = HttpRequest(
            method="POST",
            path=path("jobs", "bulk"),
            query={"all_or_none": "true"},
            body=msgspec.json.encode(jobs),
            repeatable=repeatable,
        )
        return [one.accepted() for one in (await self._session.ask(request, _jobs)).results]

    async def _know(self, apps: set[str]) -> None:
        """Learn how many shards these apps have: their number never changes."""
        if not apps <= self._ids.shards.keys():
            await self.survey()
        for app in sorted(apps):
            if app not in self._ids.shards:
                raise UnknownApp(app, self._ids.shards)

    async def holders(self, app: str, keys: Collection[str]) -> Mapping[str, Holder]:
        wanted, found = list(keys), {}
        for start in range(0, len(wanted), KEYS):
            body = msgspec.json.encode({"keys": wanted[start : start + KEYS]})
            answer = await self._session.ask(
                HttpRequest(method="POST", path=path("apps", app, "keys"), body=body), _holders
            )
            for key, one in answer.holders.items():
                found[key] = Holder(bytes(JobId.parse(one.id)), bytes.fromhex(one.digest))
        return found

    async def change(
        self, change: Change, key: bytes, *, due_ms: int | None = None, app: str | None = None, timeout_ms: int
    ) -> Decision:
        """Only a cancel is sent again if its answer is lost: the others may have been followed by something else."""
        body = b""
        if change is Change.RESCHEDULE:
            body = msgspec.json.encode({"at": "now" if due_ms is None else moment_text(due_ms)})
        request = HttpRequest(
            method="POST",
            path=path("jobs", key_text(key), _PATHS[change]),
            query={"timeout_ms": str(timeout_ms), **({} if app is None else {"app": app})},
            body=body,
            waits_ms=timeout_ms,
            repeatable=change is Change.CANCEL,
        )
        try:
            return Decision(granted=True, record=(await self._session.ask(request, _job)).record())
        except TooLate:
            record = await self.get(key, app=app)
            if record is None:
                raise UnknownJob(key_text(key)) from None
            return Decision(granted=False, record=record)

    # Looking

    async def get(self, key: bytes, *, app: str | None = None) -> JobRecord | None:
        query = {} if app is None else {"app": app}
        try:
            found = await self._session.ask(
                HttpRequest(method="GET", path=path("jobs", key_text(key)), query=query), _job
            )
        except UnknownJob:
            return None
        return found.record()

    async def find(self, query: Query) -> Found:
        check_filters(query)
        found = await self._session.ask(HttpRequest(method="GET", path=path("jobs"), query=_parameters(query)), _page)
        return Found(
            records=[job.record() for job in found.jobs],
            cursor=found.cursor,
            searched_to_ms=None if found.searched_to is None else moment_ms(found.searched_to),
        )

    async def survey(self) -> Survey:
        found = await self._session.ask(HttpRequest(method="GET", path=path("survey")), _survey)
        self._ids.set_clock(found.now_ms, self._clock.wall_ms())
        self._ids.shards = {app.name: app.shards for app in found.view.apps}
        return Survey(view=found.view, counts=found.counts)

    # Operating

    async def pause(self, app: str, *, paused: bool) -> None:
        word = "pause" if paused else "resume"
        await self._session.ask(HttpRequest(method="POST", path=path("apps", app, word)), _anything)

    async def drain(self, node_id: str, *, draining: bool) -> int:
        word = "drain" if draining else "resume"
        try:
            found = await self._session.ask(HttpRequest(method="POST", path=path("nodes", node_id, word)), _drain)
        except UnknownNode:
            return 0
        return found.nodes

    def inbox(self) -> HttpInbox:
        return HttpInbox(self.abilities, self._session)

    def ledger(self) -> HttpLedger:
        return HttpLedger(self.abilities, self._session)


def _parameters(query: Query) -> Mapping[str, str]:
    """A query as the parameters of a request; the server has bounds of its own."""
    said = {theirs: str(value) for ours, theirs in _FILTERS.items() if (value := getattr(query, ours)) is not None}
    if query.from_ms is not None:
        said["from"] = moment_text(min(query.from_ms, MAX_DUE_MS))
    if query.to_ms is not None and query.to_ms <= MAX_DUE_MS:
        said["to"] = moment_text(query.to_ms)
    if query.newest_first:
        said["newest"] = "true"
    if query.attempts:
        said["attempts"] = "true"
    if query.most is not None:
        said["rows"] = str(min(query.most, MOST_ROWS))
    if query.room is not None:
        said["room"] = str(min(query.room, MOST_BYTES))
    return {**said, "limit": str(min(query.limit, MOST_JOBS))}
