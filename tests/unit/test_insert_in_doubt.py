"""An insert whose answer was lost: what its caller is told if the repetition fails too."""

import pytest

from infinite_scheduler.client import Client
from infinite_scheduler.errors import StoreBusy, StoreUnavailable


async def test_an_insert_in_doubt_is_never_said_to_be_unwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = [StoreUnavailable("the answer to a commit was lost"), StoreBusy("waited for locks, nothing was written")]

    async def fail(_: object) -> object:
        raise errors.pop(0)

    async with Client("sqlite:///:memory:") as client:
        await client.register("mail")
        monkeypatch.setattr(client._store._door, "write", fail)  # type: ignore[attr-defined]
        with pytest.raises(StoreUnavailable, match="unknown whether the jobs were accepted") as told:
            await client.schedule("mail", delay="1h")
    assert not isinstance(told.value, StoreBusy)
    assert "nothing was written" not in str(told.value)
