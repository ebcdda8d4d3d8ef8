"""The guides' scheduler on the server that their keywords name."""

from datetime import timedelta
from queue import SimpleQueue
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from infinite_scheduler import Job, MultiAppScheduler
from infinite_scheduler.errors import StoreMismatch
from tests.services.databases import execute

BOUND_S = 20


def keywords(url: str) -> dict[str, Any]:
    """The parts of an address, as the guides name them."""
    parts = urlsplit(url)
    return {
        "mysql_host": parts.hostname,
        "mysql_port": parts.port,
        "mysql_database": parts.path.removeprefix("/"),
        "mysql_username": parts.username,
        "mysql_password": unquote(parts.password or ""),
    }


def test_the_keywords_of_the_guides_reach_a_real_server(mariadb_url: str) -> None:
    jobs: SimpleQueue[Job] = SimpleQueue()
    manager = MultiAppScheduler(**keywords(mariadb_url))
    manager.register_app("sms", jobs.put)
    with manager:
        accepted = manager.schedule_job("sms", {"phoneNumber": "+1"}, timedelta(0))
        job = jobs.get(timeout=BOUND_S)
    assert (job.id, job.data) == (accepted.id, {"phoneNumber": "+1"})
    table = f"sms_scheduled_jobs_{job.due_at:%Y%m%d}"
    rows = execute(mariadb_url, f"SELECT job_id, status FROM {table}")
    assert [tuple(row) for row in rows] == [(accepted.id, "done")]


def test_a_wrong_password_is_refused_without_showing_it(mariadb_url: str) -> None:
    manager = MultiAppScheduler(**{**keywords(mariadb_url), "mysql_password": "hush"})
    manager.register_app("sms", print)
    with pytest.raises(StoreMismatch, match="refuses the user or the password") as raised:
        manager.start_all()
    assert "hush" not in str(raised.value)
    assert not manager.is_running
