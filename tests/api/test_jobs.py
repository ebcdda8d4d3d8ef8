"""One job over HTTP: accepted exactly as it was sent, changed, and looked at."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from infinite_scheduler import InvalidPayload
from infinite_scheduler.api.api_context import ApiLimits
from infinite_scheduler.api.token_digest import digest_of, new_token
from infinite_scheduler.handlers.checks import Checks
from infinite_scheduler.handlers.python import PythonHandler
from infinite_scheduler.store.ledger import Role, Token
from tests.api.api_rig import APP, ApiRig, api_rig
from tests.waiting import until_async


async def test_a_job_is_durable_when_it_is_answered(api: ApiRig) -> None:
    answer = await api.post("/v1/jobs", {"app": APP, "at": "2030-01-31T09:00:00Z", "data": {"to": "Ada"}})
    assert answer.status == 201
    assert answer.headers["Location"] == f"/v1/jobs/{answer.value['id']}"
    record = await api.client.get(answer.value["id"])
    assert record.job.data == {"to": "Ada"}
    assert answer.value == {"id": record.id, "due_ms": 1_896_080_400_000, "repeated": False}


async def test_all_fields_of_a_job_arrive(api: ApiRig) -> None:
    fields = {"priority": "high", "job_name": "n", "group": "g", "tags": ["a", "b"], "request_id": "r"}
    job = (await api.get(f"/v1/jobs/{await api.schedule(**fields)}")).value
    assert {name: job[name] for name in fields} == fields
    assert job["attempts"] == []


@pytest.mark.parametrize(
    "data",
    [
        b"9007199254740993",
        b'{"big": 123456789012345678901234567890, "small": 0.1000000000000000055511151231257827}',
        b'{"twice": 1, "twice": 2}',
        b'"\xe2\x80\xae right to left"',
        b'{"spaces" :  [1,\t2 ] }',
        b'"\\u0000"',
        json.dumps("x" * 1_000_000).encode(),
    ],
)
async def test_data_comes_back_byte_for_byte(api: ApiRig, data: bytes) -> None:
    answer = await api.post("/v1/jobs", b'{"app": "shop", "delay": 60, "data": ' + data + b"}")
    assert answer.status == 201, answer.content
    payload = await api.get(f"/v1/jobs/{answer.value['id']}/payload")
    assert payload.content == data
    assert data in (await api.get(f"/v1/jobs/{answer.value['id']}")).content
    assert data in (await api.get("/v1/jobs")).content


@pytest.mark.parametrize(
    ("body", "status", "problem"),
    [
        (b"", 400, "malformed"),
        (b"{", 400, "malformed"),
        (b'{"app": "shop", "delay": 1, "data": "\\ud800"}', 400, "malformed"),
        (b'{"app": "shop", "delay": 1, "data": "\xff"}', 400, "malformed"),
        (b'{"app": "shop", "delay": 1, "data": NaN}', 400, "malformed"),
        (b'{"app": "shop", "app": "shop", "delay": 1}', 422, "invalid-request"),
        (b'{"app": "shop", "delay": 1} {}', 400, "malformed"),
        (b"[]", 422, "invalid-request"),
        (b'{"delay": 1}', 422, "invalid-request"),
        (b'{"app": "shop", "delay": 1, "colour": "red"}', 422, "invalid-request"),
        (b'{"app": "nobody", "delay": 1}', 404, "unknown-app"),
        (b'{"app": "shop"}', 422, "invalid-time"),
        (b'{"app": "shop", "delay": 1, "at": "now"}', 422, "invalid-time"),
        (b'{"app": "shop", "at": "soon"}', 422, "invalid-time"),
        (b'{"app": "shop", "delay": -1}', 422, "invalid-time"),
        (b'{"app": "shop", "delay": 1, "tags": ["a\\u0000b"]}', 422, "invalid-request"),
        (b'{"app": "shop", "delay": 1, "priority": "urgent"}', 422, "invalid-request"),
        (b'{"app": "shop", "delay": 1, "idempotency_key": ""}', 422, "invalid-request"),
        (b'{"app": "shop", "delay": 1, "data": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", 422, "invalid-payload"),
        (b'{"app": "shop", "delay": 1, "data": ' + b"[" * 150 + b"]" * 150 + b"}", 422, "invalid-payload"),
        (b'{"app": "shop", "delay": 1, "data": "' + b"x" * 1024 * 1024 + b'"}', 413, "payload-too-large"),
        (b'{"app": "shop", "delay": 1, "data": "' + b"x" * 2 * 1024 * 1024 + b'"}', 413, "body-too-large"),
    ],
)
async def test_what_cannot_be_a_job_is_refused_in_words(api: ApiRig, body: bytes, status: int, problem: str) -> None:
    answer = await api.post("/v1/jobs", body)
    assert (answer.status, answer.problem) == (status, problem)
    assert (await api.get("/v1/jobs")).value["jobs"] == []


async def test_a_repeated_idempotency_key_answers_with_the_first_job(api: ApiRig) -> None:
    body, key = {"app": APP, "at": "2030-01-31T09:00:00Z", "data": 1}, {"Idempotency-Key": "order-1"}
    first = await api.post("/v1/jobs", body, headers=key)
    again = await api.post("/v1/jobs", body, headers=key)
    assert (first.status, again.status) == (201, 200)
    assert again.value == {**first.value, "repeated": True}
    assert (await api.post("/v1/jobs", {**body, "data": 2}, headers=key)).problem == "key-conflict"
    assert len((await api.get("/v1/jobs")).value["jobs"]) == 1


async def test_a_key_in_the_body_and_another_in_the_header_are_refused(api: ApiRig) -> None:
    body = {"app": APP, "delay": 60, "idempotency_key": "a"}
    assert (await api.post("/v1/jobs", body, headers={"Idempotency-Key": "b"})).problem == "invalid-request"
    assert (await api.post("/v1/jobs", body, headers={"Idempotency-Key": "a"})).status == 201


async def test_the_request_id_comes_from_the_body_the_header_or_the_trace(api: ApiRig) -> None:
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    body = {"app": APP, "delay": 60}
    for more, headers, expected in (
        ({"request_id": "r1"}, trace, "r1"),
        ({}, {"X-Request-ID": "r2", **trace}, "r2"),
        ({}, trace, "0af7651916cd43dd8448eb211c80319c"),
        ({}, {"traceparent": "nonsense"}, None),
    ):
        job = (await api.post("/v1/jobs", {**body, **more}, headers=headers)).value
        assert (await api.client.get(job["id"])).job.request_id == expected


async def test_concurrent_posts_share_commits(api: ApiRig) -> None:
    commits: list[int] = []
    store = api.client._store
    add = store.add

    async def counted(specs: Any) -> Any:
        commits.append(len(specs))
        return await add(specs)

    store.add = counted  # type: ignore[method-assign]
    ids = await asyncio.gather(*(api.schedule(number) for number in range(50)))
    assert len(set(ids)) == 50
    assert sum(commits) == 50
    assert len(commits) < 25


async def test_more_jobs_than_may_wait_for_a_commit_are_refused_for_now(tmp_path: Path) -> None:
    async with api_rig(tmp_path, limits=ApiLimits(queue=3)) as api:
        store, held = api.client._store, asyncio.Event()
        add = store.add

        async def slow(specs: Any) -> Any:
            await held.wait()
            return await add(specs)

        store.add = slow  # type: ignore[method-assign]
        waiting = [asyncio.create_task(api.schedule(number)) for number in range(3)]
        await until_async(lambda: api.client.backlog.jobs == 3)
        refused = await api.post("/v1/jobs", {"app": APP, "delay": 60})
        assert (refused.status, refused.problem, refused.headers["Retry-After"]) == (429, "intake-full", "1")
        assert refused.value["retryable"] is True
        assert (await api.get("/health/ready")).status == 429
        held.set()
        await asyncio.gather(*waiting)
        assert api.client.backlog == (0, 0)
        await api.schedule()


async def test_a_handler_of_this_process_checks_the_data(tmp_path: Path) -> None:
    def take(job: Any) -> None:
        raise AssertionError(job)

    handler = PythonHandler(take, checks=Checks(["to"], None))
    with pytest.raises(InvalidPayload):
        handler.check({})
    async with api_rig(tmp_path, handlers={APP: handler}) as api:
        assert (await api.post("/v1/jobs", {"app": APP, "delay": 60, "data": {}})).problem == "invalid-payload"
        await api.schedule({"to": "Ada"})


async def test_a_job_is_cancelled_and_retried(api: ApiRig) -> None:
    job = await api.schedule()
    assert (await api.post(f"/v1/jobs/{job}/cancel")).value["status"] == "cancelled"
    late = await api.post(f"/v1/jobs/{job}/run-now")
    assert (late.status, late.problem) == (409, "too-late")
    assert (await api.post(f"/v1/jobs/{job}/retry", b"{}")).value["status"] == "pending"


async def test_a_job_is_moved_and_run_now(api: ApiRig) -> None:
    job = await api.schedule()
    moved = await api.post(f"/v1/jobs/{job}/reschedule", {"at": "2031-01-01T00:00:00Z"})
    assert moved.value["due_at"] == "2031-01-01T00:00:00.000Z"
    assert (await api.post(f"/v1/jobs/{job}/reschedule", {})).problem == "invalid-time"
    assert (await api.post(f"/v1/jobs/{job}/reschedule")).problem == "malformed"
    assert (await api.post(f"/v1/jobs/{job}/run-now")).value["due_ms"] < moved.value["due_ms"]


async def test_the_details_of_a_job_have_its_time_line_and_what_operators_did_to_it(tmp_path: Path) -> None:
    text = new_token()
    boss = Token(name="boss", role=Role.OPERATE, digest=digest_of(text), created_ms=0)
    async with api_rig(tmp_path, server={"tokens": (boss,)}) as api:
        headers = {"Authorization": f"Bearer {text}"}
        job, other = [(await api.client.schedule(APP, number, delay="1h")).id for number in range(2)]
        for change in (f"{job}/cancel", f"{job.upper()}/retry", f"{other}/cancel"):
            await api.post(f"/v1/jobs/{change}", headers=headers)
        told = (await api.get(f"/v1/jobs/{job}", headers=headers)).value
        assert [one["verb"] for one in told["audit"]] == ["retry job", "cancel job"]
        assert {one["target"] for one in told["audit"]} == {job}, "however the id was spelled"
        steps = [(one["step"], one["detail"]) for one in told["timeline"]]
        assert steps[0] == ("accepted", None)
        assert [detail for step, detail in steps if step == "changed"] == [
            "cancel job by boss: done",
            "retry job by boss: done",
        ]


async def test_an_unknown_job_is_not_found_and_what_is_not_an_id_is_invalid(api: ApiRig) -> None:
    gone = "019a8b7c-3d20-8014-9f3a-5c1e2b7d4a60"
    for path in (f"/v1/jobs/{gone}", f"/v1/jobs/{gone}/payload", f"/v1/jobs/{gone}/explain"):
        answer = await api.get(path)
        assert (answer.status, answer.problem) == (404, "unknown-job")
    assert (await api.post(f"/v1/jobs/{gone}/cancel")).problem == "unknown-job"
    assert (await api.get("/v1/jobs/17")).status == 422


async def test_explain_says_why_a_job_waits(api: ApiRig) -> None:
    told = (await api.get(f"/v1/jobs/{await api.schedule()}/explain")).value
    assert told["reason"] == "not_due"
    assert "not due yet" in told["why"]


async def test_a_list_has_pages_and_filters(api: ApiRig) -> None:
    ids = [
        await api.schedule(number, tags=["even"] if number % 2 == 0 else [], delay=f"{number}h") for number in range(5)
    ]
    first = (await api.get("/v1/jobs?limit=2")).value
    assert [job["id"] for job in first["jobs"]] == ids[:2]
    rest = (await api.get(f"/v1/jobs?cursor={first['cursor']}")).value
    assert [job["id"] for job in rest["jobs"]] == ids[2:]
    assert (rest["cursor"], rest["searched_to"]) == (None, None)
    found = (await api.get("/v1/jobs?app=shop&status=pending&tag=even&newest=true&from=now")).value
    assert [job["id"] for job in found["jobs"]] == [ids[4], ids[2]]


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=1001", "limit=many", "status=lost", "colour=red", "tag=a&tag=b", "from=soon", "cursor=x"],
)
async def test_a_filter_that_makes_no_sense_is_refused(api: ApiRig, query: str) -> None:
    answer = await api.get(f"/v1/jobs?{query}")
    assert answer.status == 422
    assert answer.problem.startswith("invalid")


@pytest.mark.parametrize(
    ("query", "fields"),
    [
        ("name=n1", {"job_name": "n1"}),
        ("group=g1", {"group": "g1"}),
        ("request_id=r1", {"request_id": "r1"}),
        ("idempotency_key=k1", {"idempotency_key": "k1"}),
    ],
)
async def test_a_job_is_found_by_what_it_carries(api: ApiRig, query: str, fields: dict[str, str]) -> None:
    await api.schedule()
    job = await api.schedule(**fields)
    assert [one["id"] for one in (await api.get(f"/v1/jobs?app=shop&{query}")).value["jobs"]] == [job]


async def test_jobs_of_an_unknown_app_are_not_found(api: ApiRig) -> None:
    assert (await api.get("/v1/jobs?app=nobody")).problem == "unknown-app"
