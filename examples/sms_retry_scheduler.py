"""The scheduler of the SMS retry system: messages from SMS_Retry wait in the store, and go to SMS_Send when due.

Without options it runs the whole system on the broker of the client library: it starts `sms_service.py` and
`sms_sender.py` as well, with minutes of 0.1 s, and ends when they do. With your broker it runs until Ctrl-C, and you
start the other two:

    infinite-scheduler topics create --preset sms-retry --kafka HOST:PORT
    python examples/sms_retry_scheduler.py --kafka HOST:PORT --store mysql://USER:PASSWORD@HOST/DATABASE
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from infinite_scheduler import KafkaIngestConfig, MultiAppScheduler, SmsRetryJobHandler
from infinite_scheduler.testing import embedded_broker

HERE = Path(__file__).parent


def make_manager(servers: str, store_url: str) -> MultiAppScheduler:
    manager = MultiAppScheduler(store_url=store_url).with_kafka_ingest(
        KafkaIngestConfig(
            bootstrap_servers=servers,
            topic="SMS_Retry",
            dlq_topic="SMS_Retry_DLQ",
            group_id="sms-retry-scheduler",
            max_poll_records=500,
            enabled=True,
        )
    )
    manager.register_app("sms_retry", SmsRetryJobHandler(servers, "SMS_Send"))
    return manager


def play() -> None:
    """The whole system on one machine, with short minutes."""
    topics = ["SMS_Retry", "SMS_Send", "SMS_Retry_DLQ"]
    with tempfile.TemporaryDirectory() as folder, embedded_broker(topics=topics) as servers:
        manager = make_manager(servers, f"sqlite:///{folder}/jobs.db")
        hurry = ["--kafka", servers, "--minute", "0.1"]
        with manager:
            sender = subprocess.Popen([sys.executable, HERE / "sms_sender.py", *hurry, "--count", "3"])
            subprocess.run([sys.executable, HERE / "sms_service.py", *hurry], check=True)
            sender.wait(timeout=45)
        print("scheduler:", dict(manager.kafka_ingest_consumer.metrics))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kafka", metavar="HOST:PORT", help="brokers to use instead of the embedded one")
    parser.add_argument("--store", metavar="URL", default="sqlite:///scheduler.db", help="only with --kafka")
    chosen = parser.parse_args()
    if chosen.kafka:
        make_manager(chosen.kafka, chosen.store).run()
    else:
        play()
