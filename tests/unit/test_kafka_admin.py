"""Questions to brokers that are slow, or have just started: no answer of theirs ends the process that asks.

Each runs in a process of its own, as librdkafka's own assertions, and its faults, end the whole process.
"""

import subprocess
import sys

import pytest
from confluent_kafka import KafkaError

from tests.snippets import environment
from tests.unit.slow_coordinator import GROUP, OFFSET, TOPIC, slow_coordinator

HEAD = f"""
import asyncio, gc, sys, time
from infinite_scheduler.kafka import admin as admins
from infinite_scheduler.kafka.admin import Admin
from infinite_scheduler.kafka.options import KafkaOptions

GROUP, TOPIC = {GROUP!r}, {TOPIC!r}
options = KafkaOptions(sys.argv[1])
"""

COMMITTED = """
async def main():
    async with Admin(options) as admin:
        print(await admin.committed(GROUP, TOPIC, [0]))
asyncio.run(main())
"""

LATE = """
admins._OPTIONAL_S = admins.TIMEOUT_S = 0.2
async def main():
    async with Admin(options) as admin:
        print(await admin.group(GROUP), await admin.remove([], [GROUP]))
        await asyncio.sleep(1)  # the answers arrive
asyncio.run(main())
"""

PENDING = """
admins._OPTIONAL_S = 0.2
async def main():
    async with Admin(options) as admin:
        print(await admin.group(GROUP))
asyncio.run(main())
time.sleep(1)
"""

COLLECTED = """
gc.disable()
def collect(answer):
    time.sleep(0.3)  # the client is let go meanwhile
    gc.collect()
    print(answer.result().state.name)
async def main():
    async with Admin(options) as admin:
        asked = admin._it.describe_consumer_groups([GROUP])[GROUP]
        asked.add_done_callback(collect)
        while not asked.done():
            await asyncio.sleep(0.001)
asyncio.run(main())
time.sleep(1)
"""


def ask(program: str, servers: str) -> tuple[int, str, str]:
    """How a process that asks ends, and what it said."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", HEAD + program, servers],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout.strip(), done.stderr


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("error", ["COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"])
def test_a_coordinator_that_has_just_started_is_asked_again(error: str, times: int) -> None:
    with slow_coordinator(*[getattr(KafkaError, error)] * times) as servers:
        assert ask(COMMITTED, servers) == (0, f"{{0: {OFFSET}}}", "")


def test_an_answer_that_comes_late_is_done_without() -> None:
    with slow_coordinator(found_after_s=0.5) as servers:
        assert ask(LATE, servers) == (0, f"None ['group {GROUP}: no answer within 0.2 s']", "")


def test_a_question_without_an_answer_holds_nobody_up() -> None:
    with slow_coordinator(found_after_s=30) as servers:
        assert ask(PENDING, servers) == (0, "None", "")


def test_a_client_is_gone_before_its_own_thread_could_collect_it() -> None:
    with slow_coordinator() as servers:
        assert ask(COLLECTED, servers) == (0, "EMPTY", "")
