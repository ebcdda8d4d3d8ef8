"""The configuration page names every setting with its default, and no other."""

import json
import re
import tomllib
from collections.abc import Iterator
from datetime import timedelta
from inspect import isclass
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from infinite_scheduler.config import Settings, format_duration, format_size, load_settings, parse_size
from infinite_scheduler.config.section import meaning_of

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(?P<name>[^`]+)` \| (?P<default>.+?) \| (?P<meaning>.+) \|$", re.MULTILINE)
ROWS = {(row["name"], row["default"]) for row in ROW.finditer(PAGE)}


def settings_of(section: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for attribute, field in section.model_fields.items():
        name = field.alias or attribute
        inner = list(sections_in(field.annotation))
        if not inner or field.default not in ({}, (), *instances(field.default)):
            yield prefix + name, field
        below = f"{name}.NAME." if get_origin(field.annotation) is dict else f"{name}."
        for table in inner:
            yield from settings_of(table, prefix + below)


def tables_of(section: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for field in section.model_fields.values():
        for table in sections_in(field.annotation):
            yield table
            yield from tables_of(table)


def instances(default: object) -> list[object]:
    return [default] if isinstance(default, BaseModel) else []


def sections_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from sections_in(part)


def written(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.default
    if default is None:
        return "none"
    if any(isinstance(part, BeforeValidator) and part.func is parse_size for part in field.metadata):
        default = format_size(default)
    elif isinstance(default, timedelta):
        default = format_duration(default)
    return f"`{json.dumps(default)}`"


SETTINGS = list(settings_of(Settings))
NAMES = {name for name, _ in SETTINGS}  # some are there twice: each kind of handler has its own


@pytest.mark.parametrize(("name", "field"), SETTINGS)
def test_every_setting_is_in_the_page_with_its_default(name: str, field: FieldInfo) -> None:
    assert (name, written(field)) in ROWS


def test_the_page_names_no_unknown_setting() -> None:
    assert {(name, written(field)) for name, field in SETTINGS} >= ROWS
    mentioned = re.findall(r"`((?:store|node|window|time|limits|log|kafka|ingest|apps)\.[A-Za-z_.]+)`", PAGE)
    assert set(mentioned) <= NAMES


def test_the_variables_in_the_page_are_understood() -> None:
    names = re.findall(r"`(INFINITE_SCHEDULER_\w+__\w+)", PAGE)
    known = {name.upper().replace(".", "__").replace("__NAME__", "__SMS_RETRY__") for name in NAMES}
    assert names
    assert {name.removeprefix("INFINITE_SCHEDULER_") for name in names} <= known


def test_the_example_in_the_page_can_be_loaded(tmp_path: Path) -> None:
    example = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert example
    (tmp_path / "scheduler.toml").write_text(example[1], encoding="utf-8")
    settings = load_settings(tmp_path / "scheduler.toml", environ={})
    assert set(settings.apps) == set(tomllib.loads(example[1])["apps"])


def test_every_setting_says_what_it_means_in_the_code() -> None:
    tables = set(tables_of(Settings))
    assert len(tables) > 10
    names = [(table, name) for table in tables for name in table.model_fields]
    assert [f"{table.__name__}.{name}" for table, name in names if not meaning_of(table, name)] == []
