"""Jobs in a transaction of the user's own on a database server."""

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

from sqlalchemy.engine import Connection

from infinite_scheduler.errors import InvalidRequest
from infinite_scheduler.store.sql.request_rows import SqlStatements
from infinite_scheduler.store.sql.rows import TablesMissing
from infinite_scheduler.store.sql.schema import SCHEMA_TABLE
from infinite_scheduler.store.sql.server.driver import Driver, Fault
from infinite_scheduler.store.sql.server.drivers import server_driver
from infinite_scheduler.store.sql.server.table_maker import TableMaker

T = TypeVar("T")

STORE_ID = f"SELECT store_id FROM {SCHEMA_TABLE}"  # noqa: S608


class ServerUserTransaction:
    """The database of a store on a server, through the user's connection."""

    def __init__(self, connection: Connection, url: str) -> None:
        self._driver = _driver(url)
        self._tables = TableMaker(self._driver, allowed=True)
        dialect = f"{connection.dialect.name}+{connection.dialect.driver}"
        if dialect not in self._driver.sqlalchemy:
            raise InvalidRequest(
                f"enqueue works on the store's own database, with {' or '.join(sorted(self._driver.sqlalchemy))}; "
                f"this connection is {dialect}"
            )
        dbapi = connection.connection.dbapi_connection
        if self._driver.commits_by_itself(dbapi):
            raise InvalidRequest(
                "enqueue needs a transaction, but this connection commits every statement: do not use AUTOCOMMIT"
            )
        self._cursor = self._driver.borrowed(dbapi)
        self._check_is_store(url)

    def _check_is_store(self, url: str) -> None:
        """Refuse any other database: no node of this store would look there."""
        self._cursor.execute("SAVEPOINT infinite_scheduler")
        try:
            self._cursor.execute(STORE_ID)
            found = self._cursor.fetchone()
        except self._driver.Error as error:
            if self._driver.fault(error) is not Fault.MISSING_TABLE:
                raise
            found = None
        self._cursor.execute("ROLLBACK TO SAVEPOINT infinite_scheduler")
        if not found or found[0] != _store_id(url):
            raise InvalidRequest(f"this is not the store's database: connect to {self._driver.location}")

    def statements(self) -> SqlStatements:
        from infinite_scheduler.store.sql.enqueue import own_process  # noqa: PLC0415 - the modules import each other

        self._statements = SqlStatements(self._cursor, self._driver.dialect, own_process())
        return self._statements

    def all_or_none(self, body: Callable[[], T]) -> T:
        while True:
            self._cursor.execute("SAVEPOINT infinite_scheduler")
            try:
                result = body()
            except TablesMissing as missing:
                self._cursor.execute("ROLLBACK TO SAVEPOINT infinite_scheduler")
                self._tables.make(missing.statements)
                self._statements.trust(missing.statements)
            except BaseException:
                self._cursor.execute("ROLLBACK TO SAVEPOINT infinite_scheduler")
                raise
            else:
                self._cursor.execute("RELEASE SAVEPOINT infinite_scheduler")
                return result


@lru_cache(maxsize=16)
def _driver(url: str) -> Driver:
    return server_driver(url)


@lru_cache(maxsize=16)
def _store_id(url: str) -> str:
    """The id of the store at this address."""
    return TableMaker(_driver(url), allowed=False).store_id()
