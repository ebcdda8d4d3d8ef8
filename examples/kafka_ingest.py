"""Jobs from a Kafka topic: three apps, a producer, repeats, and bad messages in the dead letter queue.

On the broker of the client library, or on yours: `infinite-scheduler topics create --preset ingest` creates the topics,
`python examples/kafka_ingest.py --kafka HOST:PORT` uses them.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from threading import Semaphore

from confluent_kafka import Consumer, Producer

from infinite_scheduler import Job, KafkaIngestConfig, MultiAppScheduler, ScheduleJobRequest
from infinite_scheduler.testing import embedded_broker

TOPIC, DLQ = "scheduler.jobs.ingest", "scheduler.jobs.dlq"
GROUP = f"infinite-scheduler-example-{time.time_ns()}"  # unique, so that each run begins with its own messages
HANDED_OVER = Semaphore(0)


class SmsHandler:
    """Sends a text; without these fields a message is refused when it comes in."""

    required_fields = ("phoneNumber", "message")

    def handle(self, job: Job) -> None:
        print(f"sms: {job.data['message']!r} to {job.data['phoneNumber']}")
        HANDED_OVER.release()


class SipCallHandler:
    """Makes a call; it also checks the values of the data."""

    required_fields = ("callTo", "callFrom", "duration")

    def validate(self, data: Mapping[str, object]) -> None:
        if not isinstance(data["duration"], int) or data["duration"] <= 0:
            raise ValueError("duration must be a number of seconds")

    def handle(self, job: Job) -> None:
        print(f"sipcall: {job.data['callFrom']} calls {job.data['callTo']} for {job.data['duration']} s")
        HANDED_OVER.release()


class PaymentHandler:
    """Books a payment."""

    required_fields = ("accountId", "amount", "currency")

    def handle(self, job: Job) -> None:
        print(f"payment_gateway: {job.data['amount']} {job.data['currency']} from {job.data['accountId']}")
        HANDED_OVER.release()


SMS = {"phoneNumber": "+49 30 555 0101", "message": "Hello World!", "senderId": "MyApp"}
CALL = {"callTo": "sip:ada@example.org", "callFrom": "sip:grace@example.org", "duration": 60}
PAYMENT = {"accountId": "ACC-1", "amount": 9.95, "currency": "EUR"}


def request(app: str, data: Mapping[str, object], key: str | None = None) -> str:
    """What a service writes to the topic: this app, this data, in a second."""
    wish = ScheduleJobRequest(app, datetime.now(UTC) + timedelta(seconds=1), data)
    wish.priority = "normal"
    wish.idempotency_key = key
    return wish.to_json()


def produce(servers: str) -> None:
    """Services send their requests; some of them twice, some of them wrong."""
    sms = request("sms", SMS, "sms-1")
    messages = [
        ("sms-job-1", sms),
        ("sms-job-1", sms),  # sent again, since the answer was lost
        ("call-7", request("sipcall", CALL, "call-7")),
        ("account-1", request("payment_gateway", PAYMENT)),
        ("bad-1", "this is not JSON"),
        ("bad-2", request("fax", {"to": "somebody"})),
        ("bad-3", request("sms", {"message": "to nobody"})),
        ("bad-4", request("sipcall", CALL | {"duration": -1})),
    ]
    producer = Producer({"bootstrap.servers": servers, "acks": "all"})
    for key, value in messages:
        producer.produce(TOPIC, value, key)
    producer.flush(10)


def dead_letters(servers: str, count: int) -> None:
    """Read what could not become a job, and why."""
    own = {"group.id": f"{GROUP}-dlq", "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": servers, **own})
    consumer.subscribe([DLQ])
    while count:
        record = consumer.poll(1)
        if record is not None and record.error() is None:
            headers = {name: value.decode() for name, value in record.headers()}
            print(f"dead letter {record.key().decode()}: {headers['error-message']}")
            count -= 1
    consumer.close()


def main(servers: str, store_url: str) -> None:
    config = KafkaIngestConfig(
        bootstrap_servers=servers, topic=TOPIC, dlq_topic=DLQ, group_id=GROUP, max_poll_records=500, max_retries=3
    )
    manager = MultiAppScheduler(store_url=store_url).with_kafka_ingest(config)
    manager.register_app("sms", SmsHandler())
    manager.register_app("sipcall", SipCallHandler())
    manager.register_app("payment_gateway", PaymentHandler())
    manager.start_all()
    produce(servers)
    dead_letters(servers, 4)
    for _ in range(3):
        HANDED_OVER.acquire()
    while manager.kafka_ingest_consumer.metrics["messagesReceived"] < 8:
        time.sleep(0.1)
    print("metrics:", json.dumps(dict(manager.kafka_ingest_consumer.metrics)))
    manager.stop_all()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kafka", metavar="HOST:PORT", help="brokers to use instead of the embedded one")
    chosen = parser.parse_args()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        main(chosen.kafka or stack.enter_context(embedded_broker(topics=[TOPIC, DLQ])), f"sqlite:///{folder}/jobs.db")
