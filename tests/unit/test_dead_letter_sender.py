"""Dead letters on their way to their topic: who is refused, who waits, and who must not be held up by that."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from infinite_scheduler.errors import SendError, StoreUnavailable
from infinite_scheduler.ingest import dead_letters
from infinite_scheduler.ingest.config import KafkaIngestConfig
from infinite_scheduler.ingest.dead_letters import LEFT_MS, LOOK_MS, LOST_MS, DeadLetterSender
from infinite_scheduler.kafka.producer import Record
from infinite_scheduler.model import Accepted, JobSpec
from infinite_scheduler.observe import events
from infinite_scheduler.observe.events import Event
from infinite_scheduler.store.inbox import (
    DeadLetter,
    Inbox,
    LetterQuery,
    Letters,
    LetterState,
    Move,
    Source,
    TopicPosition,
    new_letter_id,
)
from infinite_scheduler.testing import ManualClock

UNSENT, SENT, REFUSED = LetterState.UNSENT, LetterState.SENT, LetterState.REFUSED
NO_KEY = SendError("every message needs a key", code="INVALID_RECORD", retryable=False)
COMPANY = SendError("another one is invalid", code="_INVALID_DIFFERENT_RECORD", retryable=True)
TOO_LARGE = SendError("too large", code="MSG_SIZE_TOO_LARGE", retryable=False, too_large=True)
NO_RIGHT = SendError("not allowed", code="TOPIC_AUTHORIZATION_FAILED", retryable=False)
MISSING = SendError("does not exist", code="_UNKNOWN_TOPIC", retryable=True)

Answer = Callable[[Sequence[Record]], Sequence[SendError | None]]


class FakeKafka:
    """Answers each sending as it is told to."""

    def __init__(self) -> None:
        self.sendings: list[list[tuple[str, bytes | None]]] = []
        self.answer: Answer = lambda records: [None] * len(records)

    def __call__(self, options: object) -> "FakeKafka":
        return self

    async def start(self) -> None: ...

    async def stop(self, timeout_s: float) -> bool:
        return True

    async def send(self, records: Sequence[Record], delivered: Callable[[int, SendError | None], None]) -> None:
        self.sendings.append([(record.topic, record.value) for record in records])
        for number, error in enumerate(self.answer(records)):
            delivered(number, error)


class FakeInbox(Inbox):
    """The letters of a store in memory."""

    def __init__(self) -> None:
        self.rows: dict[str, DeadLetter] = {}
        self.queries = 0
        self.away = False

    def keep(self, *letters: DeadLetter) -> None:
        self.rows.update({letter.id: letter for letter in letters})

    async def letters(self, query: LetterQuery) -> Letters:
        self.queries += 1
        assert query.oldest_first
        found = [
            row
            for key, row in sorted(self.rows.items())
            if query.group in {None, row.source.group}
            and query.topic in {None, row.source.topic}
            and query.state in {None, row.state}
            and (query.before_ms is None or row.failed_ms < query.before_ms)
            and (query.cursor is None or key > query.cursor)
        ]
        page = found[: query.limit]
        return Letters(letters=page, cursor=page[-1].id if len(page) < len(found) else None)

    async def mark(self, letter_ids: Collection[str], state: LetterState, note: str | None = None) -> None:
        if self.away:
            raise StoreUnavailable("the store is away")
        for key in letter_ids:
            if self.rows[key].state is UNSENT:
                self.rows[key] = msgspec.structs.replace(self.rows[key], state=state, note=note)

    async def letter_states(self, letter_ids: Collection[str]) -> Mapping[str, LetterState]:
        if self.away:
            raise StoreUnavailable("the store is away")
        return {key: self.rows[key].state for key in letter_ids if key in self.rows}

    async def drop(self, letter_ids: Collection[str]) -> Mapping[str, LetterState]:
        for key in letter_ids:
            self.rows[key] = msgspec.structs.replace(self.rows[key], state=LetterState.DROPPED)
        return await self.letter_states(letter_ids)

    async def take(
        self, specs: Sequence[JobSpec], letters: Sequence[DeadLetter], moves: Sequence[Move]
    ) -> Sequence[Accepted]:
        raise NotImplementedError

    async def positions(self, group: str | None = None, topic: str | None = None) -> Sequence[TopicPosition]:
        raise NotImplementedError

    async def reset(self, moves: Sequence[Move]) -> None:
        raise NotImplementedError

    async def letter(self, letter_id: str) -> DeadLetter | None:
        raise NotImplementedError

    async def replay(self, letter_id: str, spec: JobSpec) -> Accepted:
        raise NotImplementedError

    async def letter_counts(self) -> Mapping[tuple[str, str], int]:
        raise NotImplementedError

    async def live_keys(self) -> int:
        raise NotImplementedError


class SenderRig:
    def __init__(self, kafka: FakeKafka, **options: Any) -> None:
        self.kafka = kafka
        self.inbox = FakeInbox()
        self.clock = ManualClock()
        self.told: list[Event] = []
        self.config = KafkaIngestConfig(**{"topic": "jobs", "dlq_topic": "dead", "group_id": "group", **options})
        self.held = {0}
        self.sender = DeadLetterSender(
            self.config, self.inbox, self.clock, self.told.append, lambda partition: partition in self.held
        )

    def letter(self, value: bytes, *, age_ms: int = 0, **fields: Any) -> DeadLetter:
        failed_ms = self.clock.wall_ms() - age_ms
        known: dict[str, Any] = {"source": Source("group", "jobs", 0), "dlq_topic": "dead", "key": b"k"}
        made = DeadLetter(
            id=new_letter_id(failed_ms),
            offset=7,
            value=value,
            headers=(),
            error="bad",
            failed_ms=failed_ms,
            **{"state": UNSENT, **known, **fields},
        )
        self.inbox.keep(made)
        return made

    def add(self, *values: bytes, **fields: Any) -> None:
        self.sender.add([self.letter(value, **fields) for value in values])

    def ends(self) -> dict[bytes, tuple[LetterState, str | None]]:
        return {row.value or b"": (row.state, row.note) for row in self.inbox.rows.values()}

    def heard(self, kind: type[Event]) -> int:
        return len([event for event in self.told if isinstance(event, kind)])

    async def settle(self, ms: int = 0) -> None:
        """Let it do what it has to, and then so much time go by."""
        until_ms = self.clock.steady_ms() + ms
        more = True
        while more:
            for _ in range(30):
                await asyncio.sleep(0)
            more = self.clock.step(until_ms)


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> FakeKafka:
    fake = FakeKafka()
    monkeypatch.setattr(dead_letters, "Producer", fake)
    return fake


@asynccontextmanager
async def running(kafka: FakeKafka, **options: Any) -> AsyncIterator[SenderRig]:
    rig = SenderRig(kafka, **options)
    rig.sender.start()
    try:
        await rig.settle()
        yield rig
    finally:
        await rig.sender.stop()


def compacted(records: Sequence[Record]) -> Sequence[SendError | None]:
    """A topic that takes nothing without a key, and blames all that came with it."""
    if all(record.key is not None for record in records):
        return [None] * len(records)
    return [NO_KEY if record.key is None else COMPANY for record in records]


async def test_one_that_is_refused_for_good_is_marked_and_holds_up_no_other(kafka: FakeKafka) -> None:
    kafka.answer = compacted
    async with running(kafka) as rig:
        keyless = rig.letter(b"keyless", key=None)
        rig.sender.add([rig.letter(b"one"), keyless, rig.letter(b"two")])
        await rig.settle()
        assert rig.ends() == {
            b"one": (SENT, None),
            b"two": (SENT, None),
            b"keyless": (REFUSED, "every message needs a key"),
        }
        assert rig.sender.sent == 2
        assert (rig.heard(events.DeadLettersRefused), rig.heard(events.DeadLettersWait)) == (1, 0)


async def test_one_that_was_refused_only_together_with_another_is_sent(kafka: FakeKafka) -> None:
    def answer(records: Sequence[Record]) -> Sequence[SendError | None]:
        return [TOO_LARGE] * len(records) if len(records) > 1 or records[0].value == b"large" else [None]

    kafka.answer = answer
    async with running(kafka) as rig:
        rig.add(b"one", b"large", b"two")
        await rig.settle()
        assert rig.ends() == {b"one": (SENT, None), b"large": (REFUSED, "too large"), b"two": (SENT, None)}


@pytest.mark.parametrize("error", [NO_RIGHT, MISSING])
async def test_what_somebody_can_put_right_is_waited_for(kafka: FakeKafka, error: SendError) -> None:
    kafka.answer = lambda records: [error] * len(records)
    async with running(kafka) as rig:
        rig.add(b"one", b"two")
        await rig.settle(20_000)
        assert {state for state, _ in rig.ends().values()} == {UNSENT}
        assert (rig.heard(events.DeadLettersWait), rig.heard(events.DeadLettersRefused)) == (1, 0)
        kafka.answer = lambda records: [None] * len(records)
        await rig.settle(30_000)
        assert {state for state, _ in rig.ends().values()} == {SENT}


async def test_one_by_one_ends_when_nothing_works_any_more(kafka: FakeKafka) -> None:
    kafka.answer = lambda records: [TOO_LARGE] * len(records) if len(records) > 1 else [MISSING]
    async with running(kafka) as rig:
        rig.add(*(b"%d" % number for number in range(50)))
        await rig.settle()
        assert [len(sending) for sending in kafka.sendings] == [50, 1]
        assert rig.heard(events.DeadLettersWait) == 1


async def test_those_without_anybody_to_blame_are_not_sent_again_at_once(kafka: FakeKafka) -> None:
    kafka.answer = lambda records: [COMPANY] * len(records)
    async with running(kafka) as rig:
        rig.add(b"one", b"two")
        await rig.settle()
        assert len(kafka.sendings) == 1


async def test_one_topic_that_is_missing_holds_up_no_other(kafka: FakeKafka) -> None:
    kafka.answer = lambda records: [MISSING if record.topic == "gone" else None for record in records]
    async with running(kafka) as rig:
        rig.add(b"old", dlq_topic="gone")
        await rig.settle(60_000)
        rig.add(b"new")
        await rig.settle()
        assert rig.ends() == {b"old": (UNSENT, None), b"new": (SENT, None)}


@pytest.mark.parametrize("configured", ["dead", "other", None])
async def test_what_others_left_goes_to_the_topic_that_it_names(kafka: FakeKafka, configured: str | None) -> None:
    async with running(kafka, dlq_topic=configured) as rig:
        rig.letter(b"left", age_ms=LEFT_MS + 1)
        rig.letter(b"kept", age_ms=LEFT_MS + 1, dlq_topic=None, state=LetterState.KEPT)
        await rig.settle(LOOK_MS)
        assert kafka.sendings == [[("dead", b"left")]]
        assert rig.ends() == {b"left": (SENT, None), b"kept": (LetterState.KEPT, None)}


async def test_those_without_a_topic_are_not_sent(kafka: FakeKafka) -> None:
    async with running(kafka, dlq_topic=None) as rig:
        rig.add(b"kept", dlq_topic=None, state=LetterState.KEPT)
        await rig.settle(LOOK_MS)
        assert kafka.sendings == []


async def test_what_others_left_is_looked_for_while_letters_wait(kafka: FakeKafka) -> None:
    kafka.answer = lambda records: [MISSING if record.topic == "gone" else None for record in records]
    async with running(kafka) as rig:
        rig.add(b"waits", dlq_topic="gone")
        await rig.settle()
        rig.letter(b"left", age_ms=LEFT_MS + 1)
        await rig.settle(LOOK_MS)
        assert rig.ends() == {b"waits": (UNSENT, None), b"left": (SENT, None)}


async def test_letters_that_cannot_be_sent_do_not_hide_those_behind_them(kafka: FakeKafka) -> None:
    kafka.answer = lambda records: [MISSING if record.topic == "gone" else None for record in records]
    async with running(kafka) as rig:
        for number in range(250):
            rig.letter(b"%d" % number, age_ms=2 * LEFT_MS, dlq_topic="gone")
        rig.letter(b"behind", age_ms=LEFT_MS + 1)
        await rig.settle(LOOK_MS)
        assert rig.ends()[b"behind"] == (SENT, None)


async def test_those_that_another_may_still_send_and_those_of_other_groups_are_left_alone(kafka: FakeKafka) -> None:
    async with running(kafka) as rig:
        rig.letter(b"young")
        rig.letter(b"other group", age_ms=LEFT_MS + 1, source=Source("other", "jobs", 0))
        rig.letter(b"other topic", age_ms=LEFT_MS + 1, source=Source("group", "other", 0))
        await rig.settle(LOOK_MS)
        assert kafka.sendings == []
        assert {state for state, _ in rig.ends().values()} == {UNSENT}


async def test_what_has_waited_for_long_is_sent_by_whoever_reads_its_partition(kafka: FakeKafka) -> None:
    async with running(kafka) as rig:
        rig.letter(b"mine", age_ms=LEFT_MS)
        rig.letter(b"another's", age_ms=LEFT_MS, source=Source("group", "jobs", 1))
        rig.letter(b"another's, in part", age_ms=LEFT_MS, source=Source("group", "jobs", 1), cut_bytes=9)
        await rig.settle(LOOK_MS)
        assert kafka.sendings == [[("dead", b"mine")]]
        rig.held = {1}
        rig.sender.look_soon()
        await rig.settle()
        assert kafka.sendings == [[("dead", b"mine")], [("dead", b"another's")]]
        assert rig.ends()[b"another's, in part"][0] is REFUSED


async def test_two_nodes_send_what_waited_for_its_topic_once(kafka: FakeKafka) -> None:
    """Each has written a letter of the partition that it reads, and finds that of the other in the store."""
    kafka.answer = lambda records: [MISSING] * len(records)
    async with running(kafka) as one:
        other = SenderRig(kafka)
        other.inbox, other.clock, other.held = one.inbox, one.clock, {1}
        other.sender = DeadLetterSender(one.config, one.inbox, one.clock, other.told.append, other.held.__contains__)
        other.sender.start()
        one.add(b"one")
        other.add(b"two", source=Source("group", "jobs", 1))
        await one.settle(4 * LEFT_MS)
        kafka.answer, before = (lambda records: [None] * len(records)), len(kafka.sendings)
        await one.settle(LEFT_MS)
        assert sorted(kafka.sendings[before:]) == [[("dead", b"one")], [("dead", b"two")]]
        assert set(one.ends().values()) == {(SENT, None)}
        await other.sender.stop()


async def test_one_whose_partition_has_gone_to_another_node_is_left_to_that(kafka: FakeKafka) -> None:
    kafka.answer = lambda records: [MISSING] * len(records)
    async with running(kafka) as rig:
        rig.add(b"one")
        rig.held = set()
        await rig.settle(LEFT_MS - 1)
        before = len(kafka.sendings)
        kafka.answer = lambda records: [None] * len(records)
        await rig.settle(10 * LEFT_MS)
        assert (before > 1, kafka.sendings[before:]) == (True, [])
        assert {state for state, _ in rig.ends().values()} == {UNSENT}
        rig.held = {0}
        await rig.settle(LOOK_MS)
        assert {state for state, _ in rig.ends().values()} == {SENT}


async def test_one_whose_partition_nobody_reads_is_sent_in_the_end(kafka: FakeKafka) -> None:
    async with running(kafka) as rig:
        rig.letter(b"left", age_ms=LEFT_MS, source=Source("group", "jobs", 77))
        await rig.settle(LOST_MS - LEFT_MS - 1)
        assert kafka.sendings == []
        await rig.settle(1 + LOOK_MS)
        assert kafka.sendings == [[("dead", b"left")]]


async def test_letters_of_others_do_not_hide_those_behind_them(kafka: FakeKafka) -> None:
    async with running(kafka) as rig:
        for number in range(350):
            rig.letter(b"%d" % number, age_ms=2 * LEFT_MS, source=Source("group", "jobs", 1))
        rig.letter(b"behind", age_ms=LEFT_MS)
        await rig.settle(LOOK_MS + 5000)
        assert kafka.sendings == [[("dead", b"behind")]]
        assert rig.inbox.queries < 10


async def test_letters_beyond_the_room_are_read_from_the_store_later(
    kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "ROOM", 2000)
    async with running(kafka) as rig:
        rig.add(b"a" * 400, b"b" * 400, b"c" * 400, b"d" * 5000)
        await rig.settle()
        assert [len(sending) for sending in kafka.sendings] == [2]
        await rig.settle(LEFT_MS + LOOK_MS)
        assert {state for state, _ in rig.ends().values()} == {SENT}
        assert [len(sending) for sending in kafka.sendings] == [2, 1, 1]


async def test_one_that_the_store_has_in_part_only_is_not_sent(kafka: FakeKafka) -> None:
    async with running(kafka) as rig:
        rig.letter(b"a par", age_ms=LEFT_MS + 1, cut_bytes=95)
        rig.letter(b"whole", age_ms=LEFT_MS + 1)
        await rig.settle(LOOK_MS)
        assert kafka.sendings == [[("dead", b"whole")]]
        state, note = rig.ends()[b"a par"]
        assert state is REFUSED
        assert "95 bytes of the message are not in the store" in str(note)
        assert "offset 7 of partition 0 of topic 'jobs'" in str(note)
        assert rig.heard(events.DeadLettersRefused) == 1


async def test_one_that_is_whole_in_memory_is_sent_although_the_store_has_a_part(kafka: FakeKafka) -> None:
    kafka.answer = lambda records: [MISSING] * len(records)
    async with running(kafka) as rig:
        whole = rig.letter(b"whole")
        rig.inbox.keep(msgspec.structs.replace(whole, value=b"who", cut_bytes=2))
        rig.sender.add([whole])
        await rig.settle(2 * LEFT_MS)
        kafka.answer = lambda records: [None] * len(records)
        await rig.settle(LEFT_MS)
        assert kafka.sendings[-1] == [("dead", b"whole")]
        assert rig.ends() == {b"who": (SENT, None)}


async def test_what_is_sent_is_not_sent_again_while_the_store_is_away(kafka: FakeKafka) -> None:
    async with running(kafka) as rig:
        rig.inbox.away = True
        rig.add(b"one")
        await rig.settle(100_000)
        rig.inbox.away = False
        await rig.settle(30_000)
        assert kafka.sendings == [[("dead", b"one")]]
        assert rig.ends() == {b"one": (SENT, None)}
        assert rig.heard(events.DeadLettersWait) == 1


async def test_a_letter_that_is_dropped_while_its_topic_is_away_is_not_sent(kafka: FakeKafka) -> None:
    kafka.answer = lambda records: [MISSING] * len(records)
    async with running(kafka) as rig:
        dropped, wanted = rig.letter(b"1"), rig.letter(b"2")
        rig.sender.add([dropped, wanted])
        await rig.settle(5000)
        await rig.inbox.drop([dropped.id])
        kafka.answer = lambda records: [None] * len(records)
        kafka.sendings.clear()
        await rig.settle(60_000)
        assert kafka.sendings == [[("dead", b"2")]]
        assert rig.ends() == {b"1": (LetterState.DROPPED, None), b"2": (SENT, None)}


async def test_a_letter_that_is_dropped_while_others_are_sent_is_not_sent(
    kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, send = asyncio.Event(), kafka.send

    async def slowly(records: Sequence[Record], delivered: Callable[[int, SendError | None], None]) -> None:
        await send(records, delivered)
        await slow.wait()

    monkeypatch.setattr(kafka, "send", slowly)
    async with running(kafka) as rig:
        rig.add(b"1")
        await rig.settle(0)
        dropped = rig.letter(b"2", dlq_topic="other")
        rig.sender.add([dropped, rig.letter(b"3")])
        await rig.settle(5000)
        await rig.inbox.drop([dropped.id])
        slow.set()
        await rig.settle(5000)
        assert kafka.sendings == [[("dead", b"1")], [("dead", b"3")]]


async def test_a_letter_that_comes_while_others_are_looked_up_is_sent_at_once(
    kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(kafka) as rig:
        states, late = rig.inbox.letter_states, [rig.letter(b"2")]

        async def busy(letter_ids: Collection[str]) -> Mapping[str, LetterState]:
            found = await states(letter_ids)
            if late:
                rig.sender.add([late.pop()])
            return found

        monkeypatch.setattr(rig.inbox, "letter_states", busy)
        rig.add(b"1")
        await rig.settle(1000)
        assert {value for sending in kafka.sendings for _, value in sending} == {b"1", b"2"}


async def test_a_letter_that_is_dropped_while_it_is_sent_stays_dropped(kafka: FakeKafka) -> None:
    async with running(kafka) as rig:
        letter = rig.letter(b"1")

        def dropped_meanwhile(records: Sequence[Record]) -> Sequence[SendError | None]:
            rig.inbox.keep(msgspec.structs.replace(letter, state=LetterState.DROPPED))
            return [None] * len(records)

        kafka.answer = dropped_meanwhile
        rig.sender.add([letter])
        await rig.settle(60_000)
        assert kafka.sendings == [[("dead", b"1")]]
        assert rig.ends() == {b"1": (LetterState.DROPPED, None)}


async def test_a_stop_sends_what_waits(kafka: FakeKafka) -> None:
    kafka.answer = compacted
    async with running(kafka) as rig:
        keyless = rig.letter(b"keyless", key=None)
        rig.sender.add([rig.letter(b"one"), keyless])
        await rig.sender.stop()
        assert [state for state, _ in rig.ends().values()] == [REFUSED, SENT]


async def test_a_stop_does_not_wait_for_what_does_not_work(kafka: FakeKafka) -> None:
    def broken(records: Sequence[Record]) -> Sequence[SendError | None]:
        raise RuntimeError("what is that?")

    kafka.answer = broken
    async with running(kafka) as rig:
        rig.add(b"one")
        await rig.sender.stop()
        assert len(kafka.sendings) <= 2
        assert rig.heard(events.TaskFailed) >= 1


async def test_a_store_that_is_asked_only_by_time(kafka: FakeKafka) -> None:
    async with running(kafka) as rig:
        rig.add(b"one")
        await rig.settle(5 * LOOK_MS)
        assert rig.inbox.queries == 6
