"""Maintenance on database servers: retention drops whole tables, never one with a job that waits, and blocks nobody."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import pytest

from infinite_scheduler.errors import StoreBroken, StoreUnavailable
from infinite_scheduler.model import DAY_MS, Change, Shard, Status, position
from infinite_scheduler.store.ownership import Upkeep
from infinite_scheduler.store.sql import upkeep
from infinite_scheduler.store.sql.protocol import anybody
from infinite_scheduler.store.sql.protocol.anybody import ChangeRequest, RequestState
from infinite_scheduler.store.sql.request_rows import ONCE
from infinite_scheduler.store.sql.schema import create_job_table
from infinite_scheduler.store.sql.server import mariadb, postgres
from infinite_scheduler.store.sql.server import upkeep as server_upkeep
from infinite_scheduler.store.sql.server.database import ServerDatabase
from infinite_scheduler.store.sql.server.drivers import server_driver
from infinite_scheduler.store.sql.server.session import Link
from infinite_scheduler.store.sql.server.table_maker import CHANGING, TableMaker
from infinite_scheduler.store.sql.statements import Session, Statements
from infinite_scheduler.store.sql.tables import DAILY, SqlApp
from infinite_scheduler.store.sql.upkeep import VERDICT_MS
from tests.contract.test_statements import MAIL, NOW, SMS, add, keys_of, new_row, scan_all_rows, scan_of
from tests.integration.sqlite import test_sqlite_upkeep
from tests.integration.sqlite.sqlite_file import WEEK_MS
from tests.integration.sqlite.test_sqlite_upkeep import AHEAD, OLD, OLD_TABLE, end, set_low, tables
from tests.listing import jobs_in
from tests.servers import stage
from tests.services.databases import connect, execute, kind_of
from tests.waiting import until_async

pytestmark = pytest.mark.servers
HOUR_MS = 3_600_000


@pytest.fixture
def url(emptied_url: str) -> str:
    return emptied_url


async def opened(url: str, **options: Any) -> ServerDatabase:
    database = ServerDatabase(server_driver(url), **options)
    await database.open()
    return database


@pytest.fixture
async def database(url: str) -> AsyncIterator[ServerDatabase]:
    database = await opened(url)
    yield database
    await database.close()


@pytest.fixture
async def other(database: ServerDatabase, url: str) -> AsyncIterator[ServerDatabase]:
    """Another process on the same database."""
    other = await opened(url)
    yield other
    await other.close()


@pytest.fixture
async def session(database: ServerDatabase) -> Session:
    session = database.session("door")
    for app in (SMS, MAIL):
        info = SqlApp(name=app, shards=4, paused=False, created_ms=NOW)
        await session.write(lambda tx, info=info: tx.insert_app(info, NOW))  # type: ignore[misc]
    return session


async def maintained(database: ServerDatabase, now_ms: int = NOW) -> Upkeep:
    return await database.maintain(now_ms=now_ms, retention_ms=WEEK_MS, idempotency_ms=DAY_MS)


async def old_day(session: Session, count: int = 9, status: Status = Status.FAILED) -> list[bytes]:
    """A day that is over, with jobs that have ended long ago."""
    keys = await add(session, [new_row(OLD + n, shard=n % 4) for n in range(count)])
    await end(session, keys, OLD + 5000, status)
    await set_low(session, NOW)
    return sorted(keys)


def retry(tx: Statements, key: bytes, due_ms: int = NOW) -> None:
    """What a client's retry is in the store."""
    change_request = ChangeRequest(id=key, change=Change.RETRY, app=SMS, key=key, due_ms=due_ms, now_ms=NOW)
    assert anybody.ask(tx, [change_request], exclusive=False) == {key: RequestState.GRANTED}


async def still_there(session: Session, keys: Sequence[bytes]) -> list[bytes]:
    return keys_of(await session.read(lambda tx: tx.read_jobs(SMS, keys)))


class TestRetention(test_sqlite_upkeep.TestUpkeep):
    """The promises that hold for every SQL store; where a server keeps them in its own way, that is said here."""

    async def test_a_day_that_ended_longer_than_the_retention_ago_is_dropped(  # type: ignore[override]
        self, database: ServerDatabase, session: Session
    ) -> None:
        keys = await old_day(session, 2500)
        done = await maintained(database)
        assert (done.dropped, done.rows_pruned) == ((OLD_TABLE,), 0)
        assert await tables(session) == AHEAD
        assert not await still_there(session, keys)

    async def test_a_job_that_ended_lately_is_kept_for_the_retention_whatever_its_day(  # type: ignore[override]
        self, database: ServerDatabase, session: Session
    ) -> None:
        late, early = await add(session, [new_row(OLD), new_row(OLD + 1)])
        await end(session, [early], OLD + 10)
        await end(session, [late], NOW - DAY_MS, Status.FAILED)
        await set_low(session, NOW)
        for now_ms in (NOW, NOW + WEEK_MS - DAY_MS):
            assert (await maintained(database, now_ms)).dropped == ()
            assert sorted(await still_there(session, [late, early])) == sorted([late, early])
        assert (await maintained(database, NOW + WEEK_MS - DAY_MS + 1)).dropped == (OLD_TABLE,)

    async def test_counters_of_past_days_are_added_up(  # type: ignore[override]
        self, database: ServerDatabase, other: ServerDatabase, session: Session, url: str
    ) -> None:
        for each in (session, other.session("door")):
            for days in (0, 1, 2, 30):
                await each.write(
                    lambda tx, ms=NOW - days * DAY_MS: tx.add_counts({(SMS, "done"): 10}, ms)  # type: ignore[misc]
                )
        await maintained(database)
        assert await session.read(lambda tx: tx.read_counts()) == {SMS: {"done": 60}}
        assert execute(url, "SELECT COUNT(*) FROM scheduler_counters") == [(4,)]

    async def test_one_round_is_short_and_the_next_goes_on(  # type: ignore[override]
        self, database: ServerDatabase, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One that waits keeps the table, so the others go by themselves."""
        monkeypatch.setattr(upkeep, "SLICES", 2)
        keys = await add(session, [new_row(OLD + n) for n in range(5000)])
        await end(session, keys[:-1], OLD + 9000)
        await set_low(session, NOW)
        for pruned in (2000, 2000, 999):
            assert (await maintained(database)).rows_pruned == pruned
        assert await still_there(session, keys) == keys[-1:]


async def test_a_table_that_must_stay_is_looked_through_once_an_hour(
    database: ServerDatabase, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = await old_day(session)
    await session.write(lambda tx: retry(tx, keys[0]))
    looks: list[str] = []
    look = server_upkeep.ServerMaintainer._blocker

    async def noted(self: server_upkeep.ServerMaintainer, table: str) -> object:
        looks.append(table)
        return await look(self, table)

    monkeypatch.setattr(server_upkeep.ServerMaintainer, "_blocker", noted)
    for minutes in range(60):
        assert not (await maintained(database, NOW + minutes * 60_000)).dropped
    assert looks == [OLD_TABLE]
    assert await still_there(session, keys) == keys[:1]
    await end(session, keys[:1], NOW)
    assert not (await maintained(database, NOW + HOUR_MS)).dropped
    assert looks == [OLD_TABLE] * 2
    assert (await maintained(database, NOW + WEEK_MS + 2 * HOUR_MS)).dropped == (OLD_TABLE,)


# What comes between the look and the drop


@contextmanager
def before_drop(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], None]) -> Iterator[None]:
    """Something happens after a table was looked through, before it is locked and dropped."""
    drop = TableMaker.drop

    def later(self: TableMaker, table: str, safe: Any) -> bool:
        meanwhile()
        return drop(self, table, safe)

    with monkeypatch.context() as patch:
        patch.setattr(TableMaker, "drop", later)
        yield


def from_thread(step: Callable[[], Awaitable[object]]) -> Callable[[], None]:
    """Do a step of the event loop while another thread waits for it."""
    loop = asyncio.get_running_loop()

    async def run() -> None:
        await step()

    return lambda: asyncio.run_coroutine_threadsafe(run(), loop).result(20)


async def test_a_job_that_is_tried_again_between_look_and_drop_keeps_its_table(
    database: ServerDatabase, other: ServerDatabase, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = await old_day(session)
    elsewhere = other.session("door")
    with before_drop(monkeypatch, from_thread(lambda: elsewhere.write(lambda tx: retry(tx, keys[4])))):
        assert not (await maintained(database)).dropped
    (record,) = [r for r in await session.read(lambda tx: tx.read_jobs(SMS, keys)) if r.status is Status.PENDING]
    assert record.job.key == keys[4]
    assert not (await maintained(database)).dropped, "the next round looks again, and finds it"


async def test_a_job_that_was_tried_again_and_has_ended_again_is_kept_for_the_retention(
    database: ServerDatabase, other: ServerDatabase, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = await old_day(session)
    elsewhere = other.session("door")

    async def tried_again() -> None:
        await elsewhere.write(lambda tx: retry(tx, keys[4]))
        (record,) = await elsewhere.read(lambda tx: tx.read_jobs(SMS, [keys[4]]))
        await end(elsewhere, [keys[4]], NOW)
        await elsewhere.write(
            lambda tx: tx.delete_entries(SMS, [(position(keys[4], record.job.due_ms), keys[4])])
        )  # as a settle does

    with before_drop(monkeypatch, from_thread(tried_again)):
        assert not (await maintained(database)).dropped
    assert keys[4] in await still_there(session, keys)


async def test_a_job_that_a_transaction_of_a_user_inserted_late_keeps_its_table(
    database: ServerDatabase, other: ServerDatabase, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    await old_day(session)
    row = new_row(OLD + 77, shard=2)
    late = other.session("door").write(lambda tx: anybody.enqueue(tx, {Shard(SMS, 2): [row]}, NOW))
    with before_drop(monkeypatch, from_thread(lambda: late)):
        assert not (await maintained(database)).dropped
    assert await still_there(session, [row.key]) == [row.key]


async def test_a_job_that_its_owner_has_heard_of_meanwhile_keeps_its_table(
    database: ServerDatabase, other: ServerDatabase, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    await old_day(session)
    row = new_row(OLD + 77, shard=2)
    elsewhere = other.session("door")

    async def inserted() -> None:
        await add(elsewhere, [row])
        await set_low(elsewhere, OLD + 77, [2])  # what follows from the wake

    with before_drop(monkeypatch, from_thread(inserted)):
        assert not (await maintained(database)).dropped
    assert await still_there(session, [row.key]) == [row.key]


async def test_a_table_with_an_insert_that_is_not_committed_yet_is_left_for_later(
    database: ServerDatabase, session: Session, url: str
) -> None:
    keys = await old_day(session)
    user = connect(url)
    with closing(user), closing(user.cursor()) as cursor:
        cursor.execute("BEGIN")
        cursor.execute(f"UPDATE {OLD_TABLE} SET status = 'pending' WHERE error IS NULL")
        assert not (await maintained(database)).dropped
        cursor.execute("ROLLBACK")
    assert sorted(await still_there(session, keys)) == keys
    assert (await maintained(database)).dropped == (OLD_TABLE,)


async def test_a_long_reader_of_an_old_table_holds_up_nobody_else(
    database: ServerDatabase, other: ServerDatabase, session: Session, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await old_day(session)
    await maintained(database, NOW - WEEK_MS)  # the tables of these days are there
    user = connect(url)
    with closing(user), closing(user.cursor()) as cursor:
        cursor.execute("BEGIN")
        cursor.execute(f"SELECT COUNT(*) FROM {OLD_TABLE}")
        cursor.fetchall()
        assert not (await maintained(database)).dropped, "it is not waited for"
        for driver in (mariadb, postgres):
            monkeypatch.setattr(driver, "DROP_WAIT_S", 60)
        round_ = asyncio.ensure_future(maintained(database))
        await asyncio.to_thread(waits_until, lambda: one_waits(url))
        for n in range(5):
            await add(other.session("door"), [new_row(NOW + 1000 + n)])
        assert one_waits(url), "an insert has waited for the lock that the drop waits for"
        cursor.execute("COMMIT")
    assert (await round_).dropped == (OLD_TABLE,)


async def test_a_job_does_not_move_back_to_an_entry_between_its_judgement_and_its_end(
    database: ServerDatabase, other: ServerDatabase, session: Session, url: str
) -> None:
    (key,) = await add(session, [new_row(OLD, shard=1)])
    shard, entry = Shard(SMS, 1), (position(key, OLD + 50), key)
    await session.write(lambda tx: tx.insert_entries(SMS, [entry]))
    await set_low(session, NOW)
    judged, go_on = threading.Event(), threading.Event()

    def prune(tx: Any) -> None:
        delete = tx.delete_entries

        def later(*args: Any) -> None:
            judged.set()
            assert go_on.wait(20)
            delete(*args)

        tx.delete_entries = later
        try:
            tx.prune_entries(shard, [entry])
        finally:
            del tx.delete_entries

    back = ChangeRequest(id=key, change=Change.RESCHEDULE, app=SMS, key=key, due_ms=OLD + 50, now_ms=NOW)
    pruning = asyncio.create_task(database.session("upkeep").write(prune))
    await asyncio.to_thread(judged.wait, 20)
    moving = asyncio.create_task(other.session("door").write(lambda tx: anybody.ask(tx, [back], exclusive=True)))
    with closing(connect(url)) as watcher:
        await until_async(lambda: moving.done() or stage.someone_waits(watcher, kind_of(url)))
    go_on.set()
    await pruning
    assert await moving == {key: RequestState.GRANTED}
    found = await session.read(lambda tx: tx.scan_entries(scan_of()))
    assert [place for place, _ in found[0]] == [entry[0]], "without it no scan would find the job"


async def test_tables_are_dropped_while_others_insert_and_settle(
    database: ServerDatabase, other: ServerDatabase, session: Session
) -> None:
    for days in range(9, 14):
        keys = await add(session, [new_row(NOW - days * DAY_MS + n, shard=n % 4) for n in range(200)])
        await end(session, keys, NOW - 8 * DAY_MS)
    await set_low(session, NOW)
    lane, accepted = other.session("lane-0"), 0
    round_ = asyncio.ensure_future(maintained(database))
    while not round_.done():
        keys = await add(lane, [new_row(NOW + n, shard=n % 4) for n in range(20)])
        await end(lane, keys, NOW)
        accepted += 20
    assert len((await round_).dropped) == 5
    day = await session.read(lambda tx: jobs_in(tx, SMS, status=Status.DONE))
    assert len(day) == accepted


async def test_a_key_that_is_pruned_while_a_repeat_of_it_is_looked_up_belongs_to_the_repeat(postgres_url: str) -> None:
    database = await opened(postgres_url)
    session = database.session("door")
    info = SqlApp(name=SMS, shards=4, paused=False, created_ms=NOW)
    await session.write(lambda tx: tx.insert_app(info, NOW))
    await session.write(lambda tx: tx.claim_keys(SMS, [new_row(idempotency_key="k")]))
    again, beside = new_row(idempotency_key="k"), new_row(idempotency_key="other")

    def body(tx: Statements) -> Any:
        read = tx.read_keys

        def after_a_prune(app: str, keys: Any) -> Any:
            execute(postgres_url, "DELETE FROM scheduler_idempotency_keys")  # of what is committed
            return read(app, keys)

        tx.read_keys = after_a_prune  # type: ignore[method-assign]
        try:
            return tx.claim_keys(SMS, [again, beside])
        finally:
            tx.read_keys = read  # type: ignore[method-assign]

    assert await session.write(body) == {}
    held = await session.read(lambda tx: tx.read_keys(SMS, {"k", "other"}))
    await database.close()
    assert {key: id_ for key, (id_, _) in held.items()} == {"k": again.key, "other": beside.key}


# Two nodes that both think that it is their turn


async def test_two_rounds_at_once_do_no_harm(database: ServerDatabase, other: ServerDatabase, session: Session) -> None:
    for day in range(4):
        for n in range(40):
            await add_counts(session, f"{ONCE}{n}-{day}" if n % 2 else f"process-{n}", NOW - day * DAY_MS)
    for days in (9, 10):
        keys = await add(session, [new_row(NOW - days * DAY_MS + n, shard=n % 4) for n in range(300)])
        await end(session, keys, OLD)
    later = await add(session, [new_row(OLD + n, later=True, shard=n % 4) for n in range(3000)])
    await end(session, later[:-1], OLD)
    entries = [(position(key, OLD + 5), key) for key in later[:500]]
    await session.write(lambda tx: tx.insert_entries(SMS, entries))
    claimed = [new_row(idempotency_key=f"k{n}") for n in range(2500)]
    await session.write(lambda tx: tx.claim_keys(SMS, claimed))
    await session.write(
        lambda tx: tx.write_decisions({n.to_bytes(16, "big"): True for n in range(2500)}, NOW - VERDICT_MS)
    )
    await set_low(session, NOW)
    rounds = await asyncio.gather(*(maintained(each, NOW + DAY_MS + 1) for each in (database, other)))
    await asyncio.gather(*(maintained(each, NOW + DAY_MS + 1) for each in (database, other)))
    assert sorted(name for done in rounds for name in done.dropped) == sorted(
        DAILY.table(SMS, (NOW - days * DAY_MS) // DAY_MS) for days in (9, 10)
    )
    assert await session.read(lambda tx: tx.read_counts()) == {SMS: {"done": 160}}
    assert await still_there(session, later) == later[-1:]
    assert not await session.read(test_sqlite_upkeep.moved)
    assert not await session.read(lambda tx: tx.read_keys(SMS, {f"k{n}" for n in range(2500)}))
    assert not await session.read(lambda tx: tx.read_decisions([n.to_bytes(16, "big") for n in range(2500)]))


async def add_counts(session: Session, process: str, ms: int) -> None:
    def body(tx: Statements) -> None:
        mine, tx._process = tx._process, process  # type: ignore[attr-defined]
        try:
            tx.add_counts({(SMS, "done"): 1}, ms)
        finally:
            tx._process = mine  # type: ignore[attr-defined]

    await session.write(body)


async def test_counters_that_are_written_once_are_added_up_on_their_own_day(
    database: ServerDatabase, session: Session, url: str
) -> None:
    for n in range(50):
        await add_counts(session, f"{ONCE}{n}", NOW)
    await maintained(database)
    assert await session.read(lambda tx: tx.read_counts()) == {SMS: {"done": 50}}
    assert execute(url, "SELECT COUNT(*) FROM scheduler_counters") == [(1,)]


async def test_a_counter_that_grows_while_it_is_added_up_loses_nothing(
    database: ServerDatabase, other: ServerDatabase, session: Session
) -> None:
    elsewhere = other.session("door")
    yesterday = NOW - DAY_MS

    async def count() -> int:
        n = 0
        while not folding.done():
            await elsewhere.write(lambda tx: tx.add_counts({(SMS, "done"): 1}, yesterday))
            n += 1
        return n

    async def fold() -> None:
        for _ in range(30):
            await maintained(database)

    folding = asyncio.ensure_future(fold())
    counted = await count()
    await folding
    assert counted
    assert await session.read(lambda tx: tx.read_counts()) == {SMS: {"done": counted}}


async def test_a_transaction_of_a_user_that_stays_open_does_not_hold_up_maintenance(
    database: ServerDatabase, session: Session, url: str
) -> None:
    await add_counts(session, f"{ONCE}a", NOW - 30 * DAY_MS)
    user = connect(url)
    with closing(user), closing(user.cursor()) as cursor:
        cursor.execute("BEGIN")
        cursor.execute(f"INSERT INTO scheduler_counters VALUES ('{ONCE}open', '{SMS}', 1, 'done', 7, NULL)")
        began = time.monotonic()
        assert (await maintained(database)).rows_pruned == 1
        assert time.monotonic() - began < 9, "it has waited for a lock, as long as for any"
        cursor.execute("COMMIT")
    assert await session.read(lambda tx: tx.read_counts()) == {SMS: {"done": 7}}


# Beside everything else


async def test_heavy_pruning_does_not_hold_up_inserts(
    database: ServerDatabase, other: ServerDatabase, session: Session
) -> None:
    keys: list[bytes] = []
    for start in range(0, 20_000, 5000):
        keys += await add(session, [new_row(OLD + start + n, later=True, shard=n % 4) for n in range(5000)])
    for start in range(0, 20_000, 5000):
        await end(session, keys[start : start + 5000], OLD)
    await session.write(lambda tx: tx.insert_entries(SMS, [(position(key, OLD + 9), key) for key in keys[:5000]]))
    await set_low(session, NOW)
    waits: list[float] = []
    round_ = asyncio.ensure_future(maintained(database))
    insert = partial(anybody.insert, now_ms=NOW)
    while not round_.done():
        rows = [new_row(NOW + 60_000, shard=1, later=True) for _ in range(10)]
        began = time.monotonic()
        await other.session("door").write(lambda tx, rows=rows: insert(tx, {Shard(SMS, 1): rows}))  # type: ignore[misc]
        waits.append(time.monotonic() - began)
    assert (await round_).rows_pruned == 25_000
    assert len(waits) > 5
    assert max(waits) < max(1, sum(waits) / 2), "a short slice holds its locks for milliseconds"


async def test_a_maker_that_dies_between_a_table_and_its_announcement_hides_no_job(
    database: ServerDatabase, other: ServerDatabase, session: Session, url: str
) -> None:
    row = new_row(NOW + 20 * DAY_MS)
    wanted = scan_of(NOW, NOW + 30 * DAY_MS)
    execute(url, CHANGING)
    assert not await scan_all_rows(session, wanted)  # it knows what tables there are
    execute(url, create_job_table(server_driver(url).dialect, DAILY.table_of(SMS, row.key)))
    await add(other.session("door"), [row])  # which finds the table
    assert [job.key for job in await scan_all_rows(session, wanted)] == [row.key]
    await maintained(database)  # makes other tables, and announces them
    assert [job.key for job in await scan_all_rows(session, wanted)] == [row.key]
    assert execute(url, "SELECT tables % 2 FROM scheduler_schema") == [(0,)]


# Those who use a table while it is dropped

WAITING = {
    "mariadb": (
        "SELECT COUNT(*) FROM information_schema.processlist"
        " WHERE db = DATABASE() AND state = 'Waiting for table metadata lock'"
    ),
    "postgres": stage.POSTGRES_WAITS,
}


@pytest.mark.parametrize("dropped", [True, False])
@pytest.mark.parametrize("early", [True, False], ids=["looked before", "looked meanwhile"])
async def test_whoever_waits_for_a_table_that_is_dropped_meets_no_error(
    session: Session, url: str, early: bool, dropped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = await old_day(session)
    driver = server_driver(url)
    maker = TableMaker(driver, allowed=True)
    link = Link(driver, maker, "p")
    link.read(lambda tx: tx.read_jobs(SMS, keys))  # it knows what tables there are
    looked, locked = threading.Event(), threading.Event()

    def read(tx: Statements) -> list[bytes]:
        if early:
            assert tx.read_jobs(SMS, [new_row(NOW + 90 * DAY_MS).key]) == []
        looked.set()
        assert locked.wait(20)
        return keys_of(tx.read_jobs(SMS, keys))

    def safe(_: object) -> bool:
        if not early:
            readers.append(pool.submit(link.read, read))
        locked.set()
        waits_until(lambda: one_waits(url))
        return dropped

    def unlock(self: mariadb.MariaDriver, cursor: Any) -> None:
        if dropped:
            wait(readers, 20)  # MariaDB shows the drop at once: they go on before anything more is said
        unlock_table(self, cursor)

    readers: list[Future[list[bytes]]] = []
    unlock_table = mariadb.MariaDriver.unlock_table
    monkeypatch.setattr(mariadb.MariaDriver, "unlock_table", unlock)
    with ThreadPoolExecutor(2) as pool:
        if early:
            readers.append(pool.submit(link.read, read))
            assert looked.wait(20)
        assert pool.submit(maker.drop, OLD_TABLE, safe).result(20) is dropped
        assert sorted(readers[0].result(20)) == ([] if dropped else keys)
    link.close()
    assert execute(url, "SELECT tables % 2 FROM scheduler_schema") == [(0,)]


def one_waits(url: str) -> bool:
    """Is there one who waits for a table?"""
    return execute(url, WAITING[kind_of(url)]) == [(1,)]


def waits_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def test_a_drop_that_does_not_come_about_leaves_nothing_behind(session: Session, url: str) -> None:
    keys = await old_day(session)
    maker = TableMaker(server_driver(url), allowed=True)

    def fail(_: object) -> bool:
        raise StoreUnavailable("not now")

    user = connect(url)
    with closing(user), closing(user.cursor()) as cursor:
        cursor.execute("BEGIN")
        cursor.execute(f"SELECT COUNT(*) FROM {OLD_TABLE}")
        assert not maker.drop(OLD_TABLE, lambda _: True)
        cursor.execute("COMMIT")
    assert execute(url, "SELECT tables % 2 FROM scheduler_schema") == [(0,)]
    with pytest.raises(StoreUnavailable, match="not now"):
        maker.drop(OLD_TABLE, fail)
    assert execute(url, "SELECT tables % 2 FROM scheduler_schema") == [(0,)]
    assert sorted(await still_there(session, keys)) == keys
    assert maker.drop(OLD_TABLE, lambda _: True)


async def test_a_table_that_cannot_be_made_leaves_nothing_behind(session: Session, url: str) -> None:
    maker = TableMaker(server_driver(url), allowed=True)
    with pytest.raises(StoreBroken):
        maker.make({"wrong": "CREATE nonsense"})
    assert execute(url, "SELECT tables % 2 FROM scheduler_schema") == [(0,)]


async def test_a_table_that_cannot_be_dropped_keeps_no_other(postgres_url: str) -> None:
    database = await opened(postgres_url)
    session = database.session("door")
    info = SqlApp(name=SMS, shards=4, paused=False, created_ms=NOW)
    await session.write(lambda tx: tx.insert_app(info, NOW))
    await old_day(session)
    await end(session, await add(session, [new_row(OLD + DAY_MS)]), OLD)
    execute(postgres_url, f"CREATE VIEW mine AS SELECT id FROM {OLD_TABLE}")
    with pytest.raises(StoreBroken, match=OLD_TABLE):
        await maintained(database)
    assert await tables(session) == AHEAD | {OLD_TABLE}
    await database.close()


async def test_what_is_known_of_a_table_goes_with_it_whoever_drops_it(
    database: ServerDatabase, session: Session, url: str
) -> None:
    keys = await old_day(session)
    await session.write(lambda tx: retry(tx, keys[0]))
    await maintained(database)
    assert [table.name for table in database._looks] == [OLD_TABLE]
    assert TableMaker(server_driver(url), allowed=True).drop(OLD_TABLE, lambda _: True)
    await maintained(database)
    assert not database._looks


async def test_who_waits_too_long_to_change_tables_is_told_for_whom(
    session: Session, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = server_driver(url)
    with closing(driver.connect()) as other:
        driver.lock_tables(other.cursor())
        monkeypatch.setattr(mariadb, "DDL_WAIT_S", 1)
        monkeypatch.setattr(postgres, "DDL_WAIT_S", 1)
        with pytest.raises(StoreUnavailable, match="another process has changed tables for 1 s"):
            TableMaker(driver, allowed=True).make({})


async def test_a_batch_over_many_days_makes_all_its_tables_at_once(session: Session) -> None:
    keys = await add(session, [new_row(NOW + n * DAY_MS) for n in range(30)])
    assert sorted(await still_there(session, keys)) == keys
