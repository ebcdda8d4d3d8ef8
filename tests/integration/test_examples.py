"""Every example runs, ends by itself within seconds, and prints what it is meant to show."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.snippets import ROOT, environment

FOLDER = ROOT / "examples"
SHOWN = {
    "batch_handler.py": ["200 jobs in ", "'done': 198", "'failed': 2"],
    "cancel_and_reschedule.py": [
        "cancelled",
        "fired: sooner than asked",
        "fired: at once",
        "too late",
        "tried again: done",
    ],
    "harness_test.py": ["2 tests passed"],
    "kafka_ingest.py": [
        "sms: 'Hello World!' to +49",
        "sipcall: sip:grace@example.org calls sip:ada@example.org for 60 s",
        "payment_gateway: 9.95 EUR from ACC-1",
        "dead letter bad-1: the message is not valid JSON",
        "dead letter bad-2: unknown app 'fax'; known apps: payment_gateway, sipcall, sms",
        "dead letter bad-3: phoneNumber is required",
        "dead letter bad-4: jobData was refused: duration must be a number of seconds",
        '"messagesReceived": 8, "messagesProcessed": 3, "messagesFailed": 4, "duplicatesSkipped": 1',
    ],
    "retry_ladder.py": ["sent to Ada by attempt 3", "done ['1: ProviderDown: 503', '2: ", "failed ['1: ValueError: "],
    "sms_retry_scheduler.py": [
        "service: SMS 101 failed, scheduled retry at",
        "sender: SMS retry successful: task 101, attempt 1",
        "sender: SMS retry failed: task 102, attempt 1",
        "sender: SMS retry successful: task 102, attempt 2",
        "sender: task 103 given up after 3 retries",
        "scheduler: {'messagesReceived': 6, 'messagesProcessed': 6, 'messagesFailed': 0",
    ],
    "transaction.py": ["reminder for order 1 of tea", "rolled back", "jobs: ['done']"],
}
BESIDE = {"sms_service.py", "sms_sender.py"}
"""Run by `sms_retry_scheduler.py`."""


def test_every_example_is_run_and_listed() -> None:
    files = {path.name for path in FOLDER.glob("*.py")}
    assert files == set(SHOWN) | BESIDE
    listed = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in listed for name in files)


@pytest.mark.parametrize("name", SHOWN)
def test_an_example_runs_and_shows_what_it_is_for(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", FOLDER / name],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [words for words in SHOWN[name] if words not in done.stdout] == []
    assert not list(tmp_path.iterdir())
