"""Topics that are made on request: as documented, never changed, never half of what was asked."""

from collections.abc import Collection, Mapping

import pytest

from infinite_scheduler.errors import InvalidRequest
from infinite_scheduler.kafka.admin import Admin, Overview, TopicInfo
from infinite_scheduler.kafka.options import KafkaOptions
from infinite_scheduler.kafka.topics import PRESETS, Made, WantedTopic, make_topics, preset


class Cluster(Admin):
    """Brokers that keep their topics in memory."""

    def __init__(self, brokers: int) -> None:
        super().__init__(KafkaOptions("nowhere:9092"))
        self.brokers = [f"kafka{number}:9092" for number in range(brokers)]
        self.topics: dict[str, tuple[int, int, Mapping[str, str]]] = {}

    async def overview(self, topics: Collection[str]) -> Overview:
        found = {name: self.topics[name] for name in topics if name in self.topics}
        return Overview(
            brokers=self.brokers,
            topics={
                name: TopicInfo(partitions=range(partitions), replication=replication)
                for name, (partitions, replication, _) in found.items()
            },
        )

    async def settings(self, topic: str) -> Mapping[str, str]:
        return {"retention.ms": "604800000", **self.topics[topic][2]}

    async def create(self, name: str, partitions: int, replication: int, settings: Mapping[str, str]) -> bool:
        if name in self.topics:
            return False
        self.topics[name] = (1 if partitions == -1 else partitions, replication, settings)
        return True


def shape(made: Made) -> tuple[str, int, int | None]:
    return made.name, made.partitions, made.retention_ms


async def test_the_documented_topics_are_made() -> None:
    cluster = Cluster(3)
    sms = await make_topics(cluster, PRESETS["sms-retry"])
    week = 604_800_000
    assert [shape(each) for each in sms] == [("SMS_Retry", 6, week), ("SMS_Send", 6, week), ("SMS_Retry_DLQ", 3, week)]
    ingest = await make_topics(cluster, PRESETS["ingest"])
    assert [shape(each) for each in ingest] == [
        ("scheduler.jobs.ingest", 12, 86_400_000),
        ("scheduler.jobs.dlq", 3, week),
    ]
    assert all(each.made and each.differs == () for each in (*sms, *ingest))


@pytest.mark.parametrize(("brokers", "replicas"), [(1, 1), (2, 2), (3, 3), (7, 3)])
async def test_a_message_is_kept_by_three_brokers_or_by_all_there_are(brokers: int, replicas: int) -> None:
    (made,) = await make_topics(Cluster(brokers), [WantedTopic(name="t", partitions=1)])
    assert made.replication == replicas


async def test_a_topic_that_exists_is_left_and_its_differences_are_told() -> None:
    cluster = Cluster(2)
    cluster.topics["t"] = (4, 1, {"retention.ms": "5000"})
    wanted = WantedTopic(name="t", partitions=6, replication=2, retention_ms=7000)
    same, other = await make_topics(cluster, [WantedTopic(name="t", partitions=4, retention_ms=5000), wanted])
    assert cluster.topics["t"] == (4, 1, {"retention.ms": "5000"})
    assert not same.made
    assert same.differs == []
    assert other.differs == [
        "partitions is 4 and not 6",
        "replication is 1 and not 2",
        "retention.ms is 5000 and not 7000",
    ]


async def test_what_is_not_asked_for_is_left_to_the_brokers() -> None:
    cluster = Cluster(1)
    await make_topics(cluster, [WantedTopic(name="t")])
    assert cluster.topics["t"] == (1, 1, {})


async def test_more_replicas_than_brokers_are_refused_before_anything_is_made() -> None:
    cluster = Cluster(2)
    with pytest.raises(InvalidRequest, match="3 replicas need as many brokers, but there are 2 brokers"):
        await make_topics(cluster, [WantedTopic(name="one"), WantedTopic(name="two", replication=3)])
    assert cluster.topics == {}


@pytest.mark.parametrize("name", ["", " ", ".", "..", "a b", "a/b", "ü", "x" * 250, "a\n"])
def test_a_name_that_no_topic_can_have_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a valid topic name"):
        WantedTopic(name=name)


def test_an_unknown_preset_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidRequest, match="unknown preset 'sms': use sms-retry or ingest"):
        preset("sms")
