"""The settings of an app: its handler, and what happens if a delivery fails or is late."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Final, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from infinite_scheduler.config.section import Section
from infinite_scheduler.config.values import (
    Delays,
    Duration,
    ExceptionName,
    FilledText,
    Function,
    MessageValue,
    MisfireWord,
    PositiveDuration,
    Topic,
    did_you_mean,
    does_not_fit,
    real,
    show,
    whole,
)


class RetrySettings(Section):
    """When a failed delivery is retried: after listed delays, or after growing ones."""

    delays: Delays | None = None
    """The waits before the second, third, … attempt, instead of growing ones; the last one repeats."""
    initial: PositiveDuration = timedelta(seconds=1)
    """The wait before the second attempt."""
    factor: Annotated[float, real(1)] = 2.0
    """How many times longer each further wait is."""
    maximum: PositiveDuration = timedelta(hours=1)
    """The longest wait."""
    jitter: Annotated[float, real(0, 1)] = 0.1
    """Each wait is longer by up to this part of it, so that jobs that failed together are spread out."""
    max_attempts: Annotated[int, whole(1)] = 6
    """How many deliveries are tried before the job fails."""
    count_from: Literal["attempt", "creation"] = "attempt"
    """Waits count from the last attempt, or from the creation of the job."""
    floor: Duration = timedelta(milliseconds=100)
    """The shortest time between the end of an attempt and the next one, also after a downtime."""
    retry_on: tuple[ExceptionName, ...] = ()
    """The only exceptions that are retried; empty means all."""
    give_up_on: tuple[ExceptionName, ...] = ()
    """Exceptions that are never retried."""

    @model_validator(mode="after")
    def _waits_make_sense(self) -> Self:
        growing = [name for name in ("initial", "factor", "maximum") if name in self.model_fields_set]
        if self.delays is not None and growing:
            raise does_not_fit("delays", self.delays, f"expected either delays or {', '.join(growing)}, not both")
        if self.delays is not None and self.count_from == "creation" and list(self.delays) != sorted(self.delays):
            raise does_not_fit("delays", self.delays, 'expected ascending delays, since count_from is "creation"')
        if self.maximum < self.initial:
            raise does_not_fit("maximum", self.maximum, f"expected at least initial, which is {show(self.initial)}")
        return self


class ExpireAfterSettings(Section):
    """A job that is later than this is not handed over."""

    expire_after: PositiveDuration
    """How late a job may be and still be handed over."""


def _misfire_shape(value: object) -> str:
    return "<table>" if isinstance(value, Mapping | ExpireAfterSettings) else "<word>"


class AppSettings(Section):
    """What every app has, whatever its handler."""

    retry: RetrySettings = RetrySettings()
    """When a failed delivery is retried."""
    misfire: Annotated[
        Annotated[MisfireWord, Tag("<word>")] | Annotated[ExpireAfterSettings, Tag("<table>")],
        Discriminator(_misfire_shape),
    ] = "fire_now"
    """What happens to a late job."""
    misfire_threshold: Duration = timedelta(seconds=60)
    """How late a job may be before it is skipped, if `misfire` is "skip"."""
    concurrency: Annotated[int, whole(1)] = 20
    """How many deliveries run at once on one node."""
    timeout: PositiveDuration = timedelta(seconds=30)
    """How long one delivery may take."""
    shards: Annotated[int, whole(1, 256)] | None = None
    """How many shards the app gets when it is created, instead of `store.shards`."""


class PythonApp(AppSettings):
    """An app whose handler is a Python function."""

    handler: Literal["python"] = "python"
    """The kind of hand-over."""
    function: Function
    """The function that takes the job, as "module:name"."""
    batch: Annotated[int, whole(1)] | None = None
    """Hand over a list of at most this many jobs."""
    pool: Literal["thread", "process"] | None = None
    """Where a function that is not async runs: in threads, or in processes for heavy computing."""
    required: tuple[FilledText, ...] = ()
    """The fields that the data of a job from a topic must have."""
    validation: Function | None = Field(default=None, alias="validate")  # pydantic has a `validate` of its own
    """A function that refuses the data of a job from a topic, as "module:name"."""


class KafkaApp(AppSettings):
    """An app whose jobs are published to a topic."""

    handler: Literal["kafka"]
    """The kind of hand-over."""
    topic: Topic
    """The topic that the jobs are published to."""
    key: FilledText | None = None
    """The key of the message, with fields of the data in braces; by default the job's id."""
    headers: dict[FilledText, str] = Field(default={})
    """Headers of the message, with fields of the data in braces."""
    value: MessageValue = "generic"
    """The content of the message: the documented shape, the data, or a table with fields of the data in braces."""
    required: tuple[FilledText, ...] = ()
    """The fields that the data of a job from a topic must have."""


class SmsRetryApp(AppSettings):
    """An app that publishes the next attempt of an SMS when it is due."""

    handler: Literal["sms_retry"]
    """The kind of hand-over."""
    topic: Topic = "SMS_Send"
    """The topic that the jobs are published to."""


KINDS: Final[Mapping[str, type[AppSettings]]] = {"python": PythonApp, "kafka": KafkaApp, "sms_retry": SmsRetryApp}
"""The kinds of apps, by `handler`."""


def _kind_of(app: object) -> str:
    kind = app.get("handler", "python") if isinstance(app, Mapping) else getattr(app, "handler", "python")
    return f"<{kind}>"


def _known_kind(app: object) -> object:
    kind = app.get("handler", "python") if isinstance(app, Mapping) else "python"
    if not (isinstance(kind, str) and kind in KINDS):
        expected = f"expected a known handler: {', '.join(KINDS)}{did_you_mean(str(kind), KINDS)}"
        raise does_not_fit("handler", kind, expected)
    return app


AnyApp = Annotated[
    Annotated[
        Annotated[PythonApp, Tag("<python>")]
        | Annotated[KafkaApp, Tag("<kafka>")]
        | Annotated[SmsRetryApp, Tag("<sms_retry>")],
        Discriminator(_kind_of),
    ],
    BeforeValidator(_known_kind),
]
"""One app, of the kind that its `handler` says."""
