"""The server itself: where it listens, what it bounds, how it stops, and what it says when something is wrong."""

import asyncio
import contextlib
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from infinite_scheduler import ConfigError
from infinite_scheduler.api.body import BodyReader
from infinite_scheduler.errors import DestinationAway, SchedulerError, ShardLost, StoreBroken
from infinite_scheduler.observe.events import HttpPortTaken, RequestFailed
from tests.api.api_rig import APP, ApiRig, api_rig
from tests.servers.certificates import make_certificates

JOB = b'{"app": "shop", "delay": "1h"}'
HEAD = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


async def raw(api: ApiRig, *parts: bytes, end: bool = False, pause_s: float = 0.0) -> bytes:
    """What comes back when these bytes are sent."""
    host, port = str(api.server.url).removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause_s)
        if end:
            writer.write_eof()
        return await asyncio.wait_for(reader.read(65_536), 10)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def test_a_taken_port_is_an_error_if_it_was_asked_for_and_a_warning_if_it_is_the_default(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(
            ConfigError, match=f"127.0.0.1:{port} is in use by another process; choose another http.port"
        ):
            async with api_rig(tmp_path, server={"port": port}):
                pass
        async with api_rig(tmp_path, server={"port": port, "may_give_way": True}) as api:
            assert api.server.url is None
            assert api.server.problem == f"127.0.0.1:{port} is in use by another process"
            assert [type(event) for event in api.told] == [HttpPortTaken]


async def test_an_address_that_this_machine_does_not_have_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"http\.port: 192\.0\.2\.1:0 cannot be used"):
        async with api_rig(tmp_path, server={"host": "192.0.2.1"}):
            pass


async def test_a_certificate_that_does_not_load_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("nonsense")
    for name in ("bad.pem", "missing.pem"):
        with pytest.raises(ConfigError, match=rf"http\.certificate: .*{name}.* cannot be used"):
            async with api_rig(tmp_path, server={"certificate": str(tmp_path / name)}):
                pass


async def test_with_a_certificate_it_speaks_tls(tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    async with api_rig(tmp_path, server={"certificate": str(files.certificate), "key": str(files.key)}) as api:
        assert str(api.server.url).startswith("https://127.0.0.1:")
        trusted = ssl.create_default_context(cafile=str(files.authority))
        assert (await api.get("/health/live", ssl=trusted)).status == 200


async def test_a_body_that_does_not_arrive_is_given_up(tmp_path: Path) -> None:
    async with api_rig(tmp_path, server={"body_timeout_s": 0.05}) as api:
        answer = await raw(api, HEAD + b"Content-Length: 100\r\n\r\n{")
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"problem:slow-body" in answer


async def test_a_truncated_body_is_not_a_job(api: ApiRig) -> None:
    await raw(api, HEAD + b"Content-Length: 100\r\n\r\n" + JOB, end=True)
    await raw(api, HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(JOB), JOB), end=True)
    assert (await api.get("/v1/jobs")).value["jobs"] == []


async def test_a_chunked_body_is_read_and_an_endless_one_is_not(api: ApiRig) -> None:
    chunked = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    assert b"201 Created" in await raw(api, chunked, *(b"1\r\n%c\r\n" % byte for byte in JOB), b"0\r\n\r\n")
    chunk = b"40000\r\n" + b" " * 0x40000 + b"\r\n"
    answer = b""
    with contextlib.suppress(ConnectionError):
        answer = await raw(api, chunked, *[chunk] * 6)
    assert not answer or b"problem:body-too-large" in answer
    assert len((await api.get("/v1/jobs")).value["jobs"]) == 1


async def test_a_compressed_body_is_not_unpacked(api: ApiRig) -> None:
    answer = await raw(api, HEAD + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\n\x1f\x8b\x08")
    assert b"problem:wrong-content-type" in answer


@pytest.mark.parametrize("size", [9_000, 70_000])
async def test_a_header_that_is_too_large_is_refused_and_not_logged(
    api: ApiRig, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    answer = b""
    with contextlib.suppress(ConnectionError):
        answer = await raw(api, HEAD + b"Authorization: Bearer " + b"x" * size + b"\r\n\r\n")
    assert not answer or answer.split()[1] == b"400"
    assert caplog.records == []


async def test_what_is_not_http_is_refused_and_the_server_goes_on(api: ApiRig) -> None:
    for nonsense in (b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET\r\n\r\n", b"\r\n\r\n\r\n\r\nPOST"):
        with contextlib.suppress(ConnectionError, TimeoutError):
            await asyncio.wait_for(raw(api, nonsense, end=True), 2)
    assert (await api.get("/health/live")).status == 200


async def test_one_connection_too_many_is_told_so(tmp_path: Path) -> None:
    async with api_rig(tmp_path, server={"connections": 1}) as api:
        assert (await api.get("/health/live")).status == 200
        assert (await raw(api)).startswith(b"HTTP/1.1 503 ")
        assert (await api.get("/health/live")).status == 200


async def test_bodies_that_are_being_read_have_a_bound_together() -> None:
    reader = BodyReader(5.0, together=100)
    gate = asyncio.Event()

    class Content:
        def __init__(self, *parts: bytes) -> None:
            self.parts = parts

        async def iter_any(self) -> Any:
            for part in self.parts:
                yield part
            await gate.wait()

    first = asyncio.create_task(reader._arrived(Content(b"x" * 90), 1000))
    await asyncio.sleep(0)
    with pytest.raises(Exception, match="too many large bodies"):
        await reader._arrived(Content(b"x" * 20), 1000)
    gate.set()
    assert len(await first) == 90
    assert len(await reader._arrived(Content(b"x" * 500), 1000)) == 500, "one alone may be as large as it may be"


@pytest.mark.parametrize(
    ("error", "status", "problem"),
    [
        (StoreBroken("the disk is full"), 503, "store-broken"),
        (DestinationAway("closed"), 503, "destination-away"),
        (ShardLost("x"), 500, "shard-lost"),
    ],
)
async def test_each_error_of_the_tree_has_a_status_and_a_type(
    api: ApiRig, error: SchedulerError, status: int, problem: str
) -> None:
    async def fail() -> Any:
        raise error

    api.client._store.survey = fail  # type: ignore[method-assign]
    answer = await api.get("/v1/apps")
    assert (answer.status, answer.problem) == (status, problem)


async def test_an_unexpected_error_shows_nothing_but_where_to_look(api: ApiRig) -> None:
    async def fail() -> Any:
        raise RuntimeError("password=geheim")

    api.client._store.survey = fail  # type: ignore[method-assign]
    answer = await api.get("/v1/apps")
    assert (answer.status, answer.problem) == (500, "internal-error")
    assert b"geheim" not in answer.content
    (event,) = [event for event in api.told if isinstance(event, RequestFailed)]
    assert event.incident == answer.value["incident"]
    assert str(event.cause) == "password=geheim"


async def test_paths_and_methods_that_are_not_there_are_problems(api: ApiRig) -> None:
    assert (await api.get("/v1/nothing")).problem == "no-such-path"
    wrong = await api.ask("DELETE", "/v1/jobs")
    assert (wrong.status, wrong.problem, wrong.headers["Allow"]) == (405, "wrong-method", "GET, HEAD, POST")
    assert (await api.ask("HEAD", "/v1/apps")).status == 200


async def test_below_the_root_path_all_is_there_too(tmp_path: Path) -> None:
    async with api_rig(tmp_path, root_path="/scheduler") as api:
        assert str(api.server.url).endswith("/scheduler")
        answer = await api.post("/v1/jobs", JOB)
        assert answer.headers["Location"] == f"/scheduler/v1/jobs/{answer.value['id']}"
        bare = str(api.server.url).removesuffix("/scheduler")
        async with api.session.get(f"{bare}/v1/apps") as cut_off:
            assert cut_off.status == 200
        assert (await api.get("/openapi.json")).value["servers"] == [{"url": "/scheduler"}]


async def test_a_stop_finishes_requests_in_progress(tmp_path: Path) -> None:
    async with api_rig(tmp_path) as api:
        store, held = api.client._store, asyncio.Event()
        add = store.add

        async def slow(specs: Any) -> Any:
            await held.wait()
            return await add(specs)

        store.add = slow  # type: ignore[method-assign]
        posting = asyncio.create_task(api.post("/v1/jobs", JOB))
        while not api.client.backlog.jobs:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        stopping = asyncio.create_task(api.server.stop())
        await asyncio.sleep(0.05)
        held.set()
        assert await stopping is True
        assert (await posting).status == 201
        assert api.server.url is None
        assert await api.server.stop() is True


async def test_a_stop_does_not_wait_for_ever_and_says_so(tmp_path: Path) -> None:
    async with api_rig(tmp_path, server={"stop_timeout_s": 0.05}) as api:

        async def stuck() -> Any:
            await asyncio.Event().wait()

        api.client._store.survey = stuck  # type: ignore[method-assign]
        asking = asyncio.create_task(api.get("/v1/apps"))
        while not api.server.traffic.in_progress:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert await api.server.stop() is False
        with contextlib.suppress(Exception):
            await asking


async def test_answers_are_counted(api: ApiRig) -> None:
    await api.schedule()
    await api.get("/v1/jobs/17")
    counted = api.server.traffic.answered.counts
    assert counted == {("POST", "/v1/jobs", 201): 1, ("GET", "/v1/jobs/{id}", 422): 1}
    assert APP == "shop"
