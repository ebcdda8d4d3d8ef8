"""All scenarios of all models by name, and the rules that each can do without."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tests.model import poison
from tests.model.line import rules as line_rules
from tests.model.line import scenarios as line
from tests.model.line.model import LineModel
from tests.model.poison import PoisonModel
from tests.model.search import Model
from tests.model.shards import scenarios as shards
from tests.model.shards.model import ShardsModel

SCENARIOS = [*line.SCENARIOS, *poison.SCENARIOS, *shards.SCENARIOS]
LARGE = [*line.LARGE, *poison.LARGE, *shards.LARGE]
RULES = [*line_rules.RULES, *poison.RULES, *shards.RULES]


def rules_of(scenario: str) -> Mapping[str, object]:
    """The rules that can be switched off in this scenario."""
    if scenario in poison.SCENARIOS or scenario in poison.LARGE:
        return poison.RULES
    if scenario in shards.SCENARIOS or scenario in shards.LARGE:
        return shards.RULES
    return line_rules.RULES


def model_of(scenario: str, off: Collection[str] = ()) -> Model:
    if found := {**line.SCENARIOS, **line.LARGE}.get(scenario):
        return LineModel(found, off)
    if poisoned := {**poison.SCENARIOS, **poison.LARGE}.get(scenario):
        return PoisonModel(poisoned, off)
    if sharded := {**shards.SCENARIOS, **shards.LARGE}.get(scenario):
        return ShardsModel(sharded, off)
    raise ValueError(f"unknown scenario {scenario!r}, known are: {', '.join([*SCENARIOS, *LARGE])}")
