"""The settings: from arguments, the environment and a TOML file; earlier ones override later ones."""

from infinite_scheduler.config.apps import (
    AppSettings,
    ExpireAfterSettings,
    KafkaApp,
    PythonApp,
    RetrySettings,
    SmsRetryApp,
)
from infinite_scheduler.config.kafka_settings import IngestSettings, KafkaSettings
from infinite_scheduler.config.load import load_settings, settings_at
from infinite_scheduler.config.settings import Settings
from infinite_scheduler.config.units import format_duration, format_size, parse_size

__all__ = [
    "AppSettings",
    "ExpireAfterSettings",
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
