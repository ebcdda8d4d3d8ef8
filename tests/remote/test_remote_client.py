"""The same code over the store's own URL and over the URL of a server: the same jobs, the same errors."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from infinite_scheduler import Client, SyncClient
from infinite_scheduler.api.api_context import ApiContext
from infinite_scheduler.api.problem import problem_of
from infinite_scheduler.client import NewJob
from infinite_scheduler.errors import (
    ConfigError,
    IdRefused,
    IntakeFull,
    InvalidRequest,
    KeyConflict,
    NotSupported,
    PayloadTooLarge,
    SchedulerError,
    StoreMismatch,
    TooLate,
    UnknownApp,
    UnknownJob,
    UnknownNode,
)
from infinite_scheduler.ingest.request import make_spec
from infinite_scheduler.model import Accepted, JobId, JobSpec
from infinite_scheduler.scheduler import Scheduler
from infinite_scheduler.status_api import JobStatusApi
from infinite_scheduler.store.http.answer_errors import error_of
from infinite_scheduler.store.http.drawn_ids import DrawnIds
from infinite_scheduler.store.http.http_store import HttpStore
from infinite_scheduler.testing import ManualClock
from tests.remote.remote_rig import APP, RemoteRig, remote_rig
from tests.servers.certificates import make_certificates

ODD = b'{"n":9007199254740993,"t":"\\u0000\\ud83d\\ude00 \xc3\xa5","f":1.10,"a":1,"a":2}'


async def work(client: Client) -> list[Any]:
    """What a program does, and what it sees; nothing in here knows which URL it has."""
    first = await client.schedule(APP, {"to": "Ada"}, at="2030-01-31T09:00:00Z", idempotency_key="k", tags=["red"])
    again = await client.schedule(APP, {"to": "Ada"}, at="2030-01-31T09:00:00Z", idempotency_key="k")
    many = await client.schedule_many(APP, [NewJob(data=n, at="2031-01-01", priority="low") for n in range(3)])
    moved = await client.reschedule(first.id, at="2032-01-01T00:00:00Z")
    gone = await client.cancel(many[0].id)
    back = await client.retry(many[0].id)
    now = await client.run_now(many[1].id)
    found = [record async for record in client.find_all(APP, limit=2)]
    page = await client.find(status="pending", newest_first=True, limit=1)
    seen = await client.get(first.id)
    survey = await client.survey()
    await client.pause(APP)
    await client.resume(APP)
    waiting = sum((await client.ledger.waiting())[APP].values())
    return [
        (again.id == first.id, again.repeated, first.repeated),
        [one.due_ms for one in many],
        (moved.job.due_ms, moved.job.scheduled_ms, moved.job.data, moved.job.tags, moved.idempotency_key),
        (gone.status, gone.finished_ms is not None, back.status, back.job.attempt, now.job.scheduled_ms),
        sorted((record.job.payload, record.job.priority, str(record.status)) for record in found),
        (len(page.records), page.cursor is not None, page.searched_to_ms is not None),
        (seen.kept_in, seen.status, seen.attempts),
        [(app.name, app.shards, app.paused) for app in survey.view.apps],
        survey.counts[APP]["accepted"],
        waiting,
    ]


async def test_the_same_code_sees_the_same_over_both_urls(tmp_path: Path) -> None:
    seen = []
    for name in ("own", "url"):
        folder = tmp_path / name
        folder.mkdir()
        with remote_rig(folder) as rig:
            async with Client(getattr(rig, name)) as client:
                seen.append(await work(client))
    assert seen[0] == seen[1]


Wrong = Callable[[Client], Awaitable[object]]
NOBODY = str(JobId.make(4_000_000_000_000, 0, 1))


async def conflict(client: Client) -> object:
    await client.schedule(APP, 1, delay="1h", idempotency_key="k")
    return await client.schedule(APP, 2, delay="1h", idempotency_key="k")


async def conflict_in_a_file(client: Client) -> object:
    await client.schedule(APP, 1, delay="1h", idempotency_key="k")
    spec = make_spec(APP, scheduled_ms=0, absolute=False, data=2, idempotency_key="k")
    raise (await client.conflicts([spec]))[0]


async def too_late(client: Client) -> object:
    job = await client.schedule(APP, delay="1h")
    await client.cancel(job.id)
    return await client.run_now(job.id)


async def nothing_to_retry(client: Client) -> object:
    return await client.retry((await client.schedule(APP, delay="1h")).id)


WRONG: dict[str, tuple[type[SchedulerError], Wrong]] = {
    "unknown app": (UnknownApp, lambda client: client.schedule("nobody", delay="1h")),
    "unknown job": (UnknownJob, lambda client: client.get(NOBODY)),
    "change of an unknown job": (UnknownJob, lambda client: client.cancel(NOBODY)),
    "unknown node": (UnknownNode, lambda client: client.drain_node("nobody")),
    "pause of an unknown app": (UnknownApp, lambda client: client.pause("nobody")),
    "list of an unknown app": (UnknownApp, lambda client: client.find("nobody")),
    "key conflict": (KeyConflict, conflict),
    "key conflict in a file": (KeyConflict, conflict_in_a_file),
    "too late": (TooLate, too_late),
    "nothing to retry": (InvalidRequest, nothing_to_retry),
    "shards": (StoreMismatch, lambda client: client.register(APP, 9)),
    "app name": (InvalidRequest, lambda client: client.register("No Name", 9)),
    "cursor": (InvalidRequest, lambda client: client.find(APP, cursor="x")),
}


@pytest.mark.parametrize("case", WRONG)
async def test_an_error_is_of_the_same_class_with_the_same_words(tmp_path: Path, case: str) -> None:
    kind, call = WRONG[case]
    told = []
    for name in ("own", "url"):
        folder = tmp_path / name
        folder.mkdir()
        with remote_rig(folder) as rig:
            async with Client(getattr(rig, name)) as client:
                with pytest.raises(SchedulerError) as raised:
                    await call(client)
                assert type(raised.value) is kind
                jobs = [record.id async for record in client.find_all(APP)]
        told.append((str(raised.value).replace(jobs[0] if jobs else "-", "JOB"), _about(raised.value, jobs)))
    assert told[0] == told[1]


def _about(error: SchedulerError, jobs: list[str]) -> dict[str, Any]:
    return {name: "JOB" if value in jobs else value for name, value in vars(error).items()}


async def test_data_comes_back_byte_for_byte(remote: RemoteRig) -> None:
    spec = make_spec(APP, scheduled_ms=4_000_000_000_000, absolute=True, payload=ODD)
    async with Client(remote.url) as client, Client(remote.own) as own:
        (accepted,) = await client.submit([spec])
        for one in (client, own):
            assert (await one.get(accepted.id)).job.payload == ODD
            assert [record.job.payload for record in (await one.find(APP)).records] == [ODD]


@pytest.mark.parametrize("when", [{"at": "2030-01-31T09:00:00Z"}, {"delay": "1h"}], ids=["time", "delay"])
async def test_a_key_names_one_job_by_whichever_way_it_comes(remote: RemoteRig, when: dict[str, str]) -> None:
    async with Client(remote.url) as client, Client(remote.own) as own:
        first = await own.schedule(APP, {"a": 1, "b": [2.0]}, idempotency_key="k", **when)
        again = await client.schedule(APP, {"b": [2.0], "a": 1}, idempotency_key="k", **when)
        assert (again.id, again.repeated) == (first.id, True)
        first = await client.schedule(APP, 1, idempotency_key="l", **when)
        again = await own.schedule(APP, 1, idempotency_key="l", **when)
        assert (again.id, again.repeated) == (first.id, True)


def test_a_program_without_an_event_loop_uses_it_too(remote: RemoteRig) -> None:
    with SyncClient(remote.url) as client:
        job = client.schedule(APP, {"n": 1}, delay="1h")
        assert client.get(job.id).job.data == {"n": 1}
        with pytest.raises(NotSupported, match="in a transaction of yours: use the store's own URL"):
            client.enqueue(object(), APP, [NewJob(delay=1)])  # type: ignore[arg-type]


async def test_an_id_that_does_not_fit_its_job_is_refused_and_nothing_accepted(remote: RemoteRig) -> None:
    def spec(due_ms: int, **fields: Any) -> Any:
        return make_spec(APP, scheduled_ms=due_ms, absolute=True, data=1, **fields)

    def with_key(made: Any, key: bytes) -> Any:
        return msgspec.structs.replace(made, key=bytes(key))

    far = 4_000_000_000_000
    reserved = JobId.make(far, 0, 1, later=True)
    async with Client(remote.own) as own:
        bad = [
            with_key(spec(far), JobId.make(far - 1, 0, 1, later=True)),  # early
            with_key(spec(far), JobId.make(far + 1, 0, 1, later=True)),  # late, although it is not due
            with_key(spec(1000), JobId.make(2000, 0, 1)),  # due, but not now
            with_key(spec(1000), JobId.make(1000, 0, 1)),  # of a day whose table may be gone
            with_key(spec(far), JobId.make(far, 0, 3, later=True)),  # there are three priorities
            with_key(spec(far), reserved[:7] + bytes([reserved[7] | 1]) + reserved[8:]),
            with_key(spec(far), JobId.make(far, 2, 1, later=True)),  # there are two shards
            with_key(spec(far), JobId.make(far, 0, 0, later=True)),  # another priority
            with_key(spec(far), JobId.make(far, 0, 1)),  # far ahead, and it does not say so
        ]
        for one in bad:
            with pytest.raises(IdRefused):
                await own.submit([one])
        good = with_key(spec(far), JobId.make(far, 0, 1, later=True))
        for _ in range(2):
            assert [one.key for one in await own.submit([good, good])] == [good.key] * 2
        other = make_spec(APP, scheduled_ms=far, absolute=True, data=2)
        with pytest.raises(IdRefused, match="belongs to another job"):
            await own.submit([with_key(other, good.key)])
        assert (await own.survey()).counts[APP]["accepted"] == 1


@pytest.mark.parametrize("fields", [{"data": 2}, {"app": "mail"}, {"idempotency_key": "l"}])
async def test_one_id_for_two_jobs_of_a_call_is_refused_and_nothing_accepted(
    remote: RemoteRig, fields: dict[str, Any]
) -> None:
    far = 4_000_000_000_000
    whole = {"app": APP, "data": 1, "idempotency_key": "k", "scheduled_ms": far, "absolute": True}
    async with Client(remote.own) as own:
        await own.register("mail", 2)
        key = bytes(JobId.make(far, 0, 1, later=True))
        pair = [
            msgspec.structs.replace(make_spec(**{**whole, **more}), key=key)
            for more in ({}, {"idempotency_key": "other", **fields})
        ]
        with pytest.raises(IdRefused):
            await own.submit(pair)
        assert not (await own.find()).records


async def test_a_clock_that_is_wrong_here_does_not_matter(remote: RemoteRig) -> None:
    clock = ManualClock()  # years behind
    async with Client(remote.url, clock=clock) as client, Client(remote.own) as own:
        job = await client.schedule(APP, 1, delay=0)
        record = await own.get(job.id)
        assert abs(record.job.due_ms - record.job.created_ms) < 60_000, "due by the clock of the server"
        clock.step_wall(10**9)
        assert (await own.get((await client.schedule(APP, 2, delay=0)).id)).job.data == 2


def test_a_server_that_answers_slowly_is_not_thought_to_be_ahead() -> None:
    clock = ManualClock()
    ids = DrawnIds(clock)
    ids.shards = {APP: 2}
    clock.advance(10_000)  # the server looked for long, and at its clock afterwards
    ids.set_clock(clock.wall_ms(), clock.wall_ms())
    (key,) = ids.draw([make_spec(APP, scheduled_ms=0, absolute=False, data=1)])
    assert JobId(key).due_ms <= clock.wall_ms(), "a second ahead it would be refused"


async def test_a_job_for_a_day_without_a_table_has_an_id_that_can_be_sent_again(
    remote: RemoteRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with store.ddl = false, if nobody has prepared tables for that day."""
    sent: list[bool] = []
    send = HttpStore._send_jobs

    async def noted(store: HttpStore, specs: Sequence[JobSpec], keys: Sequence[bytes | None]) -> Sequence[Accepted]:
        sent.append(all(keys))
        return await send(store, specs, keys)

    monkeypatch.setattr("infinite_scheduler.store.sql.store.can_be_made", lambda *_: False)
    monkeypatch.setattr(HttpStore, "_send_jobs", noted)
    async with Client(remote.url) as client, Client(remote.own) as own:
        job = await client.schedule(APP, 1, delay="48h")
        assert sent == [True, True]
        assert (await own.get(job.id)).kept_in == f"{APP}_scheduled_jobs_later"


async def test_data_that_is_too_large_for_the_server_is_refused_in_its_words(tmp_path: Path) -> None:
    with remote_rig(tmp_path, {"limits.payload": 1000}) as rig:
        async with Client(rig.url) as client:
            with pytest.raises(PayloadTooLarge, match=r"^the payload has 2002 bytes, but at most 1000 are allowed"):
                await client.schedule(APP, "x" * 2000, delay="1h")
            with pytest.raises(InvalidRequest, match=r"the first is job 1 \(from 0\): the payload has 2002 bytes"):
                await client.schedule_many(APP, [NewJob(data="x" * n, delay="1h") for n in (1, 2000)])
            with pytest.raises(PayloadTooLarge, match="at most 66,536 are read here"):
                await client.schedule(APP, "x" * 100_000, delay="1h")
            assert not (await client.find(APP)).records


async def test_a_full_intake_is_an_error_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: ApiContext, jobs: int, size: int) -> None:
        raise IntakeFull("nothing was accepted")

    with remote_rig(tmp_path) as rig:
        async with Client(rig.url) as client:
            monkeypatch.setattr(ApiContext, "check_room", full)
            with pytest.raises(IntakeFull, match=r"^nothing was accepted$"):
                await client.schedule(APP, 1, delay="1h")


async def test_no_node_and_no_server_starts_on_it(remote: RemoteRig) -> None:
    node = Scheduler(remote.url)
    node.app(APP)(print)
    with pytest.raises(NotSupported, match="cannot be worked on by a node: use the store's own URL"):
        await node.start()
    with pytest.raises(ConfigError, match="JobStatusApi needs the store's own URL"):
        JobStatusApi(remote.url)


def test_every_class_of_the_tree_can_be_told_and_read_back() -> None:

    for error in (
        UnknownApp("a", ["b", "c"]),
        KeyConflict("a", "k", NOBODY),
        NotSupported("Paper", "fly", "walk"),
        UnknownNode("n", ["m"]),
        PayloadTooLarge("too large"),
        TooLate("too late"),
    ):
        told = problem_of(error)
        read = error_of(told.status, msgspec.json.encode(told), "http://here")
        assert type(read) is type(error)
        assert str(read) == str(error)
        assert vars(read) == vars(error)


async def test_a_server_with_a_certificate_is_asked_if_its_authority_is_trusted(tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    settings = {"http.certificate": str(files.certificate), "http.key": str(files.key)}
    with remote_rig(tmp_path, settings) as rig:
        assert rig.url.startswith("https://")
        async with Client(f"{rig.url}?sslrootcert={files.authority}") as client:
            assert (await client.get((await client.schedule(APP, 1, delay="1h")).id)).job.data == 1
        with pytest.raises(ConfigError, match=r"cannot be trusted: .*; correct store.url, or name .* sslrootcert"):
            await Client(rig.url).open()
