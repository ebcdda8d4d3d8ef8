"""A database server whose transactions happen in the caller's thread: so a node on it can be run by a manual clock."""

from collections.abc import Callable
from typing import Any, TypeVar

from infinite_scheduler.store.sql.database_thread import DatabaseThread
from infinite_scheduler.store.sql.server.database import ServerDatabase
from infinite_scheduler.store.sql.server.drivers import server_driver
from infinite_scheduler.store.sql.server.session import Link
from infinite_scheduler.store.sql.statements import Body, Session
from infinite_scheduler.store.sql.upkeep_rows import UpkeepRows

T = TypeVar("T")


class TimelessLink(Link):
    """A connection to a server that does not tell its time: it would not agree with a clock that is moved by hand."""

    def _connected(self) -> UpkeepRows:
        statements = super()._connected()
        statements.now_ms = lambda: None  # type: ignore[method-assign]
        return statements


class InlineLink(Session):
    """Transactions in the caller's thread."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def write(self, body: Body[T]) -> T:
        return self._link.write(body)

    async def read(self, body: Body[T]) -> T:
        return self._link.read(body)

    async def changed(self) -> bool:
        return True

    async def close(self) -> None:
        self._link.close()


class InlineThread(DatabaseThread):
    """Does everything at once."""

    def __init__(self) -> None:
        """There is no thread."""

    async def do(self, step: Callable[[], T]) -> T:
        return step()

    def stop(self) -> None: ...

    def join(self) -> None: ...


class InlineServer(ServerDatabase):
    """A database server, asked in the caller's thread."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(server_driver(url), **options)

    async def open(self) -> None:
        self._thread = InlineThread()
        self.found = self._tables.migrate()

    def session(self, name: str) -> Session:
        if name not in self._sessions:
            self._sessions[name] = InlineLink(TimelessLink(self._driver, self._tables, f"{self._process}-{name}"))
        return self._sessions[name]
