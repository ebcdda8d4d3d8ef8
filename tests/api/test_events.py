"""The overview, and streams of it: read once a second for all, bounded in number, ended with a word."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from infinite_scheduler.api import overview
from infinite_scheduler.errors import StoreUnavailable
from infinite_scheduler.testing.manual_clock import ManualClock
from tests.api.api_rig import APP, ApiRig, api_rig


async def heard(content: Any) -> tuple[str, Any]:
    """The next event of a stream."""
    name = (await content.readline()).decode().strip().removeprefix("event: ")
    value = json.loads((await content.readline()).decode().removeprefix("data: "))
    assert await content.readline() == b"\n"
    return name, value


async def test_the_overview_shows_apps_and_what_waits(api: ApiRig) -> None:
    await api.schedule()
    told = (await api.get("/v1/overview")).value
    assert (told["waiting"], told["nodes"], told["backlog"]) == (1, {}, 0)
    (app,) = told["apps"]
    assert (app["app"], app["state"], app["waiting"], app["counts"]["accepted"]) == (APP, "no node", 1, 1)


async def test_the_store_is_read_once_a_second_however_many_look(tmp_path: Path) -> None:
    clock = ManualClock()
    async with api_rig(tmp_path, clock=clock) as api:
        read = 0
        survey = api.client._store.survey

        async def counted() -> Any:
            nonlocal read
            read += 1
            return await survey()

        api.client._store.survey = counted  # type: ignore[method-assign]
        await asyncio.gather(*(api.get("/v1/overview") for _ in range(20)))
        assert read == 1
        clock.advance(overview.EVERY_MS)
        await asyncio.gather(*(api.get("/v1/overview") for _ in range(20)))
        assert read == 2


async def test_a_stream_has_an_overview_a_second_and_a_last_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infinite_scheduler.api.event_streams.EVERY_MS", 20)
    async with api_rig(tmp_path) as api, api.session.get(f"{api.server.url}/v1/events") as stream:
        assert stream.headers["Content-Type"] == "text/event-stream"
        assert [(await heard(stream.content))[0] for _ in range(3)] == ["overview"] * 3
        assert await api.server.stop() is True
        rest = []
        while not stream.content.at_eof():
            rest.append(await heard(stream.content))
        assert rest[-1] == ("end", {"reason": "the server stops"})


async def test_a_store_that_is_away_is_an_event(api: ApiRig) -> None:
    async def away() -> Any:
        raise StoreUnavailable("the store does not answer")

    api.client._store.survey = away  # type: ignore[method-assign]
    async with api.session.get(f"{api.server.url}/v1/events") as stream:
        assert await heard(stream.content) == ("away", {"reason": "the store does not answer"})


async def test_one_stream_too_many_is_refused_until_another_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infinite_scheduler.api.event_streams.EVERY_MS", 10)
    async with api_rig(tmp_path, streams=1) as api:
        async with api.session.get(f"{api.server.url}/v1/events") as stream:
            await heard(stream.content)
            refused = await api.get("/v1/events")
            assert (refused.status, refused.problem) == (503, "not-ready")
            stream.close()
        for _ in range(500):
            async with api.session.get(f"{api.server.url}/v1/events") as stream:
                if stream.status == 200:
                    break
            await asyncio.sleep(0.01)
        else:
            pytest.fail("the place of the first stream is never free")
