"""The Debian packages of the servers: found, or installed where that is possible."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.services import clock, jars, kafka, mariadb, postgres, promtool
from tests.services.folder import is_root

NO_CLUSTER = Path("/etc/postgresql-common/createcluster.d/infinite-scheduler-tests.conf")


class MissingPackages(RuntimeError):
    """Something has to be installed by hand; the message says what."""


def missing() -> Sequence[str]:
    """Packages whose programs are not there. MariaDB's are the ones without a system service."""
    found = {
        "postgresql": postgres.program("initdb"),
        "mariadb-server-core": mariadb.program("mariadbd"),
        "mariadb-client-core": mariadb.program("my_print_defaults"),
        "libfaketime": clock.library(),
        "pgbouncer": shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/bin"),
        "default-jre-headless": kafka.program(),
        "maven": "not needed" if jars.are_here() else shutil.which("mvn"),
    }
    return [package for package, program in found.items() if program is None]


def install() -> None:
    """Install what is missing; where nothing is, this does nothing and needs no network."""
    if packages := missing():
        _install(packages)
    jars.fetch()
    promtool.fetch(partial(_apt, "update"))


def _install(packages: Sequence[str]) -> None:
    if not is_root() or shutil.which("apt-get") is None:
        raise MissingPackages(
            "The tests need PostgreSQL 15, MariaDB 10.11, Kafka, PgBouncer and libfaketime. As root, on Debian:\n"
            f"  apt-get install --no-install-recommends {' '.join(packages)}"
        )
    print(f"installing {', '.join(packages)}", flush=True)
    _apt("update")
    with _without_cluster("postgresql" in packages):
        _apt("install", *packages)
    if still := missing():
        raise MissingPackages(f"{', '.join(still)}: installed, but without the programs that the tests need")


@contextmanager
def _without_cluster(is_needed: bool) -> Iterator[None]:
    """Keep PostgreSQL's packages from making a system database, which would also start at each boot."""
    if not is_needed:
        yield
        return
    _apt("install", "postgresql-common")
    NO_CLUSTER.parent.mkdir(parents=True, exist_ok=True)
    NO_CLUSTER.write_text("create_main_cluster = false\n")
    try:
        yield
    finally:
        NO_CLUSTER.unlink()


def _apt(action: str, *packages: str) -> None:
    quietly = ("--quiet", "--yes", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300")
    done = subprocess.run(
        ["apt-get", *quietly, action, *packages],
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
    )
    if done.returncode:
        raise MissingPackages(f"apt-get {action} ended with {done.returncode}\n{done.stdout}")
