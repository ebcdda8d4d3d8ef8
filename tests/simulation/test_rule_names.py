"""A rule has one name: on its page, docs/concepts/line-protocol.md, in decisions, models, rules.py and the code."""

import re
from collections.abc import Iterable
from pathlib import Path

from tests.model import catalogue
from tests.simulation.rules import RULES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "concepts" / "line-protocol.md").read_text(encoding="utf-8")

LIST = re.compile(r"^\*Rules:\*(.*?)(?:\n\n|\Z)", re.MULTILINE | re.DOTALL)
HEADER = "| rule | in the model | in the code | reason |"
CITED = re.compile(r"\bRules?: ([a-z_]+(?:,\s+[a-z_]+)*)\.")

Parts = frozenset[str]
"""What is taken out of a rule: "" is the whole, "wake" the part of that name."""

WHOLE: Parts = frozenset({""})


def names_in(text: str) -> list[str]:
    return re.findall(r"`(\w+)`", text)


def rules_of(section: str) -> list[str]:
    """The rules that a section of the page lists."""
    (found,) = LIST.findall(re.split(r"^##", PAGE.split(f"\n{section}\n")[1], flags=re.MULTILINE)[0])
    return names_in(found)


def parts(cell: str) -> Parts:
    """What a cell of the table says of the parts that are taken out."""
    named = frozenset(re.findall(r"`\.(\w+)`", cell))
    return named | WHOLE if "whole" in cell else named


def exceptions() -> dict[str, tuple[Parts, Parts]]:
    """The rules of the table, with what it says of the model and of the code."""
    table = PAGE.split(f"{HEADER}\n")[1].split("\n\n")[0].splitlines()[1:]
    said = {}
    for row in table:
        which, model, code, reason = (cell.strip() for cell in row.strip("|").split("|"))
        assert reason, f"the table gives no reason for {which}"
        for name in names_in(which) or rules_of("## Poison jobs"):
            said[name] = parts(model), parts(code)
    return said


def by_rule(names: Iterable[str]) -> dict[str, Parts]:
    taken: dict[str, Parts] = {}
    for name in names:
        base, _, part = name.partition(".")
        taken[base] = taken.get(base, frozenset()) | {part}
    return taken


LISTED = {name for names in LIST.findall(PAGE) for name in names_in(names)}
MODEL, CODE = by_rule(catalogue.RULES), by_rule(RULES)


def test_every_rule_that_is_taken_out_stands_on_the_page_and_the_other_way_round() -> None:
    assert MODEL.keys() | CODE.keys() == LISTED


def test_model_and_code_are_without_the_same_rules_but_for_those_of_the_table() -> None:
    told = dict.fromkeys(LISTED, (WHOLE, WHOLE)) | exceptions()
    assert {name: (MODEL.get(name, frozenset()), CODE.get(name, frozenset())) for name in LISTED} == told


def test_the_table_has_no_row_for_a_rule_that_needs_none() -> None:
    assert (WHOLE, WHOLE) not in exceptions().values()


def test_the_code_names_every_rule_where_it_keeps_it() -> None:
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    cited = {name for text in sources for names in CITED.findall(text) for name in re.split(r",\s+", names)}
    assert cited == LISTED


def test_a_decision_cites_a_rule_by_its_name() -> None:
    """Among how a decision is tested, a name of several words is a test or a rule."""
    pages = (path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "decisions").glob("*.md"))
    named = {name for page in pages for name in names_in(page.split("\n## How it is tested\n")[1])}
    rules = {name for name in named if "_" in name and not name.startswith("test_")}
    assert rules
    assert rules <= LISTED
