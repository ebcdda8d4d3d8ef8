"""Reads the settings: a TOML file, overridden by the environment, overridden by arguments."""

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import EnvSettingsSource

from infinite_scheduler.config.setting_errors import Layer, explain
from infinite_scheduler.config.settings import ENV_PREFIX, Settings
from infinite_scheduler.config.store_url import outweighed
from infinite_scheduler.errors import ConfigError

CONFIG_VARIABLE: Final = f"{ENV_PREFIX}CONFIG"
_NOT_SETTINGS: Final = frozenset({CONFIG_VARIABLE, f"{ENV_PREFIX}SOAK", f"{ENV_PREFIX}SEEDS"})
"""Variables with the prefix that are not settings: where the file is, and how long and how often tests run."""


def load_settings(
    path: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Read the settings: `overrides` have precedence over the environment, the environment over the file.

    Without `path` the file is the one named by INFINITE_SCHEDULER_CONFIG, if any. The top-level keys of `overrides` may
    be dotted ("store.url"); None means not given. Raises ConfigError, which names every wrong setting.
    """
    environ = os.environ if environ is None else environ
    if path is None and environ.get(CONFIG_VARIABLE):
        path = Path(environ[CONFIG_VARIABLE])
    source = path.expanduser().absolute() if path else None
    layers = (
        Layer("file", str(path), _read_toml(source) if source else {}),
        Layer("environment", ENV_PREFIX, _read_environment(environ)),
        Layer("argument", "argument", _unfold(overrides or {})),
    )
    merged: Mapping[str, Any] = {}
    for layer in layers:
        if layer.holds(("store", "url")) and isinstance(merged.get("store"), Mapping):
            merged = {**merged, "store": outweighed(merged["store"], layer.values["store"]["url"])}
        merged = _merge(merged, layer.values)
    return _validated(merged, layers, source)


def settings_at(url: str, settings: Settings) -> Settings:
    """These settings for the store at another URL, which overrides everything that names a store."""
    layer = Layer("argument", "argument", {"store": {"url": url}})
    values = {name: getattr(settings, name) for name in settings.model_fields_set}
    store = {name: getattr(settings.store, name) for name in settings.store.model_fields_set}
    return _validated({**values, "store": {**outweighed(store, url), "url": url}}, (layer,), settings.source)


def _validated(values: Mapping[str, Any], layers: Sequence[Layer], source: Path | None) -> Settings:
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        raise ConfigError(explain(error, layers)) from None
    settings._source = source  # noqa: SLF001
    return settings


class _Environment(EnvSettingsSource):
    """The variables of one environment, which need not be that of the process."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        super().__init__(Settings)
        self.env_vars = {name.lower(): value for name, value in environ.items()}

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        """Decode JSON; a value that is not JSON is kept, so that the validation reports it."""
        with suppress(ValueError):
            return super().decode_complex_value(field_name, field, value)
        return value


def _read_environment(environ: Mapping[str, str]) -> Mapping[str, Any]:
    ours = {
        name: value
        for name, value in environ.items()
        if value and name.upper().startswith(ENV_PREFIX) and name.upper() not in _NOT_SETTINGS
    }
    values: Mapping[str, Any] = _Environment(ours)()
    for name, value in ours.items():
        path = name[len(ENV_PREFIX) :].lower().split("__")
        if path[0] not in Settings.model_fields:
            values = _merge(values, _nest(path, value))  # for the validation to refuse
    return values


def _read_toml(source: Path) -> Mapping[str, Any]:
    try:
        text = source.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"configuration file {source} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {source} cannot be read: {error}") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_explain_toml(source, text, str(error))) from None


def _explain_toml(source: Path, text: str, problem: str) -> str:
    found = re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", problem, re.DOTALL)
    if found:
        what, line, column = found[1], int(found[2]), int(found[3])
    else:  # "(at end of document)"
        what, line, column = problem.partition(" (at")[0], text.count("\n") + 1, len(text.rpartition("\n")[2]) + 1
    return f"configuration file {source}, line {line}, column {column}: {what}"


def _unfold(overrides: Mapping[str, Any]) -> Mapping[str, Any]:
    values: Mapping[str, Any] = {}
    for name, value in overrides.items():
        if value is not None:
            values = _merge(values, _nest(name.split("."), value))
    return values


def _nest(path: Sequence[str], value: Any) -> Mapping[str, Any]:
    *tables, last = path
    nested: Mapping[str, Any] = {last: value}
    for name in reversed(tables):
        nested = {name: nested}
    return nested


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Mapping[str, Any]:
    """Merge two layers, table by table; a value that is not a table is replaced as a whole."""
    merged = dict(below)
    for name, value in above.items():
        old = merged.get(name)
        merged[name] = _merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged
