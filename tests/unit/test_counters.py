import threading

import msgspec

from infinite_scheduler.model import Shard
from infinite_scheduler.observe import events
from infinite_scheduler.observe.counters import APP_COUNTS, NODE_COUNTS, TOPIC_COUNTS, Counters

SHARDS = [Shard("shop", 0), Shard("shop", 1), Shard("sms", 0)]


def told(*happened: events.Event) -> Counters:
    counters = Counters()
    for event in happened:
        counters(event)
    return counters


def test_what_happens_to_jobs_is_counted_per_app() -> None:
    apps = told(
        events.JobsAccepted(app="shop", count=5, repeated=2),
        events.JobsAccepted(app="sms", count=1),
        events.HandedOver(app="shop", lateness_ms=[0, 3, 900]),
        events.JobsSettled(app="shop", counts={"done": 2, "failed": 1}),
        events.JobsSettled(app="shop", counts={"done": 1, "retried": 4, "expired": 1, "cancelled": 2}),
        events.JobsCancelled(app="shop", count=1),
        events.CallsEnded(app="shop", took_us=[400, 2_900]),
        events.CallsEnded(app="shop", took_us=[700]),
        events.AttemptFailed(app="shop", job_id="x", attempt=1, error="e", request_id=None, next_due_ms=None),
        events.JobsHeldBack(app="shop", count=3),
        events.JobsHeldBack(app="shop", count=1),
        events.AppHeldBack(app="shop", error="no topic"),
        events.AppHeldBack(app="shop", error="no right"),
        events.AppResumed(app="shop", held_back_ms=7000),
        events.Early(app="shop", count=1),
        events.Swept(app="shop", count=7, job_ids=["a"]),
        events.SuspectsFound(app="shop", count=30, batch=30),
        events.PoisonFailed(app="shop", job_id="x"),
        events.StillRunning(app="shop", job_ids=["a", "b"]),
    ).snapshot()["apps"]
    shop = apps["shop"]
    assert {name: shop[name] for name in APP_COUNTS} == {
        "accepted": 5,
        "repeated": 2,
        "handed_over": 3,
        "done": 3,
        "failed": 1,
        "expired": 1,
        "cancelled": 3,
        "retried": 4,
        "attempts_failed": 1,
        "held_back": 4,
        "destination_away": 1,
        "destination_away_ms": 7000,
        "early": 1,
        "swept": 7,
        "suspects": 30,
        "poison": 1,
        "still_running": 2,
        "calls": 3,
        "calls_us": 4_000,
    }
    assert shop["lateness"] == {"count": 3, "total_ms": 903, "p50_ms": 3, "p99_ms": 900, "max_ms": 900}
    assert shop["took"] == {"count": 3, "total_ms": 2, "p50_ms": 0, "p99_ms": 2, "max_ms": 2}
    assert apps["sms"]["accepted"] == 1
    assert apps["sms"]["done"] == 0


def test_what_happens_to_messages_is_counted_per_topic() -> None:
    topics = told(
        events.MessagesTaken(topic="jobs", received=9, accepted=6, repeated=1, failed=2),
        events.MessagesTaken(topic="jobs", received=1, accepted=1, repeated=0, failed=0),
        events.DeadLettersSent(topic="jobs", dlq_topic="dead", count=2),
        events.MessagesTaken(topic="other", received=3, accepted=0, repeated=3, failed=0),
    ).snapshot()["topics"]
    assert tuple(topics["jobs"]) == TOPIC_COUNTS
    assert topics["jobs"] == {
        "messages_received": 10,
        "messages_processed": 7,
        "messages_failed": 2,
        "messages_sent_to_dlq": 2,
        "duplicates_skipped": 1,
    }
    assert topics["other"]["duplicates_skipped"] == 3


def test_what_happens_to_the_node_is_counted() -> None:
    node = told(
        events.ShardsTaken(shards=SHARDS, unclean=1),
        events.ShardsReleased(shards=SHARDS[:1]),
        events.ShardsLost(shards=SHARDS[1:2], dropped=4),
        events.Reloaded(shards=SHARDS[2:], why="in doubt"),
        events.DrainCalledOff(shards=SHARDS[2:]),
        events.StoreAway(error="refused", kept=1),
        events.StoreAway(error="refused", kept=2),
        events.StoreBack(away_ms=1_500),
        events.HeartbeatFailing(error="refused"),
        events.LeaseLapsed(silent_ms=11_000),
        events.Maintained(made=["a", "b"], dropped=["c"], pruned=9),
        events.TaskFailed(part="settler", error="e"),
    ).snapshot()["node"]
    assert {name: node[name] for name in NODE_COUNTS} == {
        "shards_taken": 3,
        "shards_taken_unclean": 1,
        "shards_released": 1,
        "shards_lost": 1,
        "dropped": 4,
        "reloads": 1,
        "drains_called_off": 1,
        "store_away": 1,
        "store_away_ms": 1_500,
        "heartbeat_outages": 1,
        "lapses": 1,
        "tables_made": 2,
        "tables_dropped": 1,
        "pruned": 9,
        "tasks_failed": 1,
    }
    assert node["shards_owned"] == 1
    assert node["store_is_away"] is False


def test_calls_of_the_store_are_counted_by_operation() -> None:
    store = told(
        events.StoreCalled(operation="settle", took_us=900),
        events.StoreCalled(operation="scan", took_us=5),
        events.StoreCalled(operation="settle", took_us=100),
    ).snapshot()["store"]
    assert store == {"scan": {"calls": 1, "us": 5}, "settle": {"calls": 2, "us": 1_000}}


def test_shards_owned_are_those_of_now() -> None:
    counters = told(events.ShardsTaken(shards=SHARDS), events.ShardsTaken(shards=SHARDS[:1]))
    snapshot = counters.snapshot()
    assert snapshot["node"]["shards_owned"] == 3
    assert {name: app["shards_owned"] for name, app in snapshot["apps"].items()} == {"shop": 2, "sms": 1}
    counters(events.ShardsReleased(shards=SHARDS))
    assert counters.snapshot()["node"]["shards_owned"] == 0


def test_the_store_is_away_until_it_is_back() -> None:
    counters = told(events.StoreAway(error="refused", kept=0))
    assert counters.snapshot()["node"]["store_is_away"] is True
    counters(events.StoreBack(away_ms=5))
    counters(events.StoreAway(error="refused", kept=0))
    assert counters.snapshot()["node"]["store_away"] == 2


def test_a_destination_is_away_until_it_is_back() -> None:
    counters = told(events.AppHeldBack(app="shop", error="no topic"))
    assert counters.snapshot()["apps"]["shop"]["destination_is_away"] is True
    counters(events.AppResumed(app="shop", held_back_ms=5))
    assert counters.snapshot()["apps"]["shop"]["destination_is_away"] is False


def test_gauges_are_read_when_somebody_looks() -> None:
    counters = Counters()
    overdue = [5]
    counters.gauge("oldest_overdue_ms", lambda: overdue[0])
    counters.gauge("broken", lambda: 1 // 0)
    assert counters.snapshot()["gauges"] == {"oldest_overdue_ms": 5, "broken": None}
    overdue[0] = 7
    assert counters.snapshot()["gauges"]["oldest_overdue_ms"] == 7


def test_a_snapshot_is_plain_data() -> None:
    counters = told(events.JobsAccepted(app="shop", count=5), events.ShardsTaken(shards=SHARDS))
    assert msgspec.json.decode(msgspec.json.encode(counters.snapshot())) == counters.snapshot()


def test_an_unknown_event_is_no_error() -> None:
    class Strange(events.Event, frozen=True, kw_only=True):
        pass

    assert told(Strange()).snapshot() == told().snapshot()


def test_nothing_is_missed_when_several_threads_tell() -> None:
    counters, start = Counters(), threading.Barrier(4)

    def tell() -> None:
        start.wait(10)
        for _ in range(2_000):
            counters(events.JobsSettled(app="shop", counts={"done": 1}))

    threads = [threading.Thread(target=tell) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counters.snapshot()["apps"]["shop"]["done"] == 8_000
