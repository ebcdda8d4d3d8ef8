"""Several apps behind one object: what the guides call is there, waits for its result, and says what is wrong."""

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

import infinite_scheduler
from infinite_scheduler import Job, KafkaIngestConfig, MultiAppScheduler, MultiAppSchedulerManager
from infinite_scheduler.config import load_settings
from infinite_scheduler.errors import (
    ConfigError,
    HandlerError,
    InvalidPayload,
    InvalidRequest,
    StoreBroken,
    Unavailable,
    UnknownApp,
)
from infinite_scheduler.handlers.base import Handler, Report
from infinite_scheduler.model import Done

BOUND_S = 20
NOW = timedelta(0)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    gc.collect()
    threads = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - threads:
        thread.join(BOUND_S)
    assert set(threading.enumerate()) <= threads, "a thread was left behind"


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[MultiAppScheduler]:
    made = MultiAppScheduler(store_url=f"sqlite:///{tmp_path / 'jobs.db'}", settings={"store.shards": 1})
    yield made
    made.stop_all()


class Inbox:
    """Notes the jobs that it is given."""

    def __init__(self) -> None:
        self.jobs: SimpleQueue[Job] = SimpleQueue()

    def next(self) -> Job:
        return self.jobs.get(timeout=BOUND_S)


class WithHandle(Inbox):
    def handle(self, job: Job) -> None:
        self.jobs.put(job)


class WithExecute(Inbox):
    async def execute(self, job: Job) -> None:
        self.jobs.put(job)


class Plain(Inbox):
    def __call__(self, job: Job) -> None:
        self.jobs.put(job)


class Own(Inbox, Handler):
    async def handle(self, jobs: Sequence[Job], report: Report) -> None:
        for job in jobs:
            self.jobs.put(job)
            report(job, Done())


def sync_function() -> tuple[Inbox, Callable[[Job], Any]]:
    inbox = Inbox()

    def take(job: Job) -> None:
        inbox.jobs.put(job)

    return inbox, take


def async_function() -> tuple[Inbox, Callable[[Job], Any]]:
    inbox = Inbox()

    async def take(job: Job) -> None:
        inbox.jobs.put(job)

    return inbox, take


class TestHandlers:
    @pytest.mark.parametrize("kind", [WithHandle, WithExecute, Plain, Own, sync_function, async_function])
    def test_every_kind_of_handler_takes_jobs(self, manager: MultiAppScheduler, kind: Callable[[], Any]) -> None:
        made = kind()
        inbox, handler = made if isinstance(made, tuple) else (made, made)
        manager.register_app("sms", handler)
        manager.start_all()
        accepted = manager.schedule_job("sms", {"phoneNumber": "+1", "n": 9007199254740993}, NOW)
        job = inbox.next()
        assert (job.id, job.data) == (accepted.id, {"phoneNumber": "+1", "n": 9007199254740993})
        assert manager.stop_all()

    def test_apps_are_listed(self, manager: MultiAppScheduler) -> None:
        assert manager.registered_apps == frozenset()
        for name in ("sms", "sipcall", "payment_gateway"):
            manager.register_app(name, WithHandle())
        assert "sms" in manager.registered_apps
        assert manager.registered_apps == {"sms", "sipcall", "payment_gateway"}

    def test_jobs_go_to_their_own_apps(self, manager: MultiAppScheduler) -> None:
        inboxes = {name: WithHandle() for name in ("sms", "sipcall")}
        for name, inbox in inboxes.items():
            manager.register_app(name, inbox)
        with manager:
            for name in inboxes:
                manager.schedule_job(name, name, NOW)
            assert {name: inbox.next().data for name, inbox in inboxes.items()} == {"sms": "sms", "sipcall": "sipcall"}

    @pytest.mark.parametrize(
        ("handler", "text"),
        [
            (WithHandle, "WithHandle is a class: pass an instance, WithHandle()"),
            (object(), "a object object cannot take jobs; expected a Handler, a function, or an object with a method"),
            (None, "a NoneType object cannot take jobs"),
            (lambda: None, "must take one argument, the job"),
        ],
    )
    def test_what_cannot_take_jobs_is_refused(self, manager: MultiAppScheduler, handler: object, text: str) -> None:
        with pytest.raises(HandlerError) as raised:
            manager.register_app("sms", handler)
        assert text in str(raised.value)

    def test_an_app_has_one_handler(self, manager: MultiAppScheduler) -> None:
        manager.register_app("sms", WithHandle())
        with pytest.raises(HandlerError, match="'sms' already has a handler"):
            manager.register_app("sms", WithHandle())

    def test_apps_are_registered_before_the_start(self, manager: MultiAppScheduler) -> None:
        manager.register_app("sms", WithHandle())
        manager.start_all()
        with pytest.raises(HandlerError, match="already running: register app 'late' before it starts"):
            manager.register_app("late", WithHandle())

    def test_policies_reach_the_node(self, manager: MultiAppScheduler) -> None:
        tries: SimpleQueue[int] = SimpleQueue()

        def fail(job: Job) -> None:
            tries.put(job.attempt)
            if job.attempt < 3:
                raise ConnectionError("no route")

        policy = infinite_scheduler.RetryPolicy(delays=["1ms"], floor="1ms", max_attempts=3)
        manager.register_app("sms", fail, retry=policy, concurrency=1)
        manager.start_all()
        manager.schedule_job("sms", None, NOW)
        assert [tries.get(timeout=BOUND_S) for _ in range(3)] == [1, 2, 3]


class Picky(WithHandle):
    required_fields = ("phoneNumber", "message")

    def validate(self, job_data: Any) -> None:
        if len(job_data["message"]) > 5:
            raise ValueError("the message is too long")


class TestChecks:
    @pytest.mark.parametrize(
        ("data", "text"),
        [
            ({"phoneNumber": "+1"}, "message is required in jobData"),
            ({"phoneNumber": None}, "phoneNumber, message are required in jobData"),
            (None, "jobData must be an object with phoneNumber, message"),
            ({"phoneNumber": "+1", "message": "much too long"}, "jobData was refused: the message is too long"),
            ({"phoneNumber": "+1", "message": 5}, "jobData was refused: TypeError: object of type 'int' has no len()"),
        ],
    )
    def test_data_that_the_handler_refuses_is_not_accepted(
        self, manager: MultiAppScheduler, data: object, text: str
    ) -> None:
        handler = Picky()
        manager.register_app("sms", handler)
        manager.start_all()
        with pytest.raises(InvalidPayload) as raised:
            manager.schedule_job("sms", data, NOW)
        assert str(raised.value) == text
        manager.schedule_job("sms", {"phoneNumber": "+1", "message": "fine"}, NOW)
        assert handler.next().data["message"] == "fine"
        assert handler.jobs.empty()


class TestLife:
    def test_the_names_of_the_guides(self) -> None:
        assert MultiAppSchedulerManager is MultiAppScheduler

    def test_nothing_can_be_scheduled_before_the_start_and_after_the_stop(self, manager: MultiAppScheduler) -> None:
        manager.register_app("sms", WithHandle())
        for _ in range(2):
            with pytest.raises(Unavailable, match=r"not running: call start_all\(\) first"):
                manager.schedule_job("sms", None, NOW)
            manager.start_all()
            assert manager.is_running
            manager.stop_all()
            assert not manager.is_running

    def test_a_second_start_is_refused(self, manager: MultiAppScheduler) -> None:
        manager.register_app("sms", WithHandle())
        manager.start_all()
        with pytest.raises(InvalidRequest, match="already running"):
            manager.start_all()
        manager.schedule_job("sms", None, timedelta(hours=1))  # and the first one goes on

    def test_a_stop_without_a_start_does_nothing(self, manager: MultiAppScheduler, tmp_path: Path) -> None:
        assert manager.stop_all()
        assert manager.stop_all()
        assert not list(tmp_path.iterdir())

    def test_it_can_be_started_again(self, manager: MultiAppScheduler) -> None:
        inboxes = {"one": WithHandle(), "two": WithExecute(), "three": Own()}
        for name, inbox in inboxes.items():
            manager.register_app(name, inbox)
        for count in range(3):
            with manager:
                for name, inbox in inboxes.items():
                    manager.schedule_job(name, count, NOW)
                    assert inbox.next().data == count

    def test_what_a_handler_waits_for_works_after_a_restart_too(self, manager: MultiAppScheduler) -> None:
        class Gated(Own):
            """Waits for an event that belongs to one event loop for good."""

            def __init__(self) -> None:
                super().__init__()
                self.gate = asyncio.Event()

            async def handle(self, jobs: Sequence[Job], report: Report) -> None:
                asyncio.get_running_loop().call_soon(self.gate.set)
                await self.gate.wait()
                self.gate.clear()
                await super().handle(jobs, report)

        gated = Gated()
        manager.register_app("sms", gated, retry=infinite_scheduler.RetryPolicy(max_attempts=1))
        for count in range(2):
            with manager:
                manager.schedule_job("sms", count, NOW)
                assert gated.next().data == count

    def test_what_waited_is_handed_over_after_a_restart(self, manager: MultiAppScheduler) -> None:
        inbox = WithHandle()
        manager.register_app("sms", inbox)
        with manager:
            accepted = manager.schedule_job("sms", 1, timedelta(milliseconds=300))
        with manager:
            assert inbox.next().id == accepted.id

    def test_a_start_that_fails_says_why_and_leaves_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "jobs.db").write_text("this is no database " * 100, encoding="utf-8")
        manager = MultiAppScheduler(store_url=f"sqlite:///{tmp_path / 'jobs.db'}")
        manager.register_app("sms", WithHandle())
        for _ in range(2):
            with pytest.raises(StoreBroken, match=r"jobs\.db"):
                manager.start_all()
            assert not manager.is_running
        assert manager.stop_all()

    def test_a_stop_says_that_something_had_to_be_left(self, tmp_path: Path) -> None:
        begun, go_on = threading.Event(), threading.Event()

        def stubborn(job: Job) -> None:
            begun.set()
            go_on.wait(BOUND_S)

        url = f"sqlite:///{tmp_path / 'jobs.db'}"
        manager = MultiAppScheduler(store_url=url, settings={"node.stop_timeout": 0, "store.shards": 1})
        manager.register_app("sms", stubborn)
        manager.start_all()
        manager.schedule_job("sms", None, NOW)
        assert begun.wait(BOUND_S)
        try:
            assert not manager.stop_all()
            assert not manager.stop_all()
        finally:
            go_on.set()

    def test_threads_share_it(self, manager: MultiAppScheduler) -> None:
        inbox = WithHandle()
        manager.register_app("sms", inbox, concurrency=4)
        with manager, ThreadPoolExecutor(8) as pool:
            ids = list(pool.map(lambda n: manager.schedule_job("sms", n, NOW).id, range(40)))
            assert {inbox.next().id for _ in range(40)} == set(ids)

    def test_threads_that_start_and_stop_at_once_agree(self, manager: MultiAppScheduler) -> None:
        manager.register_app("sms", WithHandle())

        def start(_: int) -> bool:
            try:
                manager.start_all()
            except InvalidRequest:
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            assert sorted(pool.map(start, range(4))) == [False, False, False, True]
            assert list(pool.map(lambda _: manager.stop_all(), range(4))) == [True] * 4

    def test_a_call_that_waits_when_it_stops_ends_too(self, manager: MultiAppScheduler) -> None:
        manager.register_app("sms", WithHandle())
        manager.start_all()
        ends: SimpleQueue[str] = SimpleQueue()

        def schedule() -> None:
            try:
                while True:
                    manager.schedule_job("sms", None, timedelta(hours=1))
            except Unavailable as error:
                ends.put(str(error))

        callers = [threading.Thread(target=schedule) for _ in range(4)]
        for caller in callers:
            caller.start()
        assert manager.stop_all()
        for caller in callers:
            caller.join(BOUND_S)
        assert ends.qsize() == 4

    @pytest.mark.parametrize("call", ["schedule_job", "stop_all", "start_all", "register_app", "with_kafka_ingest"])
    def test_a_call_in_the_event_loop_is_refused_instead_of_waiting_for_itself(
        self, manager: MultiAppScheduler, call: str
    ) -> None:
        refusals: SimpleQueue[BaseException] = SimpleQueue()

        async def handle(job: Job) -> None:
            arguments = {"schedule_job": ("sms", None, NOW), "register_app": ("late", handle)}
            try:
                getattr(manager, call)(*arguments.get(call, ()))
            except InvalidRequest as error:
                refusals.put(error)

        manager.register_app("sms", handle)
        manager.start_all()
        manager.schedule_job("sms", None, NOW)
        assert "would block the event loop that it waits for: make the handler a plain function" in str(
            refusals.get(timeout=BOUND_S)
        )

    def test_a_plain_handler_may_schedule_the_next_attempt(self, manager: MultiAppScheduler) -> None:
        seen: SimpleQueue[int] = SimpleQueue()

        def again(job: Job) -> None:
            seen.put(job.data)
            if job.data < 3:
                manager.schedule_job("sms", job.data + 1, NOW)

        manager.register_app("sms", again)
        with manager:
            manager.schedule_job("sms", 1, NOW)
            assert [seen.get(timeout=BOUND_S) for _ in range(3)] == [1, 2, 3]


class TestScheduling:
    def test_a_moment_as_people_give_it(self, manager: MultiAppScheduler) -> None:
        manager.register_app("sms", WithHandle())
        due = datetime(2100, 1, 31, 9, 0, tzinfo=UTC)
        with manager:
            for when in (due, due.replace(tzinfo=None), "2100-01-31 09:00:00", int(due.timestamp() * 1000)):
                assert manager.schedule_job("sms", None, when).due_ms == int(due.timestamp() * 1000)

    def test_all_that_a_job_may_carry(self, manager: MultiAppScheduler) -> None:
        inbox = WithHandle()
        manager.register_app("sms", inbox)
        with manager:
            options: dict[str, Any] = {"priority": "high", "request_id": "r", "job_name": "n", "group": "g"}
            moment = datetime.now(UTC)
            first = manager.schedule_job("sms", 1, moment, idempotency_key="k", tags=["t"], **options)
            second = manager.schedule_job("sms", 1, moment, idempotency_key="k", tags=["t"], **options)
            assert (second.id, second.repeated) == (first.id, True)
            job = inbox.next()
        assert (job.priority.name, job.request_id, job.job_name, job.group, list(job.tags)) == (
            "HIGH",
            "r",
            "n",
            "g",
            ["t"],
        )

    def test_an_unknown_app_names_the_known_ones(self, manager: MultiAppScheduler) -> None:
        manager.register_app("sms", WithHandle())
        with manager, pytest.raises(UnknownApp, match="sms"):
            manager.schedule_job("smss", None, NOW)


def address(**keywords: Any) -> str:
    return MultiAppScheduler(**keywords)._scheduler.settings.store.address_url


class TestStore:
    def test_the_keywords_name_a_server(self) -> None:
        server: dict[str, Any] = {"mysql_host": "127.0.0.1", "mysql_port": 3306, "mysql_database": "scheduler"}
        login = {"mysql_username": "root", "mysql_password": "p@ss"}
        assert address(**server, **login) == "mariadb://root:p%40ss@127.0.0.1:3306/scheduler"
        assert address(mysql_database="scheduler") == "mariadb:///scheduler"

    def test_the_keywords_outweigh_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("INFINITE_SCHEDULER_STORE__URL", "postgresql://other/jobs")
        monkeypatch.setenv("INFINITE_SCHEDULER_STORE__PASSWORD", "hush")
        assert address(mysql_database="scheduler", mysql_username="me") == "mariadb://me:hush@/scheduler"

    def test_without_keywords_the_settings_count(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert address() == "sqlite:///scheduler.db"
        assert address(settings=load_settings(overrides={"store.url": "sqlite:///x.db"}, environ={})) == (
            "sqlite:///x.db"
        )
        monkeypatch.setenv("INFINITE_SCHEDULER_STORE__URL", "sqlite:///environment.db")
        assert address() == "sqlite:///environment.db"
        assert address(store_url="sqlite:///mine.db") == "sqlite:///mine.db"

    @pytest.mark.parametrize(
        ("keywords", "text"),
        [
            ({"mysql_host": "db"}, "mysql_database is missing: expected the name of a database"),
            ({"mysql_host": "db", "mysql_database": ""}, "mysql_database is missing"),
            ({"mysql_host": "db:3306", "mysql_database": "x"}, "mysql_host = 'db:3306': expected a host alone"),
            ({"mysql_port": 0, "mysql_database": "x"}, "mysql_port = 0: expected"),
            ({"mysql_port": "many", "mysql_database": "x"}, "mysql_port = 'many': expected"),
            ({"mysql_database": "x", "store_url": "sqlite://"}, "give either store_url or mysql_host and the others"),
        ],
    )
    def test_what_is_wrong_is_named_by_its_keyword(self, keywords: dict[str, Any], text: str) -> None:
        with pytest.raises(ConfigError) as raised:
            MultiAppScheduler(**keywords)
        assert str(raised.value).startswith(text)


class TestIngest:
    """Which topics are read; what comes from them is in tests/integration."""

    def test_none_without_a_word(self, manager: MultiAppScheduler) -> None:
        assert manager.kafka_ingest_consumer is None
        assert manager.kafka_ingest_consumers == []

    def test_a_whole_configuration(self, manager: MultiAppScheduler) -> None:
        config = KafkaIngestConfig(bootstrap_servers="k:1", topic="SMS_Retry", group_id="g", max_poll_records=7)
        assert manager.with_kafka_ingest(config) is manager
        consumer = manager.kafka_ingest_consumer
        assert consumer is not None
        assert consumer.config == config

    def test_brokers_and_a_topic(self, manager: MultiAppScheduler) -> None:
        manager.with_kafka_ingest("k:1", "mine").with_kafka_ingest(bootstrap_servers="k:2", topic="yours")
        assert [consumer.config for consumer in manager.kafka_ingest_consumers] == [
            KafkaIngestConfig(bootstrap_servers="k:1", topic="mine"),
            KafkaIngestConfig(bootstrap_servers="k:2", topic="yours"),
        ]

    def test_nothing_but_defaults(self, manager: MultiAppScheduler) -> None:
        consumer = manager.with_kafka_ingest().kafka_ingest_consumer
        assert consumer is not None
        assert (consumer.config.bootstrap_servers, consumer.config.topic) == ("localhost:9092", "scheduler.jobs.ingest")

    def test_the_defaults_are_those_of_the_settings(self) -> None:
        kafka = {"bootstrap_servers": "k:1", "security_protocol": "SASL_PLAINTEXT", "sasl_password": "hush"}
        own = KafkaIngestConfig(bootstrap_servers="k:2", topic="own", properties={"socket.timeout.ms": 9})
        manager = MultiAppScheduler(settings={"kafka": kafka}).with_kafka_ingest().with_kafka_ingest(own)
        login = {"security.protocol": "SASL_PLAINTEXT", "sasl.password": "hush"}
        first, second = (consumer.config for consumer in manager.kafka_ingest_consumers)
        assert (first.bootstrap_servers, first.properties) == ("k:1", login)
        assert (second.bootstrap_servers, second.properties) == ("k:2", {**login, "socket.timeout.ms": 9})
        assert "hush" not in repr(second)

    def test_configurations_by_keyword(self, tmp_path: Path) -> None:
        one, two = KafkaIngestConfig(topic="one"), KafkaIngestConfig(topic="two")
        assert [c.config for c in MultiAppScheduler(kafka_ingest=one).kafka_ingest_consumers] == [one]
        assert [c.config for c in MultiAppScheduler(kafka_ingest=[one, two]).kafka_ingest_consumers] == [one, two]

    def test_tables_of_the_settings_are_read_too(self) -> None:
        tables = [{"topic": "one", "dlq_topic": ""}, {"topic": "off", "enabled": False}, {"bootstrap_servers": "k:2"}]
        settings = {"kafka.bootstrap_servers": "k:1", "ingest": tables}
        manager = MultiAppScheduler(settings=settings)
        assert [consumer.config for consumer in manager.kafka_ingest_consumers] == [
            KafkaIngestConfig(bootstrap_servers="k:1", topic="one", dlq_topic=None),
            KafkaIngestConfig(bootstrap_servers="k:2"),
        ]

    def test_a_topic_that_is_switched_off_is_not_read(self, manager: MultiAppScheduler) -> None:
        assert manager.with_kafka_ingest(KafkaIngestConfig(enabled=False)).kafka_ingest_consumer is None

    def test_before_the_start_nothing_has_come_in(self, manager: MultiAppScheduler) -> None:
        consumer = manager.with_kafka_ingest().kafka_ingest_consumer
        assert consumer is not None
        assert not consumer.is_running
        assert set(consumer.metrics.values()) == {0}

    def test_naming_a_topic_loads_no_client_of_kafka(self) -> None:
        code = (
            "import sys, infinite_scheduler as i;"
            "i.MultiAppScheduler(store_url='sqlite:///:memory:').with_kafka_ingest('k:1', 'topic');"
            "sys.exit('confluent_kafka' in sys.modules)"
        )
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ((" ",), "bootstrap_servers"),
            (("k:1", ""), "topic is ''"),
            ((5,), "5 is not a KafkaIngestConfig"),
            ((KafkaIngestConfig(), "topic"), "either a KafkaIngestConfig or bootstrap servers and a topic, not both"),
            (("k:1", "taken"), "topic 'taken' is already read in the group 'infinite-scheduler-ingest'"),
        ],
    )
    def test_what_makes_no_sense_is_refused(
        self, manager: MultiAppScheduler, arguments: tuple[Any, ...], text: str
    ) -> None:
        manager.with_kafka_ingest("k:1", "taken")
        with pytest.raises(ConfigError, match=text):
            manager.with_kafka_ingest(*arguments)

    def test_topics_are_named_before_the_start(self, manager: MultiAppScheduler) -> None:
        manager.register_app("sms", WithHandle())
        manager.start_all()
        with pytest.raises(InvalidRequest, match="before it starts"):
            manager.with_kafka_ingest()
