"""Encrypted connections to a server whose certificate comes from an authority of the test's own."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infinite_scheduler.errors import StoreUnavailable
from infinite_scheduler.store.sql.statements import Statements
from tests.servers.certificates import Certificates, make_certificates
from tests.servers.node_rig import NodeRig
from tests.services import mariadb, postgres
from tests.services.databases import fresh_database, kind_of
from tests.services.folder import give
from tests.services.private import private_server
from tests.services.server import Kind
from tests.waiting import until_async

pytestmark = pytest.mark.servers


@pytest.fixture
def certificates() -> Iterator[Certificates]:
    """In a folder that the servers' account can enter."""
    folder = Path(tempfile.mkdtemp(prefix="certificates-"))
    folder.chmod(0o755)
    made = make_certificates(folder)
    give(made.key)
    yield made
    shutil.rmtree(folder)


@pytest.fixture(params=["mariadb", "postgres"])
def url(request: pytest.FixtureRequest, certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    kind: Kind = request.param
    files = (f"--ssl-cert={certificates.certificate}", f"--ssl-key={certificates.key}")
    monkeypatch.setattr(mariadb, "SETTINGS", (*mariadb.SETTINGS, *files))
    settings = {"ssl": "on", "ssl_cert_file": str(certificates.certificate), "ssl_key_file": str(certificates.key)}
    monkeypatch.setattr(postgres, "SETTINGS", postgres.SETTINGS | settings)
    with private_server(kind) as server, fresh_database(kind, server) as url:
        yield url


CIPHER = {
    "mariadb": "SHOW STATUS LIKE 'Ssl_cipher'",
    "postgres": "SELECT 'cipher', coalesce(cipher, '') FROM pg_stat_ssl WHERE pid = pg_backend_pid()",
}


async def ciphers(rig: NodeRig, url: str) -> list[str]:
    """What the server says of each connection of a node: how it is encrypted, or nothing."""

    def ask(tx: Statements) -> str:
        cursor: Any = tx.cursor  # type: ignore[attr-defined]
        cursor.execute(CIPHER[kind_of(url)])
        return str(cursor.fetchone()[1])

    store: Any = rig.scheduler._store
    sessions = store._database._sessions.values()
    single = [one for session in sessions for one in getattr(session, "_sessions", [session])]
    return [await session.read(ask) for session in single]


async def test_every_connection_of_a_node_is_encrypted_as_the_server_sees_it(
    url: str, certificates: Certificates
) -> None:
    for options, encrypted in (
        ("sslmode=require", True),
        (f"sslmode=verify-full&sslrootcert={certificates.authority}", True),
        ("sslmode=disable", False),  # so that the question means something
    ):
        rig = NodeRig(f"{url}?{options}")
        async with rig.scheduler:
            ids = await rig.add(5)
            await until_async(lambda: {job for job, _ in rig.deliveries} == set(ids), "they fire")  # noqa: B023
            found = await ciphers(rig, url)
            assert len(found) >= 6, "lanes, doors, heartbeats, readers"
            assert [bool(cipher) for cipher in found] == [encrypted] * len(found)


async def test_a_server_that_the_authorities_do_not_know_is_refused(url: str, certificates: Certificates) -> None:
    elsewhere = url.replace("127.0.0.1", "localhost")
    for address in (
        f"{url}?sslmode=verify-full&sslrootcert=system",
        f"{elsewhere}?sslmode=verify-full&sslrootcert={certificates.authority}",  # another name than the certificate's
    ):
        with pytest.raises(StoreUnavailable, match=r"(?i)certificate|verify"):
            await NodeRig(address).scheduler.open()
