"""Commands about topics and dead letters on a real Kafka, beside a node that reads."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from tests.command import NO_HTTP, run_here
from tests.services.kafka import GuardedKafka
from tests.services.topics import MakeTopic, delete_topics, make_topic, read, told, write
from tests.waiting import until

PATIENCE_S = 60


class KafkaCommandRig:
    """A folder with a configuration and a SQLite store, in which commands are run."""

    def __init__(self, folder: Path, servers: str, topic: str, *, kafka: str = "", group: str = "") -> None:
        self.folder, self.topic = folder, topic
        self.group = group or f"group-{secrets.token_hex(4)}"
        (folder / "scheduler.toml").write_text(
            f'[store]\nurl = "sqlite:///jobs.db"\n[kafka]\nbootstrap_servers = "{servers}"\n{kafka}\n'
            f'[[ingest]]\ntopic = "{topic}"\ndlq_topic = "{topic}.dlq"\ngroup_id = "{self.group}"\n'
            '[apps.sms]\nhandler = "kafka"\ntopic = "out"\nrequired = ["phoneNumber"]\n'
        )
        assert self("migrate", "--create").returncode == 0

    def __call__(self, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return run_here([*arguments, "--config", "scheduler.toml"], self.folder, self._env(env))

    def lines(self, *arguments: str) -> list[Any]:
        done = self(*arguments, "--json")
        assert "Traceback" not in done.stderr, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    @contextmanager
    def node(self) -> Iterator[subprocess.Popen[str]]:
        """A node that reads the topic."""
        with subprocess.Popen(
            [sys.executable, "-m", "infinite_scheduler", "serve", "--config", "scheduler.toml"],
            cwd=self.folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=self._env(None),
        ) as node:
            try:
                assert node.stdout is not None
                assert "runs sms" in node.stdout.readline()
                yield node
            finally:
                node.send_signal(signal.SIGTERM)
                node.wait(PATIENCE_S)

    def until(self, holds: Callable[[Any], bool]) -> Any:
        """The status, once it is as expected."""

        def as_expected() -> Any:
            (status,) = self.lines("ingest", "status")
            return status if holds(status) else None

        return until(as_expected, "the status of the topic is as expected", every_s=0.1)

    def _env(self, more: dict[str, str] | None) -> dict[str, str]:
        own = {
            name: value for name, value in os.environ.items() if not name.startswith("INFINITE_SCHEDULER_")
        } | NO_HTTP
        return own | (more or {})


def message(**fields: Any) -> str:
    known = {"appName": "sms", "scheduledTime": "2035-01-01T00:00:00Z", "jobData": {"phoneNumber": "1"}}
    return json.dumps(known | fields)


@pytest.fixture
def rig(
    tmp_path: Path, kafka_servers: str, fresh_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> Iterator[KafkaCommandRig]:
    monkeypatch.setattr("infinite_scheduler.kafka.admin._OPTIONAL_S", PATIENCE_S)  # a broker may be slow to tell
    topic = fresh_topic("jobs", partitions=3)
    make_topic(kafka_servers, f"{topic}.dlq")
    yield KafkaCommandRig(tmp_path, kafka_servers, topic)
    delete_topics(kafka_servers, f"{topic}.dlq")


def settled(rig: KafkaCommandRig, count: int) -> Callable[[Any], bool]:
    """Are so many messages dealt with, and is Kafka told?"""

    def holds(status: Any) -> bool:
        parts = status["partitions"]
        done = sum(part["position"] or 0 for part in parts) == count == sum(part["committed"] or 0 for part in parts)
        return bool(done and status["ready"])

    return holds


def test_a_topic_is_ready_while_a_node_reads_it(rig: KafkaCommandRig, kafka_servers: str) -> None:
    (before,) = rig.lines("ingest", "status")
    assert not before["ready"]
    assert "no node reads topic" in before["problems"][0]
    assert rig("ingest", "status").returncode == 1
    for partition in range(3):
        write(kafka_servers, rig.topic, [message()] * (partition + 1), partition=partition)
    with rig.node():
        status = rig.until(settled(rig, 6))
        assert rig("ingest", "status").returncode == 0
        assert (status["lag"], status["state"], len(status["members"])) == (0, "stable", 1)
        assert [part["position"] for part in status["partitions"]] == [1, 2, 3]
    assert rig("ingest", "status").returncode == 1


def test_the_status_of_a_topic_tells_that_an_app_is_held_back(rig: KafkaCommandRig, kafka_servers: str) -> None:
    write(kafka_servers, rig.topic, [message(scheduledTime="2020-01-01T00:00:00Z")], partition=0)
    with rig.node():
        status = rig.until(lambda status: status["ready"] and status["held_back"])
        (held,) = status["held_back"]
        assert (held["app"], "topic 'out' does not exist" in held["reason"]) == ("sms", True)
        assert set(held) == {"app", "node", "since", "reason"}
        told = rig("ingest", "status")
        assert (told.returncode, told.stdout.count("Held back: sms, by node")) == (1, 1)
        assert rig("apps", "list").returncode == 1
    (status,) = rig.lines("ingest", "status")
    assert not status["held_back"], "no node, no outage"
    assert rig("apps", "list").returncode == 0


def test_a_group_that_reads_other_topics_makes_no_topic_ready(
    rig: KafkaCommandRig, kafka_servers: str, fresh_topic: MakeTopic
) -> None:
    other = fresh_topic("other", partitions=2)
    write(kafka_servers, rig.topic, [message()])
    with rig.node():
        assert rig.until(lambda status: status["ready"])["lag"] is not None
        (status,) = rig.lines("ingest", "status", "--topic", other, "--group", rig.group)
        assert (status["ready"], status["state"], status["members"]) == (False, "stable", [])
        assert "its member reads other topics" in status["problems"][0]
        assert rig("ingest", "status", "--topic", other, "--group", rig.group).returncode == 1


def test_what_a_node_could_not_read_is_replayed_by_the_rules_of_today(rig: KafkaCommandRig, kafka_servers: str) -> None:
    values = [message(jobData={"phone": "1"}), "not JSON", message(scheduledTime="soon")]
    write(kafka_servers, rig.topic, values, key=b"k", partition=1)
    with rig.node():
        rig.until(lambda status: status["dead_letters"].get("sent") == 3)
    assert len(read(kafka_servers, f"{rig.topic}.dlq")) == 3
    letters = rig.lines("dlq", "list", "--oldest")
    assert [letter["offset"] for letter in letters] == [0, 1, 2]
    assert rig("dlq", "replay", letters[0]["id"]).returncode == 2
    file = rig.folder / "scheduler.toml"
    file.write_text(file.read_text().replace("phoneNumber", "phone"))  # the rules of today
    answers = rig.lines("dlq", "replay", "--all", "--yes")
    assert [answer["job"] is None for answer in answers] == [False, True, True]
    file.write_text(file.read_text().replace('required = ["phone"]', ""))
    (answer,) = rig.lines("dlq", "replay", letters[2]["id"], "--at", "2035-01-01T00:00:00Z")
    assert answer["due_ms"] == 2_051_222_400_000
    assert len(rig.lines("jobs", "list")) == 2
    assert rig.until(lambda status: status["dead_letters"])["dead_letters"] == {"replayed": 2, "sent": 1}


def test_a_topic_is_read_again_from_where_it_was_set(rig: KafkaCommandRig, kafka_servers: str) -> None:
    write(kafka_servers, rig.topic, [message()] * 4, partition=0)
    with rig.node():
        rig.until(settled(rig, 4))
    assert len(rig.lines("jobs", "list")) == 4
    (moved,) = rig.lines("ingest", "offsets", "--reset", f"{rig.topic}:0=1", "--yes")
    assert (moved["from"], moved["to"], moved["end"]) == (4, 1, 4)
    with rig.node():
        rig.until(settled(rig, 4))
    assert len(rig.lines("jobs", "list")) == 7


def test_a_moment_leads_to_the_first_message_after_it(rig: KafkaCommandRig, kafka_servers: str) -> None:
    write(kafka_servers, rig.topic, [message()] * 2, partition=0)
    first = read(kafka_servers, rig.topic, 2)[-1].timestamp_ms
    while time.time_ns() // 1_000_000 <= first + 5:
        time.sleep(0.005)
    write(kafka_servers, rig.topic, [message()] * 3, partition=0)
    second = read(kafka_servers, rig.topic, 5)[2].timestamp_ms
    assert first < second
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second // 1000)) + f".{second % 1000:03}Z"
    moved = rig.lines("ingest", "offsets", "--reset", f"{rig.topic}={at}", "--yes")
    assert [line["to"] for line in moved] == [2, 0, 0]


def test_a_topic_that_was_made_anew_is_noted(rig: KafkaCommandRig, kafka_servers: str) -> None:
    write(kafka_servers, rig.topic, [message()] * 2, partition=0)
    assert rig("ingest", "offsets", "--reset", f"{rig.topic}=latest", "--yes").returncode == 0
    delete_topics(kafka_servers, rig.topic)
    make_topic(kafka_servers, rig.topic, 3)
    (status,) = rig.lines("ingest", "status")
    assert "was created again since it was last read" in status["notes"][0]


def test_topics_are_made_once(rig: KafkaCommandRig, kafka_servers: str) -> None:
    name = f"made-{secrets.token_hex(4)}"
    create = ("topics", "create", "--topic", name)
    try:
        (made,) = rig.lines(*create, "--partitions", "5", "--retention", "2h")
        assert (made["made"], made["partitions"], made["retention_ms"], made["replication"]) == (True, 5, 7_200_000, 1)
        (there,) = rig.lines(*create, "--partitions", "6")
        assert (there["made"], there["partitions"]) == (False, 5)
        assert there["differs"] == ["partitions is 5 and not 6"]
        shown = rig(*create, "--partitions", "6")
        assert shown.returncode == 0
        assert "existed" in shown.stdout
        assert "partitions is 5 and not 6" in shown.stdout
        refused = rig("topics", "create", "--topic", f"{name}-2", "--replication", "2")
        assert refused.returncode == 2
        assert "2 replicas need as many brokers, but there is 1 broker" in refused.stderr
    finally:
        delete_topics(kafka_servers, name)


def test_the_documented_topics_are_made_by_a_user_who_may(guarded_kafka: GuardedKafka, tmp_path: Path) -> None:
    login = 'security_protocol = "SASL_PLAINTEXT"\nsasl_mechanism = "PLAIN"\nsasl_username = "{}"'
    password = {"INFINITE_SCHEDULER_KAFKA__SASL_PASSWORD": guarded_kafka.password}
    rig = KafkaCommandRig(tmp_path, guarded_kafka.url, "SMS_Retry", kafka=login.format("guest"))
    guest = rig("topics", "create", "--preset", "sms-retry", env=password)
    assert guest.returncode == 5
    assert "not allowed" in guest.stderr
    wrong = rig("topics", "create", "--preset", "sms-retry", env=dict.fromkeys(password, "wrong"))
    assert wrong.returncode == 5
    assert "refuses the login: check the sasl.* properties" in wrong.stderr

    (tmp_path / "admin").mkdir()
    admin = KafkaCommandRig(tmp_path / "admin", guarded_kafka.url, "SMS_Retry", kafka=login.format("admin"))
    for name in ("sms-retry", "ingest"):
        made = admin("topics", "create", "--preset", name, env=password)
        assert made.returncode == 0, made.stderr
    topics = AdminClient(told(guarded_kafka.options)).list_topics(timeout=10).topics
    assert {name: len(topic.partitions) for name, topic in topics.items() if not name.startswith("__")} == {
        "SMS_Retry": 6,
        "SMS_Send": 6,
        "SMS_Retry_DLQ": 3,
        "scheduler.jobs.ingest": 12,
        "scheduler.jobs.dlq": 3,
    }
    status = rig("ingest", "status", env=password)
    assert status.returncode == 1
    assert "Not ready: " in status.stdout
    for text in (guest.stderr, wrong.stderr, status.stdout):
        assert guarded_kafka.password not in text
