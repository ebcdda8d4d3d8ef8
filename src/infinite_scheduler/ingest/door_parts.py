"""What the parts of a topic door share."""

import msgspec

from infinite_scheduler.clock import Clock
from infinite_scheduler.ingest.consumer import TopicConsumer
from infinite_scheduler.ingest.kafka import KafkaIngestConfig
from infinite_scheduler.ingest.patience import Patience
from infinite_scheduler.ingest.topic_client import TopicClient
from infinite_scheduler.ingest.topic_watch import TopicWatch
from infinite_scheduler.observe.events import Observer
from infinite_scheduler.store.inbox import Inbox


class DoorParts(msgspec.Struct, frozen=True, kw_only=True):
    """The common parts of one door."""

    config: KafkaIngestConfig
    inbox: Inbox
    client: TopicClient
    consumer: TopicConsumer
    watch: TopicWatch
    patience: Patience
    clock: Clock
    tell: Observer
