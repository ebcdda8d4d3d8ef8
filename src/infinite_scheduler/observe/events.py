"""What the scheduler reports to observers: once per batch, never once per job."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from infinite_scheduler.model import Shard


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something happened."""


class Figures(Event, frozen=True, kw_only=True):
    """Something that happens all the time: it is counted, and no log line is written."""


class JobsAccepted(Event, frozen=True, kw_only=True):
    """Jobs were accepted durably."""

    app: str
    count: int
    repeated: int = 0
    request_ids: Sequence[str] = ()


class HandedOver(Event, frozen=True, kw_only=True):
    """Jobs were given to their handler; lateness is measured from the due moment, by the clock that decides."""

    app: str
    lateness_ms: Sequence[int]


class CallsEnded(Figures, frozen=True, kw_only=True):
    """Calls of an app's handler have ended, in whatever way, after this long; each had one job or a batch."""

    app: str
    took_us: Sequence[int]


class JobsSettled(Event, frozen=True, kw_only=True):
    """Outcomes are durable: how many of which (done, failed, expired, retried, or cancelled by the handler)."""

    app: str
    counts: Mapping[str, int]


class JobsCancelled(Event, frozen=True, kw_only=True):
    """Jobs were cancelled durably, as this process has asked."""

    app: str
    count: int


class AttemptFailed(Event, frozen=True, kw_only=True):
    """A handler failed or gave up; reported once per job, since each is an error that people must be able to find."""

    app: str
    job_id: str
    attempt: int
    error: str
    request_id: str | None
    next_due_ms: int | None  # None: it ends as failed
    cause: BaseException | None = None  # what the handler raised


class JobsHeldBack(Event, frozen=True, kw_only=True):
    """Jobs came back, since their destination takes nothing; no attempt is counted, and they are handed over again."""

    app: str
    count: int


class AppHeldBack(Event, frozen=True, kw_only=True):
    """The destination of an app takes nothing: this node holds its jobs back. Reported again if the reason changes."""

    app: str
    error: str


class AppResumed(Event, frozen=True, kw_only=True):
    """The destination of an app takes jobs again, and this node hands them over."""

    app: str
    held_back_ms: int


class DestinationUnready(Event, frozen=True, kw_only=True):
    """The node has started, and the destination of an app would not take jobs now."""

    app: str
    error: str


class ShardsTaken(Event, frozen=True, kw_only=True):
    """This node owns more shards now; unclean ones were not released by their former owner."""

    shards: Collection[Shard]
    unclean: int = 0


class ShardsReleased(Event, frozen=True, kw_only=True):
    """This node released shards in good order."""

    shards: Collection[Shard]


class ShardsLost(Event, frozen=True, kw_only=True):
    """Another node took these shards; what this node had in flight there is dropped."""

    shards: Collection[Shard]
    dropped: int = 0


class Reloaded(Event, frozen=True, kw_only=True):
    """The state of shards was uncertain, so they were read again from the store."""

    shards: Collection[Shard]
    why: str


class Swept(Event, frozen=True, kw_only=True):
    """The safety net found pending jobs that were not in memory: a bug, turned into lateness. Must never happen."""

    app: str
    count: int
    job_ids: Sequence[str]


class Early(Event, frozen=True, kw_only=True):
    """A clock was set back just before jobs were handed over: they were taken back, and wait for their moment again."""

    app: str
    count: int


class StoreAway(Event, frozen=True, kw_only=True):
    """The store does not answer; outcomes are kept, nothing is lost."""

    error: str
    kept: int


class StoreBack(Event, frozen=True, kw_only=True):
    """The store answers again."""

    away_ms: int


class StoreCalled(Figures, frozen=True, kw_only=True):
    """A call of a store's port has ended, in whatever way: mostly one transaction."""

    operation: str  # the name of the call: settle, scan, add…
    took_us: int


class HeartbeatFailing(Event, frozen=True, kw_only=True):
    """This node's heartbeats begin to fail; they are retried until they work."""

    error: str


class HeartbeatBack(Event, frozen=True, kw_only=True):
    """Heartbeats succeed again."""

    failing_ms: int


class LeaseLapsed(Event, frozen=True, kw_only=True):
    """This node could not renew its lease in time and stops handing over."""

    silent_ms: int
    error: str | None = None  # of the last heartbeat: it failed, or has not been answered yet; None: there was none


class LeaseRenewed(Event, frozen=True, kw_only=True):
    """The lease is renewed; shards are checked before anything fires."""


class DrainCalledOff(Event, frozen=True, kw_only=True):
    """A shard could not be emptied in time, so its jobs are still handed over here."""

    shards: Collection[Shard]


class SuspectsFound(Event, frozen=True, kw_only=True):
    """A process ended with these jobs in flight; they are handed over in small batches now, to find the cause."""

    app: str
    count: int
    batch: int


class PoisonFailed(Event, frozen=True, kw_only=True):
    """A job was the only one in flight when its process ended, so it has failed."""

    app: str
    job_id: str


class OrphanApp(Event, frozen=True, kw_only=True):
    """From now on no running node can hand over the jobs of this app, so they wait."""

    app: str


class AppServed(Event, frozen=True, kw_only=True):
    """A node can hand over the jobs of this app again."""

    app: str


class ClockOff(Event, frozen=True, kw_only=True):
    """The clocks of this machine and of the store differ too much, so this node gives up its shards."""

    offset_ms: int  # the store's clock minus this machine's


class ClockBack(Event, frozen=True, kw_only=True):
    """The two clocks agree well enough again, and this node takes shards."""

    offset_ms: int


class DrainAsked(Event, frozen=True, kw_only=True):
    """An operator asked this node to give up its shards and to take none."""


class DrainLifted(Event, frozen=True, kw_only=True):
    """An operator asked this node to take shards again."""


class StillRunning(Event, frozen=True, kw_only=True):
    """The node stops while these sync handlers still run; their shards are taken over when its lease ends."""

    app: str
    job_ids: Sequence[str]


class MarksMissing(Event, frozen=True, kw_only=True):
    """The store cannot mark suspects, so a job that ends its process is not found."""

    store: str


class SettingKept(Event, frozen=True, kw_only=True):
    """An app has another value of a setting of the store than is configured: it was fixed when the app was created."""

    app: str
    setting: str
    kept: str
    configured: str


class Maintained(Event, frozen=True, kw_only=True):
    """A round of maintenance created, dropped or pruned something."""

    made: Sequence[str]
    dropped: Sequence[str]
    pruned: int


class IngestMade(Event, frozen=True, kw_only=True):
    """A door for the messages of a topic was created."""

    config: str


class IngestStarted(Event, frozen=True, kw_only=True):
    """The door begins to read its topic, as soon as the brokers answer."""

    topic: str
    group: str


class IngestStopped(Event, frozen=True, kw_only=True):
    """The door has stopped reading."""

    topic: str
    group: str


class PartitionsHeld(Event, frozen=True, kw_only=True):
    """This node reads these partitions of a topic from now on, and no others."""

    topic: str
    partitions: Sequence[int]


class MessagesTaken(Event, frozen=True, kw_only=True):
    """Messages of a topic were processed durably: accepted, skipped as repeats, or kept as dead letters."""

    topic: str
    received: int
    accepted: int
    repeated: int
    failed: int


class KeysReused(Event, frozen=True, kw_only=True):
    """Messages were skipped, since their idempotency key belongs to a job with other content."""

    topic: str
    count: int
    keys: Sequence[str]


class DeadLettersKept(Event, frozen=True, kw_only=True):
    """Messages cannot become jobs; they are kept as dead letters, and reading goes on."""

    topic: str
    count: int
    messages: Sequence[str]  # partition@offset
    errors: Sequence[str]


class DeadLettersSent(Event, frozen=True, kw_only=True):
    """Dead letters were sent to their topic."""

    topic: str
    dlq_topic: str
    count: int


class DeadLettersRefused(Event, frozen=True, kw_only=True):
    """The topic refused dead letters, or the store does not have them whole, so they stay in the store only."""

    topic: str
    dlq_topic: str
    count: int
    error: str


class DeadLettersWait(Event, frozen=True, kw_only=True):
    """Dead letters cannot be sent to their topic at the moment; the store has them, and sending is retried."""

    topic: str
    dlq_topic: str
    error: str


class ChecksFailing(Event, frozen=True, kw_only=True):
    """A handler could not check the data of messages; the check is retried, then they become dead letters."""

    topic: str
    count: int
    error: str
    wait_ms: int


class CheckHangs(Event, frozen=True, kw_only=True):
    """The check of a message's data does not return; the topic waits for it."""

    topic: str
    app: str
    after_ms: int


class TopicAway(Event, frozen=True, kw_only=True):
    """A topic cannot be read at the moment."""

    topic: str
    error: str


class TopicBack(Event, frozen=True, kw_only=True):
    """A topic can be read again."""

    topic: str
    away_ms: int


class IngestPaused(Event, frozen=True, kw_only=True):
    """The store takes no messages, so those of a topic wait in Kafka."""

    topic: str
    error: str


class IngestResumed(Event, frozen=True, kw_only=True):
    """The store takes the messages of a topic again."""

    topic: str
    paused_ms: int


class IngestThrottled(Event, frozen=True, kw_only=True):
    """Reading a topic is throttled so that due jobs come first: it paused for this part of the time."""

    topic: str
    rested_ms: int
    of_ms: int


class PositionDiffers(Event, frozen=True, kw_only=True):
    """Kafka's committed offset differs from the group's position in the store, which is used."""

    topic: str
    group: str
    partition: int
    position: int
    committed: int
    command: str


class PositionsOvertaken(Event, frozen=True, kw_only=True):
    """Another consumer has read on in partitions of this node, or they were reset; it continues from there."""

    topic: str
    partitions: Sequence[int]


class OffsetGone(Event, frozen=True, kw_only=True):
    """The topic no longer has the next message; it is read from the earliest that may be unread."""

    topic: str
    partition: int
    position: int
    earliest: int
    end: int
    next: int


class TopicAnew(Event, frozen=True, kw_only=True):
    """A topic was deleted and created again, so it is read from its beginning."""

    topic: str
    partition: int
    position: int
    topic_id: str


class TaskFailed(Event, frozen=True, kw_only=True):
    """A part of the engine met an unexpected error and continues."""

    part: str
    error: str


class HttpOpened(Event, frozen=True, kw_only=True):
    """The HTTP server of this process answers requests."""

    url: str


class HttpPortTaken(Event, frozen=True, kw_only=True):
    """Another process has the default port, so this one answers no HTTP requests."""

    address: str


class HttpUnencrypted(Event, frozen=True, kw_only=True):
    """The HTTP server can be reached from other machines, and what is said to it can be read on the way."""

    url: str


class StreamDropped(Event, frozen=True, kw_only=True):
    """A listener did not read its events in time, so its stream was ended; it may ask for another one."""

    address: str
    reason: str


class HandlerMissing(Event, frozen=True, kw_only=True):
    """A process that only answers requests cannot load the handler of an app, whose checks of data it would use."""

    app: str
    error: str


class RequestFailed(Event, frozen=True, kw_only=True):
    """An HTTP request ended with an unexpected error; whoever asked was told the incident alone."""

    method: str
    path: str
    incident: str
    cause: BaseException


Observer = Callable[[Event], None]
"""Receives events; it must not raise and must return at once."""


def ignore(event: Event) -> None:
    """Ignore all events."""
    del event


def several(observers: Sequence[Observer]) -> Observer:
    """One observer that passes events on to several."""

    def tell(event: Event) -> None:
        for observer in observers:
            try:
                observer(event)
            except Exception:
                logging.getLogger(__name__).exception("an observer failed on %s", type(event).__name__)

    return tell
