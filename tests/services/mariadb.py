"""A private MariaDB server."""

import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

import pymysql

from tests.services.folder import give
from tests.services.server import ADMIN, Server

# The kernel keeps what was written when a process is killed, so that kill -9 of the server loses no commit even without
# fsync: 2 writes the log at each commit (0 would keep it in the server's own memory). It would not keep it through a
# loss of power. Torn pages can come from kill -9 too: the doublewrite buffer stays on.
QUICK = ("--innodb-flush-log-at-trx-commit=2", "--innodb-flush-method=nosync", "--debug-no-sync", "--sync-frm=0")
# What is measured is meant to be a server for millions of jobs, with memory for those that are in use.
DURABLE = (
    "--innodb-flush-log-at-trx-commit=1",
    "--innodb-buffer-pool-size=2G",
    "--innodb-log-file-size=2G",
    "--innodb-io-capacity=2000",  # of an SSD: at the 200 of a disk, pages are written too late and everything waits
)
SETTINGS = (
    "--bind-address=127.0.0.1",
    "--socket=mariadb.sock",  # in the data folder; a full path could be too long for a socket
    "--max-connections=200",
    "--innodb-buffer-pool-size=256M",
    "--character-set-server=utf8mb4",
    "--event-scheduler=OFF",
    "--performance-schema=OFF",
    "--skip-name-resolve",
    "--skip-log-bin",
)


def program(name: str) -> str | None:
    """The path of a program of MariaDB; servers are often not on the path of plain users."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/usr/libexec")


class MariaDB(Server):
    """A private MariaDB server."""

    kind = "mariadb"
    is_copied = True
    ask = signal.SIGTERM

    @property
    def url(self) -> str:
        return f"mysql://{ADMIN}:{self.password}@127.0.0.1:{self.port}/mysql"

    def _initialise(self, data: Path) -> None:
        self._run(str(program("mariadb-install-db")), "--no-defaults", f"--datadir={data}", "--skip-test-db")
        admin = f"CREATE OR REPLACE USER {ADMIN}@'127.0.0.1' IDENTIFIED BY '{self.password}';"
        rights = f"GRANT ALL ON *.* TO {ADMIN}@'127.0.0.1' WITH GRANT OPTION;"
        first = data / "admin.sql"
        first.touch(mode=0o600)
        first.write_text(f"{admin}\n{rights}\n")
        give(first)

    def _command(self) -> Sequence[str]:
        place = (f"--datadir={self.data}", f"--port={self.port}", f"--pid-file={self.data}/mariadbd.pid")
        first = (f"--init-file={self.data}/admin.sql",)
        return [
            str(program("mariadbd")),
            "--no-defaults",
            *place,
            *first,
            *SETTINGS,
            *(DURABLE if self.durable else QUICK),
        ]

    def _answers(self) -> bool:
        try:
            pymysql.connect(
                host="127.0.0.1", port=self.port, user=ADMIN, password=self.password, connect_timeout=5
            ).close()
        except pymysql.OperationalError:
            return False
        return True

    def _forget_last_run(self) -> None:
        (self.data / "mariadbd.pid").unlink(missing_ok=True)
