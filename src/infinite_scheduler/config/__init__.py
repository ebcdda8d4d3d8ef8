"""The settings: what a node is told by arguments, by the environment and by a TOML file, in this order of weight."""

from infinite_scheduler.config.apps import AppSettings, ExpireAfter, KafkaApp, PythonApp, RetrySettings, SmsRetryApp
from infinite_scheduler.config.kafka import IngestSettings, KafkaSettings
from infinite_scheduler.config.load import load_settings, settings_at
from infinite_scheduler.config.settings import Settings
from infinite_scheduler.config.units import format_duration, format_size, parse_size

__all__ = [
    "AppSettings",
    "ExpireAfter",
    "IngestSettings",
    "KafkaApp",
    "KafkaSettings",
    "PythonApp",
    "RetrySettings",
    "Settings",
    "SmsRetryApp",
    "format_duration",
    "format_size",
    "load_settings",
    "parse_size",
    "settings_at",
]
