"""The inbox on the simulated database: its promises, and the orders of transactions that could break them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import pytest_asyncio

from infinite_scheduler.clock import Clock
from infinite_scheduler.store.base import Store
from infinite_scheduler.store.inbox import LetterState
from infinite_scheduler.store.sql import inbox
from infinite_scheduler.store.sql.sqlite.database import SqliteDatabase
from infinite_scheduler.store.sql.store import SqlStore
from infinite_scheduler.testing.store_contract.ingesting import DeadLettersContract, IngestingContract
from tests.simulation.inbox_scenes import DROPPED, GUARDED, REPLAYED, SCENES, Scene, move_blindly, name_of
from tests.simulation.interleave import SimStage, Stage, ThreadStage
from tests.simulation.scene import Broken, prepare
from tests.simulation.test_contract import Bridge


class Visitor(Bridge):
    """The simulated database for one process of a test: it is there for others when that ends."""

    async def close(self) -> None: ...


class TestSimulatedInbox(IngestingContract, DeadLettersContract):
    @pytest_asyncio.fixture(autouse=True)
    async def database(self) -> AsyncIterator[None]:
        self.bridge = Visitor()
        # One thread, which is there before the test begins and after it has ended.
        with ThreadPoolExecutor(max_workers=1) as executor:
            asyncio.get_running_loop().set_default_executor(executor)
            await asyncio.to_thread(lambda: None)
            yield
        self.bridge.world.close()

    def make_store(self, clock: Clock) -> Store:
        return SqlStore(self.bridge, clock)


@pytest.fixture(params=["simulated", "sqlite"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    made = SimStage() if request.param == "simulated" else ThreadStage(lambda: SqliteDatabase(tmp_path / "jobs.db"))
    with contextlib.closing(made) as stage:
        prepare(stage)
        yield stage


@pytest.mark.parametrize("play", SCENES, ids=name_of)
def test_the_promise_holds(play: Scene, stage: Stage) -> None:
    play(stage)


@pytest.mark.parametrize("play", GUARDED, ids=name_of)
def test_without_the_compare_and_set_the_promise_is_broken(
    play: Scene, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "move_positions", move_blindly)
    with pytest.raises(Broken):
        play(stage)


@pytest.mark.parametrize("play", REPLAYED, ids=name_of)
def test_without_a_look_at_the_state_a_letter_becomes_two_jobs(
    play: Scene, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "REPLAYABLE", frozenset(LetterState))
    with pytest.raises(Broken):
        play(stage)


@pytest.mark.parametrize("play", DROPPED, ids=name_of)
def test_without_a_look_at_the_state_a_job_is_called_a_dropped_letter(
    play: Scene, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "DROPPABLE", frozenset(LetterState))
    with pytest.raises(Broken):
        play(stage)
