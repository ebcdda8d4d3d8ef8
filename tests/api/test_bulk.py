"""Many jobs over HTTP: a result per item in order, all that is good in one transaction, all or none on request."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from infinite_scheduler.api import bulk_operations
from infinite_scheduler.api.api_context import ApiLimits
from tests.api.api_rig import APP, Answer, ApiRig, api_rig

NDJSON = {"Content-Type": "application/x-ndjson"}
GOOD = {"app": APP, "delay": "1h"}
GONE = "019a8b7c-3d20-8014-9f3a-5c1e2b7d4a60"


def lines(*jobs: Any) -> bytes:
    return b"\n".join(job if isinstance(job, bytes) else msgspec.json.encode(job) for job in jobs)


def told(answer: Answer) -> list[str]:
    """What became of each item, in a word."""
    assert answer.status == 200, answer.content
    results = answer.value["results"]
    return [one["error"]["type"].rpartition(":")[2] if "error" in one else "id" for one in results]


async def waiting(api: ApiRig) -> list[Any]:
    return [record.job.data async for record in api.client.find_all()]


@pytest.mark.parametrize("as_lines", [True, False])
async def test_each_job_has_its_result_in_order(api: ApiRig, as_lines: bool) -> None:
    jobs = [{**GOOD, "data": number} for number in range(1203)]
    answer = await (
        api.post("/v1/jobs/bulk", lines(*jobs), headers=NDJSON) if as_lines else api.post("/v1/jobs/bulk", jobs)
    )
    assert (answer.value["accepted"], answer.value["refused"]) == (1203, 0)
    for number in (0, 500, 1202):
        assert (await api.client.get(answer.value["results"][number]["id"])).job.data == number


async def test_a_bad_line_in_the_middle_is_refused_alone(api: ApiRig) -> None:
    body = lines(
        {**GOOD, "data": 1},
        b"{nonsense",
        b"",
        {**GOOD, "app": "nobody"},
        {**GOOD, "delay": "soon"},
        b'{"app": "shop", "app": "shop", "delay": 1}',
        b'{"app": "shop", "delay": 60, "data": {"a": 1, "a": 2}}',
    )
    answer = await api.post("/v1/jobs/bulk", body, headers=NDJSON)
    assert told(answer) == ["id", "malformed", "unknown-app", "invalid-time", "invalid-request", "id"]
    assert (answer.value["accepted"], answer.value["refused"]) == (2, 4)
    assert len(await waiting(api)) == 2


async def test_a_repeated_name_in_an_item_of_an_array_is_refused_alone(api: ApiRig) -> None:
    body = b'[{"app": "shop", "delay": 60}, {"app": "shop", "delay": 60, "delay": 61}]'
    assert told(await api.post("/v1/jobs/bulk", body)) == ["id", "invalid-request"]


async def test_jobs_whose_keys_belong_to_others_are_refused_and_the_rest_is_accepted(api: ApiRig) -> None:
    at = {"app": APP, "at": "2030-01-01"}
    assert (await api.post("/v1/jobs", {**at, "data": 0, "idempotency_key": "a"})).status == 201
    jobs = [
        {**at, "data": 1, "idempotency_key": "a"},
        {**at, "data": 2, "idempotency_key": "b"},
        {**at, "data": 3, "idempotency_key": "b"},
        {**at, "data": 0, "idempotency_key": "a"},
        {**at, "data": 4},
    ]
    answer = await api.post("/v1/jobs/bulk", jobs)
    assert told(answer) == ["key-conflict", "id", "key-conflict", "id", "id"]
    assert answer.value["results"][3]["repeated"] is True
    assert sorted(await waiting(api)) == [0, 2, 4]


async def test_all_or_none_means_that(api: ApiRig) -> None:
    bad = await api.post("/v1/jobs/bulk?all_or_none=true", [GOOD, {**GOOD, "delay": "soon"}])
    assert (bad.status, bad.problem) == (422, "invalid-request")
    assert "1 of 2 jobs are bad" in bad.value["detail"]
    assert (
        await api.post("/v1/jobs/bulk?all_or_none=true", [GOOD, {**GOOD, "app": "nobody"}])
    ).problem == "unknown-app"
    assert await waiting(api) == []
    assert told(await api.post("/v1/jobs/bulk?all_or_none=true", [GOOD, GOOD])) == ["id", "id"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[",
        b"{}",
        b"17",
        b"[{}",
        b"[{},]",
        b"[{} {}]",
        b"[] []",
        b"[,]",
        b'["\xff"]',
        b"[NaNa]",
        b"\xef\xbb\xbf[]",
    ],
)
async def test_a_list_that_is_not_json_is_refused_as_a_whole(api: ApiRig, body: bytes) -> None:
    good = msgspec.json.encode(GOOD) + b","
    for content in {body, body.replace(b"[", b"[" + good, 1) if body.startswith(b"[{") else body}:
        assert (await api.post("/v1/jobs/bulk", content)).problem == "malformed"
    assert await waiting(api) == []


async def test_an_empty_list_is_no_job(api: ApiRig) -> None:
    for answer in (await api.post("/v1/jobs/bulk", b" [ ] "), await api.post("/v1/jobs/bulk", b"\n\n", headers=NDJSON)):
        assert answer.value == {"accepted": 0, "refused": 0, "results": []}


async def test_items_may_be_anything_and_only_jobs_are_accepted(api: ApiRig) -> None:
    answer = await api.post("/v1/jobs/bulk", b'[1, "a", null, [], {"app": "shop", "delay": 60}, 1e400]')
    assert told(answer) == ["invalid-request"] * 4 + ["id", "invalid-request"]


async def test_an_item_that_is_nested_too_deeply_refuses_the_list(api: ApiRig) -> None:
    answer = await api.post("/v1/jobs/bulk", b"[" * 10_000 + b"]" * 10_000)
    assert (answer.status, answer.problem) == (422, "invalid-payload")


async def test_too_many_jobs_are_refused_and_none_is_accepted(tmp_path: Path) -> None:
    async with api_rig(tmp_path, limits=ApiLimits(batch=3)) as api:
        for body in (lines(*[GOOD] * 4), b"[" + b",".join([msgspec.json.encode(GOOD)] * 4) + b"]"):
            kind = NDJSON if not body.startswith(b"[") else {}
            answer = await api.post("/v1/jobs/bulk", body, headers=kind)
            assert (answer.status, answer.problem) == (413, "body-too-large")
        assert await waiting(api) == []
        assert (await api.post("/v1/jobs/bulk", [GOOD] * 3)).value["accepted"] == 3


async def test_the_event_loop_has_turns_while_a_long_list_is_decoded(
    api: ApiRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = turns = most = 0
    parse = bulk_operations._spec_or_problem

    def counted(*arguments: Any) -> Any:
        nonlocal decoded
        decoded += 1
        return parse(*arguments)

    async def others() -> None:
        nonlocal turns, most, decoded
        while True:
            most, decoded = max(most, decoded), 0
            turns += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(bulk_operations, "_spec_or_problem", counted)
    beside = asyncio.create_task(others())
    answer = await api.post("/v1/jobs/bulk", [GOOD] * 2_300)
    beside.cancel()
    assert answer.value["accepted"] == 2300
    assert 0 < most <= bulk_operations.AT_ONCE


async def test_a_full_queue_refuses_a_list(tmp_path: Path) -> None:
    async with api_rig(tmp_path, limits=ApiLimits(queue=10)) as api:
        assert (await api.post("/v1/jobs/bulk", [GOOD] * 20)).value["accepted"] == 20, "nothing waits before it"
        store, held = api.client._store, asyncio.Event()
        add = store.add

        async def slow(specs: Any) -> Any:
            await held.wait()
            return await add(specs)

        store.add = slow  # type: ignore[method-assign]
        first = asyncio.create_task(api.schedule())
        while not api.client.backlog.jobs:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert (await api.post("/v1/jobs/bulk", [GOOD] * 10)).status == 429
        held.set()
        await first


async def test_jobs_are_changed_by_their_ids_with_one_answer_each(api: ApiRig) -> None:
    ids = [await api.schedule(number) for number in range(3)]
    answer = await api.post("/v1/jobs/cancel", {"ids": [ids[0], GONE, "nonsense", ids[2]]})
    assert (answer.value["changed"], answer.value["refused"]) == (2, 2)
    assert [one["id"] for one in answer.value["results"]] == [ids[0], GONE, "nonsense", ids[2]]
    assert [one.get("job", {}).get("status") for one in answer.value["results"]] == [
        "cancelled",
        None,
        None,
        "cancelled",
    ]
    assert [one["error"]["status"] for one in answer.value["results"][1:3]] == [404, 422]
    assert (await api.post("/v1/jobs/retry", {"ids": [ids[0]]})).value["changed"] == 1
    moved = await api.post("/v1/jobs/reschedule", {"ids": ids, "at": "2031-01-01T00:00:00Z"})
    assert [one.get("job", {}).get("due_at") for one in moved.value["results"]] == [
        "2031-01-01T00:00:00.000Z",
        "2031-01-01T00:00:00.000Z",
        None,
    ]
    assert (await api.post("/v1/jobs/run-now", {"ids": [ids[1]]})).value["changed"] == 1


@pytest.mark.parametrize("body", [{"ids": []}, {"ids": [GONE] * 1001}, {"ids": GONE}, {}, {"ids": [1]}])
async def test_a_list_of_ids_has_1_to_1000(api: ApiRig, body: Any) -> None:
    assert (await api.post("/v1/jobs/cancel", body)).problem == "invalid-request"
