"""What nobody should send: it is refused in words, costs little, and nothing of it becomes a job."""

import gzip
import json
from collections.abc import Sequence
from urllib.parse import quote

import pytest

from infinite_scheduler.api.json_text import scan
from infinite_scheduler.api.operation import NDJSON
from infinite_scheduler.api.operations import OPERATIONS
from tests.api.api_rig import APP, ApiRig

JOB = {"app": APP, "delay": "1h"}
GONE = "019a8b7c-3d20-8014-9f3a-5c1e2b7d4a60"

TEXTS = {
    "nul": "a\0b",
    "control": "a\x07\x1b[31m\x7f",
    "newline": "a\r\nSet-Cookie: x=1",
    "right to left": "a\u202eb\u200f",
    "beyond the basic plane": "\U0001f600",
    "long": "x" * 201,
    "very long": "x" * (1 << 20),
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("field", ["job_name", "group", "request_id", "idempotency_key", "tags"])
async def test_a_text_comes_back_as_it_is_or_is_refused(api: ApiRig, field: str, text: str) -> None:
    answer = await api.post("/v1/jobs", {**JOB, field: [text] if field == "tags" else text})
    if answer.status == 422:
        assert answer.problem.startswith("invalid")
        assert (await api.get("/v1/jobs")).value["jobs"] == []
        return
    assert answer.status == 201, answer.content
    told = (await api.get(f"/v1/jobs/{answer.value['id']}")).value[field]
    assert (told[0] if field == "tags" else told) == text


@pytest.mark.parametrize("field", ["job_name", "tags", "app", "at", "delay"])
async def test_half_a_character_is_refused(api: ApiRig, field: str) -> None:
    value = '["\\ud800"]' if field == "tags" else '"\\ud800"'
    body = json.dumps({name: one for name, one in JOB.items() if name != field})[:-1] + f', "{field}": {value}}}'
    answer = await api.post("/v1/jobs", body.encode())
    assert (answer.status, answer.problem) == (400, "malformed")


@pytest.mark.parametrize("name", ["at", "delay"])
@pytest.mark.parametrize(
    "number", ["9007199254740993", "1e400", "-1e400", "1e-400", "9" * 5000, "-9007199254740993", "18446744073709551616"]
)
async def test_a_number_that_is_no_time_is_refused(api: ApiRig, name: str, number: str) -> None:
    answer = await api.post("/v1/jobs", f'{{"app": "{APP}", "{name}": {number}}}'.encode())
    if number in {"1e-400", "-9007199254740993"} and answer.status == 201:
        return  # a moment in the past, or a delay of nothing, means now
    assert answer.status in {400, 422}, answer.content
    assert (await api.get("/v1/jobs")).value["jobs"] == []


async def test_compressed_bodies_are_never_unpacked(api: ApiRig) -> None:
    bomb = gzip.compress(b"[" + b" " * (16 << 20) + b"]")
    for path, kind in (("/v1/jobs", "application/json"), ("/v1/jobs/bulk", NDJSON)):
        for coding in ("gzip", "deflate", "br", "GZIP", "identity, gzip"):
            headers = {"Content-Encoding": coding, "Content-Type": kind}
            answer = await api.post(path, bomb, headers=headers)
            assert (answer.status, answer.problem) == (415, "wrong-content-type")
    assert (await api.post("/v1/jobs", bomb)).problem == "malformed", "and what is not said to be packed is not JSON"


ODD_VALUES = ("\0", "\x1b", "\u202e", "\ud800", "9" * 400, "-1", "1e400", "NaN", "' OR 1=1 --", "%s", "../..", "")


@pytest.mark.parametrize(
    "path", [one.path for one in OPERATIONS if one.method == "GET" and one.path != "/v1/events"], ids=str
)
async def test_odd_parameters_are_answered_or_refused_in_words(api: ApiRig, path: str) -> None:
    operation = next(one for one in OPERATIONS if one.path == path and one.method == "GET")
    names: Sequence[str] = [] if operation.query is None else operation.query.__struct_encode_fields__
    for value in ODD_VALUES:
        odd = quote(value.encode(errors="surrogatepass"))
        asked = [f"{path}?{name}={odd}" for name in names] or [f"{path}?x={odd}"]
        if "{" in path and value not in {"", "../.."}:
            asked.append(path.partition("{")[0] + odd)
        for one in asked:
            answer = await api.get(one.replace("{id}", GONE).replace("{app}", APP))
            assert answer.status < 500 or path == "/health/alarms", (one, answer.content)


async def test_a_cursor_of_another_list_is_refused(api: ApiRig) -> None:
    for number in range(3):
        await api.schedule(number, tags=["a"])
    await api.post(f"/v1/apps/{APP}/pause")
    await api.post(f"/v1/apps/{APP}/resume")
    jobs = (await api.get(f"/v1/jobs?limit=1&app={APP}")).value["cursor"]
    audit = (await api.get("/v1/audit?limit=1")).value["cursor"]
    assert (await api.get(f"/v1/jobs?limit=1&app={APP}&cursor={jobs}")).status == 200
    for path in (
        f"/v1/jobs?app={APP}&status=pending&cursor={jobs}",
        f"/v1/jobs?app={APP}&tag=a&cursor={jobs}",
        f"/v1/jobs?app={APP}&newest=true&cursor={jobs}",
        f"/v1/jobs?cursor={audit}",
        f"/v1/jobs?cursor={jobs[:-1]}",
        f"/v1/jobs?cursor={'A' * 5000}",
        f"/v1/audit?cursor={jobs}",
        f"/v1/dlq?cursor={jobs}",
    ):
        answer = await api.get(path)
        assert answer.status == 422, (path, answer.content)
        assert "cursor" in answer.value["detail"]


def test_a_name_that_occurs_twice_is_found_in_one_pass() -> None:
    """With a look through all names for each of them, this would take hours: the event loop would stand still."""
    names = ",".join(f'"{number}":{number}' for number in range(200_000))
    assert scan(f'{{{names},"199999":1}}').repeated == "199999"
    assert scan(f'[{{{names},"199999":1}}]').repeated is None


async def test_a_very_long_number_is_data_or_refused(api: ApiRig) -> None:
    for number, accepted in (("9" * 4000, 1), ("9" * 100_000, 0)):
        answer = await api.post("/v1/jobs/bulk", f'[{{"app": "{APP}", "delay": "1h", "data": {number}}}]'.encode())
        assert (answer.status, answer.value["accepted"]) == (200, accepted)
        if accepted:
            payload = await api.get(f"/v1/jobs/{answer.value['results'][0]['id']}/payload")
            assert payload.content == number.encode()
