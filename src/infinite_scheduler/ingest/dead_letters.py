"""Sends dead letters to their topic. They are safe in the store, so there is no hurry."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from infinite_scheduler.clock import Clock, wait
from infinite_scheduler.errors import SchedulerError, SendError
from infinite_scheduler.ingest.config import KafkaIngestConfig
from infinite_scheduler.kafka.producer import Producer, Record
from infinite_scheduler.observe import events
from infinite_scheduler.observe.events import Observer
from infinite_scheduler.store.inbox import DeadLetter, Inbox, LetterQuery, Letters, LetterState

LOOK_MS: Final = 10_000
"""How often to look for letters that other nodes left unsent."""

LEFT_MS: Final = 30_000
"""By then the node that wrote a letter has sent it, or could not: from then on the reader of its partition sends it."""

LOST_MS: Final = 3_600_000
"""After this long any node sends a letter: its topic may no longer have the partition."""

_NEXT_PAGE_MS: Final = 1000
"""How soon the next page is read if all letters of a page are for other nodes."""

ROOM: Final = 8 << 20
"""Bytes of letters for one topic that wait in memory; more are read from the store later."""

_FIRST_WAIT_MS: Final = 500
_LONGEST_WAIT_MS: Final = 30_000
_LONGEST_ERROR: Final = 2000

_NOT_ITS_FAULT: Final = frozenset(
    {"CLUSTER_AUTHORIZATION_FAILED", "TOPIC_AUTHORIZATION_FAILED", "TOPIC_EXCEPTION", "INVALID_REQUIRED_ACKS"}
)
"""Refusals that do not depend on the letter: rights can be granted, a name can be corrected."""

_COMPANY: Final = "_INVALID_DIFFERENT_RECORD"
"""A letter that was sent together with a refused one."""

HEADERS: Final = ("original-topic", "original-partition", "original-offset", "error-message", "error-timestamp")


def record(letter: DeadLetter) -> Record:
    """The message on the dead letter topic: key, value and headers as they came, and five headers that say why."""
    source = letter.source
    values = (source.topic, source.partition, letter.offset, letter.error[:_LONGEST_ERROR], letter.failed_ms)
    told = [(name, str(value).encode("utf-8", "backslashreplace")) for name, value in zip(HEADERS, values, strict=True)]
    own = [(name, value) for name, value in letter.headers if name not in HEADERS]
    return Record(str(letter.dlq_topic), letter.key, letter.value, [*own, *told])


class _Queue:
    """The letters that wait for one dead letter topic."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.letters: dict[str, DeadLetter] = {}
        self.ended: dict[str, tuple[LetterState, str | None]] = {}  # results that are not in the store yet
        self.wait_ms = 0
        self.due_ms = 0
        self.troubled = False
        self._size = 0

    def add(self, letter: DeadLetter) -> bool:
        """Queue a letter. False: it already waits, or there is no room for it now."""
        size = _size(letter)
        if letter.id in self.letters or (self.letters and self._size + size > ROOM):
            return False
        self.letters[letter.id] = letter
        self._size += size
        return True

    def drop(self, letter_ids: Iterable[str]) -> None:
        """Forget letters that need nothing more."""
        for key in letter_ids:
            letter = self.letters.pop(key, None)
            self._size -= 0 if letter is None else _size(letter)
            self.ended.pop(key, None)

    def back_off(self, now_ms: int) -> None:
        """Try again after a while, longer each time."""
        self.wait_ms = min(_LONGEST_WAIT_MS, max(_FIRST_WAIT_MS, self.wait_ms * 2))
        self.due_ms = now_ms + self.wait_ms

    def works(self) -> None:
        """Clear the back-off."""
        self.wait_ms, self.due_ms, self.troubled = 0, 0, False


class DeadLetterSender:
    """Sends the letters of one topic and group, at least once each, and marks them in the store.

    Each goes to the dead letter topic that it names, even if the configuration has changed since. If it has waited for
    long, the node that reads its partition (`reads`) sends it: all nodes find it in the store, and one of them sends
    it.
    """

    def __init__(
        self, config: KafkaIngestConfig, inbox: Inbox, clock: Clock, tell: Observer, reads: Callable[[int], bool]
    ) -> None:
        self._config = config
        self._inbox = inbox
        self._clock = clock
        self._tell = tell
        self._reads = reads
        self._queues: dict[str, _Queue] = {}
        self._more = asyncio.Event()
        self._producer: Producer | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._look_due_ms = 0
        self._page: str | None = None
        self.sent = 0

    def start(self) -> None:
        """Begin, including with letters that others left unsent."""
        self._task = asyncio.create_task(self._run(), name=f"dead letters of {self._config.topic}")

    async def stop(self, timeout_s: float = 5.0) -> None:
        """Send what waits, if that is a matter of moments; the store keeps the rest for another node."""
        self._stopping = True
        self._more.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=timeout_s)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._producer is not None:
            await self._producer.stop(timeout_s=1.0)

    def add(self, letters: Iterable[DeadLetter]) -> None:
        """Send these letters, which are in the store. Those without a topic stay there."""
        if self._add(letters):
            self._more.set()

    def look_soon(self) -> None:
        """Look for unsent letters soon: this node reads other partitions now."""
        self._look_due_ms, self._page = 0, None
        self._more.set()

    def _add(self, letters: Iterable[DeadLetter]) -> int:
        added = 0
        for letter in letters:
            if letter.dlq_topic is not None:
                added += self._queues.setdefault(letter.dlq_topic, _Queue(letter.dlq_topic)).add(letter)
        return added

    # Rounds

    async def _run(self) -> None:
        while True:
            self._more.clear()
            if not self._stopping and self._clock.steady_ms() >= self._look_due_ms:
                await self._look()
            for queue in [queue for queue in self._queues.values() if self._is_due(queue)]:
                await self._serve(queue)
            self._queues = {topic: queue for topic, queue in self._queues.items() if queue.letters}
            if self._stopping and all(queue.wait_ms for queue in self._queues.values()):
                return
            await self._rest()

    def _is_due(self, queue: _Queue) -> bool:
        return bool(queue.letters) and (self._stopping or self._clock.steady_ms() >= queue.due_ms)

    async def _rest(self) -> None:
        """Wait until there is something to do."""
        dues = [queue.due_ms for queue in self._queues.values()]
        wait_ms = min([*dues, self._look_due_ms]) - self._clock.steady_ms()
        if wait_ms > 0:
            await wait(self._clock, self._more, wait_ms)

    async def _serve(self, queue: _Queue) -> None:
        try:
            await self._send(queue)
        except SchedulerError as error:
            self._trouble(queue, str(error))
        except Exception as error:  # noqa: BLE001 - sending goes on, whatever it is
            self._fail(error)
            queue.back_off(self._clock.steady_ms())

    # What others left

    async def _look(self) -> None:
        """Find letters that others left unsent, at intervals, however many wait here."""
        self._look_due_ms = self._clock.steady_ms() + LOOK_MS
        try:
            found = await self._left()
            own = [letter for letter in found.letters if not self._is_others(letter)]
            whole = await self._without_cut(own)
        except SchedulerError:
            return  # the door reports that the store does not answer
        except Exception as error:  # noqa: BLE001 - sending goes on, whatever it is
            self._fail(error)
            return
        self._page = found.cursor
        added = self._add(whole)
        if added and (found.cursor is not None or added < len(whole)):
            self._look_due_ms = 0  # there are more
        elif found.cursor is not None and not own:
            self._look_due_ms = self._clock.steady_ms() + _NEXT_PAGE_MS

    async def _left(self) -> Letters:
        """One page of what another node, or this one before a restart, did not send."""
        return await self._inbox.letters(
            LetterQuery(
                group=self._config.group_id,
                topic=self._config.topic,
                state=LetterState.UNSENT,
                before_ms=self._clock.wall_ms() - LEFT_MS,
                oldest_first=True,
                room=ROOM,
                cursor=self._page,
            )
        )

    async def _without_cut(self, letters: Sequence[DeadLetter]) -> Sequence[DeadLetter]:
        """Only those that the store has in full: a part of a message must not be taken for the message."""
        for letter in letters:
            if letter.cut_bytes and not self._waits(letter):
                note = _cut_note(letter)
                await self._inbox.mark([letter.id], LetterState.REFUSED, note)
                self._tell_refused(str(letter.dlq_topic), 1, note)
        return [letter for letter in letters if not letter.cut_bytes]

    def _is_others(self, letter: DeadLetter) -> bool:
        """Has it waited so long that another node should send it?"""
        waited_ms = self._clock.wall_ms() - letter.failed_ms
        return LEFT_MS <= waited_ms < LOST_MS and not self._reads(letter.source.partition)

    def _waits(self, letter: DeadLetter) -> bool:
        queue = self._queues.get(str(letter.dlq_topic))
        return queue is not None and letter.id in queue.letters

    # Sending

    async def _send(self, queue: _Queue) -> None:
        """Send what waits; permanently refused letters are sent again one by one, to find the cause."""
        await self._write_down(queue)
        queue.drop([letter.id for letter in queue.letters.values() if self._is_others(letter)])
        await self._forget_unwanted(queue)
        letters = list(queue.letters.values())
        ends = await self._deliver(letters)
        await self._settle(queue, {key: error for key, error in ends.items() if error is None})
        suspects = [letter for letter in letters if _is_refusal(ends[letter.id])]
        for letter in suspects:
            if len(letters) > 1:
                ends |= await self._deliver([letter])
            error = ends[letter.id]
            if error is not None and not _is_refusal(error):
                break  # the topic does not take letters any more, so the next ones would fail too
            await self._settle(queue, {letter.id: error})
        failed = [error for key, error in ends.items() if error is not None and key in queue.letters]
        blocked = [error for error in failed if not suspects or error.code != _COMPANY]
        if blocked:
            self._trouble(queue, str(blocked[0]))
        else:
            queue.works()

    async def _forget_unwanted(self, queue: _Queue) -> None:
        """Send only what is still to be sent by the store.

        Letters may wait for hours, for their topic or behind others: meanwhile a person may drop or replay some.
        """
        asked = list(queue.letters)  # more may come while the store is asked
        states = await self._inbox.letter_states(asked)
        queue.drop([key for key in asked if states.get(key) is not LetterState.UNSENT])

    async def _settle(self, queue: _Queue, ends: Mapping[str, SendError | None]) -> None:
        """These are sent, or permanently refused: record it in the store before anything is sent again."""
        for key, error in ends.items():
            queue.ended[key] = (LetterState.SENT, None) if error is None else (LetterState.REFUSED, str(error))
        await self._write_down(queue)

    async def _write_down(self, queue: _Queue) -> None:
        """Mark the letters whose result is known."""
        for end in dict.fromkeys(queue.ended.values()):
            keys = [key for key, found in queue.ended.items() if found == end]
            state, note = end
            await self._inbox.mark(keys, state, note)
            queue.drop(keys)
            if state is LetterState.SENT:
                self.sent += len(keys)
                self._tell(events.DeadLettersSent(topic=self._config.topic, dlq_topic=queue.topic, count=len(keys)))
            else:
                self._tell_refused(queue.topic, len(keys), str(note))

    async def _deliver(self, letters: Sequence[DeadLetter]) -> dict[str, SendError | None]:
        """Send these. Returns the result of each."""
        if not letters:
            return {}
        producer = await self._started()
        ends: dict[str, SendError | None] = dict.fromkeys((letter.id for letter in letters), _UNKNOWN)

        def note(at: int, error: SendError | None) -> None:
            ends[letters[at].id] = error

        await producer.send([record(letter) for letter in letters], note)
        return ends

    async def _started(self) -> Producer:
        """The producer, created for the first letter."""
        if self._producer is None:
            producer = Producer(self._config.options)
            await producer.start()
            self._producer = producer
        return self._producer

    # What people hear of it

    def _tell_refused(self, dlq_topic: str, count: int, error: str) -> None:
        self._tell(events.DeadLettersRefused(topic=self._config.topic, dlq_topic=dlq_topic, count=count, error=error))

    def _trouble(self, queue: _Queue, error: str) -> None:
        """Sending fails at the moment: report it once, and retry after a while."""
        if not queue.troubled:
            queue.troubled = True
            self._tell(events.DeadLettersWait(topic=self._config.topic, dlq_topic=queue.topic, error=error))
        queue.back_off(self._clock.steady_ms())

    def _fail(self, error: Exception) -> None:
        self._tell(events.TaskFailed(part=f"dead letters of {self._config.topic}", error=repr(error)))


_UNKNOWN: Final = SendError("not reported", code="_UNKNOWN", retryable=True)


def _is_refusal(error: SendError | None) -> bool:
    """Will the topic never take this letter?"""
    return error is not None and not error.retryable and error.code not in _NOT_ITS_FAULT


def _cut_note(letter: DeadLetter) -> str:
    source = letter.source
    return (
        f"not sent, since {letter.cut_bytes} bytes of the message are not in the store: the whole message was at "
        f"offset {letter.offset} of partition {source.partition} of topic {source.topic!r}"
    )


def _size(letter: DeadLetter) -> int:
    return len(letter.key or b"") + len(letter.value or b"") + 500
