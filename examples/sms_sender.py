"""The other end of the SMS service: reads SMS_Send, sends each message, and schedules the next attempt if that fails.

It runs until Ctrl-C, or until `--count` messages are delivered or given up.
"""

import json
from datetime import UTC, datetime

from confluent_kafka import Consumer
from sms_service import TASKS, GatewayDown, arguments, retry_time, send

from infinite_scheduler import SmsRetryProducer

MAX_RETRIES = 3


class SmsSender:
    """Sends the messages that come back, up to a maximum of attempts each."""

    def __init__(self, servers: str, minute: float = 60) -> None:
        self._minute = minute
        self._retries = SmsRetryProducer(servers)
        self._consumer = Consumer(
            {"bootstrap.servers": servers, "group.id": "sms-sender-service", "auto.offset.reset": "earliest"}
        )
        self._consumer.subscribe(["SMS_Send"])
        self.settled = 0

    def run(self, count: int | None = None) -> None:
        try:
            while self.settled != count:
                record = self._consumer.poll(1.0)
                if record is not None and record.error() is None:
                    self.process_retry(record.value())
        except KeyboardInterrupt:
            pass
        finally:
            self._consumer.close()
            self._retries.close()

    def process_retry(self, message: bytes) -> None:
        data = json.loads(message)
        task_id, attempt = data["campaignTaskId"], data["retryAttempt"]
        to, text, _ = TASKS[task_id]
        try:
            send(task_id, attempt)
            print(f"sender: SMS retry successful: task {task_id}, attempt {attempt}, {text!r} to {to}", flush=True)
            self.settled += 1
        except GatewayDown as error:
            print(f"sender: SMS retry failed: task {task_id}, attempt {attempt}", flush=True)
            if attempt < MAX_RETRIES:
                at = retry_time(attempt + 1, self._minute)
                self._retries.schedule_retry(task_id, datetime.now(UTC), at, attempt + 1, str(error))
            else:
                print(f"sender: task {task_id} given up after {attempt} retries", flush=True)
                self.settled += 1


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--count", type=int, help="end after this many messages are delivered or given up")
    chosen = parser.parse_args()
    SmsSender(chosen.kafka, chosen.minute).run(chosen.count)
