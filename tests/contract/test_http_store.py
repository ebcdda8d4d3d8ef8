"""A store that is asked over HTTP keeps the promises of what it declares, whatever it speaks for."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from infinite_scheduler.clock import Clock
from infinite_scheduler.errors import StoreUnavailable
from infinite_scheduler.model import Change, Status
from infinite_scheduler.store import open_store
from infinite_scheduler.store.base import Store
from infinite_scheduler.store.http import http_session
from infinite_scheduler.testing import StoreContract
from infinite_scheduler.testing.store_contract import Bench
from infinite_scheduler.testing.store_contract.accepting import (
    AcceptingContract,
    BatchingContract,
    DeduplicatingBatchesContract,
    DeduplicatingContract,
)
from infinite_scheduler.testing.store_contract.changing import ChangingContract
from infinite_scheduler.testing.store_contract.contract_bench import refused
from infinite_scheduler.testing.store_contract.ingesting import DeadLettersContract
from infinite_scheduler.testing.store_contract.looking import LookingContract
from tests.contract.test_servers import emptied
from tests.served_store import ServedStore
from tests.services.databases import fresh_database


@pytest.fixture(scope="module")
def mariadb_for_all() -> Iterator[str]:
    with fresh_database("mariadb") as url:
        yield url


@pytest.fixture(scope="module")
def postgres_for_all() -> Iterator[str]:
    with fresh_database("postgres") as url:
        yield url


class Served:
    """Each process has a server of its own over the same data."""

    url: str

    def make_store(self, clock: Clock) -> Store:
        return ServedStore(self.make_node_store(clock), clock)

    def make_node_store(self, clock: Clock) -> Store:
        return open_store(self.url, clock)


class ServedChanges(ChangingContract):
    """What differs over HTTP."""

    @pytest.fixture(autouse=True)
    def hurry(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(http_session, "CLOSE_S", 0.05)

    async def test_a_process_that_closes_withdraws_its_requests_and_says_so(self, bench: Bench) -> None:
        """Over HTTP it cannot withdraw them: the server goes on asking, and who waits learns that it is unknown."""
        owner = await bench.owner(line_in_ms=30_000)
        (accepted,) = await bench.add(1000)
        await owner.answer(await owner.requests())
        elsewhere = await bench.process()
        asking = bench.change(Change.CANCEL, accepted, store=elsewhere)
        await owner.asked(Change.CANCEL)
        await elsewhere.close()
        with refused(StoreUnavailable, "it is unknown whether"):
            await asking
        assert (await bench.record(accepted)).status is Status.PENDING


class TestServedSqlite(Served, ServedChanges, StoreContract):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.url = f"sqlite:///{tmp_path / 'jobs.db'}"

    def make_node_store(self, clock: Clock) -> Store:
        return open_store(self.url, clock, {"inline": True})


class ServedServer(
    Served,
    AcceptingContract,
    BatchingContract,
    DeduplicatingContract,
    DeduplicatingBatchesContract,
    ServedChanges,
    LookingContract,
    DeadLettersContract,
):
    """What a database adds is in the classes about accepting, changing, looking and dead letters."""


@pytest.mark.servers
class TestServedMaria(ServedServer):
    @pytest.fixture(autouse=True)
    def place(self, mariadb_for_all: str) -> None:
        self.url = emptied(mariadb_for_all)


@pytest.mark.servers
class TestServedPostgres(ServedServer):
    @pytest.fixture(autouse=True)
    def place(self, postgres_for_all: str) -> None:
        self.url = emptied(postgres_for_all)
