"""A Kafka topic as a handler: due jobs are published to it."""

import asyncio
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Literal

import msgspec

from infinite_scheduler.clock import Clock, SystemClock
from infinite_scheduler.errors import BrokerUnavailable, ConfigError, DestinationAway, InvalidPayload, SendError
from infinite_scheduler.handlers.base import Handler, Report
from infinite_scheduler.handlers.checks import Checks
from infinite_scheduler.handlers.template import Fields, Text, Value, fields_of, iso
from infinite_scheduler.kafka.admin import Admin
from infinite_scheduler.kafka.names import check_topic
from infinite_scheduler.kafka.options import KafkaOptions
from infinite_scheduler.kafka.options import PropertyValue as Property
from infinite_scheduler.kafka.producer import Producer, Record
from infinite_scheduler.kafka.trace import TRACE, parent
from infinite_scheduler.model import Done, Failed, Job, Outcome, key_text

BATCH: Final = 250
"""Jobs per call: about a millisecond of the event loop."""

_MANY: Final = 50
"""A call with at least this many jobs takes a turn of its own."""

JOB_ID: Final = "job-id"
ATTEMPT: Final = "job-attempt"
SCHEDULED_TIME: Final = "job-scheduled-time"

_DONE: Final = Done()
_NO_FIELDS: Final[Fields] = {}

RecordHeaders = list[tuple[str, bytes | None]]


class TopicHandler(Handler):
    """Publishes each job as one message; the subclass decides what the message says.

    A job is done when all in-sync replicas have its message. A message that is refused (too large, invalid) fails its
    job. If the topic takes none (no broker answers, it does not exist, a right is missing), its app is held back.

    Every message has the headers `job-id`, `job-attempt`, `job-scheduled-time` and `traceparent`, whose trace id is the
    job's request id if it has the right form, else the job's id without dashes.
    """

    def __init__(
        self,
        bootstrap_servers: str | KafkaOptions,
        topic: str,
        *,
        properties: Mapping[str, Property] | None = None,
        timeout_ms: int = 30_000,
        batch: int = BATCH,
        clock: Clock | None = None,
    ) -> None:
        self.topic = check_topic(topic)
        for name, number in (("timeout_ms", timeout_ms), ("batch", batch)):
            if number < 1:
                raise ConfigError(f"{name} is {number}; expected 1 or more")
        self.batch = batch
        self._clock = clock or SystemClock()
        self._options = read_options(bootstrap_servers, properties)
        self._producer = Producer(
            self._options,
            message_timeout_ms=max(1, timeout_ms * 2 // 3),  # a report comes up to a second later
        )
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        """Begin to connect; a broker that does not answer does not fail the start."""
        await self._producer.start()

    async def stop(self) -> None:
        """Close the connections. Whatever is still under way belongs to jobs that are tried again: drop it."""
        await self._producer.stop(0)

    async def ready(self) -> None:
        """Ask the brokers for the topic, without creating it."""
        async with Admin(self._options) as admin:
            try:
                found = (await admin.overview([self.topic])).topics.get(self.topic)
            except BrokerUnavailable as error:
                raise DestinationAway(str(error)) from None
        if found is None:
            servers = self._options.bootstrap_servers
            raise DestinationAway(
                f"topic {self.topic!r} does not exist on {servers}, or this user has no right to it: "
                "create it, correct its name, or grant the right (an ACL)"
            )
        if found.problem is not None:
            raise DestinationAway(found.problem)

    async def handle(self, jobs: Sequence[Job], report: Report) -> None:
        """Publish these jobs, and report each when its message is delivered."""
        sent: list[Job] = []
        if len(jobs) < _MANY:
            records = self._records(jobs, sent, report)
        else:
            async with self._turn:  # other tasks of the event loop run between two batches, however many jobs are due
                await asyncio.sleep(0)
                records = self._records(jobs, sent, report)

        def delivered(index: int, error: SendError | None) -> None:
            report(sent[index], _DONE if error is None else _not_sent(error))

        await self._producer.send(records, delivered)

    def _records(self, jobs: Sequence[Job], sent: list[Job], report: Report) -> list[Record]:
        now_ms = self._clock.wall_ms()
        records = []
        for job in jobs:
            try:
                record = self.record(job, now_ms)
            except InvalidPayload as error:
                report(job, Failed(str(error)))
            else:
                sent.append(job)
                records.append(record)
        return records

    @abstractmethod
    def record(self, job: Job, now_ms: int) -> Record:
        """The message of this job, or InvalidPayload."""


def _not_sent(error: SendError) -> Outcome | Exception:
    """What follows for a job whose message was not delivered."""
    if not error.refused:
        return DestinationAway(str(error))
    return error if error.retryable else Failed(str(error))


class KafkaHandler(TopicHandler):
    """Publishes jobs to a topic.

    `value` is "generic", the documented shape around the data; "data", the data unchanged; or a mapping that becomes
    JSON, in whose texts `{fields}` of the data and of the job are filled in. The same placeholders work in `key`, which
    is the job's id by default, and in the values of `headers`. `required` names the fields that the data must have.

    A job whose data lacks a field is refused at the door, or fails.
    """

    def __init__(  # noqa: PLR0913 - one parameter for each setting
        self,
        bootstrap_servers: str | KafkaOptions,
        topic: str,
        *,
        key: str | None = None,
        value: Literal["generic", "data"] | Mapping[str, Any] = "generic",
        headers: Mapping[str, str] | None = None,
        required: Sequence[str] = (),
        properties: Mapping[str, Property] | None = None,
        timeout_ms: int = 30_000,
        batch: int = BATCH,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(
            bootstrap_servers, topic, properties=properties, timeout_ms=timeout_ms, batch=batch, clock=clock
        )
        self._key = None if key is None else Text(_text("key", key), "the key of the message")
        self._headers = [(name, Text(text, f"the header {name!r}")) for name, text in _headers(headers).items()]
        self._own_headers = frozenset(name for name, _ in self._headers)
        self._template = Value(value, "the value of the message") if isinstance(value, Mapping) else None
        self._generic = value == "generic"
        if self._template is None and value not in ("generic", "data"):
            raise ConfigError(f"value is {value!r}; expected 'generic', 'data' or a mapping such as {{'id': '{{id}}'}}")
        self._checks = Checks(required)
        self._required = tuple(required)
        templates = [self._key, self._template, *(text for _, text in self._headers)]
        self._needed = {path[0] for template in templates if template for path in template.paths}
        self.checks = bool(self._required) or bool(self._needed)
        self._behind = f'","queueType":"KAFKA","topicName":"{self.topic}","jobParams":'.encode()

    def check(self, data: Any) -> None:
        """Refuse data that cannot be made into a message."""
        self._checks(data)
        if not self._needed:
            return
        fields = self._fields(data)
        for template in (self._key, self._template, *(text for _, text in self._headers)):
            if template is not None:
                template.fill(_SAMPLE, fields)

    def _fields(self, data: Any) -> Fields:
        """The fields of decoded data that the message needs, as JSON."""
        if not isinstance(data, Mapping):
            return fields_of(msgspec.json.encode(data))
        return {name: msgspec.Raw(msgspec.json.encode(data[name])) for name in self._needed if name in data}

    def record(self, job: Job, now_ms: int) -> Record:
        """The message of this job."""
        fields = fields_of(job.payload) if self.checks else _NO_FIELDS
        if self._required:
            self._checks({name: None if bytes(raw) == b"null" else raw for name, raw in fields.items()})
        job_id = key_text(job.key)
        key = self._key.fill(job, fields) if self._key else job_id
        headers = correlation(job, job_id)
        if self._headers:
            headers = [header for header in headers if header[0] not in self._own_headers]
            headers += [(name, text.fill(job, fields).encode()) for name, text in self._headers]
        return Record(self.topic, key.encode(), self._body(job, job_id, fields, now_ms), headers)

    def _body(self, job: Job, job_id: str, fields: Fields, now_ms: int) -> bytes:
        if self._template is not None:
            return self._template.fill(job, fields)
        if not self._generic:
            return job.payload
        return b"".join(
            (
                f'{{"jobId":"{job_id}","appName":"{job.app}","entityId":'.encode(),
                _entity_id(job.payload),
                b',"executionTime":"',
                iso_bytes(now_ms),
                self._behind,
                job.payload,
                b"}",
            )
        )


class _Entity(msgspec.Struct, gc=False):
    """What the documented shape takes from the data."""

    entityId: msgspec.Raw = msgspec.Raw(b"null")  # noqa: N815 - the name on the wire


_decode_entity: Final = msgspec.json.Decoder(_Entity).decode


def _entity_id(payload: bytes) -> bytes:
    try:
        return bytes(_decode_entity(payload).entityId)
    except msgspec.ValidationError:  # not an object
        return b"null"


def correlation(job: Job, job_id: str) -> RecordHeaders:
    """The headers by which a message can be found; they are equal when a crash repeats the delivery."""
    attempt = job.attempt
    return [
        (JOB_ID, job_id.encode()),
        (ATTEMPT, b"%d" % attempt),
        (SCHEDULED_TIME, iso_bytes(job.scheduled_ms)),
        (TRACE, parent(job.key, attempt, job.request_id)),
    ]


@lru_cache(maxsize=4096)
def iso_bytes(ms: int) -> bytes:
    """A time as `2025-11-03T22:00:00.000Z`. Jobs that are handed over together share it."""
    second, rest = divmod(ms, 1000)
    return b"%b.%03dZ" % (_second(second), rest)


@lru_cache(maxsize=4096)
def _second(second: int) -> bytes:
    return iso(second * 1000)[:-5].encode()


def read_options(bootstrap_servers: str | KafkaOptions, properties: Mapping[str, Property] | None) -> KafkaOptions:
    """The connection options, given in either form."""
    if not isinstance(bootstrap_servers, KafkaOptions):
        return KafkaOptions(bootstrap_servers, properties or {})
    if properties:
        raise ConfigError("properties are given twice: put them into KafkaOptions only")
    return bootstrap_servers


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{name} is {value!r}; expected a text, such as '{{customerId}}'")
    return value


def _headers(headers: Mapping[Any, Any] | None) -> Mapping[str, str]:
    for name, text in (headers or {}).items():
        if not isinstance(name, str) or not name.strip() or not isinstance(text, str):
            raise ConfigError(f"headers has {name!r}: {text!r}; expected a name and a text")
    return headers or {}


_SAMPLE: Final = Job(key=bytes(16), app="sample", due_ms=0, scheduled_ms=0, payload=b"{}", created_ms=0)
"""A job for trying out data."""
