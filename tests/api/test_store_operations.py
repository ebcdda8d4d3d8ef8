"""Operations that answer as the store does: who may use them, and what they hide."""

import base64
from pathlib import Path

import pytest

from infinite_scheduler.api.token_digest import digest_of
from infinite_scheduler.model import DAY_MS
from infinite_scheduler.store.inbox import DeadLetter, LetterState, Source, new_letter_id
from infinite_scheduler.store.ledger import Role, Token
from tests.api.api_rig import APP, ApiRig, api_rig

WORDS = {role: f"{role}-{'x' * 20}" for role in Role}
TOKENS = tuple(Token(name=role, role=role, digest=digest_of(text), created_ms=0) for role, text in WORDS.items())


def by(role: Role) -> dict[str, str]:
    return {"Authorization": f"Bearer {WORDS[role]}", "Content-Type": "application/json"}


async def letter(api: ApiRig) -> DeadLetter:
    """A dead letter that was kept just now."""
    kept = DeadLetter(
        id=new_letter_id(1_767_225_600_000),
        source=Source("door", "orders", 0),
        offset=7,
        key=None,
        value=b"\xff\0",
        headers=(("h", b"text"),),
        error="not JSON",
        failed_ms=1_767_225_600_000,
        dlq_topic=None,
        state=LetterState.KEPT,
    )
    await api.client.inbox.take([], [kept], [])
    return kept


async def test_each_needs_its_role(tmp_path: Path) -> None:
    async with api_rig(tmp_path, server={"tokens": TOKENS}) as api:
        kept = await letter(api)
        job = {"app": APP, "delay": "1h", "data": 1}
        operations: list[tuple[Role, str, str, object]] = [
            (Role.READ, "GET", "/v1/survey", None),
            (Role.READ, "GET", "/v1/dlq-messages", None),
            (Role.READ, "GET", f"/v1/forecast/range?start_ms=0&end_ms={DAY_MS}&step_ms={DAY_MS}", None),
            (Role.SUBMIT, "POST", f"/v1/apps/{APP}/keys", {"keys": ["k"]}),
            (Role.OPERATE, "POST", "/v1/apps", {"app": "mail", "shards": 3}),
            (Role.OPERATE, "POST", f"/v1/apps/{APP}/recount", None),
            (Role.OPERATE, "POST", f"/v1/dlq/{kept.id}/job", job),
        ]
        roles = list(Role)
        for needed, method, path, body in operations:
            for role in roles:
                answer = await api.ask(method, path, body, headers=by(role))
                expected = 200 if roles.index(role) >= roles.index(needed) else 403
                assert answer.status == expected, (path, role, answer.content)
        audit = (await api.get("/v1/audit", headers=by(Role.READ))).value["records"]
        assert [one["verb"] for one in audit] == ["replay dead letter", "recount app", "add app"]


async def test_a_survey_has_all_that_the_store_says(api: ApiRig) -> None:
    await api.schedule()
    found = (await api.get("/v1/survey")).value
    assert [(app["name"], app["shards"], app["paused"]) for app in found["view"]["apps"]] == [(APP, 2, False)]
    assert len(found["view"]["shards"]) == 2
    assert found["counts"][APP]["accepted"] == 1
    assert found["now_ms"] > 1_700_000_000_000


async def test_keys_that_belong_to_jobs_are_named_and_none_is_taken(api: ApiRig) -> None:
    job = await api.schedule(idempotency_key="taken")
    found, again = [
        (await api.post(f"/v1/apps/{APP}/keys", {"keys": ["taken", "free"]})).value["holders"] for _ in range(2)
    ]
    assert found == again
    assert set(found) == {"taken"}
    assert found["taken"]["id"] == job
    digest = found["taken"]["digest"]
    same = await api.post("/v1/jobs", {"app": APP, "delay": "3h", "idempotency_key": "taken", "digest": digest})
    assert (same.status, same.value["id"]) == (200, job), "the digest says what must be equal"
    other = await api.post("/v1/jobs", {"app": APP, "delay": "1h", "idempotency_key": "taken", "digest": "00"})
    assert other.problem == "key-conflict"
    assert other.value["about"] == {"app": APP, "key": "taken", "job_id": job}


async def test_a_key_that_no_job_can_have_is_refused(api: ApiRig) -> None:
    answer = await api.post(f"/v1/apps/{APP}/keys", {"keys": ["taken", "a\0b"]})
    assert answer.problem == "invalid-request", "not every database could look for it"


@pytest.mark.parametrize("digest", ["0", "0g", "00" * 33, "AA"])
async def test_a_digest_that_is_not_one_is_refused(api: ApiRig, digest: str) -> None:
    answer = await api.post("/v1/jobs", {"app": APP, "delay": "1h", "idempotency_key": "k", "digest": digest})
    assert answer.problem == "invalid-request"


async def test_an_id_that_is_not_one_or_does_not_fit_is_refused(api: ApiRig) -> None:
    for job_id, problem in (("x", "invalid-request"), ("00000000-0000-8004-8000-000000000000", "id-refused")):
        answer = await api.post("/v1/jobs", {"app": APP, "delay": "1h", "id": job_id})
        assert answer.problem == problem


@pytest.mark.parametrize("payloads", ["shown", "operators", "hidden"])
async def test_messages_are_shown_to_whom_data_is_shown(tmp_path: Path, payloads: str) -> None:
    async with api_rig(tmp_path, server={"tokens": TOKENS}, payloads=payloads) as api:
        await letter(api)
        for role in (Role.READ, Role.OPERATE):
            (found,) = (await api.get("/v1/dlq-messages", headers=by(role))).value["letters"]
            shown = payloads == "shown" or (payloads == "operators" and role is Role.OPERATE)
            assert found.get("value_base64") == (base64.b64encode(b"\xff\0").decode() if shown else None)
            assert bool(found["headers"]) == shown


async def test_how_long_an_owner_may_take_and_how_much_is_looked_at_have_bounds(api: ApiRig) -> None:
    job = await api.schedule()
    for path in (f"/v1/jobs/{job}/cancel?timeout_ms=0", f"/v1/jobs/{job}/cancel?timeout_ms=60001"):
        assert (await api.post(path)).problem == "invalid-request"
    for query in ("rows=0", "rows=50001", "room=0", "room=8388609"):
        assert (await api.get(f"/v1/jobs?{query}")).problem == "invalid-request"
    assert (await api.post(f"/v1/jobs/{job}/cancel?app=nobody")).problem == "unknown-job"
    assert (await api.get(f"/v1/jobs/{job}?app={APP}")).value["status"] == "pending"
