"""What a node says of itself with its heartbeat: at most 8 KiB, whatever it runs."""

import random
from collections.abc import Callable

import msgspec
import pytest

from infinite_scheduler.observe import events
from infinite_scheduler.observe.counters import Counters
from infinite_scheduler.observe.histogram import Histogram
from infinite_scheduler.observe.node_vitals import AppVitals, TopicVitals, Vitals, decode, encode, total_of
from infinite_scheduler.observe.readings import AppReading, NodeReading, TopicReading
from infinite_scheduler.observe.vitals_writer import MOST_BYTES, VitalsWriter
from infinite_scheduler.store.cluster_state import VITALS_BYTES
from infinite_scheduler.testing import Harness, ManualClock

EVERYTHING = AppVitals(
    handed_over=9,
    settled=8,
    failed=1,
    retried=2,
    early=1,
    swept=1,
    in_flight=3,
    held_bytes=4096,
    overdue_ms=70,
    lateness={0: 6, 17: 3},
)
MANY = 1000


def work(counters: Counters, app: str, jobs: int, lateness_ms: Callable[[], int] = lambda: 3) -> None:
    counters(events.HandedOver(app=app, lateness_ms=[lateness_ms() for _ in range(jobs)]))
    counters(events.JobsSettled(app=app, counts={"done": jobs}))


def written(writer: VitalsWriter) -> Vitals:
    vitals = decode(writer.write())
    assert vitals is not None
    return vitals


def test_what_is_written_can_be_read() -> None:
    vitals = Vitals(
        apps={"mail": EVERYTHING, "sms": AppVitals(handed_over=1)},
        others=EVERYTHING,
        other_apps=2,
        topics=[TopicVitals(topic="jobs", group="g", ready=True, lag=5)],
        other_topics=1,
        saturation=0.25,
    )
    assert decode(encode(vitals)) == vitals


def test_a_node_of_another_version_can_be_read() -> None:
    newer = b'{"apps":{"mail":{"h":7,"brand_new":[1,2]}},"topics":[{"t":"jobs","g":"g","x":1}],"mood":"fine"}'
    assert decode(newer) == Vitals(
        apps={"mail": AppVitals(handed_over=7)}, topics=[TopicVitals(topic="jobs", group="g")]
    )
    assert decode(b"{}") == Vitals()


@pytest.mark.parametrize("vitals", [None, b"", b"{", b"[]", b'{"apps":{"mail":{"h":"many"}}}', b"[" * 100_000])
def test_what_cannot_be_read_is_nothing(vitals: bytes | None) -> None:
    assert decode(vitals) is None


def test_a_node_says_what_it_counts_and_what_it_holds() -> None:
    counters = Counters()
    for event in (
        events.HandedOver(app="mail", lateness_ms=[0, 0, 900]),
        events.JobsSettled(app="mail", counts={"done": 2, "failed": 1, "expired": 1, "cancelled": 1, "retried": 4}),
        events.Early(app="mail", count=1),
        events.Swept(app="mail", count=7, job_ids=["a"]),
        events.ShardsTaken(shards=[]),
    ):
        counters(event)
    reading = NodeReading(
        apps={"mail": AppReading(held=5, held_bytes=4096, in_flight=2, overdue_ms=70)},
        topics=[TopicReading(topic="jobs", group="g", ready=True, lag={0: 5, 1: None, 2: 6})],
        saturation=0.123456,
    )
    late = Histogram()
    late.add([0, 0, 900])
    assert written(VitalsWriter(counters, lambda: reading, ManualClock())) == Vitals(
        apps={
            "mail": AppVitals(
                handed_over=3,
                settled=5,
                failed=1,
                retried=4,
                early=1,
                swept=7,
                in_flight=2,
                held_bytes=4096,
                overdue_ms=70,
                lateness=late.sparse(),
            )
        },
        topics=[TopicVitals(topic="jobs", group="g", ready=True, lag=11)],
        saturation=0.123,
    )


def test_apps_that_have_done_nothing_are_left_out() -> None:
    counters = Counters()
    counters(events.JobsAccepted(app="idle", count=1))
    work(counters, "mail", 1)
    assert list(written(VitalsWriter(counters, NodeReading, ManualClock())).apps) == ["mail"]


def test_a_thousand_apps_fit_those_with_most_work_by_name_and_the_rest_as_one_sum() -> None:
    counters, chance = Counters(), random.Random(7)
    for number in range(MANY):
        work(counters, f"app_{number}", 1 + number, lambda: chance.randrange(1 << chance.randrange(1, 20)))
    reading = NodeReading(
        apps={f"app_{n}": AppReading(held_bytes=1 << 20, in_flight=20, overdue_ms=n) for n in range(MANY)},
        topics=[TopicReading(topic=f"topic-{n}", group="g" * 20, ready=True, lag={0: n}) for n in range(100)],
    )
    writer = VitalsWriter(counters, lambda: reading, ManualClock())
    encoded = writer.write()
    vitals = decode(encoded)
    assert vitals is not None
    assert MOST_BYTES // 2 < len(encoded) <= MOST_BYTES == VITALS_BYTES
    busiest = [f"app_{MANY - 1 - place}" for place in range(len(vitals.apps))]
    assert list(vitals.apps) == busiest
    assert len(busiest) > 5
    assert len(busiest) + vitals.other_apps == MANY
    assert vitals.total.handed_over == vitals.total.settled == MANY * (MANY + 1) // 2
    assert sum(vitals.total.lateness.values()) == vitals.total.handed_over
    assert (vitals.total.in_flight, vitals.total.overdue_ms) == (20 * MANY, MANY - 1)
    assert vitals.topics[0].topic == "topic-99", "the longest lag comes first"
    assert 10 < len(vitals.topics) < 100
    assert len(vitals.topics) + vitals.other_topics == 100


def test_whatever_the_buckets_the_limit_holds() -> None:
    counters = Counters()
    everywhere = [1 << 40 | n << 20 for n in range(1000)] + list(range(5000)) + [1 << n for n in range(47)] * 10**3
    for number in range(MANY):
        counters(events.HandedOver(app=f"a_rather_long_name_of_an_app_{number}", lateness_ms=everywhere[:: 1 + number]))
    assert len(VitalsWriter(counters, NodeReading, ManualClock()).write()) <= MOST_BYTES


def test_a_sum_that_takes_more_room_than_was_left_for_it_costs_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infinite_scheduler.observe.vitals_writer.SUM_BYTES", 0)
    counters = Counters()
    for number in range(MANY):
        work(counters, f"app_{number}", 1, lambda: 3)
    encoded = VitalsWriter(counters, NodeReading, ManualClock()).write()
    vitals = decode(encoded)
    assert vitals is not None
    assert len(encoded) <= MOST_BYTES
    assert vitals.total.handed_over == MANY


def test_work_of_long_ago_does_not_count() -> None:
    counters, clock = Counters(), ManualClock()
    writer = VitalsWriter(counters, NodeReading, clock)
    work(counters, "yesterday", 1000)
    assert list(written(writer).apps) == ["yesterday"]
    clock.advance(600_000)
    work(counters, "now", 1)
    assert list(written(writer).apps) == ["now", "yesterday"]


def test_topics_that_cannot_be_read_come_first() -> None:
    topics = [
        TopicReading(topic="fine", group="g", ready=True, lag={0: 9}),
        TopicReading(topic="stuck", group="g", ready=False, lag={}),
    ]
    vitals = written(VitalsWriter(Counters(), lambda: NodeReading(topics=topics), ManualClock()))
    assert [(one.topic, one.ready, one.lag) for one in vitals.topics] == [("stuck", False, None), ("fine", True, 9)]


def test_a_sum_has_the_oldest_of_what_is_overdue() -> None:
    total = total_of([EVERYTHING, AppVitals(handed_over=1, overdue_ms=90, lateness={17: 1, 20: 2})])
    assert (total.handed_over, total.overdue_ms, total.lateness) == (10, 90, {0: 6, 17: 4, 20: 2})


async def test_a_heartbeat_carries_them_and_any_process_can_read_them() -> None:
    async with Harness() as h:
        h.scheduler.app("mail")(lambda job: None)
        await h.start()
        await h.client.schedule("mail", delay="1s")
        await h.advance("10s")
        (node,) = (await h.client.survey()).view.nodes
        vitals = decode(node.vitals)
        assert vitals is not None
        mail = vitals.apps["mail"]
        assert (mail.handed_over, mail.settled, mail.failed, sum(mail.lateness.values())) == (1, 1, 0, 1)


async def test_an_error_in_them_does_not_cost_a_node_its_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[events.Event] = []
    monkeypatch.setattr(VitalsWriter, "write", lambda _: 1 // 0)
    async with Harness(observers=[told.append]) as h:
        h.scheduler.app("mail")(lambda job: None)
        await h.start()
        before = (await h.client.survey()).view.nodes[0].beat
        await h.advance("30s")
        (node,) = (await h.client.survey()).view.nodes
        assert node.vitals is None
        assert node.beat > before
        assert h.scheduler.counters.snapshot()["node"]["lapses"] == 0
        failed = [event.part for event in told if isinstance(event, events.TaskFailed)]
        assert failed == ["vitals"], "it is reported once"


def test_numbers_of_the_future_do_not_end_a_look() -> None:
    assert decode(msgspec.json.encode({"apps": {"mail": {"l": {"9999": 5}}}})) is not None
    assert Histogram.of({9999: 5}).count == 0
