"""The demo on a real broker and a real database: it works, disturbs nobody and leaves what it says."""

import json
import subprocess
import sys
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

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


def test_it_works_on_real_ones_again_and_again(kafka_servers: str, mariadb_url: str) -> None:
    for _ in range(2):
        code, events, err = play("--kafka", kafka_servers, "--store", mariadb_url)
        assert (code, err) == (0, "")
        summary = events[-1]
        assert (summary["delivered"], summary["early"], summary["lost"], summary["handed_over"]) == (5, 0, 0, 12)
        (left,) = summary["left"]
        assert left.startswith("app sms_retry_demo with its jobs in ")
        assert mariadb_url not in left
    assert left_on(kafka_servers) == []


def test_a_broker_that_asks_for_a_login_gets_it_from_the_environment(guarded_kafka: GuardedKafka) -> None:
    login = {
        "INFINITE_SCHEDULER_KAFKA__SECURITY_PROTOCOL": guarded_kafka.options["security.protocol"],
        "INFINITE_SCHEDULER_KAFKA__SASL_MECHANISM": guarded_kafka.options["sasl.mechanism"],
        "INFINITE_SCHEDULER_KAFKA__SASL_USERNAME": guarded_kafka.options["sasl.username"],
        "INFINITE_SCHEDULER_KAFKA__SASL_PASSWORD": guarded_kafka.options["sasl.password"],
    }
    code, events, err = play("--kafka", guarded_kafka.url, **login)
    assert (code, err, events[-1]["left"]) == (0, "", [])
    assert left_on(guarded_kafka.options) == []
    wrong = play("--kafka", guarded_kafka.url, **login | {"INFINITE_SCHEDULER_KAFKA__SASL_PASSWORD": "wrong"})
    assert wrong[:2] == (5, [])
    assert "refuses the login" in wrong[2]


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


def test_a_store_that_is_away_leaves_no_topics_behind(kafka_servers: str) -> None:
    code, events, _ = play("--kafka", kafka_servers, "--store", "mysql://u:secret@127.0.0.1:1/x")
    assert (code, events) == (5, [])
    assert left_on(kafka_servers) == []
