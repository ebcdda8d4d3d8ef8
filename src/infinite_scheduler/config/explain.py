"""Says what is wrong with settings: which one, its value, where it came from, what is expected."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from inspect import isclass
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from infinite_scheduler.config.settings import ENV_PREFIX, Settings
from infinite_scheduler.config.values import show
from infinite_scheduler.store.sql.server.masking import HIDDEN

_SHAPES: Final = {
    "model_type": "a table",
    "dict_type": "a table",
    "tuple_type": "a list",
    "string_type": "a string",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
}


class Layer(NamedTuple):
    """Settings of one origin, not validated yet."""

    kind: Literal["file", "environment", "argument"]
    name: str
    values: Mapping[str, Any]

    def holds(self, path: Sequence[str]) -> bool:
        """Does the value at this path come from here?"""
        here: Any = self.values
        for part in path:
            if not isinstance(here, Mapping) or part not in here:
                return False
            here = here[part]
        return True

    def spell(self, path: Sequence[str]) -> str:
        """The name of a setting as it is written here."""
        return ENV_PREFIX + "__".join(path).upper() if self.kind == "environment" else ".".join(path)

    def origin(self, path: Sequence[str]) -> str:
        """Where somebody has to look to change the setting."""
        return self.spell(path) if self.kind == "environment" else self.name


def explain(error: ValidationError, layers: Sequence[Layer]) -> str:
    """One line a problem; `layers` come in the order of their weight, the lightest first."""
    problems = [_explain_one(details, layers) for details in error.errors(include_url=False)]
    if len(problems) == 1:
        return problems[0]
    return f"{len(problems)} settings are wrong:" + "".join(f"\n  {problem}" for problem in problems)


def _explain_one(details: ErrorDetails, layers: Sequence[Layer]) -> str:
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    location = [part for part in details["loc"] if not str(part).startswith("<")]  # "<word>" names a shape, no setting
    bad_name = location[-1] == "[key]"
    if bad_name:
        location.pop()
    elif kind == "does_not_fit":
        location, value = [*location, context["field"]], context["value"]
    path = [part for part in location if isinstance(part, str)]
    name = ".".join(path) + "".join(f"[{part}]" for part in location if isinstance(part, int))
    layer = next((layer for layer in reversed(layers) if layer.holds(path)), None)
    origin = f" ({layer.origin(path)})" if layer else ""
    if kind == "extra_forbidden":
        return f"{name}{origin}: unknown setting{_nearest(path, layer)}"
    if kind == "missing":
        return f"{name} is missing: {_section_at(path[:-1]).model_fields[path[-1]].description}"
    if kind == "does_not_fit" and value is None:
        return f"{name} is missing: {_expected(details)}"
    shown = HIDDEN if path[-1:] == ["password"] else show(value)
    return f"{name}{'' if bad_name else f' = {shown}'}{origin}: {_expected(details)}"


def _expected(details: ErrorDetails) -> str:
    kind, context = details["type"], details.get("ctx", {})
    if kind in _SHAPES:
        return f"expected {_SHAPES[kind]}"
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        return f"expected {context['expected']}".replace("'", '"')
    return details["msg"].replace("Input should be", "expected")


def _nearest(path: Sequence[str], layer: Layer | None) -> str:
    """The setting that was most likely meant: a neighbour, or any other."""
    *table, last = path
    near = difflib.get_close_matches(last, _section_at(table).model_fields, n=1) if table else []
    found = [*table, near[0]] if near else _nearest_of_all(path)
    if found is None:
        return ""
    return f"; did you mean {layer.spell(found) if layer else '.'.join(found)}?"


def _nearest_of_all(path: Sequence[str]) -> Sequence[str] | None:
    known = {".".join(name): name for name in _settings_of(Settings)}
    near = difflib.get_close_matches(".".join(path), known, n=1)
    return known[near[0]] if near else None


def _settings_of(section: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    for name, field in section.model_fields.items():
        yield (name,)
        below = (name, "NAME") if get_origin(field.annotation) is dict else (name,)
        if inner := _section_in(field.annotation):
            yield from ((*below, *path) for path in _settings_of(inner))


def _section_at(path: Sequence[str]) -> type[BaseModel]:
    """The section that the table at this path is read into."""
    section: type[BaseModel] = Settings
    parts = iter(path)
    for name in parts:
        annotation = section.model_fields[name].annotation
        if get_origin(annotation) is dict:
            next(parts, None)  # the name of an app
        section = _section_in(annotation) or section
    return section


def _section_in(annotation: Any) -> type[BaseModel] | None:
    if isclass(annotation) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _section_in(part))), None)
