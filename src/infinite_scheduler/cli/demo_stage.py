"""Where the demo runs: a broker and a store that end with it, or real ones, on which it disturbs nothing."""

import os
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import msgspec

from infinite_scheduler.config import Settings, load_settings
from infinite_scheduler.kafka.admin import Admin
from infinite_scheduler.kafka.embedded import embedded_broker
from infinite_scheduler.kafka.librdkafka_log import LibrdkafkaLog
from infinite_scheduler.kafka.options import KafkaOptions
from infinite_scheduler.kafka.topics import WantedTopic, make_topics
from infinite_scheduler.store import shown_url

if TYPE_CHECKING:
    from confluent_kafka import Consumer

APP: Final = "sms_retry"
TOPICS: Final = {"SMS_Retry": 6, "SMS_Send": 6, "SMS_Retry_DLQ": 3}
"""The usual names, and their numbers of partitions."""

KAFKA_LOGIN: Final = "INFINITE_SCHEDULER_KAFKA__"
STORE_LOGIN: Final = "INFINITE_SCHEDULER_STORE__PASSWORD"
"""The prefixes of variables that apply to a real broker or store: what the login needs."""


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """What the demo uses. The names are the usual ones, with a suffix where they may be in use."""

    servers: str
    store: str
    app: str
    mark: str = ""

    @property
    def retry_topic(self) -> str:
        return f"SMS_Retry{self.mark}"

    @property
    def send_topic(self) -> str:
        return f"SMS_Send{self.mark}"

    @property
    def dlq_topic(self) -> str:
        return f"SMS_Retry_DLQ{self.mark}"

    @property
    def groups(self) -> Sequence[str]:
        """The consumer groups of the scheduler and of the SMS service."""
        return f"sms-retry-scheduler{self.mark}", f"sms-sender-service{self.mark}"

    @property
    def settings(self) -> Settings:
        """The settings of the scheduler: one topic in, one app that publishes to another."""
        known = (*((KAFKA_LOGIN,) if self.mark else ()), *((STORE_LOGIN,) if self.app != APP else ()))
        own = {"topic": self.retry_topic, "dlq_topic": self.dlq_topic, "group_id": self.groups[0]}
        return load_settings(
            overrides={
                "store.url": self.store,
                "node.id": "demo",
                "kafka.bootstrap_servers": self.servers,
                "ingest": [own],
                "apps": {self.app: {"handler": "sms_retry", "topic": self.send_topic}},
            },
            environ={name: value for name, value in os.environ.items() if name.startswith(known)},
        )

    @property
    def options(self) -> KafkaOptions:
        """The connection options."""
        return self.settings.kafka.options()

    def consumer(self) -> "Consumer":
        """A consumer of the SMS service."""
        from confluent_kafka import Consumer  # noqa: PLC0415 - 54 ms that only users of Kafka pay

        # The embedded broker answers when this wait is over, a real one as soon as there is something.
        own = {"group.id": self.groups[1], "auto.offset.reset": "earliest", "fetch.wait.max.ms": 2}
        return Consumer({**self.options.client(), **own, "logger": LibrdkafkaLog()})


@asynccontextmanager
async def open_stage(kafka: str | None, store: str | None, left: list[str]) -> AsyncIterator[Stage]:
    """Prepare everything, and clean it up at the end; what stays behind is added to `left`."""
    async with AsyncExitStack() as stack:
        stage = Stage(
            servers=stack.enter_context(embedded_broker(topics=TOPICS)) if kafka is None else kafka,
            store=stack.enter_context(_temporary_store()) if store is None else store,
            app=APP if store is None else f"{APP}_demo",
            mark="" if kafka is None else f"_demo_{secrets.token_hex(3)}",
        )
        if kafka is not None:
            await stack.enter_async_context(_own_topics(stage, left))
        yield stage
        if store is not None:
            left.append(f"app {stage.app} with its jobs in {shown_url(store)}")


@contextmanager
def _temporary_store() -> Iterator[str]:
    with TemporaryDirectory(prefix="infinite-scheduler-demo-") as folder:
        yield f"sqlite:///{folder}/demo.db"


@asynccontextmanager
async def _own_topics(stage: Stage, left: list[str]) -> AsyncIterator[None]:
    """Topics of the demo's own, deleted at the end together with their groups."""
    wanted = [WantedTopic(name=f"{name}{stage.mark}", partitions=size) for name, size in TOPICS.items()]
    async with Admin(stage.options) as admin:
        await admin.overview([])  # if no broker answers, there is nothing to clean up
        try:
            await make_topics(admin, wanted)
            yield
        finally:
            left += await admin.remove([topic.name for topic in wanted], stage.groups)
