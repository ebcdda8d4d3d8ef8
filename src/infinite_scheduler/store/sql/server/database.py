"""A database server for the SQL store: one connection per purpose."""

import asyncio
import os
from collections.abc import Sequence
from typing import Final, cast

from infinite_scheduler.errors import StoreUnavailable
from infinite_scheduler.store.cluster_state import NodeInfo
from infinite_scheduler.store.ownership import Upkeep
from infinite_scheduler.store.sql.database_thread import DatabaseThread, share_the_interpreter
from infinite_scheduler.store.sql.server.driver import Driver
from infinite_scheduler.store.sql.server.session import Link, ServerSession, SharedSession, end
from infinite_scheduler.store.sql.server.table_maker import TableMaker
from infinite_scheduler.store.sql.server.upkeep import Look, OldTable, ServerMaintainer
from infinite_scheduler.store.sql.statements import Body, Database, Session

DOOR: Final = "door"


class ServerDatabase(Database):
    """One database on a MariaDB, MySQL or PostgreSQL server.

    Each lane, the heartbeats, what people look at, looks that may take long, and maintenance have a connection of their
    own; the doors share a few. All are opened when first used, and reopened when lost.
    """

    def __init__(self, driver: Driver, *, lanes: int = 2, connections: int = 2, ddl: bool = True) -> None:
        self.kind = driver.kind
        self.has_clock = True
        self.lanes = lanes
        self._driver = driver
        self._connections = connections
        self._process = os.urandom(8).hex()
        self._tables = TableMaker(driver, allowed=ddl)
        self._worker: DatabaseThread | None = None  # changes tables, which can take long
        self._sessions: dict[str, Session] = {}
        self._looks: dict[OldTable, Look] = {}

    async def open(self) -> None:
        share_the_interpreter()
        self._worker = self._worker or DatabaseThread("tables")
        try:
            self.found = await self._worker.do(self._tables.migrate)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        sessions, self._sessions = self._sessions, {}
        await asyncio.gather(*(session.close() for session in sessions.values()))  # waits for a frozen server only once
        worker, self._worker = self._worker, None
        if worker is not None:
            await end(worker, lambda: None)

    def session(self, name: str) -> Session:
        if self._worker is None:
            raise StoreUnavailable("the store is not open")
        if name not in self._sessions:
            if name == DOOR:
                self._sessions[name] = SharedSession([self._single(f"{name}-{i}") for i in range(self._connections)])
            else:
                self._sessions[name] = self._single(name)
        return self._sessions[name]

    def _single(self, name: str) -> ServerSession:
        # Counters are rows of one connection: two connections that add to the same row would wait for each other.
        return ServerSession(name, Link(self._driver, self._tables, f"{self._process}-{name}"))

    async def maintain(self, *, now_ms: int, retention_ms: int, idempotency_ms: int) -> Upkeep:
        if self._worker is None:
            raise StoreUnavailable("the store is not open")
        maintainer = ServerMaintainer(
            self.session("upkeep"),
            self._tables,
            self._worker,
            self._looks,
            now_ms=now_ms,
            retention_ms=retention_ms,
            idempotency_ms=idempotency_ms,
        )
        return await maintainer.run()

    async def prepared(self, app: str) -> frozenset[int] | None:
        if self._tables.allowed:
            return None
        return await self.session("reader").read(cast("Body[frozenset[int]]", lambda tx: tx.periods(app)))

    def dead(self, nodes: Sequence[NodeInfo]) -> frozenset[str]:
        """A server cannot tell a dead process from a disconnected one: the lease decides."""
        del nodes
        return frozenset()

    def live(self, nonce: str) -> None:
        """Do nothing: heartbeats are the only sign of life."""
