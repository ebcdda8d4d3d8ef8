"""All scenarios of all models by name, the rules that each can do without, and what catches a missing rule."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tests.model import poison, shards
from tests.model.line import rules as line_rules
from tests.model.line import scenarios as line
from tests.model.line.model import LineModel
from tests.model.poison import PoisonModel, PoisonScenario
from tests.model.search import Model
from tests.model.shards import ShardsModel, ShardsScenario

SCENARIOS: Mapping[str, object] = {**line.SCENARIOS, **poison.SCENARIOS, **shards.SCENARIOS}
LARGE: Mapping[str, object] = {**line.LARGE, **poison.LARGE, **shards.LARGE}
RULES: Mapping[str, Mapping[str, object]] = {
    "line": line_rules.RULES,
    "poison": poison.RULES,
    "shards": shards.RULES,
}


def kind_of(scenario: str) -> str:
    """The model that a scenario belongs to."""
    for kind, module in (("poison", poison), ("shards", shards)):
        if scenario in module.SCENARIOS or scenario in module.LARGE:
            return kind
    return "line"


def model_of(scenario: str, off: Collection[str] = ()) -> Model:
    if scenario in line.SCENARIOS or scenario in line.LARGE:
        return LineModel({**line.SCENARIOS, **line.LARGE}[scenario], off)
    if kind_of(scenario) == "poison":
        return PoisonModel({**poison.SCENARIOS, **poison.LARGE}[scenario], off)
    return ShardsModel({**shards.SCENARIOS, **shards.LARGE}[scenario], off)
