"""Jobs and dead letters chosen by a filter over HTTP: preview, change in steps, roles, audit, and bad input."""

import weakref
from pathlib import Path
from typing import Any

import msgspec
import pytest

from infinite_scheduler.bulk_change import job_changes
from infinite_scheduler.errors import SchedulerError, StoreBroken, StoreUnavailable
from infinite_scheduler.ingest.replay import Replayer
from infinite_scheduler.model import Accepted, Change, JobRecord
from infinite_scheduler.store.inbox import DeadLetter
from infinite_scheduler.store.ledger import AuditQuery, Role
from infinite_scheduler.store.sql.inbox import SqlInbox
from tests.api.api_rig import APP, ApiRig, api_rig
from tests.api.test_access import TEXTS, TOKENS, bearer
from tests.api.test_cluster import audit, keep, message

TRIAL = {"app": APP, "tag": "trial"}


class Kept(DeadLetter, frozen=True, kw_only=True, weakref=True):
    """A letter of which one can see whether it is still held."""


async def add(api: ApiRig, count: int, **fields: Any) -> list[str]:
    return [await api.schedule(number, **fields) for number in range(count)]


async def all_steps(api: ApiRig, path: str, body: dict[str, Any]) -> list[Any]:
    """The answers until the cursor is null."""
    found = [(await api.post(path, body)).value]
    while found[-1]["cursor"] is not None:
        assert len(found) < 50
        found.append((await api.post(path, {**body, "cursor": found[-1]["cursor"]})).value)
    return found


# Jobs


async def test_a_preview_shows_ten_and_changes_nothing(api: ApiRig) -> None:
    ids = await add(api, 12, tags=["trial"])
    await add(api, 2)
    answer = (await api.post("/v1/jobs/cancel", {"filter": TRIAL, "preview": True})).value
    assert (answer["count"], answer["at_least"], len(answer["jobs"])) == (12, False, 10)
    assert {job["id"] for job in answer["jobs"]} <= set(ids)
    assert (await api.get("/v1/jobs?status=cancelled")).value["jobs"] == []
    assert await audit(api) == []


async def test_jobs_are_changed_by_a_filter_step_by_step(api: ApiRig) -> None:
    await add(api, 7, tags=["trial"])
    await add(api, 2)
    found = await all_steps(api, "/v1/jobs/cancel", {"filter": TRIAL, "limit": 3})
    assert [(one["changed"], one["refused"], one["results"]) for one in found] == [(3, 0, []), (3, 0, []), (1, 0, [])]
    assert [one["searched_to"] is None for one in found] == [False, False, True]
    assert len((await api.get("/v1/jobs?status=cancelled")).value["jobs"]) == 7
    text = '{"app":"shop","tag":"trial"}'
    assert [row[1:] for row in await audit(api)] == [("cancel jobs", text, n) for n in (3, 3, 1)]
    found = await all_steps(api, "/v1/jobs/retry", {"filter": {"app": APP, "status": "cancelled"}, "limit": 4})
    assert sum(one["changed"] for one in found) == 7
    found = await all_steps(api, "/v1/jobs/reschedule", {"filter": TRIAL, "delay": "3h", "limit": 2})
    assert sum(one["changed"] for one in found) == 7
    found = await all_steps(api, "/v1/jobs/run-now", {"filter": {**TRIAL, "from": "+2h"}, "limit": 2})
    assert sum(one["changed"] for one in found) == 7
    assert len((await api.get("/v1/jobs?status=pending&from=%2B30m")).value["jobs"]) == 2


async def test_a_job_is_cancelled_by_its_idempotency_key(api: ApiRig) -> None:
    await add(api, 2)
    job = await api.schedule(idempotency_key="order-17")
    answer = (await api.post("/v1/jobs/cancel", {"filter": {"app": APP, "idempotency_key": "order-17"}})).value
    assert (answer["changed"], answer["cursor"]) == (1, None)
    assert [one["id"] for one in (await api.get("/v1/jobs?status=cancelled")).value["jobs"]] == [job]


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("jobs/cancel", {}, "either their ids, or a filter"),
        ("jobs/cancel", {"ids": ["x"], "filter": TRIAL}, "not both"),
        ("jobs/cancel", {"ids": ["x"], "preview": True}, "are for a filter"),
        ("jobs/cancel", {"ids": ["x"], "cursor": "y"}, "are for a filter"),
        ("jobs/cancel", {"filter": {}}, "name at least an app"),
        ("jobs/cancel", {"filter": {"status": "pending"}}, "name at least an app"),
        ("jobs/cancel", {"filter": {**TRIAL, "status": "done"}}, "leave the status out"),
        ("jobs/retry", {"filter": TRIAL}, "failed, expired or cancelled"),
        ("jobs/reschedule", {"filter": TRIAL}, "either a time"),
        ("jobs/cancel", {"filter": TRIAL, "cursor": "x"}, "is not one of this change"),
        ("jobs/cancel", {"filter": TRIAL, "limit": 1001}, "limit"),
        ("jobs/cancel", {"filter": {**TRIAL, "color": "red"}}, "color"),
        ("jobs/cancel", {"filter": {**TRIAL, "to": "soon"}}, "'soon'"),
        ("dlq/drop", {}, "either their ids, or a filter"),
        ("dlq/replay", {}, "either their ids, or a filter"),
        ("dlq/drop", {"ids": ["x"], "filter": {}}, "not both"),
        ("dlq/replay", {"ids": ["x"], "limit": 5}, "are for a filter"),
        ("dlq/drop", {"filter": {"state": "dropped"}}, "already dropped"),
        ("dlq/drop", {"filter": {"state": "replayed"}}, "already jobs"),
        ("dlq/replay", {"filter": {"state": "replayed"}}, "already jobs"),
        ("dlq/drop", {"filter": {"before": "soon"}}, "'soon'"),
        ("dlq/drop", {"filter": {}, "cursor": "x"}, "is not one of this change"),
    ],
)
async def test_what_cannot_be_meant_is_refused_in_words(api: ApiRig, path: str, body: Any, words: str) -> None:
    answer = await api.post(f"/v1/{path}", body)
    assert (answer.status, answer.problem) in {(422, "invalid-request"), (422, "invalid-time")}
    assert words in answer.value["detail"]


async def test_an_unknown_app_is_not_found(api: ApiRig) -> None:
    for preview in (True, False):
        answer = await api.post("/v1/jobs/cancel", {"filter": {"app": "nobody"}, "preview": preview})
        assert (answer.status, answer.problem) == (404, "unknown-app")


async def test_a_filter_needs_an_operator_and_ids_do_not(tmp_path: Path) -> None:
    async with api_rig(tmp_path, server={"tokens": TOKENS}) as api:
        submit, operate = bearer(TEXTS[Role.SUBMIT]), bearer(TEXTS[Role.OPERATE])
        job = (await api.post("/v1/jobs", {"app": APP, "delay": "1h"}, headers=submit)).value["id"]
        for body in ({"filter": {"app": APP}}, {"filter": {"app": APP}, "preview": True}):
            refused = await api.post("/v1/jobs/cancel", body, headers=submit)
            assert (refused.status, refused.problem) == (403, "forbidden")
        assert (await api.post("/v1/jobs/cancel", {"ids": [job]}, headers=submit)).value["changed"] == 1
        retry = {"filter": {"app": APP, "status": "cancelled"}}
        assert (await api.post("/v1/jobs/retry", retry, headers=operate)).value["changed"] == 1


async def test_the_answer_says_what_was_changed_when_the_store_goes_away(
    api: ApiRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_changes, "TOGETHER", 1)
    await add(api, 4, tags=["trial"])
    real, asked = api.client.change, list[str]()

    async def change(verb: Change, job_id: str, **more: Any) -> JobRecord:
        asked.append(job_id)
        if 3 <= len(asked) <= 4:
            raise StoreUnavailable("the store is away")
        return await real(verb, job_id, **more)

    monkeypatch.setattr(api.client, "change", change)
    first = (await api.post("/v1/jobs/cancel", {"filter": TRIAL})).value
    assert (first["changed"], first["refused"], first["stopped"]["detail"]) == (2, 0, "the store is away")
    again = await api.post("/v1/jobs/cancel", {"filter": TRIAL, "cursor": first["cursor"]})
    assert (again.status, again.problem) == (503, "store-unavailable")
    last = (await api.post("/v1/jobs/cancel", {"filter": TRIAL, "cursor": first["cursor"]})).value
    assert (last["changed"], last["cursor"], "stopped" in last) == (2, None, False)
    records = (await api.client.ledger.records(AuditQuery())).records
    assert [(one.count, one.result) for one in reversed(records)] == [(2, "stopped: the store is away"), (2, "done")]


# Dead letters


async def test_a_letter_is_dropped_and_can_be_replayed(api: ApiRig) -> None:
    letter = await keep(api, message())
    for _ in range(2):
        assert (await api.post(f"/v1/dlq/{letter}/drop")).value["state"] == "dropped"
    assert (await api.get("/v1/dlq?state=dropped")).value["letters"][0]["id"] == letter
    assert (await api.post(f"/v1/dlq/{letter}/replay")).value["job"] is not None
    late = await api.post(f"/v1/dlq/{letter}/drop")
    assert (late.status, late.problem) == (409, "too-late")
    assert (await api.post(f"/v1/dlq/{'0' * 32}/drop")).problem == "unknown-letter"
    assert [row[1] for row in await audit(api)] == ["drop dead letter"] * 2 + [
        "replay dead letter",
        "drop dead letter",
    ]


async def test_many_letters_are_dropped_with_an_answer_each(api: ApiRig) -> None:
    ids = [await keep(api, message()) for _ in range(3)]
    await api.post(f"/v1/dlq/{ids[1]}/replay")
    answer = (await api.post("/v1/dlq/drop", {"ids": ids})).value
    assert (answer["dropped"], answer["refused"], answer["cursor"]) == (2, 1, None)
    assert [(one["letter"], one["dropped"], "error" in one) for one in answer["results"]] == [
        (ids[0], True, False),
        (ids[1], False, True),
        (ids[2], True, False),
    ]
    assert (await api.post("/v1/dlq/drop", {"ids": [ids[0], "0" * 32]})).problem == "unknown-letter"


async def test_letters_are_dropped_by_a_filter_step_by_step(api: ApiRig) -> None:
    ids = [await keep(api, message(), 1_700_000_000_000 + number) for number in range(5)]
    await api.post(f"/v1/dlq/{ids[2]}/replay")
    body = {"filter": {"topic": "orders", "before": "2024-01-01T00:00:00Z"}, "limit": 2}
    shown = (await api.post("/v1/dlq/drop", {**body, "preview": True})).value
    assert (shown["count"], shown["at_least"], [one["id"] for one in shown["letters"]]) == (
        4,
        False,
        [*ids[:2], *ids[3:]],
    )
    found = await all_steps(api, "/v1/dlq/drop", body)
    assert [one["dropped"] for one in found] == [2, 1, 1]
    assert [one["letter"] for step in found for one in step["results"]] == [*ids[:2], *ids[3:]]
    text = '{"topic":"orders","before":"2024-01-01T00:00:00Z"}'
    assert [row[1:] for row in await audit(api)][1:] == [("drop dead letters", text, n) for n in (2, 1, 1)]


async def test_letters_are_replayed_by_a_filter_without_dropped_ones(api: ApiRig) -> None:
    ids = [await keep(api, value, 1_700_000_000_000 + n) for n, value in enumerate([message(), b"{", message()])]
    await api.post(f"/v1/dlq/{ids[0]}/drop")
    found = await all_steps(api, "/v1/dlq/replay", {"filter": {}, "limit": 1})
    assert [(one["replayed"], one["refused"]) for one in found] == [(0, 0), (0, 1), (1, 0)]
    found = await all_steps(api, "/v1/dlq/replay", {"filter": {"state": "dropped"}, "delay": "1h"})
    assert [one["letter"] for one in found[0]["results"]] == ids[:1]
    assert (found[0]["replayed"], len((await api.get("/v1/jobs")).value["jobs"])) == (1, 2)


@pytest.mark.parametrize("error", [StoreUnavailable("the store is away"), StoreBroken("no space left")])
@pytest.mark.parametrize("chosen", ["ids", "filter"])
async def test_a_replay_that_stops_says_what_was_replayed(
    api: ApiRig, monkeypatch: pytest.MonkeyPatch, chosen: str, error: SchedulerError
) -> None:
    ids = [await keep(api, message(), failed_ms=1_700_000_000_000 + number) for number in range(3)]
    real = Replayer.replay

    async def replay(self: Replayer, letter: DeadLetter, at_ms: int | None = None) -> Accepted:
        if letter.id == ids[1]:
            raise error
        return await real(self, letter, at_ms)

    monkeypatch.setattr(Replayer, "replay", replay)
    answer = await api.post("/v1/dlq/replay", {"ids": ids} if chosen == "ids" else {"filter": {}})
    assert (answer.status, answer.value["replayed"], answer.value["refused"]) == (200, 1, 0)
    assert (answer.value["stopped"]["detail"], len(answer.value["results"])) == (str(error), 1)
    (row,) = (await api.client.ledger.records(AuditQuery())).records
    assert (row.count, row.result) == (1, f"stopped: {error}")
    alone = await api.post("/v1/dlq/replay", {"ids": ids[1:]})
    assert alone.status == 503


async def test_letters_chosen_by_ids_are_not_all_held_in_memory(api: ApiRig, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [await keep(api, message()) for _ in range(6)]
    read = list[weakref.ref[DeadLetter]]()
    letter = SqlInbox.letter

    async def noted(self: SqlInbox, letter_id: str) -> DeadLetter | None:
        found = await letter(self, letter_id)
        assert found is not None
        assert sum(one() is not None for one in read) <= 1
        kept = Kept(**msgspec.structs.asdict(found))
        read.append(weakref.ref(kept))
        return kept

    monkeypatch.setattr(SqlInbox, "letter", noted)
    assert (await api.post("/v1/dlq/drop", {"ids": ids[:3]})).value["dropped"] == 3
    assert (await api.post("/v1/dlq/replay", {"ids": ids})).value["replayed"] == 6
    assert len(read) == 9


async def test_a_replay_goes_on_after_the_last_letter_when_the_store_was_away(
    api: ApiRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [await keep(api, message(), 1_700_000_000_000 + number) for number in range(4)]
    real, asked = Replayer.replay, list[str]()

    async def replay(self: Replayer, letter: DeadLetter, at_ms: int | None = None) -> Accepted:
        asked.append(letter.id)
        if len(asked) == 3:
            raise StoreUnavailable("the store is away")
        return await real(self, letter, at_ms)

    monkeypatch.setattr(Replayer, "replay", replay)
    first = (await api.post("/v1/dlq/replay", {"filter": {}})).value
    assert (first["replayed"], first["stopped"]["detail"]) == (2, "the store is away")
    assert first["cursor"] is not None
    rest = (await api.post("/v1/dlq/replay", {"filter": {}, "cursor": first["cursor"]})).value
    assert ([one["letter"] for one in rest["results"]], rest["cursor"]) == (ids[2:], None)


async def test_dropping_needs_an_operator(tmp_path: Path) -> None:
    async with api_rig(tmp_path, server={"tokens": TOKENS}) as api:
        letter = await keep(api, message())
        for path in (f"{letter}/drop", "drop"):
            refused = await api.post(f"/v1/dlq/{path}", {"filter": {}}, headers=bearer(TEXTS[Role.SUBMIT]))
            assert (refused.status, refused.problem) == (403, "forbidden")
