"""The simulated database keeps the promises that every database of the line protocol makes."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

import pytest

from infinite_scheduler.store.cluster_state import NodeInfo
from infinite_scheduler.store.ownership import Upkeep
from infinite_scheduler.store.sql.statements import Body, Database, Session
from tests.contract.test_statements import StatementsContract
from tests.simulation.database import SimDatabase
from tests.simulation.server import Server
from tests.simulation.world import World

T = TypeVar("T")


class Bridge(Database):
    """The simulated database for a caller who lives in real time: each call lets virtual time go on until it ends."""

    kind = "a simulation"
    has_clock = True
    lanes = 2

    def __init__(self) -> None:
        self.world = World(1)
        self.process = self.world.process("caller")
        self.simulated = SimDatabase(Server(self.world), self.process)
        self.turn = asyncio.Lock()

    async def open(self) -> None:
        return

    async def close(self) -> None:
        self.world.close()

    def session(self, name: str) -> Session:
        return BridgeSession(self, self.simulated.session(name))

    async def maintain(self, *, now_ms: int, retention_ms: int, idempotency_ms: int) -> Upkeep:
        return Upkeep()

    def dead(self, nodes: Sequence[NodeInfo]) -> frozenset[str]:
        return self.simulated.dead(nodes)

    def live(self, nonce: str) -> None:
        self.simulated.live(nonce)


class BridgeSession(Session):
    def __init__(self, bridge: Bridge, simulated: Session) -> None:
        self._bridge = bridge
        self._simulated = simulated

    async def write(self, body: Body[T]) -> T:
        async with self._bridge.turn:
            call = self._simulated.write(body)
            return await asyncio.to_thread(self._bridge.world.complete, self._bridge.process, call)

    async def read(self, body: Body[T]) -> T:
        async with self._bridge.turn:
            call = self._simulated.read(body)
            return await asyncio.to_thread(self._bridge.world.complete, self._bridge.process, call)

    async def changed(self) -> bool:
        return await self._simulated.changed()

    async def close(self) -> None:
        await self._simulated.close()


class TestSimulatedDatabase(StatementsContract):
    @pytest.fixture
    async def database(self) -> AsyncIterator[Database]:
        database = Bridge()
        yield database
        await database.close()
