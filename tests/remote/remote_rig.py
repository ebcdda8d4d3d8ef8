"""A server in a thread of its own, over a SQLite file: for clients and commands that know its URL alone."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from infinite_scheduler import SyncClient
from infinite_scheduler.config import load_settings
from infinite_scheduler.status_api import JobStatusApi

APP = "shop"


class RemoteRig(msgspec.Struct, frozen=True):
    """Two ways to one store: its own URL, and the URL of a server that speaks for it."""

    own: str
    url: str


@contextmanager
def remote_rig(folder: Path, settings: Mapping[str, Any] | None = None) -> Iterator[RemoteRig]:
    """A store with one app, and its server."""
    own = f"sqlite:///{folder / 'jobs.db'}"
    with SyncClient(own) as client:
        client.register(APP, 2)
    api = JobStatusApi(load_settings(overrides={"store.url": own, **(settings or {})}, environ={}))
    api.start(0)
    try:
        assert api.url is not None
        yield RemoteRig(own, api.url)
    finally:
        api.stop()
