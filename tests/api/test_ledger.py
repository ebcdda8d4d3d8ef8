"""What is known of all jobs at once, over HTTP, and the status API of the Java scheduler."""

import asyncio
from pathlib import Path
from typing import Any
from urllib.request import urlopen
from zoneinfo import ZoneInfo

import msgspec
import pytest

from infinite_scheduler import ConfigError, JobStatusApi, SyncClient
from infinite_scheduler.api import forecast_cache
from infinite_scheduler.api.token_digest import digest_of, new_token
from infinite_scheduler.errors import StoreUnavailable
from infinite_scheduler.model import Attempt, JobId, Status
from infinite_scheduler.observe.node_vitals import AppVitals, Vitals, encode
from infinite_scheduler.store.cluster_state import NodeInfo
from infinite_scheduler.store.ledger import AuditQuery, Role, Token
from infinite_scheduler.testing.manual_clock import ManualClock
from infinite_scheduler.views.java_status import java_time, past_job
from tests.api.api_rig import APP, ApiRig, api_rig
from tests.api.test_cluster import audit
from tests.waiting import now_ms

UTC_ZONE = ZoneInfo("UTC")
TEXT = new_token()
OPERATOR = Token(name="boss", role=Role.OPERATE, digest=digest_of(TEXT), created_ms=0)


async def test_what_waits_is_told_by_app_and_day(api: ApiRig) -> None:
    for at in ("2030-01-01T10:00:00Z", "2030-01-01T11:00:00Z", "2030-01-02T00:00:00Z"):
        await api.schedule(at=at, delay=None)
    told = (await api.get("/v1/waiting")).value
    assert told == {"jobs": 3, "apps": [{"app": APP, "jobs": 3, "days": {"2030-01-01": 2, "2030-01-02": 1}}]}


@pytest.mark.parametrize(("zoom", "buckets"), [("days", 8), ("hours", 24), ("minutes", 60)])
async def test_a_forecast_says_how_many_jobs_are_due_when(api: ApiRig, zoom: str, buckets: int) -> None:
    await api.schedule(at="2030-01-01T10:20:00Z", delay=None)
    told = (await api.get(f"/v1/forecast?zoom={zoom}&at=2030-01-01T10:00:00Z&app={APP}")).value
    assert len(told["buckets"]) == buckets
    assert sum(bucket["jobs"] for bucket in told["buckets"]) == 1


async def test_a_second_with_very_many_jobs_is_a_herd(tmp_path: Path) -> None:
    async with api_rig(tmp_path, herd=3) as api:
        jobs = [{"app": APP, "at": "2030-01-01T10:20:00Z"}] * 4
        await api.post("/v1/jobs/bulk", jobs)
        told = (await api.get("/v1/forecast?zoom=minutes&at=2030-01-01T10:00:00Z")).value
        assert told["herds"] == [{"app": APP, "start": "2030-01-01T10:20:00.000Z", "jobs": 4}]


@pytest.mark.parametrize(("zoom", "fresh_ms"), [("minutes", 10_000), ("hours", 60_000), ("days", 0)])
async def test_a_forecast_is_made_once_for_all_who_ask_until_it_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zoom: str, fresh_ms: int
) -> None:
    clock = ManualClock(now_ms())
    async with api_rig(tmp_path, clock=clock) as api:
        made = count_forecasts(api, monkeypatch)
        path = f"/v1/forecast?zoom={zoom}&at=2030-01-01T10:20:00Z"
        told = await asyncio.gather(*(api.get(path) for _ in range(5)))
        await api.schedule(at="2030-01-01T10:20:00Z", delay=None)
        clock.advance(max(0, fresh_ms - 1))
        told.append(await api.get(path))
        counted = [sum(bucket["jobs"] for bucket in one.value["buckets"]) for one in told]
        if not fresh_ms:
            assert (len(made), counted) == (6, [0] * 5 + [1])
            return
        assert (len(made), counted) == (1, [0] * 6)
        assert (await api.get(f"{path}&app={APP}")).value["buckets"] != told[0].value["buckets"], "another question"
        clock.advance(1)
        assert sum(bucket["jobs"] for bucket in (await api.get(path)).value["buckets"]) == 1


async def test_a_forecast_that_failed_is_made_again_and_all_who_waited_are_told(
    api: ApiRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, path = api.client.ledger, "/v1/forecast?zoom=hours"

    async def away(query: Any) -> Any:
        raise StoreUnavailable(f"the store does not answer {query}")

    monkeypatch.setattr(api.client._store, "ledger", lambda: ledger)
    monkeypatch.setattr(ledger, "forecast", away)
    answers = await asyncio.gather(api.get(path), api.get(path))
    assert {answer.problem for answer in answers} == {"store-unavailable"}
    monkeypatch.undo()
    assert (await api.get(path)).status == 200


async def test_a_bounded_number_of_forecasts_is_kept(api: ApiRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast_cache, "MOST", 2)
    made = count_forecasts(api, monkeypatch)
    for hour in (1, 2, 1, 3, 1, 2):
        await api.get(f"/v1/forecast?zoom=minutes&at=2030-01-01T0{hour}:00:00Z")
    assert len(made) == 4, "1, 2, 3, and 2 again, which was asked for longest ago"
    assert len(api.server._api.forecasts._kept) == 2


def count_forecasts(api: ApiRig, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the store is asked for from now on."""
    ledger = api.client.ledger
    made: list[Any] = []
    forecast = ledger.forecast

    async def counted(query: Any) -> Any:
        made.append(query)
        return await forecast(query)

    monkeypatch.setattr(ledger, "forecast", counted)
    monkeypatch.setattr(api.client._store, "ledger", lambda: ledger)
    return made


@pytest.mark.parametrize("query", ["zoom=years", "at=soon", "days=0", "days=401"])
async def test_a_forecast_that_makes_no_sense_is_refused(api: ApiRig, query: str) -> None:
    assert (await api.get(f"/v1/forecast?{query}")).status == 422


async def test_tables_are_listed(api: ApiRig) -> None:
    await api.schedule()
    tables = (await api.get("/v1/tables")).value["tables"]
    assert {"jobs", "shared"} <= {table["kind"] for table in tables}
    assert [table["name"] for table in tables] == sorted(table["name"] for table in tables)


async def test_the_audit_is_listed_in_pages_and_by_who_did_it(api: ApiRig) -> None:
    await api.post(f"/v1/apps/{APP}/pause")
    await api.post(f"/v1/apps/{APP}/resume")
    first = (await api.get("/v1/audit?limit=1")).value
    assert [(one["who"], one["verb"], one["result"]) for one in first["records"]] == [("local", "resume app", "done")]
    rest = (await api.get(f"/v1/audit?cursor={first['cursor']}")).value
    assert ([one["verb"] for one in rest["records"]], rest["cursor"]) == (["pause app"], None)
    assert (await api.get("/v1/audit?who=nobody")).value["records"] == []
    assert (await api.get("/v1/audit?cursor=x")).status == 422


async def test_changes_of_many_jobs_and_those_of_operators_are_in_the_audit(tmp_path: Path) -> None:
    async with api_rig(tmp_path) as api:
        ids = [await api.schedule(number) for number in range(3)]
        await api.post("/v1/jobs/cancel", {"ids": ids[:2]})
        await api.post(f"/v1/jobs/{ids[2]}/cancel")
        assert await audit(api) == [("local", "cancel jobs", f"{ids[0]} …", 2)]
    (tmp_path / "other").mkdir()
    async with api_rig(tmp_path / "other", server={"tokens": (OPERATOR,)}) as api:
        job = (await api.client.schedule(APP, 1, delay="1h")).id
        await api.post(f"/v1/jobs/{job}/cancel", headers={"Authorization": f"Bearer {TEXT}"})
        (record,) = (await api.client.ledger.records(AuditQuery())).records
        assert (record.who, record.verb, record.target, record.result) == ("boss", "cancel job", job, "done")


async def test_the_status_api_has_the_names_of_the_java_scheduler(api: ApiRig) -> None:
    job = await api.schedule(at="2030-10-28T04:10:15Z", delay=None, job_name="n", group="g")
    (waiting,) = (await api.get("/api/jobs/scheduled?limit=5")).value
    assert waiting.pop("createdAt")[:4].isdigit()
    assert waiting == {
        "id": job,
        "jobId": job,
        "jobName": "n",
        "jobGroup": "g",
        "appName": APP,
        "entityId": job,
        "scheduledTime": "2030-10-28 04:10:15.0",
        "status": "SCHEDULED",
        "queueType": None,
        "topicName": None,
        "brokerAddress": None,
    }
    assert (await api.get("/api/jobs/history")).value == []
    assert (await api.get("/api/jobs/stats")).value == {
        "totalJobs": 1,
        "statusCounts": {"SCHEDULED": 1, "STARTED": 0, "COMPLETED": 0, "FAILED": 0},
    }
    told = (await api.get("/api/tables")).value
    assert set(told) == {"database", "tableCount", "tables"}
    assert told["tableCount"] == len(told["tables"]) > 0
    assert set(told["tables"][0]) == {
        "tableName",
        "createTime",
        "rowCount",
        "dataLength",
        "indexLength",
        "totalSizeMB",
        "tableDate",
    }


async def test_a_job_that_runs_now_is_started_and_one_that_took_long_says_how_long(api: ApiRig) -> None:
    runs, waits, retried, done = [await api.schedule(number) for number in range(4)]
    at_ms = now_ms()
    attempts = {
        runs: Attempt(attempt=1, started_ms=at_ms, node="n"),
        retried: Attempt(attempt=1, started_ms=at_ms, finished_ms=at_ms + 5, node="n", error="boom"),
        done: Attempt(attempt=1, started_ms=at_ms - 2500, finished_ms=at_ms, node="n"),
    }
    rows = [(bytes(JobId.parse(job)), attempt) for job, attempt in attempts.items()]
    await api.client._store._door.write(lambda tx: tx.write_attempts(APP, rows))  # type: ignore[attr-defined]
    told = {one["id"]: one["status"] for one in (await api.get("/api/jobs/scheduled")).value}
    assert told == {runs: "STARTED", waits: "SCHEDULED", retried: "SCHEDULED", done: "SCHEDULED"}
    ended = msgspec.structs.replace(await api.client.get(done), status=Status.DONE, finished_ms=at_ms + 40)
    shown = past_job(ended, UTC_ZONE)
    assert (shown.status, shown.execution_duration_ms) == ("COMPLETED", 2500)
    assert (shown.started_at, shown.completed_at) == (java_time(at_ms - 2500, UTC_ZONE), java_time(at_ms, UTC_ZONE))


async def test_how_many_jobs_run_is_what_the_nodes_say(api: ApiRig) -> None:
    for number in range(3):
        await api.schedule(number)
    node = NodeInfo(nonce="n1", node_id="n1", apps=frozenset({APP}), started_ms=1)
    beat = api.client._store.ownership(node, lambda shards: None).beat
    for in_flight, started in ((2, 2), (5, 3)):
        await beat(vitals=encode(Vitals(apps={APP: AppVitals(in_flight=in_flight)})))
        counts = (await api.get("/api/jobs/stats")).value["statusCounts"]
        assert (counts["SCHEDULED"], counts["STARTED"]) == (3 - started, started)


async def test_a_cancelled_job_is_not_in_the_history(api: ApiRig) -> None:
    await api.post(f"/v1/jobs/{await api.schedule()}/cancel")
    assert (await api.get("/api/jobs/history?limit=10")).value == []
    assert (await api.get("/api/jobs/history?limit=0")).status == 422


def test_the_status_api_runs_without_an_event_loop(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with SyncClient(url) as client:
        client.register(APP)
    api = JobStatusApi(url)
    assert api.stop() is True

    def ask(path: str) -> Any:
        with urlopen(f"{api.url}{path}") as answer:
            return answer.status

    for _ in range(2):
        api.start(0)
        assert ask("/api/jobs/stats") == 200
        assert ask("/health/ready") == 200
        with pytest.raises(ConfigError, match="in use by another process"):
            JobStatusApi(url).start(int(str(api.url).rpartition(":")[2]))
        assert api.stop() is True
        assert api.url is None
