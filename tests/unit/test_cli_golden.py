"""What commands print, byte for byte: as JSON, into a pipe, and on a terminal.

The expected text is in `cli_golden.txt`. After a change that is meant, `python -m tests.unit.test_cli_golden` writes it
anew, and the difference is part of the review.
"""

import asyncio
import contextlib
import io
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast
from unittest import mock
from zoneinfo import ZoneInfo

import msgspec
import pytest
from rich.console import Console

from infinite_scheduler.bulk_change.job_changes import BulkChange, JobAccess
from infinite_scheduler.cli import change_jobs, cluster, dlq, dlq_changes, ingest, jobs, schedule
from infinite_scheduler.cli.dlq_changes import When
from infinite_scheduler.cli.output import Output
from infinite_scheduler.cli.store_session import StoreSession
from infinite_scheduler.client import Client
from infinite_scheduler.config import Settings
from infinite_scheduler.errors import InvalidRequest
from infinite_scheduler.ingest.status import PartitionStatus, PositionChange, TopicStatus
from infinite_scheduler.model import (
    Accepted,
    Attempt,
    Change,
    Job,
    JobId,
    JobRecord,
    JobSpec,
    Owner,
    Priority,
    Shard,
    Status,
    new_key,
)
from infinite_scheduler.store.abilities import Ability
from infinite_scheduler.store.cluster_state import AppInfo, HeldBack, NodeInfo, Sample, ShardInfo, View
from infinite_scheduler.store.inbox import DeadLetter, Letters, LetterState, Move, Source, TopicPosition
from infinite_scheduler.store.ledger import AuditPage, AuditQuery, AuditRecord, Recount
from infinite_scheduler.store.looking import Found, Survey
from infinite_scheduler.store.sql.tables import DAILY
from infinite_scheduler.testing import ManualClock

GOLDEN = Path(__file__).with_name("cli_golden.txt")
NOW = 1_893_456_000_123  # 2030-01-01
HOUR, DAY = 3_600_000, 86_400_000


# Jobs


def job(due_ms: int, number: int, **fields: Any) -> Job:
    key = new_key(due_ms, 3, Priority.NORMAL, False, bytes([number]) * 8)
    known = {
        "app": "sms",
        "scheduled_ms": due_ms,
        "payload": b'{"n":9007199254740993,"t":"a b"}',
        "created_ms": NOW - DAY,
    }
    return Job(key=key, due_ms=due_ms, **{**known, **fields})


PLAIN = JobRecord(job=job(NOW + 250_000, 1), status=Status.PENDING)
RICH = JobRecord(
    job=job(
        NOW - 5000,
        2,
        scheduled_ms=NOW - HOUR,
        attempt=3,
        request_id="req-7",
        job_name="Grüße \x1b[31m",
        group="night",
        tags=("red", "blue"),
    ),
    status=Status.FAILED,
    finished_ms=NOW - 4001,
    error="OSError: no route [bold]",
    idempotency_key="order-1",
    attempts=(
        Attempt(attempt=1, started_ms=NOW - HOUR, finished_ms=NOW - HOUR + 5, node="n1", error="OSError: down"),
        Attempt(attempt=3, started_ms=NOW - 5000, node="n2"),
    ),
)
DONE = JobRecord(
    job=msgspec.structs.replace(
        job(NOW - 2 * DAY, 3), key=bytes(JobId.make(NOW, 255, 0, later=True, entropy=bytes(8)))
    ),
    status=Status.DONE,
    finished_ms=NOW - DAY,
)
LATE = JobRecord(job=job(NOW - 5000, 4), status=Status.PENDING)
RETRIED = JobRecord(
    job=job(NOW + 3000, 5, attempt=2), status=Status.PENDING, attempts=(RICH.attempts[0],), error="OSError: down"
)


# The cluster


def node(number: int, **fields: Any) -> NodeInfo:
    known = {"apps": frozenset({"sms", "mail"}), "started_ms": NOW - 3 * HOUR, "beat_ms": NOW - 512}
    return NodeInfo(nonce=f"nonce-{number}", node_id=f"n{number}", **{**known, **fields})


NODES = (
    node(1, clock_offset_ms=-12),
    node(2, drain_asked=True, draining=True, clock_offset_ms=1500),
    node(3, beat_ms=NOW - HOUR),
    node(4, apps=frozenset({"fax"}), clock_off=True),
    node(5),
)
SHARDS = tuple(
    ShardInfo(shard=Shard("sms", number), owner=Owner(owner, 7), line_ms=NOW + 30_000, low_ms=NOW - 60_000)
    for number, owner in enumerate(["nonce-1", "nonce-2", "", "nonce-1"])
)
APPS = (
    AppInfo(name="sms", shards=4, paused=False, created_ms=NOW - DAY),
    AppInfo(name="mail", shards=1, paused=True, created_ms=NOW - DAY),
    AppInfo(name="post", shards=16, paused=False, created_ms=NOW - DAY),
)
VIEW = View(
    nodes=NODES,
    shards=SHARDS,
    apps=APPS,
    dead=frozenset({"nonce-5"}),
    clock=Sample(store_ms=NOW + 100, asked_us=0, answered_us=10),
)
COUNTS = {"sms": {"accepted": 1_234_567, "done": 1_000_000, "failed": 3, "other": 1}}
FULL = Survey(view=VIEW, counts=COUNTS)
HOLDING = node(1, held_back={"sms": HeldBack(since_ms=NOW - 90_000, reason="no topic 'SMS_Send'")})
HELD_BACK = Survey(view=msgspec.structs.replace(VIEW, nodes=(HOLDING,)), counts=COUNTS)
EMPTY = Survey(view=View(nodes=(), shards=(), apps=()), counts={})


# Topics


LETTER = DeadLetter(
    id="0" * 31 + "1",
    source=Source("readers", "jobs", 3),
    offset=12_345,
    key=b"k",
    value=b'{"at": "never"}',
    headers=(("trace", b"abc"), ("bad", b"\xff\x00"), ("none", None)),
    error="at is 'never': " + "expected a moment; " * 15,
    failed_ms=NOW - 65_000,
    dlq_topic="jobs_dlq",
    state=LetterState.SENT,
)
BINARY = msgspec.structs.replace(
    LETTER,
    id="0" * 31 + "2",
    key=None,
    value=b"\xff\xfe",
    headers=(),
    error="no JSON",
    dlq_topic=None,
    state=LetterState.REPLAYED,
    note="019a8b7c-3d20-8014-9f3a-5c1e2b7d4a60",
    cut_bytes=2048,
)
TOMBSTONE = msgspec.structs.replace(LETTER, id="0" * 31 + "3", key=b"", value=None, error="empty", note="refused")
LETTERS = (LETTER, BINARY, TOMBSTONE)

READY = TopicStatus(
    topic="jobs",
    group="readers",
    servers="kafka:9092",
    dlq_topic="jobs_dlq",
    brokers=("a:1", "b:2"),
    state="stable",
    members=("n1", "n2", "n1"),
    partitions=(
        PartitionStatus(partition=0, position=1_200, moved_ms=NOW - 2500, committed=1_100, earliest=5, end=3_000),
        PartitionStatus(partition=1, earliest=0, end=0),
    ),
    letters={"sent": 2, "unsent": 1_000},
    notes=("this configuration has enabled = false for it",),
)
AWAY = TopicStatus(topic="jobs", group="readers", servers="kafka:9092", problems=("no broker answers at kafka:9092",))
UNTOLD = msgspec.structs.replace(READY, members=None, state=None, dlq_topic=None, letters={}, notes=())
CHANGES = tuple(
    PositionChange(Move(source=Source("readers", "jobs", number), seen=seen, next=to), 5, 3000)
    for number, (seen, to) in enumerate([(1200, 5), (None, 5), (1200, 3000)])
)


class FakeInbox:
    """An inbox of known letters."""

    def __init__(self, letters: Sequence[DeadLetter]) -> None:
        self._letters = {letter.id: letter for letter in letters}

    async def letters(self, query: Any) -> Letters:
        return Letters(
            letters=list(self._letters.values()), cursor="next" if self._letters and query.limit < 100 else None
        )

    async def letter(self, letter_id: str) -> DeadLetter | None:
        return self._letters.get(letter_id)

    async def drop(self, letter_ids: Sequence[str]) -> Mapping[str, LetterState]:
        *dropped, last = letter_ids
        return {**dict.fromkeys(dropped, LetterState.DROPPED), last: LetterState.REPLAYED}

    async def positions(self, group: str | None = None, topic: str | None = None) -> Sequence[TopicPosition]:
        del group, topic
        return [TopicPosition(source=Source("others", "late", 0), next=3, topic_id=None, moved_ms=NOW)]

    async def reset(self, moves: Sequence[Move]) -> None:
        assert moves


class FakeClient:
    """A store that answers with what the test has put into it."""

    def __init__(self, records: Sequence[JobRecord] = (), survey: Survey = FULL, letters: Sequence[DeadLetter] = ()):
        self._records, self._survey = records, survey
        self.inbox = FakeInbox(letters)
        self.ledger = self
        self.abilities = {Ability.AUDIT}

    async def records(self, query: AuditQuery) -> AuditPage:
        job = self._records[0]
        if not job.attempts:
            return AuditPage(records=(), cursor=None)
        row = AuditRecord(
            id="0" * 32,
            at_ms=job.job.created_ms + 1000,
            who="ops",
            address="10.0.0.7",
            verb="reschedule job",
            target=query.target or "",
            result="done",
        )
        return AuditPage(records=(row,), cursor=None)

    async def recount(self, app: str) -> Recount:
        return Recount(app=app, before=12_345, counted=12_345 if app == "sms" else 12_400)

    async def find(self, **_: object) -> Found:
        more = len(self._records) > 1
        return Found(records=self._records, cursor="next" if more else None, searched_to_ms=NOW if more else None)

    async def get(self, job_id: str) -> JobRecord:
        del job_id
        job = self._records[0].job
        return msgspec.structs.replace(self._records[0], kept_in=DAILY.table_of(job.app, job.key))

    cancel = run_now = retry = get

    def bulk_change(self, change: Change, **filters: Any) -> BulkChange:
        async def change_one(*_: object) -> JobRecord:
            return self._records[0]

        return BulkChange(JobAccess(self.find, change_one, lambda: NOW, ZoneInfo("UTC")), change, filters)

    async def reschedule(self, job_id: str, **_: object) -> JobRecord:
        return await self.get(job_id)

    async def submit(self, specs: Sequence[JobSpec]) -> Sequence[Accepted]:
        return [Accepted(PLAIN.job.key, PLAIN.job.due_ms, repeated=spec.idempotency_key is not None) for spec in specs]

    async def survey(self) -> Survey:
        return self._survey

    async def drain_node(self, _: str) -> int:
        return 1

    async def resume_node(self, _: str) -> int:
        return 2

    async def pause(self, _: str) -> None:
        return

    resume = pause


class FakeReplayer:
    """One letter becomes a job, one was a job before, one is still bad."""

    def __init__(self, *_: object, **__: object) -> None:
        return

    async def replay(self, letter: DeadLetter, at_ms: int | None) -> Accepted:
        del at_ms
        if letter is TOMBSTONE:
            raise InvalidRequest("it is empty")
        return Accepted(PLAIN.job.key, PLAIN.job.due_ms)


class FakeAdmin:
    """A connection to brokers that are never asked."""

    def __init__(self, *_: object) -> None:
        return

    async def __aenter__(self) -> "FakeAdmin":
        return self

    async def __aexit__(self, *_: object) -> None:
        return


async def look(config: Any, _: object) -> TopicStatus:
    return {"untold": UNTOLD, "away": AWAY}.get(config.topic, READY)


async def plan_reset(*_: object) -> Sequence[PositionChange]:
    return CHANGES


# Commands


Command = Callable[[StoreSession], Awaitable[int | None]]
SPEC = JobSpec(app="sms", scheduled_ms=NOW, payload=b"1")
WITH_KEY = msgspec.structs.replace(SPEC, idempotency_key="k")
ALL_LETTERS = [letter.id for letter in LETTERS]


def listed(session: StoreSession) -> Awaitable[None]:
    return jobs.list_jobs(session, {}, 3, None)


def changed(session: StoreSession, change: Change, at: str | None = None) -> Awaitable[int]:
    return change_jobs.change_by_ids(session, change_jobs.JobChange(change, at), ["x"])


def by_filter(session: StoreSession, *, preview: bool = False) -> Awaitable[int]:
    change = change_jobs.JobChange(Change.CANCEL)
    return change_jobs.change_by_filter(session, change, {"app": "sms"}, preview=preview, yes=True)


def letters_listed(session: StoreSession) -> Awaitable[None]:
    return dlq.list_letters(session, dlq.read_filters(session, topic=None, group=None, state=None, before=None), 3)


COMMANDS: Mapping[str, tuple[FakeClient, Command]] = {
    "jobs list": (FakeClient([PLAIN, RICH, DONE]), listed),
    "jobs list, none": (FakeClient(), listed),
    "jobs show, plain": (FakeClient([PLAIN]), lambda s: jobs.show_job(s, "x")),
    "jobs show, rich": (FakeClient([RICH]), lambda s: jobs.show_job(s, "x")),
    "jobs cancel": (FakeClient([DONE]), lambda s: changed(s, Change.CANCEL)),
    "jobs reschedule": (FakeClient([PLAIN]), lambda s: changed(s, Change.RESCHEDULE, "now")),
    "jobs run-now": (FakeClient([LATE]), lambda s: changed(s, Change.RUN_NOW)),
    "jobs retry": (FakeClient([RETRIED]), lambda s: changed(s, Change.RETRY)),
    "jobs cancel, by filter": (FakeClient([LATE]), by_filter),
    "jobs cancel, by filter, none": (FakeClient(), by_filter),
    "jobs cancel, preview": (FakeClient([LATE, PLAIN]), lambda s: by_filter(s, preview=True)),
    "explain, not due": (FakeClient([PLAIN]), lambda s: jobs.explain_job(s, "x")),
    "explain, failed": (FakeClient([RICH]), lambda s: jobs.explain_job(s, "x")),
    "explain, done": (FakeClient([DONE]), lambda s: jobs.explain_job(s, "x")),
    "explain, overdue": (FakeClient([LATE]), lambda s: jobs.explain_job(s, "x")),
    "explain, retried": (FakeClient([RETRIED]), lambda s: jobs.explain_job(s, "x")),
    "explain, no node": (FakeClient([LATE], EMPTY), lambda s: jobs.explain_job(s, "x")),
    "explain, held back": (FakeClient([LATE], HELD_BACK), lambda s: jobs.explain_job(s, "x")),
    "schedule": (FakeClient(), lambda s: schedule._accept(s, SPEC)),
    "schedule, repeated": (FakeClient(), lambda s: schedule._accept(s, WITH_KEY)),
    "nodes": (FakeClient(), cluster.list_nodes),
    "nodes, none": (FakeClient(survey=EMPTY), cluster.list_nodes),
    "nodes, one holds back": (FakeClient(survey=HELD_BACK), cluster.list_nodes),
    "nodes drain": (FakeClient(), lambda s: cluster.drain_node(s, "n2", wait=False)),
    "nodes drain, waiting": (FakeClient(), lambda s: cluster.drain_node(s, "n4", wait=True)),
    "nodes resume": (FakeClient(), lambda s: cluster.resume_node(s, "n2")),
    "apps list": (FakeClient(), cluster.list_apps),
    "apps list, none": (FakeClient(survey=EMPTY), cluster.list_apps),
    "apps list, held back": (FakeClient(survey=HELD_BACK), cluster.list_apps),
    "apps pause": (FakeClient(), lambda s: cluster.pause_app(s, "sms")),
    "apps resume": (FakeClient(), lambda s: cluster.resume_app(s, "sms")),
    "apps recount": (FakeClient(), lambda s: cluster.recount_apps(s, "sms")),
    "apps recount, wrong": (FakeClient(), lambda s: cluster.recount_apps(s, "mail")),
    "apps recount, all": (FakeClient(), lambda s: cluster.recount_apps(s, None)),
    "dlq list": (FakeClient(letters=LETTERS), letters_listed),
    "dlq list, none": (FakeClient(), letters_listed),
    "dlq show": (FakeClient(letters=LETTERS), lambda s: dlq.show_letter(s, LETTER.id)),
    "dlq show, binary": (FakeClient(letters=LETTERS), lambda s: dlq.show_letter(s, BINARY.id)),
    "dlq show, empty": (FakeClient(letters=LETTERS), lambda s: dlq.show_letter(s, TOMBSTONE.id)),
    "dlq replay": (FakeClient(letters=LETTERS), lambda s: dlq_changes.replay_letters(s, ALL_LETTERS, When())),
    "dlq drop": (FakeClient(letters=LETTERS), lambda s: dlq_changes.drop_letters(s, ALL_LETTERS)),
    "dlq drop, preview": (FakeClient(letters=LETTERS), lambda s: dlq_changes.drop_all(s, {}, preview=True)),
    "ingest status": (FakeClient(), lambda s: ingest.show_status(s, "jobs", None)),
    "ingest status, held back": (FakeClient(survey=HELD_BACK), lambda s: ingest.show_status(s, "jobs", None)),
    "ingest status, away": (FakeClient(), lambda s: ingest.show_status(s, "away", None)),
    "ingest status, untold": (FakeClient(), lambda s: ingest.show_status(s, "untold", None)),
    "ingest offsets": (FakeClient(), lambda s: ingest.list_offsets(s, "jobs", "readers")),
    "ingest offsets --reset": (
        FakeClient(),
        lambda s: ingest.reset_offsets(s, ["jobs=earliest"], None, "readers", yes=True),
    ),
}
MODES = ("json", "pipe", "terminal")


@contextlib.contextmanager
def known_world() -> Iterator[None]:
    """The clock stands still, and no broker is asked."""
    clock = ManualClock(NOW)
    with (
        mock.patch("infinite_scheduler.cli.store_session.SystemClock", return_value=clock),
        mock.patch("infinite_scheduler.cli.dlq_changes.Replayer", FakeReplayer),
        mock.patch("infinite_scheduler.cli.ingest.look", look),
        mock.patch("infinite_scheduler.cli.ingest.plan_reset", plan_reset),
        mock.patch("infinite_scheduler.cli.ingest.Admin", FakeAdmin),
    ):
        yield


def printed(name: str, mode: str) -> str:
    """Everything that a command prints, and its exit code if that is not 0."""
    client, command = COMMANDS[name]
    with known_world(), contextlib.redirect_stdout(io.StringIO()) as text, contextlib.redirect_stderr(text):
        out = Output(as_json=mode == "json")
        if mode == "terminal":
            out.console = out.errors = Console(
                file=text, width=100, force_terminal=True, color_system="standard", highlight=False, _environ={}
            )
        code = asyncio.run(_ended(command(StoreSession(cast("Client", client), out, Settings()))))
    return text.getvalue().replace("\x1b", "ESC") + (f"exit code {code}\n" if code else "") + "."


async def _ended(command: Awaitable[int | None]) -> int | None:
    return await command


def expected() -> Mapping[str, str]:
    parts = GOLDEN.read_text(encoding="utf-8").split("\n=== ")
    return dict(part.split(" ===\n", 1) for part in parts[1:])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_prints_what_it_always_printed(name: str, mode: str) -> None:
    assert printed(name, mode) == expected()[f"{name} ({mode})"]


def test_nothing_else_is_expected() -> None:
    assert set(expected()) == {f"{name} ({mode})" for name in COMMANDS for mode in MODES}


if __name__ == "__main__":
    PARTS = [f"\n=== {name} ({mode}) ===\n{printed(name, mode)}" for name in COMMANDS for mode in MODES]
    GOLDEN.write_text("".join(PARTS), encoding="utf-8")
