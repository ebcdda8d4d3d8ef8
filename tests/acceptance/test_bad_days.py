"""A database or configuration that cannot work: a clear word, an exit code, and nothing lost or half-written."""

import ctypes
import os
import resource
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.acceptance.checker import judge
from tests.acceptance.handlers import RECORD
from tests.acceptance.installation import clean_environment
from tests.acceptance.place import Place, ServeProcess
from tests.waiting import PATIENCE_S, now_ms, until

BAD_INPUT, NO_STORE = 2, 5

CAP_DAC_OVERRIDE = 1
PR_CAPBSET_DROP = 24


@pytest.fixture
def used(place: Place) -> Place:
    """A place whose database has a job."""
    place.configure()
    place.schedule([{"at": "+1h"}])
    return place


def refused(place: Place, code: int, *words: str) -> None:
    """Both a node and a command say in one line what is wrong, and end with this code."""
    for arguments in (["serve"], ["schedule", place.app, "--in", "1h"]):
        _refused(place.run(*arguments, code=code).stderr, words)


def _refused(stderr: str, words: tuple[str, ...]) -> None:
    assert stderr.startswith("error: ")
    assert stderr.count("\n") == 1, stderr
    for word in words:
        assert word in stderr


def test_a_database_that_may_only_be_read_is_refused(used: Place) -> None:
    used.database.chmod(0o444)
    for arguments in (["serve"], ["schedule", used.app, "--in", "1h"]):
        done = subprocess.run(
            [used.installation.command, *arguments, "--config", str(used.config)],
            check=False,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env=clean_environment(),
            preexec_fn=_obey_file_modes,
        )
        assert done.returncode == NO_STORE
        _refused(done.stderr, (str(used.database), "cannot be written", "write access"))
    used.database.chmod(0o644)
    assert used.statuses() == {"pending": 1}


def _obey_file_modes() -> None:
    """Let even root be bound by the modes of files; for everybody else nothing changes."""
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)


def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(place: Place) -> None:
    place.configure()
    text = b"a letter to my grandmother\n" * 1000
    place.database.write_bytes(text)
    refused(place, NO_STORE, str(place.database), "not a SQLite database")
    assert place.database.read_bytes() == text


def test_a_damaged_database_is_refused(used: Place) -> None:
    with closing(used.connect()) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (pages,) = database.execute("PRAGMA page_count").fetchone()
    content = bytearray(used.database.read_bytes())
    size = len(content) // pages
    content[100:] = os.urandom(size) * pages  # all but the header, so that it looks like a database
    used.database.write_bytes(bytes(content[: size * pages]))
    refused(used, NO_STORE, str(used.database), "damaged", "restore")


def test_a_database_of_a_newer_version_is_refused_and_left_as_it_is(used: Place) -> None:
    with closing(used.connect()) as database:
        database.execute("UPDATE scheduler_schema SET version = 99")
    refused(used, BAD_INPUT, "schema version 99", "upgrade")
    assert used.statuses() == {"pending": 1}


def test_a_folder_that_does_not_exist_is_named(place: Place) -> None:
    place.database = place.folder / "nowhere" / "jobs.db"
    place.configure()
    refused(place, NO_STORE, str(place.database.parent))
    assert not place.database.parent.exists()


def test_another_number_of_shards_than_the_app_was_made_with_is_refused(used: Place) -> None:
    used.configure(app="shards = 8")
    refused(used, BAD_INPUT, "16", "8", used.app)
    used.configure()
    assert used.statuses() == {"pending": 1}


def test_a_handler_module_that_does_not_import_is_refused_with_the_reason(place: Place) -> None:
    (place.folder / "broken.py").write_text("import surely_not_installed\n\ndef handle(job): ...\n")
    place.configure()
    place.config.write_text(place.config.read_text().replace("handlers:record", "broken:handle"))
    _refused(place.run("serve", code=BAD_INPUT).stderr, ("broken:handle", "surely_not_installed", "broken.py"))
    place.config.write_text(place.config.read_text().replace("broken:handle", "absent:handle"))
    _refused(place.run("serve", code=BAD_INPUT).stderr, ("absent:handle", str(place.folder)))
    place.config.write_text(place.config.read_text().replace("absent:handle", "handlers:recrod"))
    _refused(place.run("serve", code=BAD_INPUT).stderr, ("recrod", "'record'"))
    assert not place.database.exists()


def test_an_app_that_is_configured_twice_is_refused(place: Place) -> None:
    place.configure(more=f'[apps.{Place.app}]\nfunction = "handlers:linger"')
    _refused(place.run("serve", code=BAD_INPUT).stderr, (str(place.config), Place.app))
    assert not place.database.exists()


def test_an_unknown_app_is_refused_with_the_names_of_those_that_are_known(used: Place) -> None:
    _refused(
        used.run("schedule", "wrok", "--in", "1h", code=BAD_INPUT).stderr, ("unknown app 'wrok'", f"apps: {used.app}")
    )
    assert used.statuses() == {"pending": 1}


def test_a_file_with_a_bad_line_is_refused_as_a_whole(used: Place) -> None:
    file = used.folder / "jobs.ndjson"
    file.write_text('{"at": "+1h"}\n{"at": "soon"}\n{"at": "+1h"}\n')
    stderr = used.run("schedule", used.app, "--from", str(file), code=BAD_INPUT).stderr
    assert "line 2" in stderr
    assert "nothing was accepted" in stderr
    assert used.statuses() == {"pending": 1}


# No space left


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk that is soon full."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(folder)], check=False, capture_output=True, text=True
    )
    assert not mounted.returncode, f"a small disk needs the right to mount one: {mounted.stderr.strip()}"
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def place_on_a_small_disk(place: Place, small_disk: Path) -> Place:
    place.database = small_disk / "jobs.db"
    return place


@pytest.mark.timeout(180)
def test_a_disk_that_is_full_for_a_while_costs_lateness_and_nothing_else(place_on_a_small_disk: Place) -> None:
    place = place_on_a_small_disk
    place.configure()
    node = place.node().ready()
    start_ms = now_ms() + 3000
    promised = place.schedule({"at": start_ms + 4 * number} for number in range(1500))
    _fill(place.database.with_name("filler"))
    large = place.folder / "large.ndjson"  # more than there may be room for in the log of the database
    large.write_text(('{"at": "+1s", "data": "' + "x" * 500_000 + '"}\n') * 20)
    stderr = place.run("schedule", place.app, "--from", str(large), code=NO_STORE).stderr
    assert "no space left" in stderr
    assert "0 jobs" in stderr
    until(lambda: "no space left" in node.stderr, "the node says that the disk is full")
    time.sleep(3)
    assert node.alive

    place.database.with_name("filler").unlink()
    place.settled()
    _all_fired_once(place, promised)
    until(lambda: "answers again" in node.stderr, "the node says that there is space again")
    assert node.stderr.count("does not answer") <= 3, "a full disk is no reason to flood the log"
    assert node.stop() == 0


def _fill(file: Path) -> None:
    with file.open("wb", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(bytes(4096))


def _all_fired_once(place: Place, promised: dict[str, int]) -> None:
    verdict = judge(place.evidence(promised))
    assert not verdict.faults
    assert not verdict.explained
    assert place.statuses() == {"done": len(promised)}


@pytest.mark.timeout(180)
def test_a_node_that_starts_on_a_full_disk_says_so(place_on_a_small_disk: Place) -> None:
    place = place_on_a_small_disk
    place.configure()
    _fill(place.database.with_name("filler"))
    refused(place, NO_STORE, "no space left")


@pytest.mark.timeout(180)
def test_a_node_whose_writes_fail_for_a_while_settles_everything_afterwards(place: Place) -> None:
    place.configure()
    node = place.node().ready()
    start_ms = now_ms() + 3000
    promised = place.schedule({"at": start_ms + 4 * number, "data": "x" * 1000} for number in range(1500))
    _limit(node, RECORD * 2 * len(promised))  # so that the handlers can write all down
    until(lambda: "The store does not answer" in node.stderr, "the node says that it cannot write")
    time.sleep(3)
    assert node.alive

    _limit(node, resource.RLIM_INFINITY)
    place.settled()
    _all_fired_once(place, promised)
    until(lambda: "answers again" in node.stderr, "the node says that it can write again")
    assert node.stop() == 0


def _limit(node: ServeProcess, size: int) -> None:
    """Let no file that this process writes grow beyond a size: the database and its log are longer already."""
    resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
