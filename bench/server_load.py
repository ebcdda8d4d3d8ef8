"""What a database server does, as it and the machine tell."""

import os
import time
from pathlib import Path

from tests.services.catalogue import admin_url, shared_server
from tests.services.databases import execute
from tests.services.process import tree

QUERIES = {
    "mariadb": "SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'QUESTIONS'",
    "postgres": "SELECT SUM(xact_commit + xact_rollback) FROM pg_stat_database",
}
"""MariaDB counts statements; PostgreSQL counts transactions."""


class ServerLoad:
    """The CPU time and the queries of a server from now on; both are 0 for SQLite, which has none."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._began = time.perf_counter(), self._cpu_s(), self._queries()

    def per_second(self) -> tuple[float, float]:
        """CPU seconds and queries per second."""
        began, cpu_s, queries = self._began
        passed = time.perf_counter() - began
        return (self._cpu_s() - cpu_s) / passed, (self._queries() - queries) / passed

    def cpu_s(self) -> float:
        """CPU seconds."""
        return self._cpu_s() - self._began[1]

    def _cpu_s(self) -> float:
        if self._store not in QUERIES:
            return 0.0
        pids = [server.pid for durable in (False, True) if (server := shared_server(self._store, durable=durable)).pid]  # type: ignore[arg-type]
        return sum(_used_s(each) for pid in pids if pid is not None for each in tree(pid))

    def _queries(self) -> int:
        if self._store not in QUERIES:
            return 0
        return int(execute(admin_url(self._store), QUERIES[self._store])[0][0])  # type: ignore[arg-type]


def _used_s(pid: int) -> float:
    """CPU time of a process, with that of its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
