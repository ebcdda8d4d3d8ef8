"""Health: does the process live, can it accept, is anything wrong elsewhere?"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from infinite_scheduler.api import health_operations
from infinite_scheduler.api.token_digest import digest_of, new_token
from infinite_scheduler.errors import StoreUnavailable
from infinite_scheduler.observe.node_vitals import AppVitals, TopicVitals, Vitals, encode
from infinite_scheduler.store.cluster_state import NodeInfo
from infinite_scheduler.store.ledger import Role, Token
from infinite_scheduler.testing.manual_clock import ManualClock
from tests.api.api_rig import APP, ApiRig, api_rig
from tests.waiting import now_ms


async def test_an_app_without_a_node_is_an_alarm_and_does_not_make_intake_unready(api: ApiRig) -> None:
    assert (await api.get("/health/live")).value == {"status": "ok"}
    assert (await api.get("/health/ready")).status == 200
    alarms = await api.get("/health/alarms")
    assert alarms.status == 503
    assert [(one["kind"], one["about"]) for one in alarms.value["alarms"]] == [("no_node", APP)]


async def say(api: ApiRig, vitals: Vitals, node: str = "node-1") -> None:
    """A heartbeat of a node, with what it says of itself."""
    info = NodeInfo(nonce=node, node_id=node, apps=frozenset({APP, "other"}), started_ms=1)
    await api.client._store.ownership(info, lambda shards: None).beat(vitals=encode(vitals))


@pytest.mark.parametrize(
    ("kind", "about", "vitals"),
    [
        ("overdue", APP, Vitals(apps={APP: AppVitals(overdue_ms=60_001), "b": AppVitals(overdue_ms=60_000)})),
        ("overdue", "other apps", Vitals(others=AppVitals(overdue_ms=60_001), other_apps=3)),
        ("early", APP, Vitals(apps={APP: AppVitals(early=2), "b": AppVitals(early=1)})),
        ("swept", APP, Vitals(apps={APP: AppVitals(swept=1)})),
        ("topic", "orders", Vitals(topics=[TopicVitals(topic="orders", group="g", ready=False)])),
    ],
)
async def test_what_any_living_node_says_of_itself_is_an_alarm_with_its_name(
    api: ApiRig, kind: str, about: str, vitals: Vitals
) -> None:
    well = Vitals(
        apps={APP: AppVitals(overdue_ms=60_000)}, topics=[TopicVitals(topic="orders", group="g", ready=True, lag=9)]
    )
    await say(api, well, "node-1")
    await say(api, well, "node-2")
    answer = await api.get("/health/alarms")
    assert (answer.status, answer.value) == (200, {"alarms": []})
    await say(api, vitals, "node-2")
    answer = await api.get("/health/alarms")
    assert answer.status == 503
    assert [(one["kind"], one["about"], one["node"]) for one in answer.value["alarms"]] == [(kind, about, "node-2")]
    assert "node-2" in answer.value["alarms"][0]["detail"]
    assert (await api.get("/health/ready")).status == 200


async def test_jobs_of_a_paused_app_are_overdue_as_an_operator_wants_it(api: ApiRig) -> None:
    await say(api, Vitals(apps={APP: AppVitals(overdue_ms=10**9)}))
    await api.client.pause(APP)
    assert (await api.get("/health/alarms")).value == {"alarms": []}


async def test_what_a_node_said_that_does_not_live_any_more_is_not_an_alarm(tmp_path: Path) -> None:
    clock = ManualClock(now_ms())
    async with api_rig(tmp_path, clock=clock) as api:
        await say(api, Vitals(apps={APP: AppVitals(swept=1)}))
        clock.step_wall(60_000)
        assert [one["kind"] for one in (await api.get("/health/alarms")).value["alarms"]] == ["no_node"]


async def test_a_store_that_is_away_makes_the_process_unready_and_leaves_it_alive(api: ApiRig) -> None:
    async def away() -> Any:
        raise StoreUnavailable("mysql://u:geheim@db/x does not answer")

    api.client._store.survey = away  # type: ignore[method-assign]
    answer = await api.get("/health/ready")
    assert (answer.status, answer.problem, answer.headers["Retry-After"]) == (503, "not-ready", "2")
    assert b"geheim" not in answer.content
    assert (await api.get("/health/live")).status == 200
    assert (await api.get("/v1/apps")).problem == "store-unavailable"


async def test_a_store_that_does_not_answer_makes_the_process_unready_in_time(
    api: ApiRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_operations, "PATIENCE_S", 0.02)
    held = asyncio.Event()
    survey = api.client._store.survey

    async def slow() -> Any:
        await held.wait()
        return await survey()

    api.client._store.survey = slow  # type: ignore[method-assign]
    assert (await api.get("/health/ready")).problem == "not-ready"
    held.set()
    assert (await api.get("/health/ready")).status == 200


async def test_metrics_need_a_token_unless_they_are_open(tmp_path: Path) -> None:
    async def written() -> tuple[bytes, str]:
        return b"jobs 1\n", "text/plain; version=0.0.4; charset=utf-8"

    text = new_token()
    tokens = (Token(name="grafana", role=Role.READ, digest=digest_of(text), created_ms=0),)
    async with api_rig(tmp_path, metrics=written, server={"tokens": tokens}) as api:
        assert (await api.get("/metrics")).problem == "no-token"
        assert (await api.get("/metrics", headers={"Authorization": f"Bearer {text}"})).status == 200
    async with api_rig(tmp_path, metrics=written, server={"tokens": tokens, "open_metrics": True}) as api:
        assert (await api.get("/metrics")).status == 200
        assert (await api.get("/metrics", headers={"Host": "evil.example"})).problem == "wrong-host"
        assert (await api.get("/v1/apps")).problem == "no-token", "nothing else is open"


async def test_metrics_are_what_the_process_writes_and_absent_where_it_has_none(tmp_path: Path) -> None:
    async def written() -> tuple[bytes, str]:
        return b"jobs 1\n", "text/plain; version=0.0.4; charset=utf-8"

    async with api_rig(tmp_path, metrics=written) as api:
        answer = await api.get("/metrics")
        assert (answer.content, answer.headers["Content-Type"]) == (await written())
    (tmp_path / "other").mkdir()
    async with api_rig(tmp_path / "other") as api:
        assert (await api.get("/metrics")).problem == "no-such-path"
