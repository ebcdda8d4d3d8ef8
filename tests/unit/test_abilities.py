"""What a store declares that it cannot do is refused in words, by everybody who asks it, before anything is tried."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from infinite_scheduler import store as stores
from infinite_scheduler.cli.run import BAD_INPUT, run
from infinite_scheduler.client import Client, NewJob
from infinite_scheduler.errors import ConfigError, InvalidRequest, NotSupported
from infinite_scheduler.model import JobId, Status
from infinite_scheduler.observe.events import Event, MarksMissing
from infinite_scheduler.scheduler import Scheduler
from infinite_scheduler.store import open_store
from infinite_scheduler.store.abilities import EVERYTHING, Abilities, Ability
from infinite_scheduler.store.sql.ownership import SqlOwnership
from infinite_scheduler.sync_client import SyncClient
from infinite_scheduler.testing import ManualClock
from tests import limited_store
from tests.limited_store import LimitedStore
from tests.unit.engine_rig import EngineRig

JOB = str(JobId.make(4_000_000_000_000, 0, 1))

Call = Callable[[Client], Coroutine[Any, Any, object]]


async def of_inbox(client: Client) -> object:
    return client.inbox


async def of_enqueue(client: Client) -> object:
    return client.enqueue(object(), "mail", [NewJob(delay=1)])  # type: ignore[arg-type]


CALLS: dict[Ability, Call] = {
    Ability.CANCEL: lambda client: client.cancel(JOB),
    Ability.RESCHEDULE: lambda client: client.reschedule(JOB, delay=1),
    Ability.RUN_NOW: lambda client: client.run_now(JOB),
    Ability.RETRY: lambda client: client.retry(JOB),
    Ability.WHOLE_BATCHES: lambda client: client.schedule_many("mail", [NewJob(delay=1), NewJob(delay=2)]),
    Ability.IDEMPOTENCY_KEYS: lambda client: client.schedule("mail", delay=1, idempotency_key="k"),
    Ability.OWN_TRANSACTION: of_enqueue,
    Ability.SEARCH: lambda client: client.find("mail"),
    Ability.DEAD_LETTERS: of_inbox,
}

WORDS = {
    Ability.CANCEL: "a store in Paper cannot cancel a job: let the handler check whether the job is still wanted",
    Ability.RESCHEDULE: "a store in Paper cannot move a job to another moment: schedule another job",
    Ability.RUN_NOW: "a store in Paper cannot run a waiting job now: schedule another job without a delay",
    Ability.RETRY: "a store in Paper cannot try a settled job again: schedule another job with its data",
    Ability.WHOLE_BATCHES: "a store in Paper cannot accept several jobs all or none: schedule them one at a time",
    Ability.IDEMPOTENCY_KEYS: "a store in Paper cannot remember idempotency keys: leave the key out",
    Ability.OWN_TRANSACTION: "a store in Paper cannot accept jobs in a transaction of yours: commit it, then",
    Ability.SEARCH: "a store in Paper cannot list jobs: look one up by its id",
    Ability.INBOX: "a store in Paper cannot take in messages of topics: set store.url to",
    Ability.DEAD_LETTERS: "a store in Paper cannot keep dead letters: set store.url to",
}


@pytest.fixture
async def paper() -> AsyncIterator[Callable[..., Coroutine[Any, Any, Client]]]:
    """Clients of stores without some abilities."""
    clients: list[Client] = []

    async def make(*without: Ability) -> Client:
        clock = ManualClock()
        inner = open_store("sqlite:///:memory:", clock, {"inline": True})
        client = Client(clock=clock, store=LimitedStore(inner, frozenset(without)))
        await client.open()
        clients.append(client)
        await client.register("mail")
        return client

    yield make
    for client in clients:
        await client.close()


def tried(client: Client) -> list[str]:
    store = client._store
    assert isinstance(store, LimitedStore)
    return store.tried


class TestClient:
    @pytest.mark.parametrize("ability", CALLS)
    async def test_what_the_store_cannot_do_is_refused_and_not_tried(self, paper: Any, ability: Ability) -> None:
        client = await paper(ability)
        assert ability not in client.abilities
        with pytest.raises(NotSupported) as refused:
            await CALLS[ability](client)
        assert str(refused.value).startswith(WORDS[ability])
        assert isinstance(refused.value, InvalidRequest)
        assert not refused.value.retryable
        assert not tried(client)

    async def test_a_bulk_of_jobs_is_refused_before_it_is_looked_at(self, paper: Any) -> None:
        client = await paper(Ability.WHOLE_BATCHES)
        specs = client._specs("mail", [NewJob(delay=1)] * 2)
        for call in (client.conflicts, client.submit):
            with pytest.raises(NotSupported, match="one at a time"):
                await call(specs)
        assert not tried(client)

    async def test_calls_at_once_are_handed_over_one_by_one_where_batches_are_not_whole(self, paper: Any) -> None:
        client = await paper(Ability.WHOLE_BATCHES)
        await asyncio.gather(*(client.schedule("mail", delay=1) for _ in range(5)))
        assert tried(client) == ["add"] * 5

    async def test_calls_at_once_share_a_transaction_where_batches_are_whole(self, paper: Any) -> None:
        client = await paper(Ability.INBOX)
        await asyncio.gather(*(client.schedule("mail", delay=1) for _ in range(5)))
        assert len(tried(client)) < 5

    def test_every_ability_has_words(self) -> None:
        able = Abilities("Paper", frozenset())
        for ability in EVERYTHING:
            assert str(able.refusal(ability)).startswith("a store in Paper cannot ")


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """URLs of stores without some abilities."""
    monkeypatch.setitem(stores.SCHEMES, "limited", "tests.limited_store")
    monkeypatch.setattr(limited_store.SCHEME, "tried", [])

    def make(*without: Ability) -> str:
        return f"limited:///{tmp_path / 'jobs.db'}?without={','.join(without)}"

    return make


class TestSyncClient:
    def test_what_the_store_cannot_do_is_refused_and_not_tried(self, url: Callable[..., str]) -> None:
        lacking = (Ability.CANCEL, Ability.SEARCH, Ability.WHOLE_BATCHES, Ability.OWN_TRANSACTION)
        with SyncClient(url(*lacking)) as client:
            client.register("mail")
            calls: dict[Ability, Callable[[], object]] = {
                Ability.CANCEL: lambda: client.cancel(JOB),
                Ability.SEARCH: client.find,
                Ability.WHOLE_BATCHES: lambda: client.schedule_many("mail", [NewJob(delay=1), NewJob(delay=2)]),
                Ability.OWN_TRANSACTION: lambda: client.enqueue(object(), "mail", []),  # type: ignore[arg-type]
            }
            for ability, call in calls.items():
                assert ability not in client.abilities
                with pytest.raises(NotSupported) as refused:
                    call()
                assert str(refused.value).startswith(WORDS[ability])
        assert not limited_store.SCHEME.tried


class TestCommands:
    @pytest.mark.parametrize(
        ("ability", "command"),
        [
            (Ability.CANCEL, ["jobs", "cancel", JOB]),
            (Ability.RESCHEDULE, ["jobs", "reschedule", JOB, "--in", "5m"]),
            (Ability.RUN_NOW, ["jobs", "run-now", JOB]),
            (Ability.RETRY, ["jobs", "retry", JOB]),
            (Ability.SEARCH, ["jobs", "list"]),
            (Ability.IDEMPOTENCY_KEYS, ["schedule", "mail", "--in", "5m", "--key", "k"]),
            (Ability.DEAD_LETTERS, ["dlq", "list"]),
            (Ability.INBOX, ["ingest", "offsets"]),
        ],
        ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else value,
    )
    def test_what_the_store_cannot_do_is_refused_and_not_tried(
        self, url: Callable[..., str], capsys: pytest.CaptureFixture[str], ability: Ability, command: list[str]
    ) -> None:
        with SyncClient(url(ability)) as client:
            client.register("mail")
        assert run([*command, "--store", url(ability)]) == BAD_INPUT
        assert WORDS[ability] in capsys.readouterr().err
        assert not limited_store.SCHEME.tried

    def test_a_file_of_jobs_is_refused_where_batches_are_not_whole(
        self, url: Callable[..., str], capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        with SyncClient(url(Ability.WHOLE_BATCHES)) as client:
            client.register("mail")
        file = tmp_path / "jobs.ndjson"
        file.write_text('{"at": "in 5m"}\n' * 2)
        assert run(["schedule", "mail", "--from", str(file), "--store", url(Ability.WHOLE_BATCHES)]) == BAD_INPUT
        assert WORDS[Ability.WHOLE_BATCHES] in capsys.readouterr().err
        assert not limited_store.SCHEME.tried

    def test_an_unknown_scheme_names_the_known_ones(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["jobs", "list", "--store", "redis://here/0"]) == BAD_INPUT
        told = capsys.readouterr().err
        assert "no store for 'redis'" in told
        assert all(f"{name}://" in told for name in ("sqlite", "mariadb", "mysql", "postgresql"))
        with pytest.raises(ConfigError, match="no store for 'redis'"):
            open_store("redis://here/0", ManualClock())


def scheduler(*without: Ability, observers: Any = ()) -> tuple[Scheduler, list[str]]:
    clock = ManualClock()
    store = LimitedStore(open_store("sqlite:///:memory:", clock, {"inline": True}), frozenset(without))
    node = Scheduler(clock=clock, store=store, observers=observers)
    node.app("mail")(print)
    return node, store.tried


class TestNode:
    async def test_a_node_that_reads_topics_does_not_start_on_a_store_without_an_inbox(self) -> None:
        node, attempts = scheduler(Ability.INBOX)
        node.with_kafka_ingest("localhost:1", "orders")
        with pytest.raises(NotSupported, match="cannot take in messages of topics"):
            await node.start()
        assert not attempts

    async def test_a_node_without_topics_needs_no_inbox(self) -> None:
        node, attempts = scheduler(Ability.INBOX)
        async with node:
            assert "inbox" not in attempts

    async def test_no_node_starts_on_a_store_that_only_speaks_for_another(self) -> None:
        node, attempts = scheduler(Ability.OWNERSHIP)
        with pytest.raises(NotSupported, match="cannot be worked on by a node: start the node with the URL"):
            await node.start()
        assert not attempts

    async def test_a_node_says_that_its_store_cannot_mark_jobs(self) -> None:
        for without, expected in (((), 0), ((Ability.MARKS,), 1)):
            told: list[Event] = []
            node, _ = scheduler(*without, observers=[told.append])
            async with node:
                assert sum(isinstance(event, MarksMissing) for event in told) == expected

    @pytest.mark.parametrize("marks", [True, False], ids=["with marks", "without marks"])
    async def test_where_jobs_cannot_be_marked_nobody_is_suspected_after_a_crash(
        self, marks: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        watched: list[int] = []
        real = SqlOwnership.mark

        async def mark(owner: SqlOwnership, owners: Any, jobs: Any, size: int) -> Any:
            watched.append(size)
            return await real(owner, owners, jobs, size)

        monkeypatch.setattr(SqlOwnership, "mark", mark)
        rig = EngineRig()
        await rig.open()
        try:
            first = await rig.node("n1").app().start()
            (job,) = await rig.add(1000)
            await first.crash()
            await rig.advance(2000)
            second = rig.node("n2").app()
            if not marks:
                second.store = LimitedStore(second.store, frozenset({Ability.MARKS}))  # type: ignore[assignment]
            await second.start()
            await rig.advance(15_000)
            assert (await rig.record(job)).status is Status.DONE
            assert bool(watched) == marks, "what was due when the node died is marked before it is fired"
        finally:
            await rig.close()

    async def test_a_node_on_a_store_without_a_clock_goes_by_its_own(self) -> None:
        node, _ = scheduler(Ability.CLOCK)
        async with node:
            assert Ability.CLOCK not in node.abilities
            assert (await node.survey()).view.clock is None
            assert node._engine is not None
            assert node._engine.clock_offset_ms() is None
