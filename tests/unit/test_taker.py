"""Whose fault it is when a batch cannot be taken."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from infinite_scheduler.errors import PositionsMoved, StoreBroken, StoreUnavailable, UnknownApp
from infinite_scheduler.ingest.message_batch import MessageBatch, Passing
from infinite_scheduler.ingest.request import make_spec
from infinite_scheduler.ingest.taker import Taker
from infinite_scheduler.kafka.partition import AssignedPartition
from tests.unit.door_rig import parts_of
from tests.unit.test_message_batch import CONFIG, NOW, FakeMessage, assigned, job


class TakerRig:
    """Everything around a taker: an inbox that refuses what it is told to, and a consumer that may be in doubt."""

    def __init__(self) -> None:
        self.stopping = False
        self.taken: list[list[bytes]] = []
        self.letters: list[int] = []
        self.refuse: Callable[[list[bytes]], Exception | None] = lambda payloads: None
        self.pauses: list[int] = []
        self.taker = Taker(parts_of(self, CONFIG), lambda letters: None)

    async def take(self, specs: Any, letters: Any, moves: Any) -> Any:
        payloads = [spec.payload for spec in specs]
        if (error := self.refuse(payloads)) is not None:
            raise error
        self.taken.append(payloads)
        self.letters += [letter.offset for letter in letters]
        return [SimpleNamespace(repeated=False, differs=False) for _ in specs]

    async def call(self, what: Callable[[], Any]) -> Any:
        return what()

    async def wait_for(self, what: Any) -> Any:
        return await what

    async def pause(self, ms: int) -> None:
        self.pauses.append(ms)

    def holds(self, assigned: AssignedPartition) -> bool:
        return True

    def forget(self, assigned_partitions: Any) -> None:
        for each in assigned_partitions:
            each.committed = None

    def commit(self, positions: Any) -> None: ...


@pytest.fixture
def rig() -> TakerRig:
    return TakerRig()


def jobs(of: AssignedPartition, count: int) -> Any:
    gathered: Any = [(of, FakeMessage(number)) for number in range(count)]
    return MessageBatch(CONFIG, gathered, [job(number) for number in range(count)])


def numbers(rig: TakerRig) -> list[bytes]:
    return [payload for taken in rig.taken for payload in taken]


async def test_an_error_while_a_message_is_made_ready_is_narrowed_down_to_it(
    rig: TakerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = MessageBatch.load

    def stumble(batch: MessageBatch, *more: Any) -> Any:
        found = load(batch, *more)
        if b'{"n":2}' in [spec.payload for spec in found.specs]:
            raise SystemError("a bug")
        return found

    monkeypatch.setattr(MessageBatch, "load", stumble)
    await rig.taker.take(jobs(assigned(0), 4), Any)  # type: ignore[arg-type]
    assert numbers(rig) == [b'{"n":0}', b'{"n":1}', b'{"n":3}']
    assert rig.letters == [2]


async def test_an_unknown_app_that_is_known_is_no_reason_to_try_for_ever(rig: TakerRig) -> None:
    rig.refuse = lambda payloads: UnknownApp("sms", ["sms"]) if b'{"n":1}' in payloads else None
    await rig.taker.take(jobs(assigned(0), 3), Any)  # type: ignore[arg-type]
    assert numbers(rig) == [b'{"n":0}', b'{"n":2}']
    assert rig.letters == [1]


async def test_a_door_that_stops_leaves_what_fails_and_what_lies_behind_it(rig: TakerRig) -> None:
    def refuse(payloads: list[bytes]) -> Exception | None:
        if b'{"n":1}' not in payloads:
            return None
        rig.stopping = len(payloads) == 1
        return ValueError("a bug")

    rig.refuse = refuse
    one = assigned(0)
    await rig.taker.take(jobs(one, 4), Any)  # type: ignore[arg-type]
    assert numbers(rig) == [b'{"n":0}']
    assert (rig.letters, rig.pauses, one.committed) == ([], [], None)


async def test_whoever_was_overtaken_writes_nothing_and_asks_again_where_to_go_on(rig: TakerRig) -> None:
    rig.refuse = lambda payloads: PositionsMoved("another consumer has read on")
    one = assigned(0)
    await rig.taker.take(jobs(one, 3), Any)  # type: ignore[arg-type]
    assert (rig.taken, rig.letters, one.committed) == ([], [], None)


@pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreBroken("full")], ids=["away", "broken"])
async def test_a_store_that_takes_nothing_makes_no_dead_letters(rig: TakerRig, error: Exception) -> None:
    rig.refuse = lambda payloads: error
    one = assigned(0)
    with pytest.raises(type(error)):
        await rig.taker.take(jobs(one, 3), Any)  # type: ignore[arg-type]
    assert (rig.taken, rig.letters, rig.pauses, one.committed) == ([], [], [], None)


async def test_an_error_that_meets_dead_letters_too_is_not_the_messages_fault(rig: TakerRig) -> None:
    rig.refuse = lambda payloads: ValueError("a bug")
    one = assigned(0)
    with pytest.raises(StoreBroken, match="not the message's"):
        await rig.taker.take(jobs(one, 1), Any)  # type: ignore[arg-type]
    assert (rig.letters, one.committed) == ([], None)


async def test_an_error_that_passes_costs_no_message(rig: TakerRig) -> None:
    errors = [ValueError("a bug"), ValueError("once more")]
    rig.refuse = lambda payloads: errors.pop() if errors else None
    await rig.taker.take(jobs(assigned(0), 1), Any)  # type: ignore[arg-type]
    assert (numbers(rig), rig.letters, rig.pauses) == ([b'{"n":0}'], [], [200, 400])


async def test_a_door_that_stops_leaves_what_it_could_not_check_to_the_next_reader(rig: TakerRig) -> None:
    one = assigned(0)
    gathered: Any = [(one, FakeMessage(number)) for number in range(2)]
    rig.stopping = True
    await rig.taker.take(MessageBatch(CONFIG, gathered, [job(0), Passing("the check fails")]), Any)  # type: ignore[arg-type]
    assert (numbers(rig), rig.letters, one.committed) == ([b'{"n":0}'], [], 1)


async def test_jobs_of_an_unknown_app_are_refused_at_once_and_the_others_taken_together(rig: TakerRig) -> None:
    one = assigned(0)
    gathered: Any = [(one, FakeMessage(number)) for number in range(3)]
    stranger = make_spec("stranger", scheduled_ms=NOW, absolute=True, payload=b'{"n":1}')
    rig.refuse = lambda payloads: UnknownApp("stranger", ["sms"]) if b'{"n":1}' in payloads else None
    await rig.taker.take(MessageBatch(CONFIG, gathered, [job(0), stranger, job(2)]), Any)  # type: ignore[arg-type]
    assert (rig.taken, rig.letters, rig.pauses) == ([[b'{"n":0}', b'{"n":2}']], [1], [])
