"""What the parts of a topic door share."""

import msgspec

from infinite_scheduler.clock import Clock
from infinite_scheduler.ingest.config import KafkaIngestConfig
from infinite_scheduler.ingest.topic_watch import TopicWatch
from infinite_scheduler.kafka.consumer_thread import ConsumerThread
from infinite_scheduler.kafka.group_client import GroupClient
from infinite_scheduler.kafka.group_member import GroupMember
from infinite_scheduler.observe.events import Observer
from infinite_scheduler.store.inbox import Inbox


class DoorParts(msgspec.Struct, frozen=True, kw_only=True):
    """The common parts of one door."""

    config: KafkaIngestConfig
    inbox: Inbox
    client: GroupClient
    consumer: GroupMember
    watch: TopicWatch
    consumer_thread: ConsumerThread
    clock: Clock
    tell: Observer
