"""Log lines: the sentence of each event, and how lines are written."""

import logging
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import msgspec
import structlog

from infinite_scheduler.errors import ConfigError, SchedulerError
from infinite_scheduler.model import Shard, datetime_of
from infinite_scheduler.observe import events
from infinite_scheduler.observe.context import LogConfig, job_fields, remember_log_config
from infinite_scheduler.observe.events import Event

_ROOT: Final = "infinite_scheduler"
_SHOWN: Final = 20  # entries of a list: a line must stay readable
_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}


class LogLine(msgspec.Struct, frozen=True):
    """The log line of one kind of event: its logger, level and sentence."""

    part: str
    level: int
    sentence: str
    closing: str | None = None  # the field appended to the sentence, for lines that people search for as a whole


LINES: Final[Mapping[type[Event], LogLine]] = {
    events.JobsAccepted: LogLine("ingest", logging.DEBUG, "Jobs were accepted and are durable."),
    events.HandedOver: LogLine("engine", logging.DEBUG, "Jobs were handed to their handler."),
    events.JobsSettled: LogLine("engine", logging.DEBUG, "The outcomes of jobs are durable."),
    events.JobsCancelled: LogLine("ingest", logging.DEBUG, "Jobs were cancelled, as asked."),
    events.AttemptFailed: LogLine("handlers", logging.WARNING, "A handler failed on a job; the job will be retried."),
    events.JobsHeldBack: LogLine(
        "handlers", logging.DEBUG, "Jobs came back, since their destination took nothing; they wait, as they were."
    ),
    events.AppHeldBack: LogLine(
        "handlers",
        logging.ERROR,
        "The destination of this app takes nothing, so its jobs are held back on this node. None fails: one at a time "
        "probes the destination, and all go on by themselves when it is back.",
    ),
    events.AppResumed: LogLine(
        "handlers", logging.INFO, "The destination of this app takes jobs again; they are handed over, late."
    ),
    events.DestinationUnready: LogLine(
        "handlers",
        logging.WARNING,
        "The destination of this app would not take jobs now; those that are due before it does are held back.",
    ),
    events.ShardsTaken: LogLine(
        "cluster", logging.INFO, "This node took shards and hands over their jobs from now on."
    ),
    events.ShardsReleased: LogLine("cluster", logging.INFO, "This node released shards in good order."),
    events.ShardsLost: LogLine(
        "cluster",
        logging.WARNING,
        "Another node took shards from this one, which was silent for too long; jobs in flight there may run twice.",
    ),
    events.Reloaded: LogLine("engine", logging.WARNING, "The state of shards was uncertain; they were read again."),
    events.Swept: LogLine(
        "engine",
        logging.ERROR,
        "The safety net found waiting jobs that were not in memory; they are handed over now, late. "
        "This is a bug in the scheduler: please report it.",
    ),
    events.Early: LogLine(
        "engine",
        logging.WARNING,
        "A clock was set back just before jobs were handed over; they wait for their moment again, and none is early. "
        "Check how the clocks of this machine and of the store are synchronised.",
    ),
    events.StoreAway: LogLine(
        "store",
        logging.WARNING,
        "The store does not answer. Nothing is lost: outcomes are kept in memory, and jobs will be late.",
    ),
    events.StoreBack: LogLine("store", logging.INFO, "The store answers again."),
    events.HeartbeatFailing: LogLine(
        "cluster",
        logging.WARNING,
        "The heartbeat of this node failed and is retried; if it fails for too long, other nodes take its shards.",
    ),
    events.HeartbeatBack: LogLine("cluster", logging.INFO, "The heartbeat of this node works again."),
    events.LeaseLapsed: LogLine(
        "cluster",
        logging.WARNING,
        "This node could not renew its lease in time and hands over nothing until it can; others may take its shards.",
    ),
    events.LeaseRenewed: LogLine(
        "cluster", logging.INFO, "The lease is renewed; jobs are handed over again once the shards are checked."
    ),
    events.DrainCalledOff: LogLine(
        "cluster",
        logging.INFO,
        "Shards to be moved to another node have jobs in flight; they stay here, and the move is retried later.",
    ),
    events.SuspectsFound: LogLine(
        "engine",
        logging.WARNING,
        "A process ended while these jobs were in flight; they are handed over in small batches to find the cause.",
    ),
    events.PoisonFailed: LogLine(
        "engine", logging.ERROR, "A job was the only one in flight when its process ended, so it has failed."
    ),
    events.OrphanApp: LogLine(
        "cluster",
        logging.WARNING,
        "No running node can hand over the jobs of this app, so they wait. Start a node that has a handler for it.",
    ),
    events.AppServed: LogLine("cluster", logging.INFO, "A node can hand over the jobs of this app again."),
    events.ClockOff: LogLine(
        "cluster",
        logging.ERROR,
        "The clock of this machine differs too much from the store's, so this node gives up its shards. "
        "Synchronize the clocks: run chrony or another NTP service on this machine and on the store's.",
    ),
    events.ClockBack: LogLine(
        "cluster", logging.INFO, "The clock of this machine agrees with the store's again; this node takes shards."
    ),
    events.DrainAsked: LogLine(
        "cluster", logging.INFO, "An operator drains this node: it gives up its shards and takes none."
    ),
    events.DrainLifted: LogLine("cluster", logging.INFO, "An operator resumed this node: it takes shards again."),
    events.StillRunning: LogLine(
        "engine",
        logging.WARNING,
        "The node stops while some handlers cannot be stopped and still run; another node runs their jobs again.",
    ),
    events.MarksMissing: LogLine(
        "store",
        logging.WARNING,
        "The store cannot mark jobs: one that ends its process is handed over again each time, with all beside it.",
    ),
    events.SettingKept: LogLine(
        "store",
        logging.WARNING,
        "An app keeps a setting of the store that it was created with; the configured value applies to new apps only.",
    ),
    events.Maintained: LogLine(
        "store", logging.INFO, "Maintenance created tables for coming days or removed old jobs."
    ),
    events.IngestMade: LogLine(
        "ingest.kafka", logging.INFO, "KafkaJobIngestConsumer created with config:", closing="config"
    ),
    events.IngestStarted: LogLine(
        "ingest.kafka", logging.INFO, "Kafka ingest consumer started for topic:", closing="topic"
    ),
    events.IngestStopped: LogLine(
        "ingest.kafka", logging.INFO, "Kafka ingest consumer stopped for topic:", closing="topic"
    ),
    events.PartitionsHeld: LogLine(
        "ingest.kafka", logging.INFO, "The partitions of a topic that this node reads have changed."
    ),
    events.MessagesTaken: LogLine("ingest.kafka", logging.DEBUG, "Messages of a topic were processed durably."),
    events.KeysReused: LogLine(
        "ingest.kafka",
        logging.WARNING,
        "Messages were skipped: their idempotency keys belong to jobs with other content. Send them with new keys.",
    ),
    events.DeadLettersKept: LogLine(
        "ingest.kafka", logging.WARNING, "Messages cannot become jobs; they are kept as dead letters."
    ),
    events.DeadLettersSent: LogLine("ingest.kafka", logging.DEBUG, "Dead letters were sent to their topic."),
    events.DeadLettersRefused: LogLine(
        "ingest.kafka",
        logging.WARNING,
        "Dead letters cannot be sent to their topic; they stay in the store. List them with dlq list --state refused.",
    ),
    events.DeadLettersWait: LogLine(
        "ingest.kafka",
        logging.WARNING,
        "Dead letters cannot be sent to their topic at the moment; they are safe in the store, and sending is retried.",
    ),
    events.ChecksFailing: LogLine(
        "ingest.kafka",
        logging.WARNING,
        "A handler could not check the data of messages; the check is retried, then they become dead letters.",
    ),
    events.CheckHangs: LogLine(
        "ingest.kafka",
        logging.ERROR,
        "The check of an app does not return; the messages of this topic wait for it. Give the check a time-out.",
    ),
    events.TopicAway: LogLine(
        "ingest.kafka",
        logging.WARNING,
        "This topic cannot be read at the moment; reading is retried until it works.",
    ),
    events.TopicBack: LogLine("ingest.kafka", logging.INFO, "This topic can be read again."),
    events.IngestPaused: LogLine(
        "ingest.kafka",
        logging.WARNING,
        "The store does not take the messages of this topic; they wait in Kafka, and none becomes a dead letter.",
    ),
    events.IngestResumed: LogLine("ingest.kafka", logging.INFO, "The store takes the messages of this topic again."),
    events.IngestThrottled: LogLine(
        "ingest.kafka",
        logging.WARNING,
        "Reading this topic is throttled because the node is behind with due jobs. Add a node or a faster store.",
    ),
    events.PositionDiffers: LogLine(
        "ingest.kafka",
        logging.WARNING,
        "Kafka's committed offset differs from the position in the store, which is used. The command shown resets it.",
    ),
    events.PositionsOvertaken: LogLine(
        "ingest.kafka",
        logging.INFO,
        "Another consumer has read on in partitions of this topic, or they were reset; this node continues from there.",
    ),
    events.OffsetGone: LogLine(
        "ingest.kafka",
        logging.WARNING,
        "The topic no longer has the next messages; it is read from the earliest message that may be unread.",
    ),
    events.TopicAnew: LogLine(
        "ingest.kafka",
        logging.WARNING,
        "The topic was deleted and created again with the same name; it is read from its beginning.",
    ),
    events.TaskFailed: LogLine(
        "engine",
        logging.ERROR,
        "A part of the scheduler met an unexpected error; it continues. If no handler of yours raised it, report it.",
    ),
    events.HttpOpened: LogLine("http", logging.INFO, "HTTP requests are answered at:", closing="url"),
    events.HttpPortTaken: LogLine(
        "http",
        logging.WARNING,
        "Another process has the default HTTP port, so this one answers no HTTP requests; jobs are not concerned. "
        "Set http.port to another port, to 0 for any free one, or http.enabled to false.",
    ),
    events.HttpUnencrypted: LogLine(
        "http",
        logging.WARNING,
        "HTTP requests from other machines are answered without TLS: tokens and data can be read on the way. "
        "Set http.certificate and http.key, or let a proxy encrypt.",
    ),
    events.StreamDropped: LogLine(
        "http",
        logging.INFO,
        "An event stream was ended, as its listener did not read in time; it may ask for another one.",
    ),
    events.HandlerMissing: LogLine(
        "http",
        logging.WARNING,
        "The handler of this app cannot be loaded here, so its checks of data do not count in this process.",
    ),
    events.RequestFailed: LogLine("http", logging.ERROR, "An HTTP request ended with an unexpected error."),
}
"""The line of every kind of event."""

_GIVEN_UP: Final = LogLine(
    "handlers", logging.WARNING, "A handler failed on a job, and no attempt is left: the job fails."
)


class LogWriter:
    """An observer that writes log lines.

    They go to the loggers `infinite_scheduler.engine`, `.handlers`, `.cluster`, `.store`, `.ingest`, `.ingest.kafka`
    and `.http` of the standard library, so that they appear wherever the surrounding program wants its log lines.
    """

    def __init__(self) -> None:
        parts = {line.part for line in LINES.values()}
        self._plain = {part: logging.getLogger(f"{_ROOT}.{part}") for part in parts}
        self._loggers = {part: _structured(logger) for part, logger in self._plain.items()}
        self._store_away = False

    def __call__(self, event: Event) -> None:
        """Write the event's line, if its level is enabled and it was not written too often."""
        line = LINES.get(type(event))
        if line is None:
            return
        level = self._level(event, line.level)
        if not self._plain[line.part].isEnabledFor(level):
            return
        if isinstance(event, events.AttemptFailed) and event.next_due_ms is None:
            line = _GIVEN_UP
        fields = _fields(event)
        sentence = f"{line.sentence} {fields[line.closing]}" if line.closing is not None else line.sentence
        if not self._plain[line.part].hasHandlers():
            sentence += _detail(event)
        self._loggers[line.part].log(level, sentence, exc_info=_cause(event), **fields)

    def _level(self, event: Event, level: int) -> int:
        """What is repeated keeps its level only the first time."""
        if isinstance(event, events.StoreAway):
            loud, self._store_away = not self._store_away, True
        elif isinstance(event, events.StoreBack):
            loud, self._store_away = True, False
        else:
            loud = True
        return level if loud else logging.DEBUG


def _detail(event: Event) -> str:
    """What the sentence itself must say in a program that does not configure logging: it shows nothing else."""
    match event:
        case events.AttemptFailed():
            detail = f" Job {event.job_id}, attempt {event.attempt}: {event.error}"
        case events.TaskFailed() | events.StoreAway() | events.HeartbeatFailing():
            detail = f" {event.error}"
        case events.LeaseLapsed():
            why = f": {event.error}" if event.error is not None else "."
            detail = f" It lapsed after {event.silent_ms / 1000:.1f} s without a heartbeat{why}"
        case events.AppHeldBack() | events.DestinationUnready() | events.HandlerMissing():
            detail = f" App {event.app}: {event.error}"
        case events.OrphanApp():
            detail = f" App {event.app}."
        case events.DeadLettersKept():
            detail = f" {event.count} of topic {event.topic}: {'; '.join(event.errors)}"
        case events.TopicAway() | events.IngestPaused() | events.DeadLettersWait() | events.ChecksFailing():
            detail = f" Topic {event.topic}: {event.error}"
        case events.HttpPortTaken():
            detail = f" It is {event.address}."
        case events.ClockOff():
            detail = f" It is off by {-event.offset_ms / 1000:+.1f} s."
        case _:
            return ""
    return " " + " ".join(detail.split())


def _cause(event: Event) -> BaseException | None:
    """The exception whose traceback belongs to the line: not a time-out of ours, and nothing that cannot be printed."""
    cause = event.cause if isinstance(event, events.AttemptFailed | events.RequestFailed) else None
    if cause is None or isinstance(cause, SchedulerError):
        return None
    try:
        str(cause).encode()
    except Exception:  # noqa: BLE001 - its text may raise anything
        return None
    return cause


def _structured(logger: logging.Logger) -> Any:
    """A structlog logger that passes sentence and fields to the standard library, whatever is configured globally."""
    return structlog.wrap_logger(
        logger,
        processors=[structlog.stdlib.render_to_log_kwargs],
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def _fields(event: Event) -> dict[str, Any]:
    """The event's own fields, shortened for reading."""
    fields: dict[str, Any] = {}
    for name in event.__struct_fields__:
        value = getattr(event, name)
        show = _SHOW.get(name)
        if show is not None:
            fields.update(show(value))
        elif value is not None:
            fields[name] = value
    return fields


def _shown(name: str, values: Sequence[Any]) -> dict[str, Any]:
    """The first few of many, and how many there are."""
    if not values:
        return {}
    shown = {name: [str(value) for value in values[:_SHOWN]]}
    return shown if len(values) <= _SHOWN else {**shown, f"{name}_in_all": len(values)}


def _ranges(shards: Collection[Shard]) -> str:
    """Shards in short form: reminders/0-7,9."""
    apps: dict[str, list[int]] = {}
    for app, number in sorted(shards):
        apps.setdefault(app, []).append(number)
    return " ".join(f"{app}/{_runs(numbers)}" for app, numbers in apps.items())


def _runs(numbers: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _iso(ms: int) -> str:
    try:
        return datetime_of(ms).isoformat(timespec="milliseconds")
    except OverflowError:  # after the year 9999, which datetime cannot represent
        return f"{ms} ms"


_SHOW: Final[Mapping[str, Callable[[Any], dict[str, Any]]]] = {
    "shards": lambda shards: {"shards": _ranges(shards)} if shards else {},
    "job_ids": lambda ids: _shown("job_ids", ids),
    "request_ids": lambda ids: _shown("request_ids", ids),
    "made": lambda names: _shown("made", names),
    "messages": lambda positions: _shown("messages", positions),
    "errors": lambda errors: _shown("errors", errors),
    "keys": lambda keys: _shown("keys", keys),
    "partitions": lambda numbers: {"partitions": _runs(sorted(numbers)) or "none"},
    "dropped": lambda what: {"dropped": what} if isinstance(what, int) else _shown("dropped", what),
    "counts": dict,
    "lateness_ms": lambda late: {"count": len(late), "latest_ms": max(late, default=0)},
    "cause": lambda _: {},
    "next_due_ms": lambda ms: {} if ms is None else {"next_attempt": _iso(ms)},
}


def configure_logging(level: str = "info", format: str = "console", modules: Mapping[str, str] | None = None) -> None:  # noqa: A002
    """Write the log lines of this process to stderr: for people (`console`) or one JSON object per line (`json`).

    `modules` sets the levels of single loggers, such as `{"infinite_scheduler.store": "debug"}`. Lines that handlers
    write with `logging` or structlog carry the job's id, app, attempt and request id. Another call replaces these
    settings.
    """
    if format not in {"console", "json"}:
        raise ConfigError(f"log format {format!r} is unknown: use 'console' or 'json'")
    levels = {name: _level_number(name, text) for name, text in (modules or {}).items()}
    root = logging.getLogger()
    root.setLevel(_level_number("level", level))
    _forget_levels()
    for name, number in levels.items():
        logging.getLogger(name).setLevel(number)
    _levels_set.extend(levels)
    for old in [handler for handler in root.handlers if isinstance(handler, _Stderr)]:
        root.removeHandler(old)
    handler = _Stderr()
    handler.setFormatter(_formatter(format))
    root.addHandler(handler)
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *_COMMON, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,  # loggers created before a second call must follow it
    )
    remember_log_config(LogConfig(level=level, format=format, modules=dict(modules or {})))


class _Stderr(logging.StreamHandler[Any]):
    """Writes to whatever stderr is at the time; its type is how the handler is found again."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:
        return sys.stderr


_levels_set: Final[list[str]] = []


def _forget_levels() -> None:
    for name in _levels_set:
        logging.getLogger(name).setLevel(logging.NOTSET)
    _levels_set.clear()


def _level_number(name: str, text: str) -> int:
    number = _LEVELS.get(text.lower())
    if number is None:
        raise ConfigError(f"log level {text!r} of {name!r} is unknown: use {', '.join(_LEVELS)}")
    return number


def add_job(logger: Any, method: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """A structlog processor that adds the running job's fields, for programs that configure structlog themselves.

    Lines of the scheduler itself get none: they name what they are about, and may be written while any handler runs.
    """
    del method
    if str(line.get("logger") or getattr(logger, "name", "")).startswith(f"{_ROOT}."):
        return line
    return {**line, **{name: value for name, value in job_fields().items() if name not in line}}


_COMMON: Final[list[structlog.typing.Processor]] = [
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.contextvars.merge_contextvars,
    add_job,
    structlog.stdlib.PositionalArgumentsFormatter(),
    structlog.processors.StackInfoRenderer(),
]


def _formatter(format: str) -> logging.Formatter:  # noqa: A002
    strip = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    if format == "json":
        render: list[structlog.typing.Processor] = [
            structlog.processors.format_exc_info,
            structlog.processors.EventRenamer("message"),
            structlog.processors.JSONRenderer(),
        ]
    else:
        # Plain tracebacks: the long ones show the values of variables, which may be secrets.
        colours = sys.stderr.isatty() and "NO_COLOR" not in os.environ
        render = [structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=structlog.dev.plain_traceback)]
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*_COMMON, structlog.stdlib.ExtraAdder()], processors=[strip, *render]
    )
