"""An SMS service whose gateway is down: each message that fails is scheduled for a retry, through the topic SMS_Retry.

Run it beside `sms_retry_scheduler.py`, which returns the messages when due, and `sms_sender.py`, which sends them.
"""

import argparse
from datetime import UTC, datetime

from infinite_scheduler import SmsRetryProducer, retry_time_after

TASKS = {  # what a database would contain: to whom, what, and how often the gateway refuses it
    101: ("+49 30 555 0101", "Your code is 4711", 1),
    102: ("+81 3 5550 0102", "Your parcel is here", 2),
    103: ("+1 212 555 0103", "Gate B42, boarding now", 99),
}


class GatewayDown(Exception):
    """What the gateway answers at first."""


def send(task_id: int, attempt: int) -> None:
    """The gateway: it refuses a message as often as the table says."""
    if attempt < TASKS[task_id][2]:
        raise GatewayDown("Network timeout")


def retry_time(attempt: int, minute: float) -> datetime:
    """When to try again: after 1, 5, 15, 30, 60 minutes. A minute may be made shorter."""
    now = datetime.now(UTC)
    return now + (retry_time_after(attempt, now) - now) * (minute / 60)


class SmsService:
    """Sends messages; failed ones come back later."""

    def __init__(self, retries: SmsRetryProducer, minute: float = 60) -> None:
        self._retries = retries
        self._minute = minute

    def send_sms(self, task_id: int) -> None:
        try:
            send(task_id, attempt=0)
        except GatewayDown as error:
            at = retry_time(1, self._minute)
            self._retries.schedule_retry(task_id, datetime.now(UTC), at, 1, str(error))
            print(f"service: SMS {task_id} failed, scheduled retry at {at:%H:%M:%S}", flush=True)


def arguments(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--kafka", metavar="HOST:PORT", default="localhost:9092")
    parser.add_argument("--minute", metavar="SECONDS", type=float, default=60, help="how long a minute of a retry is")
    return parser


if __name__ == "__main__":
    chosen = arguments(__doc__).parse_args()
    with SmsRetryProducer(chosen.kafka) as producer:
        service = SmsService(producer, chosen.minute)
        for task in TASKS:
            service.send_sms(task)
