"""The demo on a real broker and a real database: it works, disturbs nobody and leaves what it says."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from infinite_scheduler.cli import demo
from tests.services.kafka import GuardedKafka
from tests.services.topics import Options, told
from tests.snippets import environment


def play(*options: str, **variables: str) -> tuple[int, list[dict[str, Any]], str]:
    done = subprocess.run(
        [sys.executable, "-m", "infinite_scheduler", "demo", "--json", *options],
        env=environment() | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def left_on(servers: str | Options) -> list[str]:
    admin = AdminClient(told(servers))
    groups = [group.group_id for group in admin.list_consumer_groups().result().valid]
    return [name for name in [*admin.list_topics(timeout=10).topics, *groups] if "_demo_" in name]


def play_shortly(monkeypatch: pytest.MonkeyPatch, kafka: str, store: str | None = None) -> Sequence[str]:
    """The demo with the one message that is never refused, in this process; returns what it says is left behind."""
    with monkeypatch.context() as patched:
        patched.setattr(demo, "MESSAGES", demo.MESSAGES[3:4])
        short = demo.Demo(lambda _: None, kafka, store)
        assert asyncio.run(short.play()).fine
    return short.left


def test_it_works_on_real_ones_again_and_again(
    kafka_servers: str, mariadb_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = play_shortly(monkeypatch, kafka_servers, mariadb_url)
    code, events, err = play("--kafka", kafka_servers, "--store", mariadb_url)
    assert (code, err) == (0, "")
    summary = events[-1]
    assert (summary["delivered"], summary["early"], summary["lost"], summary["handed_over"]) == (5, 0, 0, 12)
    (left,) = summary["left"]
    assert left.startswith("app sms_retry_demo with its jobs in ")
    assert mariadb_url not in left
    assert before == [left]
    assert left_on(kafka_servers) == []


def login_to(broker: GuardedKafka) -> dict[str, str]:
    return {
        "INFINITE_SCHEDULER_KAFKA__SECURITY_PROTOCOL": broker.options["security.protocol"],
        "INFINITE_SCHEDULER_KAFKA__SASL_MECHANISM": broker.options["sasl.mechanism"],
        "INFINITE_SCHEDULER_KAFKA__SASL_USERNAME": broker.options["sasl.username"],
        "INFINITE_SCHEDULER_KAFKA__SASL_PASSWORD": broker.options["sasl.password"],
    }


def test_a_broker_that_asks_for_a_login_gets_it_from_the_environment(
    guarded_kafka: GuardedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in login_to(guarded_kafka).items():
        monkeypatch.setenv(name, value)
    assert play_shortly(monkeypatch, guarded_kafka.url) == []
    assert left_on(guarded_kafka.options) == []
    wrong = login_to(guarded_kafka) | {"INFINITE_SCHEDULER_KAFKA__SASL_PASSWORD": "wrong"}
    code, events, err = play("--kafka", guarded_kafka.url, **wrong)
    assert (code, events) == (5, [])
    assert "refuses the login" in err


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--kafka", "127.0.0.1:1"], 5, "the connection to Kafka at 127.0.0.1:1 failed"),
        (["--kafka", ""], 2, "kafka.bootstrap_servers"),
        (["--store", "mysql://u:secret@127.0.0.1:1/x"], 5, "nothing listens there"),
        (["--store", "nowhere"], 2, "store.url"),
    ],
)
def test_a_bad_address_is_refused_with_the_reason(options: list[str], code: int, words: str) -> None:
    ended, events, err = play(*options)
    assert (ended, events) == (code, [])
    assert words in err
    assert "secret" not in err


def test_a_store_that_is_away_leaves_no_topics_behind(guarded_kafka: GuardedKafka) -> None:
    """On a broker where no other demo is played beside this one."""
    away = ("--store", "mysql://u:secret@127.0.0.1:1/x")
    code, events, _ = play("--kafka", guarded_kafka.url, *away, **login_to(guarded_kafka))
    assert (code, events) == (5, [])
    assert left_on(guarded_kafka.options) == []
