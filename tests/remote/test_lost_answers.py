"""A connection that breaks after a request was sent: nothing is done twice, and what is unknown is called so."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from infinite_scheduler import Client
from infinite_scheduler.api.api_context import ApiContext
from infinite_scheduler.api.refusal import NO_PATH, NO_TOKEN, Refusal, RefusalKind
from infinite_scheduler.client import NewJob
from infinite_scheduler.errors import IntakeFull, StoreBroken, StoreUnavailable
from infinite_scheduler.model import Status
from infinite_scheduler.store.http import drawn_ids, http_session, http_store
from tests.remote.remote_rig import APP, RemoteRig
from tests.servers.proxy import Proxy

BROKEN = "a store that is broken"


@contextmanager
def broken(url: str) -> Iterator[tuple[Proxy, str]]:
    """A way to the server that can be cut."""
    port = int(url.rpartition(":")[2])
    proxy = Proxy("127.0.0.1", port)
    try:
        yield proxy, f"http://127.0.0.1:{proxy.port}"
    finally:
        proxy.close()


async def jobs_in(url: str) -> list[str]:
    async with Client(url) as client:
        return [record.id async for record in client.find_all(APP)]


@pytest.mark.parametrize("key", [None, "order-1"], ids=["without a key", "with a key"])
async def test_a_job_whose_answer_was_lost_is_accepted_once(remote: RemoteRig, key: str | None) -> None:
    with broken(remote.url) as (proxy, url):
        async with Client(url) as client:
            proxy.cut_after(b"POST /v1/jobs ")
            accepted = await client.schedule(APP, {"n": 9007199254740993}, delay="1h", idempotency_key=key)
        assert proxy.cuts == 1
    assert not accepted.repeated, "it is the answer to the same request"
    assert await jobs_in(remote.own) == [accepted.id]


async def test_many_jobs_whose_answer_was_lost_are_accepted_once(remote: RemoteRig) -> None:
    with broken(remote.url) as (proxy, url):
        async with Client(url) as client:
            proxy.cut_after(b"/v1/jobs/bulk")
            jobs = [NewJob(data=n, delay=f"{n}s", idempotency_key=f"k{n}" if n % 2 else None) for n in range(50)]
            accepted = await client.schedule_many(APP, jobs)
        assert proxy.cuts == 1
    assert sorted(await jobs_in(remote.own)) == sorted(one.id for one in accepted)


async def test_without_ids_that_can_be_sent_again_a_lost_answer_is_unknown(
    remote: RemoteRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = bytes(6) + b"\x80\x04\x80" + bytes(7)
    monkeypatch.setattr(drawn_ids.DrawnIds, "draw", lambda _, specs, later=False: [refused for _ in specs])
    with broken(remote.url) as (proxy, url):
        async with Client(url) as client:
            assert (await client.schedule(APP, 1, delay="1h")).id in await jobs_in(remote.own)
            proxy.cut_after(b'"data":2,"priority":"normal"}')  # those with an id are refused, the one without is cut
            with pytest.raises(StoreUnavailable, match="it is unknown whether the request took effect"):
                await client.schedule(APP, 2, delay="1h")
    assert len(await jobs_in(remote.own)) == 2, "and it was not sent again"


async def test_a_refusal_of_the_second_try_says_nothing_about_the_first(
    remote: RemoteRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    def room_for_one(_: ApiContext, jobs: int, size: int) -> None:
        del size
        tries.append(jobs)
        if len(tries) > 1:
            raise IntakeFull("nothing was accepted")

    with broken(remote.url) as (proxy, url):
        async with Client(url) as client:
            monkeypatch.setattr(ApiContext, "check_room", room_for_one)
            proxy.cut_after(b"POST /v1/jobs ")
            with pytest.raises(StoreUnavailable, match="it is unknown whether the request took effect"):
                await client.schedule(APP, 1, delay="1h")
    assert len(await jobs_in(remote.own)) == 1


@pytest.mark.parametrize("kind", [NO_PATH, NO_TOKEN, BROKEN], ids=str)
async def test_calls_that_share_a_lost_answer_are_not_sent_under_other_ids(
    remote: RemoteRig, monkeypatch: pytest.MonkeyPatch, kind: RefusalKind | str
) -> None:
    tries: list[int] = []

    def refused_once(_: ApiContext, jobs: int, size: int) -> None:
        del size
        tries.append(jobs)
        if len(tries) == 2:
            raise StoreBroken("it is full") if isinstance(kind, str) else Refusal(kind, "as a proxy says it")

    with broken(remote.url) as (proxy, url):
        async with Client(url) as client:
            monkeypatch.setattr(ApiContext, "check_room", refused_once)
            proxy.cut_after(b"/v1/jobs/bulk")
            calls = [client.schedule(APP, n, delay="1h") for n in range(2)]
            told = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(one) for one in told] == [StoreUnavailable] * 2
    assert "it is unknown whether the request took effect" in str(told[0])
    assert tries == [2, 2]
    assert len(await jobs_in(remote.own)) == 2


async def test_jobs_whose_answer_cannot_be_read_are_not_sent_again(
    remote: RemoteRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Client(remote.url) as client:
        monkeypatch.setattr(http_store, "_jobs", msgspec.json.Decoder(int))
        calls = [client.schedule(APP, n, delay="1h") for n in range(2)]
        told = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(one) for one in told] == [StoreUnavailable] * 2
    assert "it is unknown whether the request took effect" in str(told[0])
    assert len(await jobs_in(remote.own)) == 2


async def test_a_server_that_reads_no_more_is_given_up(remote: RemoteRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_session, "SENDING_MS", 200)
    with broken(remote.url) as (proxy, url):
        settings = {"store.silence": "100ms", "store.lock_wait": "50ms"}
        async with Client(f"{url}?connect_timeout=0.5", settings=settings) as client:
            proxy.fall_silent()
            jobs = [NewJob(data="x" * 1_000_000, delay="1h") for _ in range(16)]  # more than sockets hold
            async with asyncio.timeout(20):
                with pytest.raises(StoreUnavailable, match="has not answered"):
                    await client.schedule_many(APP, jobs)
            proxy.close()
            await asyncio.sleep(0.05)  # connections that still had something to send learn that nobody reads it


async def test_a_cancel_whose_answer_was_lost_is_granted(remote: RemoteRig) -> None:
    with broken(remote.url) as (proxy, url):
        async with Client(url) as client:
            job = await client.schedule(APP, delay="1h")
            proxy.cut_after(b"/cancel")
            assert (await client.cancel(job.id)).status is Status.CANCELLED
        assert proxy.cuts == 1


@pytest.mark.parametrize("change", ["reschedule", "run-now", "retry"])
async def test_another_change_whose_answer_was_lost_is_unknown_and_not_sent_again(
    remote: RemoteRig, change: str
) -> None:
    with broken(remote.url) as (proxy, url):
        async with Client(url) as client:
            job = await client.schedule(APP, delay="1h")
            if change == "retry":
                await client.cancel(job.id)
            proxy.cut_after(f"/{change}".encode())
            calls = {
                "reschedule": lambda: client.reschedule(job.id, delay="2h"),
                "run-now": lambda: client.run_now(job.id),
                "retry": lambda: client.retry(job.id),
            }
            with pytest.raises(StoreUnavailable, match="it is unknown whether"):
                await calls[change]()
            assert (await client.get(job.id)).status is Status.PENDING
        assert proxy.cuts == 1


async def test_a_look_whose_answer_was_lost_is_sent_again(remote: RemoteRig) -> None:
    with broken(remote.url) as (proxy, url):
        async with Client(url) as client:
            job = await client.schedule(APP, delay="1h")
            proxy.cut_after(job.id.encode())
            assert (await client.get(job.id)).id == job.id


async def test_a_server_that_falls_silent_is_given_up(remote: RemoteRig) -> None:
    with broken(remote.url) as (proxy, url):
        async with Client(url, settings={"store.silence": "100ms", "store.lock_wait": "50ms"}) as client:
            proxy.fall_silent()
            async with asyncio.timeout(20):
                with pytest.raises(StoreUnavailable, match="has not answered"):
                    await client.survey()
            proxy.speak()


def test_an_answer_is_waited_for_longer_than_a_change_may_take() -> None:
    assert http_session.SILENCE_MS >= 15_000, "what the server itself may wait for comes on top"
