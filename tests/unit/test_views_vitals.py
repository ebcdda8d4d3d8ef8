"""The cluster as people see it: vitals of all living nodes, added up, and compared with earlier ones."""

import msgspec

from infinite_scheduler.observe.node_vitals import AppVitals, TopicVitals, Vitals, encode
from infinite_scheduler.store.cluster_state import NodeInfo, View
from infinite_scheduler.store.looking import Survey
from infinite_scheduler.views.vitals import ClusterWorkView, LatenessView, WorkHistory

NOW = 1_893_456_000_000
LEASE = 10_000


def node(nonce: str, vitals: Vitals | bytes | None, beat_ms: int = NOW) -> NodeInfo:
    encoded = encode(vitals) if isinstance(vitals, Vitals) else vitals
    return NodeInfo(
        nonce=nonce,
        node_id=f"node-{nonce}",
        apps=frozenset(),
        started_ms=0,
        beat_ms=beat_ms,
        vitals=encoded,
    )


def look(history: WorkHistory, now_ms: int, *nodes: NodeInfo) -> ClusterWorkView:
    return history.add(Survey(view=View(nodes=nodes, shards=(), apps=()), counts={}), now_ms, LEASE)


def mail(handed_over: int, **more: object) -> Vitals:
    return Vitals(apps={"mail": AppVitals(handed_over=handed_over, **more)})  # type: ignore[arg-type]


def test_gauges_are_added_up_and_the_oldest_overdue_job_counts() -> None:
    one = Vitals(apps={"mail": AppVitals(in_flight=2, held_bytes=10, overdue_ms=5, early=1)}, saturation=0.5)
    two = Vitals(apps={"mail": AppVitals(in_flight=3, held_bytes=20, overdue_ms=70), "sms": AppVitals(in_flight=1)})
    view = look(WorkHistory(), NOW, node("a", one), node("b", two))
    work = view.apps["mail"]
    assert (work.in_flight, work.held_bytes, work.overdue_ms, work.early) == (5, 30, 70, 1)
    assert (view.total.in_flight, view.total.overdue_ms) == (6, 70)
    assert [(one.node, one.saturation, one.work.in_flight) for one in view.nodes] == [
        ("node-a", 0.5, 2),
        ("node-b", 0.0, 4),
    ]


def test_rates_are_differences_of_heartbeats_and_unknown_before_there_are_two() -> None:
    history = WorkHistory()
    first = look(history, NOW, node("a", mail(1000, settled=900)), node("b", mail(50)))
    assert first.apps["mail"].handed_over_rate is None
    assert first.apps["mail"].lateness is None
    assert look(history, NOW, node("a", mail(1000, settled=900))).total.handed_over_rate is None
    later = NOW + 2000
    view = look(history, later, node("a", mail(1200, settled=1000), later), node("b", mail(60), NOW + 1000))
    work = view.apps["mail"]
    assert (work.handed_over_rate, work.settled_rate, work.failed_rate) == (100.0, 50.0, 0.0)


def test_a_node_that_comes_back_is_compared_with_itself_only() -> None:
    history = WorkHistory()
    look(history, NOW, node("a", mail(1000)), node("b", mail(500)))
    look(history, NOW + 1000, node("a", mail(1000), NOW + 1000))
    view = look(history, NOW + 2000, node("a", mail(1020), NOW + 2000), node("c", mail(7), NOW + 2000))
    assert view.apps["mail"].handed_over_rate == 10.0


def test_lateness_is_that_of_the_jobs_since_the_earlier_heartbeat() -> None:
    history = WorkHistory()
    look(history, NOW, node("a", mail(100, lateness={200: 100})))
    view = look(history, NOW + 2000, node("a", mail(200, lateness={200: 100, 2: 99, 15: 1}), NOW + 2000))
    assert view.apps["mail"].lateness == LatenessView(jobs=100, p50_ms=2, p99_ms=2, max_ms=15)


def test_only_the_last_minute_counts() -> None:
    history = WorkHistory()
    look(history, NOW, node("a", mail(0)))
    rates = []
    for second in range(2, 121, 2):
        at_ms = NOW + 1000 * second
        view = look(history, at_ms, node("a", mail(1_000_000 + second), at_ms))
        rates.append(view.apps["mail"].handed_over_rate)
    assert rates[0] == 500_001.0
    assert rates[-1] == 1.0


def test_an_app_that_had_no_name_before_has_no_rate_yet() -> None:
    history = WorkHistory()
    look(history, NOW, node("a", Vitals(others=AppVitals(handed_over=500), other_apps=9)))
    named = Vitals(apps={"mail": AppVitals(handed_over=400)}, others=AppVitals(handed_over=120), other_apps=8)
    view = look(history, NOW + 2000, node("a", named, NOW + 2000))
    assert view.apps["mail"].handed_over_rate is None
    assert view.total.handed_over_rate == 10.0
    assert view.others is not None


def test_an_app_whose_first_job_came_since_has_a_rate() -> None:
    history = WorkHistory()
    look(history, NOW, node("a", Vitals()))
    assert look(history, NOW + 2000, node("a", mail(20), NOW + 2000)).apps["mail"].handed_over_rate == 10.0


def test_dead_nodes_and_those_that_say_nothing_do_not_count() -> None:
    silent = node("b", mail(0, in_flight=9), NOW - LEASE - 1)
    view = look(WorkHistory(), NOW, node("a", mail(0, in_flight=1)), silent, node("c", None), node("d", b"{"))
    assert view.total.in_flight == 1
    assert [one.nonce for one in view.nodes] == ["a"]


def test_a_topic_is_shown_with_the_nodes_that_read_it() -> None:
    one = Vitals(topics=[TopicVitals(topic="jobs", group="g", ready=True, lag=5)])
    two = Vitals(topics=[TopicVitals(topic="jobs", group="g", ready=False), TopicVitals(topic="z", group="g")])
    jobs, other = look(WorkHistory(), NOW, node("a", one), node("b", two)).topics
    assert (jobs.nodes, jobs.unready, jobs.lag) == (("node-a", "node-b"), ("node-b",), 5)
    assert other.lag is None


def test_an_empty_cluster_has_a_view() -> None:
    view = look(WorkHistory(), NOW)
    assert view.total.in_flight == 0
    assert view.others is None
    assert msgspec.json.decode(msgspec.json.encode(view))["apps"] == {}
