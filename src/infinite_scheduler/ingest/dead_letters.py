"""Sends dead letters to their topic: they are safe in the store, so this may take as long as it takes."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from infinite_scheduler.clock import Clock, wait
from infinite_scheduler.errors import SchedulerError, SendError
from infinite_scheduler.ingest.kafka import KafkaIngestConfig
from infinite_scheduler.kafka.producer import Producer, Record
from infinite_scheduler.observe import events
from infinite_scheduler.observe.events import Observer
from infinite_scheduler.store.inbox import DeadLetter, Inbox, LetterQuery, LetterState

LOOK_MS: Final = 10_000
"""How often letters are looked for that others left unsent."""

LEFT_MS: Final = 30_000
"""Who wrote a letter has sent it by then, or has died."""

ROOM: Final = 8 << 20
"""Bytes of letters that wait in memory; those beyond are read from the store later."""

_FIRST_WAIT_MS: Final = 500
_LONGEST_WAIT_MS: Final = 30_000
_LONGEST_ERROR: Final = 2000

HEADERS: Final = ("original-topic", "original-partition", "original-offset", "error-message", "error-timestamp")


def record(letter: DeadLetter) -> Record:
    """The message on the dead letter topic: key, value and headers as they came, and five headers that say why."""
    source = letter.source
    values = (source.topic, source.partition, letter.offset, letter.error[:_LONGEST_ERROR], letter.failed_ms)
    told = [(name, str(value).encode("utf-8", "backslashreplace")) for name, value in zip(HEADERS, values, strict=True)]
    own = [(name, value) for name, value in letter.headers if name not in HEADERS]
    return Record(str(letter.dlq_topic), letter.key, letter.value, [*own, *told])


class DeadLetterSender:
    """Sends the letters of one topic and group, at least once each, and marks them in the store."""

    def __init__(self, config: KafkaIngestConfig, inbox: Inbox, clock: Clock, tell: Observer) -> None:
        self._config = config
        self._inbox = inbox
        self._clock = clock
        self._tell = tell
        self._waiting: dict[str, DeadLetter] = {}
        self._size = 0
        self._more = asyncio.Event()
        self._producer: Producer | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._nap = asyncio.Event()
        self._looked_ms: int | None = None
        self._wait_ms = 0
        self._troubled = False
        self.sent = 0

    def start(self) -> None:
        """Begin: also with what others left."""
        if self._config.dlq_topic is not None:
            self._task = asyncio.create_task(self._run(), name=f"dead letters of {self._config.topic}")

    async def stop(self, timeout_s: float = 5.0) -> None:
        """Send what waits, if that is a matter of moments; else the store keeps it for whoever comes next."""
        self._stopping = True
        self._nap.set()
        self._more.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=timeout_s)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._producer is not None:
            await self._producer.stop(timeout_s=1.0)

    def add(self, letters: Iterable[DeadLetter]) -> None:
        """Send these: they are in the store."""
        for letter in letters:
            size = _size(letter)
            if letter.id in self._waiting or (self._waiting and self._size + size > ROOM):
                continue
            self._waiting[letter.id] = letter
            self._size += size
        self._more.set()

    async def _run(self) -> None:
        while True:
            try:
                await self._round()
            except SchedulerError as error:
                self._trouble(str(error))
            except Exception as error:  # noqa: BLE001 - letters go on, whatever it is
                self._tell(events.TaskFailed(part=f"dead letters of {self._config.topic}", error=repr(error)))
                self._back_off()
            if self._stopping and (not self._waiting or self._troubled):
                return
            await self._rest()

    async def _round(self) -> None:
        now_ms = self._clock.steady_ms()
        if not self._waiting and (self._looked_ms is None or now_ms - self._looked_ms >= LOOK_MS):
            self._looked_ms = now_ms
            self.add(await self._left())
        if self._waiting:
            await self._send(list(self._waiting.values()))

    async def _rest(self) -> None:
        """Until there is something to do: at once, unless sending fails."""
        if self._wait_ms:
            self._nap.clear()
            await wait(self._clock, self._nap, self._wait_ms)
        elif not self._waiting:
            self._more.clear()
            await wait(self._clock, self._more, LOOK_MS)

    async def _left(self) -> Sequence[DeadLetter]:
        """What another node, or this one in a former life, did not come to send."""
        query = LetterQuery(
            group=self._config.group_id,
            topic=self._config.topic,
            state=LetterState.UNSENT,
            before_ms=self._clock.wall_ms() - LEFT_MS,
            oldest_first=True,
        )
        found = (await self._inbox.letters(query)).letters
        if found:
            self._looked_ms = None  # there may be more
        return found

    async def _send(self, letters: Sequence[DeadLetter]) -> None:
        ends = await self._deliver(letters)
        for letter in letters:
            error = ends.get(letter.id)
            if error is not None and error.too_large and error.retryable and len(letters) > 1:
                ends |= await self._deliver([letter])  # it was sent along with others, and may be innocent
        sent = [letter.id for letter in letters if ends[letter.id] is None]
        if sent:
            await self._inbox.mark(sent, LetterState.SENT)
            self._done(sent)
            self.sent += len(sent)
            self._tell(self._event(len(sent)))
        refused = {key: error for key, error in ends.items() if error is not None and error.too_large}
        for key, error in refused.items():
            await self._inbox.mark([key], LetterState.REFUSED, str(error))
            self._done([key])
        if refused:
            self._tell_refused(refused)
        failed = [error for key, error in ends.items() if error is not None and key not in refused]
        if failed:
            self._trouble(str(failed[0]))
        else:
            self._wait_ms, self._troubled = 0, False

    async def _deliver(self, letters: Sequence[DeadLetter]) -> dict[str, SendError | None]:
        """Send these; how each of them ended."""
        producer = await self._started()
        ends: dict[str, SendError | None] = dict.fromkeys((letter.id for letter in letters), _UNKNOWN)

        def note(at: int, error: SendError | None) -> None:
            ends[letters[at].id] = error

        await producer.send([record(letter) for letter in letters], note)
        return ends

    async def _started(self) -> Producer:
        """The producer: made when the first letter needs one."""
        if self._producer is None:
            producer = Producer(self._config.options)
            await producer.start()
            self._producer = producer
        return self._producer

    def _done(self, letter_ids: Iterable[str]) -> None:
        for key in letter_ids:
            letter = self._waiting.pop(key, None)
            self._size -= 0 if letter is None else _size(letter)

    def _event(self, count: int) -> events.DeadLettersSent:
        return events.DeadLettersSent(topic=self._config.topic, dlq_topic=str(self._config.dlq_topic), count=count)

    def _tell_refused(self, refused: dict[str, SendError]) -> None:
        self._tell(
            events.DeadLettersRefused(
                topic=self._config.topic,
                dlq_topic=str(self._config.dlq_topic),
                count=len(refused),
                error=str(next(iter(refused.values()))),
            )
        )

    def _trouble(self, error: str) -> None:
        """It does not work at the moment: told once, tried again after a while."""
        if not self._troubled:
            self._troubled = True
            self._tell(
                events.DeadLettersWait(topic=self._config.topic, dlq_topic=str(self._config.dlq_topic), error=error)
            )
        self._back_off()

    def _back_off(self) -> None:
        self._wait_ms = min(_LONGEST_WAIT_MS, max(_FIRST_WAIT_MS, self._wait_ms * 2))


_UNKNOWN: Final = SendError("not reported", code="_UNKNOWN", retryable=True)


def _size(letter: DeadLetter) -> int:
    return len(letter.key or b"") + len(letter.value or b"") + 500
