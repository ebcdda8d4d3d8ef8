"""The inbox on real servers: races with open transactions, lost answers, large letters, older schemas, few rights."""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import psycopg
import pymysql
import pytest

from infinite_scheduler.clock import SystemClock
from infinite_scheduler.errors import PositionsMoved, StoreMismatch, StoreUnavailable
from infinite_scheduler.model import JobSpec
from infinite_scheduler.store import open_store
from infinite_scheduler.store.base import Store
from infinite_scheduler.store.inbox import DeadLetter, LetterQuery, LetterState, Move, Source, new_letter_id
from infinite_scheduler.store.looking import Query
from infinite_scheduler.store.sql import inbox as sql_inbox
from infinite_scheduler.store.sql.schema import VERSION
from infinite_scheduler.store.sql.statements import Statements
from tests.older_schema import schema_version
from tests.servers.proxy import proxied
from tests.servers.stage import ServerStage, empty
from tests.servers.test_lost_connections import commit_of
from tests.services.databases import execute, fresh_database, kind_of, limited_user
from tests.services.server import Kind
from tests.simulation.inbox_scenes import GUARDED, REPLAYED, SCENES, Scene, move_blindly, name_of
from tests.simulation.scene import Broken, prepare

pytestmark = pytest.mark.servers

APP = "mail"
SOURCE = Source("door", "jobs", 0)
CLOCK = SystemClock()


# Open transactions


@pytest.fixture(scope="module", params=["mariadb", "postgres"])
def shared_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """One database for all scenes, which leave it empty."""
    kind: Kind = request.param
    with fresh_database(kind) as url:
        yield url


@pytest.fixture
def stage(shared_url: str) -> Iterator[ServerStage]:
    with contextlib.closing(ServerStage(shared_url)) as stage:
        prepare(stage)
        stage.make_tables()
        yield stage
    empty(shared_url)


@pytest.mark.parametrize("play", SCENES, ids=name_of)
def test_the_promise_holds(play: Scene, stage: ServerStage) -> None:
    play(stage)


@pytest.mark.parametrize("play", GUARDED, ids=name_of)
def test_without_the_compare_and_set_the_promise_is_broken(
    play: Scene, stage: ServerStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_inbox, "move_positions", move_blindly)
    with pytest.raises(Broken):
        play(stage)


@pytest.mark.parametrize("play", REPLAYED, ids=name_of)
def test_without_a_look_at_the_state_a_letter_becomes_two_jobs(
    play: Scene, stage: ServerStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_inbox, "REPLAYABLE", frozenset(LetterState))
    with pytest.raises(Broken):
        play(stage)


# One store


def spec(key: str | None = None, digest: bytes = b"same") -> JobSpec:
    return JobSpec(app=APP, scheduled_ms=CLOCK.wall_ms() + 3_600_000, payload=b"{}", idempotency_key=key, digest=digest)


def letter(**fields: Any) -> DeadLetter:
    now_ms = CLOCK.wall_ms()
    known: dict[str, Any] = {"key": None, "value": b"v", "headers": (), "state": LetterState.KEPT}
    return DeadLetter(
        id=new_letter_id(now_ms),
        source=SOURCE,
        offset=0,
        error="not JSON",
        failed_ms=now_ms,
        dlq_topic=None,
        **known | fields,
    )


def move(seen: int | None, to: int) -> Move:
    return Move(source=SOURCE, seen=seen, next=to)


@contextlib.asynccontextmanager
async def opened(url: str, **limits: Any) -> AsyncIterator[Store]:
    store = open_store(url, CLOCK, {"shards": 2, **limits})
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def jobs_in(store: Store) -> int:
    return len((await store.find(Query(limit=1000))).records)


async def test_a_lost_answer_is_told_and_the_places_say_what_happened(url: str) -> None:
    with proxied(url) as (proxy, address):
        async with opened(address) as store:
            await store.register(APP)
            inbox = store.inbox()
            await inbox.take([spec()], [], [move(None, 1)])
            proxy.cut_after(commit_of(address))
            with pytest.raises(StoreUnavailable, match="unknown whether it took place"):
                await inbox.take([spec()], [letter()], [move(1, 2)])
            assert [position.next for position in await inbox.positions()] == [2]
            assert await jobs_in(store) == 2
            assert len((await inbox.letters(LetterQuery(room=8 << 20))).letters) == 1
            with pytest.raises(PositionsMoved):
                await inbox.take([spec()], [letter()], [move(1, 2)])


def deadlock(url: str) -> Exception:
    return (
        pymysql.err.OperationalError(1213, "Deadlock found")
        if kind_of(url) == "mariadb"
        else psycopg.errors.DeadlockDetected("deadlock detected")
    )


async def test_a_deadlock_in_the_middle_is_tried_again_from_the_place_that_was_seen(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep: Callable[..., None] = sql_inbox.keep_letters
    tries: list[int] = []

    def disturbed(tx: Statements, letters: Sequence[DeadLetter]) -> None:
        tries.append(len(tries))
        if len(tries) < 3:
            raise deadlock(url)
        keep(tx, letters)

    async with opened(url) as store:
        await store.register(APP)
        monkeypatch.setattr(sql_inbox, "keep_letters", disturbed)
        first, again = await store.inbox().take([spec("k"), spec("k")], [letter()], [move(None, 2)])
        assert (first.repeated, again.repeated, len(tries)) == (False, True, 3)
        assert await jobs_in(store) == 1


async def test_a_letter_that_is_too_large_for_the_server_is_cut_and_blocks_nothing(mariadb_url: str) -> None:
    ((packet,),) = execute(mariadb_url, "SELECT @@global.max_allowed_packet")
    assert packet <= 64 << 20, "the test needs a server that refuses what it sends"
    for odd in (b"\x00", b"'", b"\\", b"\xff"):
        large = letter(key=b"k", value=odd * packet, headers=(("a", b"b"),))
        async with opened(mariadb_url) as store:
            await store.register(APP)
            inbox = store.inbox()
            positions = await inbox.positions()
            seen = positions[0].next if positions else None
            await inbox.take([spec()], [letter(), large], [move(seen, (seen or 0) + 2)])
            found = await inbox.letter(large.id)
        assert found is not None
        assert found.value is not None
        assert (found.key, found.headers, found.state) == (b"k", (("a", b"b"),), LetterState.KEPT)
        assert found.value == large.value[: len(found.value)]  # type: ignore[index]
        assert len(found.value) > packet * 0.7
        assert found.cut_bytes == packet - len(found.value)
        assert f"{found.cut_bytes} bytes of the message are cut off" in (found.note or "")


async def test_no_header_or_key_is_too_large_for_the_server(mariadb_url: str) -> None:
    ((packet,),) = execute(mariadb_url, "SELECT @@global.max_allowed_packet")
    letters = [
        letter(headers=(("\0" * (packet // 17), b"x"),), value=b"'" * packet),
        letter(headers=(("'\\" * packet, None),)),
        letter(headers=(("h", b"x" * packet),)),
        letter(key=b"'" * packet, value=None),
    ]
    async with opened(mariadb_url) as store:
        inbox = store.inbox()
        for one in letters:
            await inbox.take([], [one], [])
            found = await inbox.letter(one.id)
            assert found is not None
            assert found.cut_bytes > 0


async def test_postgresql_keeps_a_letter_of_any_size(postgres_url: str) -> None:
    large = letter(value=b"\x00\xff" * (10 << 20))
    async with opened(postgres_url) as store:
        await store.inbox().take([], [large], [])
        assert await store.inbox().letter(large.id) == large


async def test_keys_that_are_very_many_are_estimated(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infinite_scheduler.store.sql.dialect.COUNTED", 100)
    async with opened(url) as store:
        await store.register(APP)
        await store.add([spec(str(n)) for n in range(3000)])
        execute(url, "ANALYZE TABLE scheduler_idempotency_keys" if kind_of(url) == "mariadb" else "ANALYZE")
        assert 1500 < await store.inbox().live_keys() < 6000


# Older schemas, few rights


async def test_an_older_schema_is_brought_up_to_date_with_what_is_in_it(url: str) -> None:
    with schema_version(1):
        async with opened(url) as store:
            await store.register(APP)
            (before,) = await store.add([spec("k")])
    async with opened(url) as store:
        assert store.schema_found == 1  # type: ignore[attr-defined]
        (again, new) = await store.inbox().take([spec("k"), spec()], [letter()], [move(None, 2)])
        assert (again.key, again.repeated, new.repeated) == (before.key, True, False)
    assert execute(url, "SELECT version FROM scheduler_schema") == [(VERSION,)]


async def test_a_node_without_the_right_to_make_tables_needs_the_migration_and_nothing_else(url: str) -> None:
    with schema_version(1):
        async with opened(url) as store:
            await store.register(APP)
            await store.make_tables_ahead(APP, 1)  # type: ignore[attr-defined]
    with limited_user(url) as few_rights:
        with pytest.raises(StoreMismatch, match="infinite-scheduler migrate"):
            async with opened(few_rights, ddl=False):
                pass
        async with opened(url):
            pass
        async with opened(few_rights, ddl=False) as store:
            inbox = store.inbox()
            lost = letter()
            (accepted,) = await inbox.take([spec("k")], [lost], [move(None, 1)])
            assert await store.get(accepted.key) is not None
            assert not (await inbox.replay(lost.id, spec())).repeated
            await inbox.reset([move(1, 0)])


async def test_what_operators_read_is_readable(url: str) -> None:
    async with opened(url) as store:
        await store.register(APP)
        lost = letter(key=b"k", value=b"{", headers=(("trace", b"abc"),))
        await store.inbox().take([], [lost], [move(None, 7)])
        ((letter_id, group, topic, partition, offset, state, error),) = execute(
            url,
            "SELECT letter_id, group_id, topic, partition_number, message_offset, state, error"
            " FROM scheduler_dead_letters",
        )
        assert (group, topic, partition, offset, state, error) == ("door", "jobs", 0, 0, "kept", "not JSON")
        found = await store.inbox().letter(str(letter_id))
        assert found == lost
        ((next_offset, moved_at),) = execute(url, "SELECT next_offset, moved_at FROM scheduler_ingest_offsets")
        assert next_offset == 7
        assert abs(moved_at.timestamp() - CLOCK.wall_ms() / 1000) < 86_400
