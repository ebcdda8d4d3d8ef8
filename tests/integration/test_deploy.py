"""The alert rules and the dashboard of deploy/: they are understood, they fire, and they name what exists."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from infinite_scheduler.observe.metric import METRICS, PREFIX, MetricKind
from tests.services import promtool

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "infinite-scheduler-alerts.yml"
RULES_TEST = DEPLOY / "prometheus" / "infinite-scheduler-alerts-test.yml"
DASHBOARD = DEPLOY / "grafana" / "infinite-scheduler.json"
HOW_TO = ROOT / "docs" / "how-to" / "metrics.md"
PARTS = {MetricKind.HISTOGRAM: ("_bucket", "_sum", "_count"), MetricKind.SUMMARY: ("_sum", "_count")}


def series_names() -> set[str]:
    """The names of all series that a process can show."""
    return {m.full_name + part for m in METRICS.values() for part in PARTS.get(m.kind, ("",))}


def check(*arguments: object) -> None:
    program = promtool.program()
    assert program is not None, "promtool is missing: `make test` fetches it, and `make services` too"
    done = subprocess.run([program, *map(str, arguments)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.servers
def test_the_alert_rules_are_understood_by_prometheus() -> None:
    check("check", "rules", RULES)


@pytest.mark.servers
def test_alerts_fire_when_they_should_and_not_before() -> None:
    check("test", "rules", RULES_TEST)


@pytest.mark.servers
@pytest.mark.parametrize("expression", ["> 60", "< 1", "> 2", "> 5", "> 0.1"])
def test_a_rule_with_another_threshold_fails_its_test(expression: str, tmp_path: Path) -> None:
    (tmp_path / RULES_TEST.name).write_text(RULES_TEST.read_text(encoding="utf-8"), encoding="utf-8")
    changed = RULES.read_text(encoding="utf-8").replace(expression, "> 1e9")
    (tmp_path / RULES.name).write_text(changed, encoding="utf-8")
    with pytest.raises(AssertionError, match="FAILED"):
        check("test", "rules", tmp_path / RULES_TEST.name)


@pytest.mark.parametrize("path", [RULES, RULES_TEST, DASHBOARD, HOW_TO], ids=lambda path: path.name)
def test_every_metric_that_is_named_exists(path: Path) -> None:
    named = set(re.findall(rf"\b{PREFIX}\w+", path.read_text(encoding="utf-8")))
    assert named
    assert named - series_names() == set()


def test_every_label_of_the_dashboard_and_the_rules_exists() -> None:
    text = RULES.read_text(encoding="utf-8") + DASHBOARD.read_text(encoding="utf-8")
    labels = {label for group in re.findall(r"\bby \(([^)]*)\)", text) for label in group.split(", ")}
    known = {label for metric in METRICS.values() for label in metric.labels}
    assert labels <= known | {"instance", "le"}


def test_every_alert_is_in_the_how_to_page_and_no_other() -> None:
    alerts = re.findall(r"- alert: (\w+)", RULES.read_text(encoding="utf-8"))
    assert sorted(set(alerts)) == sorted(alerts)
    listed = re.findall(r"^\| `(InfiniteScheduler\w+)` \|", HOW_TO.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(alerts)


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


@pytest.mark.servers
def test_every_question_of_the_dashboard_is_understood_by_prometheus(tmp_path: Path) -> None:
    found = panels(json.loads(DASHBOARD.read_text(encoding="utf-8")))
    questions = [target["expr"].replace("$__rate_interval", "5m") for panel in found for target in panel["targets"]]
    rules = [{"record": f"panel:{number}", "expr": question} for number, question in enumerate(questions)]
    path = tmp_path / "rules.yml"
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}), encoding="utf-8")  # JSON is YAML
    assert len(rules) > 20
    check("check", "rules", path)


def test_every_panel_has_a_place_of_its_own_and_a_title() -> None:
    found = panels(json.loads(DASHBOARD.read_text(encoding="utf-8")))
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in found]
    assert len(set(places)) == len(places)
    assert len({panel["title"] for panel in found}) == len(found)
    assert len({panel["id"] for panel in found}) == len(found)
