"""Metrics: what is shown, and what a scrape costs."""

import asyncio
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

from infinite_scheduler.model import Shard
from infinite_scheduler.observe import events
from infinite_scheduler.observe.app_metrics import LIMITS, MOST_NAMES, OTHERS
from infinite_scheduler.observe.counters import Counters
from infinite_scheduler.observe.http_requests import MOST_ROUTES, HttpRequests
from infinite_scheduler.observe.metric import METRICS, PREFIX
from infinite_scheduler.observe.prometheus import CONTENT_TYPE, MetricsSources, PrometheusMetrics, exposition_text
from infinite_scheduler.observe.readings import AppReading, NodeReading, TopicReading
from infinite_scheduler.testing import Harness

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
ROW = re.compile(r"^\| `(?P<name>[^`]+)` \| (?P<kind>\w+) \| (?P<labels>.*?) \| (?P<meaning>.+) \|$", re.MULTILINE)

Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


def told(*happened: events.Event) -> Counters:
    counters = Counters()
    for event in happened:
        counters(event)
    return counters


def everything() -> MetricsSources:
    """Sources of which every metric has a value."""
    http = HttpRequests()
    http.add("GET", "/v1/jobs/{id}", 200, 1500)
    http.add("GET", "/v1/jobs/{id}", 404, 500)
    counters = told(
        events.JobsAccepted(app="shop", count=5, repeated=2),
        events.HandedOver(app="shop", lateness_ms=[0, 1, 3, 900]),
        events.CallsEnded(app="shop", took_us=[400, 2_900]),
        events.JobsSettled(app="shop", counts={"done": 2, "failed": 1, "expired": 3, "retried": 4}),
        events.JobsCancelled(app="shop", count=6),
        events.AppHeldBack(app="shop", error="no topic"),
        events.ShardsTaken(shards=[Shard("shop", 0), Shard("shop", 1)], unclean=1),
        events.StoreCalled(operation="settle", took_us=1_000),
        events.StoreCalled(operation="settle", took_us=500),
        events.StoreAway(error="refused", kept=0),
        events.StoreBack(away_ms=1_500),
        events.MessagesTaken(topic="jobs", received=9, accepted=6, repeated=1, failed=2),
    )
    reading = NodeReading(
        apps={"shop": AppReading(held=5, held_bytes=4096, in_flight=2, overdue_ms=70)},
        topics=[TopicReading(topic='od"d\\', group="g", ready=True, lag={0: 5, 1: None}, keys=3)],
        saturation=0.25,
        clock_offset_ms=-20,
        apps_without_node=1,
    )
    return MetricsSources(
        counters=counters, node="n1", version="1.2", reading=lambda: reading, http=http, waiting=lambda: {"shop": 12}
    )


def families_of(text: bytes) -> list[Family]:
    return list(text_string_to_metric_families(text.decode()))


def samples_of(families: Iterable[Family]) -> Samples:
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


async def shown(sources: MetricsSources) -> Samples:
    text, _ = await PrometheusMetrics(sources).exposition()
    return samples_of(families_of(text))


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[PREFIX + name, frozenset(labels.items())]


async def test_what_is_counted_is_shown_per_app() -> None:
    samples = await shown(everything())
    expected = {
        "jobs_accepted_total": 3,
        "jobs_repeated_total": 2,
        "jobs_handed_over_total": 4,
        "jobs_done_total": 2,
        "jobs_failed_total": 1,
        "jobs_expired_total": 3,
        "jobs_cancelled_total": 6,
        "jobs_retried_total": 4,
        "jobs_early_total": 0,
        "jobs_swept_total": 0,
        "waiting_jobs": 12,
        "oldest_overdue_seconds": 0.07,
        "jobs_in_flight": 2,
        "window_jobs": 5,
        "window_bytes": 4096,
        "shards_owned": 2,
        "destination_away": 1,
    }
    assert {name: value(samples, name, app="shop") for name in expected} == expected


async def test_histograms_count_exactly_what_is_below_each_limit() -> None:
    samples = await shown(everything())
    late = [value(samples, "lateness_seconds_bucket", app="shop", le=limit) for limit in LIMITS]
    assert LIMITS[:4] == ("0.001", "0.002", "0.004", "0.008")
    assert float(LIMITS[-2]) >= 1800
    assert late[:4] == [1, 2, 3, 3]
    assert late[-1] == value(samples, "lateness_seconds_count", app="shop") == 4
    assert value(samples, "lateness_seconds_sum", app="shop") == 0.904
    assert value(samples, "handler_seconds_bucket", app="shop", le="0.001") == 1
    assert value(samples, "handler_seconds_sum", app="shop") == 0.0033


async def test_what_is_known_of_the_node_is_shown() -> None:
    samples = await shown(everything())
    assert value(samples, "node_info", node="n1", version="1.2") == 1
    assert value(samples, "store_seconds_count", operation="settle") == 2
    assert value(samples, "store_seconds_sum", operation="settle") == 0.0015
    assert value(samples, "store_away_seconds_total") == 1.5
    assert value(samples, "store_away") == 0
    assert value(samples, "saturation") == 0.25
    assert value(samples, "store_clock_offset_seconds") == -0.02
    assert value(samples, "apps_without_node") == 1
    assert value(samples, "ingest_messages_received_total", topic="jobs") == 9
    assert value(samples, "ingest_lag", group="g", topic='od"d\\', partition="0") == 5
    assert value(samples, "ingest_ready", group="g", topic='od"d\\') == 1
    assert value(samples, "http_requests_total", method="GET", route="/v1/jobs/{id}", status="404") == 1
    assert value(samples, "http_request_seconds_count", method="GET", route="/v1/jobs/{id}") == 2
    assert value(samples, "process_resident_memory_bytes") > 1 << 20


async def test_what_is_not_known_is_absent() -> None:
    samples = await shown(MetricsSources(counters=Counters(), node="n", version="1"))
    names = {name for name, _ in samples}
    assert f"{PREFIX}store_clock_offset_seconds" not in names
    assert f"{PREFIX}http_requests_total" not in names
    assert f"{PREFIX}tasks_failed_total" in names


async def test_every_metric_is_in_the_table_and_has_a_value_when_all_is_known() -> None:
    text, content_type = await PrometheusMetrics(everything()).exposition()
    assert content_type == CONTENT_TYPE
    found = {family.name: family.type for family in families_of(text)}
    assert found == {PREFIX + name: metric.kind for name, metric in METRICS.items()}


def test_the_text_says_what_the_library_would_write() -> None:
    registry = CollectorRegistry()
    metrics = PrometheusMetrics(everything())
    registry.register(metrics)
    ours = exposition_text(metrics.collect())
    process = re.compile(rb"^infinite_scheduler_process_\w+ .*$", re.MULTILINE)  # moves on meanwhile
    assert process.sub(b"", ours) == process.sub(b"", generate_latest(registry))


def test_every_metric_is_in_the_page_and_no_other() -> None:
    rows = {(r["name"], r["kind"], r["labels"], r["meaning"]) for r in ROW.finditer(PAGE.read_text(encoding="utf-8"))}
    assert rows == {
        (metric.full_name, str(metric.kind), ", ".join(f"`{label}`" for label in metric.labels), metric.meaning)
        for metric in METRICS.values()
    }


async def test_many_apps_share_a_name_and_no_counter_ever_goes_back() -> None:
    counters = Counters()
    many = 3 * MOST_NAMES
    for number in range(many):
        counters(events.ShardsTaken(shards=[Shard(f"app_{number}", 0)]))
    metrics = PrometheusMetrics(MetricsSources(counters=counters, node="n", version="1"))
    before: Samples = {}
    for turn in range(4):
        for number in range(turn, many, 4):
            counters(events.HandedOver(app=f"app_{number}", lateness_ms=[number] * (1 + number)))
        samples = samples_of(families_of((await metrics.exposition())[0]))
        totals = {key: n for key, n in samples.items() if key[0].endswith(("_total", "_bucket", "_count"))}
        assert all(totals[key] >= n for key, n in before.items() if key in totals)
        assert all(key in totals for key in before if "store" not in key[0])
        before = {key: n for key, n in totals.items() if "process" not in key[0]}
    over = {dict(labels)["app"]: n for (name, labels), n in before.items() if name.endswith("handed_over_total")}
    assert len(over) == MOST_NAMES + 1
    assert OTHERS in over
    assert sum(over.values()) == many * (many + 1) // 2


async def test_few_apps_have_their_names_before_they_work() -> None:
    samples = await shown(
        MetricsSources(counters=told(events.ShardsTaken(shards=[Shard("idle", 0)])), node="n", version="1")
    )
    assert value(samples, "jobs_done_total", app="idle") == 0


async def test_a_scrape_of_a_thousand_apps_is_cheap_and_leaves_the_event_loop_alone() -> None:
    counters = Counters()
    for number in range(1000):
        counters(events.HandedOver(app=f"app_{number}", lateness_ms=list(range(0, 5000, 50))))
        counters(events.CallsEnded(app=f"app_{number}", took_us=list(range(0, 90_000, 900))))
    metrics = PrometheusMetrics(MetricsSources(counters=counters, node="n", version="1"))
    await metrics.exposition()
    began = time.process_time()
    look = metrics._look()
    in_loop = time.process_time() - began
    text = await asyncio.to_thread(metrics._text, look)
    assert in_loop < 0.005
    assert time.process_time() - began < 0.25, "measured: 0.05 to 0.1 s"
    assert len(text) < 1 << 19


def test_paths_that_somebody_makes_up_do_not_fill_the_memory() -> None:
    http = HttpRequests()
    for number in range(10 * MOST_ROUTES):
        http.add("GET", f"/v1/{number}", 200, 1)
        http.add(f"ODD{number}", None, 404, 1)
    assert len(http.took) <= MOST_ROUTES + 1
    assert sum(http.counts.values()) == 20 * MOST_ROUTES


@pytest.mark.parametrize("at_once", [1, 3])
async def test_a_running_node_shows_calls_of_its_handlers_and_of_its_store(at_once: int) -> None:
    async with Harness() as h:
        h.scheduler.app("mail", batch=at_once)(lambda jobs: None)
        await h.start()
        jobs = [await h.client.schedule("mail", delay="10s") for _ in range(4)]
        await h.run(h.client.cancel(jobs[0].id))
        reading = h.scheduler.reading()
        assert reading.apps["mail"].held == 3
        assert reading.apps["mail"].held_bytes > 0
        await h.advance("30s")
        counted = h.scheduler.counters.snapshot()
        assert counted["apps"]["mail"]["calls"] == counted["apps"]["mail"]["took"]["count"] == 3 // at_once
        assert counted["apps"]["mail"]["cancelled"] == 1
        assert {"add", "beat", "take", "scan", "settle", "advance", "requests"} <= counted["store"].keys()
        assert h.scheduler.reading().apps == {}
