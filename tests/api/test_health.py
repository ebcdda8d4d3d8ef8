"""Health: does the process live, can it accept, is anything wrong elsewhere?"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from infinite_scheduler.api import health_operations
from infinite_scheduler.api.node_signs import NodeSigns
from infinite_scheduler.errors import StoreUnavailable
from tests.api.api_rig import APP, ApiRig, api_rig

WELL = NodeSigns(oldest_overdue_ms=0, early=0, swept=0, topics_ready={"orders": True})


async def test_an_app_without_a_node_is_an_alarm_and_does_not_make_intake_unready(api: ApiRig) -> None:
    assert (await api.get("/health/live")).value == {"status": "ok"}
    assert (await api.get("/health/ready")).status == 200
    alarms = await api.get("/health/alarms")
    assert alarms.status == 503
    assert [(one["kind"], one["about"]) for one in alarms.value["alarms"]] == [("no_node", APP)]


@pytest.mark.parametrize(
    ("kind", "signs"),
    [
        ("overdue", {"oldest_overdue_ms": 61_000}),
        ("early", {"early": 1}),
        ("swept", {"swept": 2}),
        ("topic", {"topics_ready": {"orders": False}}),
    ],
)
async def test_what_the_node_says_of_itself_is_an_alarm(tmp_path: Path, kind: str, signs: dict[str, Any]) -> None:
    told = [WELL]
    async with api_rig(tmp_path, node_signs=lambda: told[0]) as api:
        await api.client.pause(APP)
        assert (await api.get("/health/alarms")).value == {"alarms": []}
        told[0] = NodeSigns(**{name: getattr(WELL, name) for name in WELL.__struct_fields__} | signs)
        alarms = await api.get("/health/alarms")
        assert alarms.status == 503
        assert [one["kind"] for one in alarms.value["alarms"]] == [kind]


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


async def test_metrics_are_what_the_process_writes_and_absent_where_it_has_none(tmp_path: Path) -> None:
    async def written() -> tuple[bytes, str]:
        return b"jobs 1\n", "text/plain; version=0.0.4; charset=utf-8"

    async with api_rig(tmp_path, metrics=written) as api:
        answer = await api.get("/metrics")
        assert (answer.content, answer.headers["Content-Type"]) == (await written())
    (tmp_path / "other").mkdir()
    async with api_rig(tmp_path / "other") as api:
        assert (await api.get("/metrics")).problem == "no-such-path"
