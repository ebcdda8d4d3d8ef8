"""A change whose answer was lost: it is asked again, made once, and never said to be unmade."""

from typing import Any

import pytest

from infinite_scheduler.client import Client
from infinite_scheduler.errors import StoreBroken, StoreUnavailable
from infinite_scheduler.model import Status
from infinite_scheduler.store.sql.statements import Body


def lose_answers(client: Client, monkeypatch: pytest.MonkeyPatch, *then: Exception) -> None:
    """Let the next transaction take place without an answer, and those after it fail like this."""
    door: Any = client._store._door  # type: ignore[attr-defined]
    write = door.write
    errors = list(then)

    async def lost(body: Body[Any]) -> Any:
        monkeypatch.setattr(door, "write", fails if errors else write)
        await write(body)
        raise StoreUnavailable("the answer to a commit was lost")

    async def fails(body: Body[Any]) -> Any:
        raise errors.pop(0)

    monkeypatch.setattr(door, "write", lost)


async def test_a_retry_by_hand_whose_answer_was_lost_is_made_once_and_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Client("sqlite:///:memory:") as client:
        await client.register("mail")
        job = await client.schedule("mail", delay="1h")
        await client.cancel(job.id)
        lose_answers(client, monkeypatch)
        record = await client.retry(job.id)
        assert (record.status, record.job.attempt) == (Status.PENDING, 2)
        assert (await client.survey()).counts["mail"]["revived"] == 1


@pytest.mark.parametrize("change", ["cancel", "reschedule", "run_now", "retry"])
async def test_a_change_in_doubt_is_never_said_to_be_unmade(monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    async with Client("sqlite:///:memory:") as client:
        await client.register("mail")
        job = await client.schedule("mail", delay="1h")
        if change == "retry":
            await client.cancel(job.id)
        lose_answers(client, monkeypatch, StoreBroken("no space left; nothing was committed"))
        with pytest.raises(StoreUnavailable, match="unknown whether the change takes place"):
            await getattr(client, change)(job.id, **({"delay": "2h"} if change == "reschedule" else {}))
        monkeypatch.undo()
        found = await client.get(job.id)
        assert found.status is (Status.CANCELLED if change == "cancel" else Status.PENDING)
        assert change == "cancel" or found.job.due_ms != job.due_ms, "it was made"
