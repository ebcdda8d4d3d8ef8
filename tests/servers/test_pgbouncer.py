"""PostgreSQL behind PgBouncer, which gives each transaction another session of the server's."""

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from tests.servers.node_rig import NodeRig
from tests.services.databases import execute
from tests.services.folder import account, give
from tests.services.process import PATIENCE_S
from tests.services.server import free_port
from tests.waiting import until

PROGRAM = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/bin")

CONNECTED = (
    "SELECT COUNT(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND backend_type = 'client backend'"  # the server looks after it, too
)


@contextmanager
def pooled(url: str, sessions: int) -> Iterator[str]:
    """The address of a pooler in transaction mode with few sessions at the server, for one database."""
    parts = urlsplit(url)
    folder = Path(tempfile.mkdtemp(prefix="pgbouncer-"))
    give(folder)
    users, config, port = folder / "users", folder / "pgbouncer.ini", free_port()
    users.write_text(f'"{parts.username}" "{parts.password}"\n')
    give(users)
    config.write_text(
        f"[databases]\n{parts.path[1:]} = host=127.0.0.1 port={parts.port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {port}\nunix_socket_dir =\nauth_type = scram-sha-256\nauth_file = {users}\n"
        f"pool_mode = transaction\ndefault_pool_size = {sessions}\nlogfile = {folder / 'log'}\n"
    )
    address = parts._replace(netloc=f"{parts.username}:{parts.password}@127.0.0.1:{port}").geturl()
    process = subprocess.Popen([str(PROGRAM), "-q", str(config)], cwd="/", **account())
    try:
        _await(address)
        yield address
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
        shutil.rmtree(folder)


def _await(address: str) -> None:
    def answers() -> bool:
        try:
            psycopg.connect(address, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    until(answers, "PgBouncer answers", every_s=0.05)


async def test_a_node_works_behind_a_pooler_with_fewer_sessions_than_connections(postgres_url: str) -> None:
    with pooled(postgres_url, 3) as address:
        rig = NodeRig(address)
        async with rig.scheduler:
            ids = await rig.add(300, "200ms")
            await rig.done(ids)
            (far,) = await rig.add(1, "1h")
            await rig.scheduler.cancel(far)
            users = await asyncio.to_thread(execute, postgres_url, CONNECTED)
            assert users[0][0] <= 3 + 1, "and the one that asks"


def test_no_setting_outlives_its_transaction(postgres_url: str) -> None:
    with pooled(postgres_url, 1) as address:
        asyncio.run(_use(address))
        found = execute(address, "SELECT setting FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'")
        assert found == [("0",)]
        held = (
            "SELECT COUNT(*) FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database"
            " WHERE locktype = 'advisory' AND datname = current_database()"
        )
        assert execute(address, held) == [(0,)]


async def _use(address: str) -> None:
    rig = NodeRig(address)
    async with rig.scheduler:
        await rig.done(await rig.add(10))
