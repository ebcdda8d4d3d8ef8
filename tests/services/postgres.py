"""A private PostgreSQL server."""

import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

import psycopg

from tests.services import process
from tests.services.folder import give
from tests.services.server import ADMIN, Server

# The kernel keeps what was written when a process is killed, so that kill -9 of the server loses no commit even without
# fsync. It would not keep it through a loss of power. Torn pages can come from kill -9 too: full_page_writes stays on,
# and so does synchronous_commit, without which commits wait in the server's own memory.
QUICK = {"fsync": "off"}
# What is measured is meant to be a server for millions of jobs, with memory for those that are in use.
DURABLE = {"fsync": "on", "synchronous_commit": "on", "shared_buffers": "1GB", "max_wal_size": "4GB"}
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "log_timezone": "UTC",
}


def program(name: str) -> str | None:
    """The path of a program of the newest installed PostgreSQL."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))
    for folder in reversed(folders):
        if (folder / name).exists():
            return str(folder / name)
    return shutil.which(name)


class Postgres(Server):
    """A private PostgreSQL server."""

    kind = "postgres"
    is_copied = True
    ask = signal.SIGINT  # "fast": ends sessions; SIGTERM would wait for them

    @property
    def url(self) -> str:
        return f"postgresql://{ADMIN}:{self.password}@127.0.0.1:{self.port}/postgres"

    def _initialise(self, data: Path) -> None:
        secret = data.with_suffix(".password")
        secret.touch(mode=0o600)
        secret.write_text(self.password)
        give(secret)
        # Texts sort as people sort them, as on most servers: an order by bytes would hide mistakes.
        order = ("--encoding=UTF8", "--locale-provider=icu", "--icu-locale=en-US", "--locale=C.UTF-8")
        login = (f"--username={ADMIN}", f"--pwfile={secret}", "--auth=scram-sha-256")
        self._run(str(program("initdb")), f"--pgdata={data}", "--no-sync", *order, *login)
        secret.unlink()

    def _command(self) -> Sequence[str]:
        settings = SETTINGS | (DURABLE if self.durable else QUICK) | {"port": str(self.port)}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [str(program("postgres")), "-D", str(self.data), *options]

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def _forget_last_run(self) -> None:
        # It would refuse to start if any process of the same account has the number of the killed one.
        file = self.data / "postmaster.pid"
        if file.exists() and not process.is_ours(int(file.read_text().split()[0]), self.data):
            file.unlink()
