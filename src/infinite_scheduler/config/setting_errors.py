"""Says what is wrong with settings: which one, its value, where it came from, what is expected."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from inspect import isclass
from itertools import takewhile
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from infinite_scheduler.config.apps import KINDS, AppSettings
from infinite_scheduler.config.kafka_settings import hides
from infinite_scheduler.config.section import meaning_of
from infinite_scheduler.config.settings import ENV_PREFIX, Settings
from infinite_scheduler.config.values import show
from infinite_scheduler.secrets import HIDDEN

_SHAPES: Final = {
    "model_type": "a table",
    "dict_type": "a table",
    "tuple_type": "a list",
    "string_type": "a string",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
}

SettingPath = Sequence[str | int]
"""The path of a setting: names of tables, indexes in lists."""


class Layer(NamedTuple):
    """Settings from one source, not validated yet."""

    kind: Literal["file", "environment", "argument"]
    name: str
    values: Mapping[str, Any]

    def holds(self, path: SettingPath) -> bool:
        """Does the value at this path come from here?"""
        here: Any = self.values
        for part in path:
            try:
                here = here[part]
            except (LookupError, TypeError):
                return False
        return True

    def spell(self, path: SettingPath) -> str:
        """The name of a setting as it is written here; a variable contains a whole list."""
        if self.kind != "environment":
            return name_of(path)
        tables = takewhile(lambda part: isinstance(part, str), path)
        return ENV_PREFIX + "__".join(map(str, tables)).upper()

    def origin(self, path: SettingPath) -> str:
        """Where the setting can be changed."""
        return self.spell(path) if self.kind == "environment" else self.name


def explain(error: ValidationError, layers: Sequence[Layer]) -> str:
    """One line per problem; `layers` are ordered by precedence, the weakest first."""
    problems = [_explain_one(details, layers) for details in error.errors(include_url=False)]
    if len(problems) == 1:
        return problems[0]
    return f"{len(problems)} settings are wrong:" + "".join(f"\n  {problem}" for problem in problems)


def _explain_one(details: ErrorDetails, layers: Sequence[Layer]) -> str:
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    location = list(details["loc"])
    bad_name = location[-1:] == ["[key]"]
    if bad_name:
        location.pop()
    elif kind == "does_not_fit":
        location, value = [*location, *context["path"]], context["value"]
    path = [part for part in location if not _is_shape(part)]
    name = name_of(path)
    layer = next((layer for layer in reversed(layers) if layer.holds(path)), None)
    origin = f" ({layer.origin(path)})" if layer else ""
    if kind == "extra_forbidden":
        return f"{name}{origin}: {_why_unknown(location, path, layer)}"
    if kind == "missing":
        meaning = _meaning(_section_at(location[:-1]), str(path[-1]))
        return f"{name} is missing: {meaning}" if meaning else f"{name} is missing"
    if kind == "does_not_fit" and value is None:
        return f"{name} is missing: {_expected(details)}"
    shown = HIDDEN if hides(path, value) else show(value)
    return f"{name}{'' if bad_name else f' = {shown}'}{origin}: {_expected(details)}"


def name_of(path: SettingPath) -> str:
    """A setting's name for people: `ingest[0].topic`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def _is_shape(part: str | int) -> bool:
    """Does it name the kind of a table, and so is not part of a setting's name?"""
    return str(part).startswith("<")


def _expected(details: ErrorDetails) -> str:
    kind, context = details["type"], details.get("ctx", {})
    if kind in _SHAPES:
        return f"expected {_SHAPES[kind]}"
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        return f"expected {context['expected']}".replace("'", '"')
    return details["msg"].replace("Input should be", "expected")


def _why_unknown(location: SettingPath, path: SettingPath, layer: Layer | None) -> str:
    section, last = _section_at(location[:-1]), str(path[-1])
    kinds = [kind for kind, shape in KINDS.items() if last in _fields(shape)]
    if kinds and issubclass(section, AppSettings):
        own = next(kind for kind, shape in KINDS.items() if shape is section)
        return f"a setting of handler {' or '.join(map(show, kinds))}, but this app has handler {show(own)}"
    return f"unknown setting{_nearest(section, path, layer)}"


def _nearest(section: type[BaseModel], path: SettingPath, layer: Layer | None) -> str:
    """The setting that was most likely meant: in the same table, or any other."""
    *table, last = path
    near = difflib.get_close_matches(str(last), _fields(section), n=1) if table else []
    found = [*table, near[0]] if near else _nearest_of_all(path)
    if found is None:
        return ""
    in_list = any(isinstance(part, int) for part in path)  # a variable contains the whole list
    return f"; did you mean {layer.spell(found) if layer and not in_list else name_of(found)}?"


def _nearest_of_all(path: SettingPath) -> SettingPath | None:
    known = {name_of(name): name for name in _settings_of(Settings)}
    near = difflib.get_close_matches(name_of(path), known, n=1)
    return known[near[0]] if near else None


def _settings_of(section: type[BaseModel]) -> Iterator[tuple[str | int, ...]]:
    below: tuple[str | int, ...]
    for name, field in _fields(section).items():
        yield (name,)
        kind = get_origin(field.annotation)
        below = (name, "NAME") if kind is dict else (name, 0) if kind is tuple else (name,)
        for inner in _sections_in(field.annotation):
            yield from ((*below, *path) for path in _settings_of(inner))


def _fields(section: type[BaseModel]) -> Mapping[str, FieldInfo]:
    """The settings of a table, by the names that people write."""
    return {field.alias or name: field for name, field in section.model_fields.items()}


def _meaning(section: type[BaseModel], setting: str) -> str:
    return meaning_of(
        section, next(name for name, field in section.model_fields.items() if setting in (field.alias, name))
    )


def _section_at(location: SettingPath) -> type[BaseModel]:
    """The section class of the table at this path."""
    section: type[BaseModel] = Settings
    parts = iter(location)
    for part in parts:
        if _is_shape(part):
            section = KINDS.get(str(part).strip("<>"), section)
        elif isinstance(part, str):
            annotation = _fields(section)[part].annotation
            if get_origin(annotation) is dict:
                next(parts, None)  # the name of an app
            section = next(_sections_in(annotation), section)
    return section


def _sections_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _sections_in(part)
