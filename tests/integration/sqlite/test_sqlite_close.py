"""A client of a SQLite file that is closed while changes are on their way."""

from pathlib import Path

from tests.servers.test_client_close import close_amid_changes


async def test_whoever_is_told_at_a_close_that_nothing_was_changed_has_an_unchanged_job(tmp_path: Path) -> None:
    for _ in range(2):
        await close_amid_changes(f"sqlite:///{tmp_path}/jobs.db", changes=60, inserts=600)
