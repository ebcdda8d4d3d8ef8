"""Before a command opens a SQLite file: is it a store, or about to become one?"""

import threading
from pathlib import Path

import pytest

from infinite_scheduler.cli.store_exists import check_there
from infinite_scheduler.config import load_settings
from infinite_scheduler.errors import StoreMismatch
from infinite_scheduler.sync_client import SyncClient


def test_a_blank_file_that_a_node_is_making_a_store_of_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infinite_scheduler.store.sql.sqlite.scheme.MAKING_MS", 60_000)  # a slow disk takes its time
    path = tmp_path / "new.db"
    path.touch()
    made = threading.Event()

    def make() -> None:
        with SyncClient(f"sqlite:///{path}"):
            made.set()

    maker = threading.Timer(0.2, make)
    maker.start()
    check_there(load_settings(overrides={"store": {"url": f"sqlite:///{path}"}}))
    maker.join()
    assert made.is_set()


def test_a_file_that_stays_blank_is_no_store_and_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infinite_scheduler.store.sql.sqlite.scheme.MAKING_MS", 50)
    path = tmp_path / "blank.db"
    path.touch()
    with pytest.raises(StoreMismatch, match="is not a store"):
        check_there(load_settings(overrides={"store": {"url": f"sqlite:///{path}"}}))
    assert path.read_bytes() == b""
