"""Encrypted connections to a server whose certificate comes from an authority of the test's own."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from infinite_scheduler.errors import StoreUnavailable
from tests.servers.certificates import Certificates, make_certificates
from tests.servers.rig import Rig, until
from tests.services import mariadb, postgres
from tests.services.databases import fresh_database
from tests.services.folder import give
from tests.services.private import private_server
from tests.services.server import Kind

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


async def test_a_node_works_over_an_encrypted_connection(url: str, certificates: Certificates) -> None:
    for options in ("sslmode=require", f"sslmode=verify-full&sslrootcert={certificates.authority}"):
        rig = Rig(f"{url}?{options}")
        async with rig.scheduler:
            ids = await rig.add(5)
            await until(lambda: {job for job, _ in rig.deliveries} == set(ids), "they fire")  # noqa: B023


async def test_a_server_that_the_authorities_do_not_know_is_refused(url: str, certificates: Certificates) -> None:
    elsewhere = url.replace("127.0.0.1", "localhost")
    for address in (
        f"{url}?sslmode=verify-full&sslrootcert=system",
        f"{elsewhere}?sslmode=verify-full&sslrootcert={certificates.authority}",  # another name than the certificate's
    ):
        with pytest.raises(StoreUnavailable, match=r"(?i)certificate|verify"):
            await Rig(address).scheduler.open()
