"""The handler and the policies of an app, as the settings describe them."""

# ruff: noqa: PLC0415 - what speaks to Kafka is loaded when it is used

import builtins
import importlib
import os
import socket
from datetime import timedelta
from pathlib import Path
from typing import assert_never
from zoneinfo import ZoneInfo

from infinite_scheduler.clock import Clock
from infinite_scheduler.config import ExpireAfterSettings, KafkaApp, PythonApp, RetrySettings, Settings, SmsRetryApp
from infinite_scheduler.errors import ConfigError
from infinite_scheduler.handlers.base import Handler
from infinite_scheduler.handlers.checks import Checks
from infinite_scheduler.handlers.import_function import load_function
from infinite_scheduler.handlers.python import PythonHandler
from infinite_scheduler.policy.misfire import ExpireAfter, FireNow, Misfire, Skip
from infinite_scheduler.policy.retry import RetryPolicy


def ms_of(duration: timedelta) -> int:
    """A length of time in milliseconds, as the engine counts."""
    return duration // timedelta(milliseconds=1)


def handler_of(name: str, settings: Settings, clock: Clock) -> Handler:
    """Create the handler of an app, by its kind."""
    try:
        return _handler(settings.apps[name], settings, clock)
    except ConfigError as error:
        raise ConfigError(f"apps.{name}: {error}") from None


def _handler(app: PythonApp | KafkaApp | SmsRetryApp, settings: Settings, clock: Clock) -> Handler:
    match app:
        case PythonApp():
            return _python_handler(app, settings, clock)
        case KafkaApp():
            from infinite_scheduler.handlers.kafka import KafkaHandler

            return KafkaHandler(
                settings.kafka.options(),
                app.topic,
                key=app.key,
                headers=app.headers,
                value=app.value,
                required=app.required,
                timeout_ms=ms_of(app.timeout),
                clock=clock,
            )
        case SmsRetryApp():
            from infinite_scheduler.handlers.sms_retry import SmsRetryJobHandler

            zone = ZoneInfo(settings.time.zone)
            return SmsRetryJobHandler(
                settings.kafka.options(), app.topic, zone=zone, timeout_ms=ms_of(app.timeout), clock=clock
            )
        case _:
            assert_never(app)


def _python_handler(app: PythonApp, settings: Settings, clock: Clock) -> Handler:
    search = [*([settings.source.parent] if settings.source else []), Path.cwd()]
    return PythonHandler(
        load_function(app.function, search),
        batch=app.batch,
        pool=app.pool,
        concurrency=app.concurrency,
        timeout_ms=ms_of(app.timeout),
        checks=Checks(app.required, load_function(app.validation, search) if app.validation else None),
        clock=clock,
    )


def retry_policy(app: str, retry: RetrySettings) -> RetryPolicy:
    """When a failed delivery of an app is retried."""
    return RetryPolicy(
        delays=retry.delays,
        initial=retry.initial,
        factor=retry.factor,
        maximum=retry.maximum,
        jitter=retry.jitter,
        max_attempts=retry.max_attempts,
        count_from=retry.count_from,
        floor=retry.floor,
        retry_on=tuple(_exception(app, "retry_on", name) for name in retry.retry_on) or (Exception,),
        give_up_on=tuple(_exception(app, "give_up_on", name) for name in retry.give_up_on),
    )


def _exception(app: str, field: str, name: str) -> type[BaseException]:
    """The exception class with this name: a builtin one, or "module:Class"."""
    module, _, attribute = name.rpartition(":")
    try:
        found = getattr(importlib.import_module(module) if module else builtins, attribute)
    except Exception:  # noqa: BLE001 - a module of the user's may raise anything when it is imported
        found = None
    if not (isinstance(found, type) and issubclass(found, BaseException)):
        raise ConfigError(
            f"apps.{app}.retry.{field}: exception {name!r} cannot be found; "
            'expected a builtin one such as "ValueError", or "module:Class"'
        )
    return found


def misfire_policy(misfire: str | ExpireAfterSettings) -> Misfire:
    """What happens to a job that is late."""
    if isinstance(misfire, ExpireAfterSettings):
        return ExpireAfter(misfire.expire_after)
    return Skip() if misfire == "skip" else FireNow()


def node_name(settings: Settings) -> str:
    """The name of this process in lists, logs and metrics."""
    return settings.node.id or f"{socket.gethostname()}-{os.getpid()}"
