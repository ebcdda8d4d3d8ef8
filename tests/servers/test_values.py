"""Values that databases like to change on the way: they come back as they were, or are refused at the door."""

import json
from collections.abc import Sequence

import pytest

from infinite_scheduler import Failed, Job, NewJob, Scheduler
from infinite_scheduler.errors import InvalidPayload, InvalidRequest
from infinite_scheduler.ingest.request import make_spec
from infinite_scheduler.model import MAX_DUE_MS, Attempt, JobId, JobRecord, JobSpec, Status
from infinite_scheduler.store.sql.request_rows import SqlStatements
from infinite_scheduler.store.sql.server.drivers import server_driver
from infinite_scheduler.store.sql.server.session import Link
from infinite_scheduler.store.sql.server.table_maker import TableMaker
from infinite_scheduler.store.sql.statements import Statements, Update
from tests.servers.node_rig import APP, NodeRig
from tests.waiting import until_async

pytestmark = pytest.mark.servers

FAR = "2100-01-01T00:00:00Z"
TEXTS = ("a", "A", "a ", " a", "á", "a\u0301", "ß", "ss", "😀", "😁", "\u200b", "a'b\"c\\d", "%s", "?", "\\0", "x" * 99)
PAYLOADS = (
    b'{"n":18446744073709551616123456789,"f":1.10,"e":1E300}',
    b'  { "spaces" : [ 1,2 ]  }',
    '"emoji 😀 and \u4e2d\u6587"'.encode(),
    b'"escaped \\u0000 \\ud83d\\ude00 \\n"',
    b'"100% of what? %s :name $1 \\\\"',
    b'""',
    b"null",
    json.dumps("'" * 1000).encode(),
    json.dumps("é" * 300_000, ensure_ascii=False).encode(),
)


@pytest.fixture
def url(emptied_url: str) -> str:
    return emptied_url


def spec(app: str, payload: bytes, due_ms: int) -> JobSpec:
    return make_spec(app, scheduled_ms=due_ms, absolute=True, payload=payload)


async def test_payloads_come_back_byte_for_byte(rig: NodeRig) -> None:
    accepted = await rig.scheduler.submit([spec(APP, payload, MAX_DUE_MS) for payload in PAYLOADS])
    for job, payload in zip(accepted, PAYLOADS, strict=True):
        assert (await rig.scheduler.get(job.id)).job.payload == payload


async def test_a_handler_gets_them_byte_for_byte(url: str) -> None:
    seen: dict[str, bytes] = {}
    scheduler = Scheduler(url)

    @scheduler.app("bytes", shards=4)
    async def note(job: Job) -> None:
        seen[job.id] = job.payload

    async with scheduler:
        jobs = await scheduler.submit([spec("bytes", payload, 0) for payload in PAYLOADS])
        await until_async(lambda: len(seen) == len(PAYLOADS), "all are handed over")
        assert [seen[job.id] for job in jobs] == list(PAYLOADS)


async def test_keys_that_differ_in_anything_are_different_keys(rig: NodeRig) -> None:
    jobs = [NewJob(at=FAR, idempotency_key=text) for text in TEXTS]
    first = await rig.scheduler.schedule_many(APP, jobs)
    assert len({job.id for job in first}) == len(TEXTS)
    again = [await rig.scheduler.schedule(APP, at=FAR, idempotency_key=text) for text in TEXTS]
    assert [(job.id, job.repeated) for job in again] == [(job.id, True) for job in first]


async def test_tags_names_and_groups_come_back_as_they_were(rig: NodeRig) -> None:
    for text in TEXTS:
        name = text[:60]
        job = await rig.scheduler.schedule(APP, at=FAR, tags=[name], job_name=text, group=text, request_id=text)
        found = (await rig.scheduler.get(job.id)).job
        assert (found.tags, found.job_name, found.group, found.request_id) == ((name,), text, text, text)
        listed = [record.id async for record in rig.scheduler.find_all(APP, tag=name)]
        assert listed == [job.id], f"{name!a} is found, and only that"


@pytest.mark.parametrize("text", ["a\0b", "half \ud83d", "line\nbreak"])
async def test_what_cannot_be_kept_is_refused_at_the_door(rig: NodeRig, text: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be stored"):
        await rig.scheduler.schedule(APP, at=FAR, idempotency_key=text)
    with pytest.raises(InvalidRequest, match="cannot be stored"):
        await rig.scheduler.schedule(APP, at=FAR, tags=[text])
    if "\ud83d" in text:
        with pytest.raises(InvalidPayload):
            await rig.scheduler.schedule(APP, {"text": text}, at=FAR)
    else:
        job = await rig.scheduler.schedule(APP, {"text": text}, at=FAR)
        assert (await rig.scheduler.get(job.id)).job.data == {"text": text}


@pytest.mark.parametrize("text", ["nul \0 inside", "half \ud83d of a pair", "😀 \u0301", "\x1b[31mred", "x" * 5000])
async def test_an_error_with_any_text_is_recorded(url: str, text: str) -> None:
    scheduler = Scheduler(url)

    @scheduler.app("raises", shards=1)
    async def fail(job: Job) -> Failed:
        if job.data == "raise":
            raise ValueError(text)
        return Failed(text)

    async with scheduler:
        for how in ("raise", "return"):
            job = await scheduler.schedule("raises", how, delay="0s")
            ends = Status.PENDING if how == "raise" else Status.FAILED

            async def ended(job_id: str = job.id, ends: Status = ends) -> JobRecord | None:
                record = await scheduler.get(job_id)
                return record if record.attempts and record.status is ends else None

            record = await until_async(ended)
            assert record.attempts[0].error
            assert "could not be recorded" not in record.attempts[0].error
            assert "\0" not in record.attempts[0].error


async def test_a_job_is_shown_as_it_stood_at_one_moment(
    rig: NodeRig, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delivery that ends between the reading of the row and that of its attempts is shown whole, or not at all."""
    (job,) = await rig.add(1, "1h")
    key = bytes(JobId.parse(job))
    read = SqlStatements.read_attempts
    driver = server_driver(url)
    other = Link(driver, TableMaker(driver, allowed=False), "p")

    def fail(tx: Statements) -> None:
        update = Update(
            key=key,
            was_status=Status.PENDING,
            was_attempt=1,
            was_due_ms=JobId(key).due_ms,
            status=Status.FAILED,
            attempt=1,
            due_ms=JobId(key).due_ms,
        )
        if not tx.update_jobs(APP, [update]):
            tx.write_attempts(APP, [(key, Attempt(attempt=1, started_ms=1, finished_ms=2, node="n", error="no"))])

    def late(self: SqlStatements, app: str, key: bytes) -> Sequence[Attempt]:
        other.write(fail)
        return read(self, app, key)

    monkeypatch.setattr(SqlStatements, "read_attempts", late)
    shown = await rig.scheduler.get(job)
    other.close()
    assert (shown.status, len(shown.attempts)) in {(Status.PENDING, 0), (Status.FAILED, 1)}
