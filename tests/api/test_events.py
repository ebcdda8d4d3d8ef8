"""The overview, and streams of it: read once a second for all, bounded in number, ended with a word."""

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from infinite_scheduler import Job, RetryPolicy, Scheduler
from infinite_scheduler.api import event_writer, overview
from infinite_scheduler.api.event_streams import KEPT, SlowReader
from infinite_scheduler.cli.serve import _http_server
from infinite_scheduler.errors import StoreUnavailable
from infinite_scheduler.observe import events
from infinite_scheduler.observe.recent_failures import MOST, RecentFailures
from infinite_scheduler.store.cluster_state import AppInfo, NodeInfo
from infinite_scheduler.store.ownership import Claim
from infinite_scheduler.testing.manual_clock import ManualClock
from tests.api.api_rig import APP, ApiRig, api_rig
from tests.waiting import until_async


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


async def test_a_stream_has_an_overview_a_second_and_a_last_event(tmp_path: Path) -> None:
    async with api_rig(tmp_path, every_ms=20) as api, api.session.get(f"{api.server.url}/v1/events") as stream:
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


async def test_one_stream_too_many_is_refused_until_another_ends(tmp_path: Path) -> None:
    async with api_rig(tmp_path, streams=1, every_ms=10) as api:
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


async def until_heard(content: Any, name: str) -> Any:
    """The next event of this name."""
    while True:
        heard_name, value = await heard(content)
        if heard_name == name:
            return value


def failed(job_id: str) -> events.AttemptFailed:
    return events.AttemptFailed(
        app=APP, job_id=job_id, attempt=1, error="E" * 9000, request_id=None, next_due_ms=None, cause=ValueError("x")
    )


async def test_a_stream_tells_what_happens_to_apps_nodes_and_shards(tmp_path: Path) -> None:
    async with api_rig(tmp_path, every_ms=5) as api, api.session.get(f"{api.server.url}/v1/events") as stream:
        assert (await heard(stream.content))[0] == "overview"
        node = NodeInfo(nonce="n1", node_id="node-1", apps=frozenset({APP}), started_ms=1, beat_ms=2**42)
        ownership = api.client._store.ownership(node, lambda shards: None)
        view = await ownership.beat()
        joined = await until_heard(stream.content, "node")
        assert (joined["node"], joined["nonce"], joined["change"]) == ("node-1", "n1", "joined")
        await ownership.take([Claim(shard=info.shard, seen=info.owner) for info in view.shards])
        moved = await until_heard(stream.content, "shards")
        assert (moved["app"], moved["shards"], moved["from_node"], moved["to_node"]) == (APP, 2, None, "node-1")
        await api.client.drain_node("node-1")
        assert (await until_heard(stream.content, "node"))["change"] == "draining"
        await api.client.resume_node("node-1")
        assert (await until_heard(stream.content, "node"))["change"] == "resumed"
        for change in ("paused", "resumed"):
            await (api.client.pause(APP) if change == "paused" else api.client.resume(APP))
            told = await until_heard(stream.content, "app")
            assert (told["app"], told["change"]) == (APP, change)


async def test_a_stream_tells_what_fails_in_this_process_up_to_a_bound(tmp_path: Path) -> None:
    clock = ManualClock()
    failures = RecentFailures(clock)
    failures(failed("before anyone listens"))
    async with (
        api_rig(tmp_path, every_ms=5, failures=failures) as api,
        api.session.get(f"{api.server.url}/v1/events") as stream,
    ):
        await heard(stream.content)
        failures(failed("job-1"))
        told = await until_heard(stream.content, "attempt_failed")
        assert (told["node"], told["app"], told["job"], told["next_attempt_at"]) == ("node-1", APP, "job-1", None)
        assert len(told["error"]) == 500
        failures(events.DeadLettersKept(topic="orders", count=3, messages=["0@7"], errors=["no app"]))
        told = await until_heard(stream.content, "dead_letters")
        assert (told["node"], told["topic"], told["count"], told["error"]) == ("node-1", "orders", 3, "no app")
        for number in range(MOST + 7):
            failures(failed(f"job-{number}"))
        shown = [await until_heard(stream.content, "attempt_failed") for _ in range(MOST)]
        assert shown[-1]["job"] == f"job-{MOST + 6}"
        assert await until_heard(stream.content, "left_out") == {"count": 7}


async def test_the_store_is_read_once_a_second_for_all_who_listen(tmp_path: Path) -> None:
    clock = ManualClock()
    async with api_rig(tmp_path, clock=clock) as api:
        read, survey = 0, api.client._store.survey

        async def counted() -> Any:
            nonlocal read
            read += 1
            return await survey()

        api.client._store.survey = counted  # type: ignore[method-assign]
        streams = [await api.session.get(f"{api.server.url}/v1/events") for _ in range(5)]
        first = [await heard(stream.content) for stream in streams]
        assert first == first[:1] * 5
        assert read == 1
        await until_async(lambda: clock.next_timer_ms() is not None)
        clock.advance(overview.EVERY_MS)
        assert {(await heard(stream.content))[0] for stream in streams} == {"overview"}
        assert read == 2
        assert api.server._api.streams._number == 2, "all are sent what was written once"
        for stream in streams:
            stream.close()


async def test_a_listener_that_does_not_read_is_dropped_with_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_writer, "SLOW_READER_S", 0.05)
    async with api_rig(tmp_path, every_ms=5) as api:
        survey = await api.client._store.survey()
        apps = tuple(AppInfo(name=f"app-{n:0200}", shards=1, paused=False, created_ms=0) for n in range(2000))
        large = msgspec.structs.replace(survey, view=msgspec.structs.replace(survey.view, apps=apps))

        async def look() -> Any:
            return large

        api.client._store.survey = look  # type: ignore[method-assign]
        host, port = str(api.server.url).removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1000)
        writer.write(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await until_async(lambda: any(isinstance(event, events.StreamDropped) for event in api.told), within_s=10)
        assert api.server.traffic.answered.streams_dropped == 1
        received = await asyncio.wait_for(reader.read(-1), 10)
        assert received.endswith(b'event: dropped\ndata: {"reason":"no event was read for 0.05 s"}\n\n\r\n0\r\n\r\n')
        writer.close()
        assert (await api.get("/health/live")).status == 200


async def test_a_listener_that_is_too_far_behind_is_dropped(tmp_path: Path) -> None:
    async with api_rig(tmp_path, every_ms=1) as api:
        context = api.server._api
        streams = context.streams
        stream = streams.events(context)
        await anext(stream)
        await until_async(lambda: streams._number > KEPT + 1)
        with pytest.raises(SlowReader, match="rounds of events were not read in time"):
            await anext(stream)
        await stream.aclose()
        told = streams._number
        await asyncio.sleep(0.02)
        assert streams._number == told, "no one listens, and the store is left alone"


async def test_an_unexpected_error_ends_streams_and_not_those_that_follow(api: ApiRig) -> None:
    survey = api.client._store.survey

    async def fail() -> Any:
        raise RuntimeError("unforeseen")

    api.client._store.survey = fail  # type: ignore[method-assign]
    answers = await asyncio.gather(api.get("/v1/events"), api.get("/v1/events"))
    assert {(answer.status, answer.problem) for answer in answers} == {(500, "internal-error")}
    api.client._store.survey = survey  # type: ignore[method-assign]
    async with api.session.get(f"{api.server.url}/v1/events") as stream:
        assert (await heard(stream.content))[0] == "overview"


async def test_a_node_tells_what_fails_on_it_under_its_name(tmp_path: Path) -> None:
    scheduler = Scheduler(
        settings={"store": {"url": f"sqlite:///{tmp_path / 'jobs.db'}"}, "node": {"id": "n7"}, "http": {"port": 0}}
    )

    @scheduler.app(APP, shards=1, retry=RetryPolicy(max_attempts=1))
    async def fail(job: Job) -> None:
        raise ValueError("no luck")

    server = _http_server(scheduler)
    scheduler.add_part(server)
    async with scheduler, aiohttp.ClientSession() as session, session.get(f"{server.url}/v1/events") as stream:
        await heard(stream.content)
        job = await scheduler.schedule(APP, 1, delay=0)
        told = await until_heard(stream.content, "attempt_failed")
        assert (told["node"], told["job"], told["error"]) == ("n7", job.id, "ValueError: no luck")


async def wire(api: ApiRig, method: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which events were asked for."""
    host, port = str(api.server.url).removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"{method} /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return reader, writer


async def test_an_error_in_the_middle_of_a_stream_ends_its_connection(tmp_path: Path) -> None:
    async with api_rig(tmp_path, every_ms=5) as api:
        reader, writer = await wire(api, "GET")
        await reader.readuntil(b"event: overview")

        async def fail() -> Any:
            raise RuntimeError("unforeseen")

        api.client._store.survey = fail  # type: ignore[method-assign]
        rest = b""
        with contextlib.suppress(ConnectionError):
            while part := await asyncio.wait_for(reader.read(10_000), 5):
                rest += part
        assert b"HTTP/1.1" not in rest, "a second head within an answer"
        assert [type(one) for one in api.told][-1] is events.RequestFailed
        writer.close()


async def test_the_head_of_a_stream_is_answered_without_events(tmp_path: Path) -> None:
    async with api_rig(tmp_path, every_ms=5) as api:
        reader, writer = await wire(api, "HEAD")
        assert b"text/event-stream" in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert await asyncio.wait_for(reader.readline(), 5) == b"HTTP/1.1 200 OK\r\n"
        assert api.server._api.streams._listening == 0
        writer.close()
