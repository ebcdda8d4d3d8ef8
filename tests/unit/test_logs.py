import json
import logging
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from infinite_scheduler.errors import ConfigError
from infinite_scheduler.model import Job, JobId, Shard
from infinite_scheduler.observe import events
from infinite_scheduler.observe.context import current_job, log_config
from infinite_scheduler.observe.logs import LINES, LogWriter, configure_logging

JOB = Job(
    key=JobId.make(1, 0, 1),
    app="shop",
    due_ms=1,
    scheduled_ms=1,
    payload=b"{}",
    created_ms=1,
    attempt=3,
    request_id="r9",
)


class Written:
    """What went to stderr."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self._text = ""

    @property
    def text(self) -> str:
        self._text += self._capsys.readouterr().err
        return self._text

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]


@pytest.fixture
def written(capsys: pytest.CaptureFixture[str]) -> Iterator[Written]:
    """What goes to stderr; logging is afterwards as it was before."""
    root = logging.getLogger()
    level = root.level
    yield Written(capsys)
    configure_logging("warning", modules={})
    for handler in [one for one in root.handlers if type(one).__module__.startswith("infinite_scheduler")]:
        root.removeHandler(handler)
    root.setLevel(level)
    structlog.reset_defaults()
    current_job.set(None)


EVERY: list[events.Event] = [
    events.JobsAccepted(app="shop", count=2, request_ids=["r1"]),
    events.HandedOver(app="shop", lateness_ms=[1, 8]),
    events.JobsSettled(app="shop", counts={"done": 2}),
    events.AttemptFailed(app="shop", job_id="j", attempt=1, error="e", request_id="r", next_due_ms=1_000),
    events.ShardsTaken(shards={Shard("shop", 1), Shard("shop", 0)}, unclean=1),
    events.ShardsReleased(shards=[Shard("shop", 1)]),
    events.ShardsLost(shards=[Shard("shop", 1)], dropped=3),
    events.Reloaded(shards=[Shard("shop", 1)], why="an answer was lost"),
    events.Swept(app="shop", count=1, job_ids=["j"]),
    events.Early(app="shop", count=1),
    events.JobsHeldBack(app="shop", count=2),
    events.AppHeldBack(app="shop", error="no topic"),
    events.AppResumed(app="shop", held_back_ms=5000),
    events.DestinationUnready(app="shop", error="no topic"),
    events.StoreAway(error="refused", kept=2),
    events.StoreBack(away_ms=100),
    events.HeartbeatFailing(error="refused"),
    events.HeartbeatBack(failing_ms=100),
    events.LeaseLapsed(silent_ms=11_000, error="refused"),
    events.LeaseRenewed(),
    events.DrainCalledOff(shards=[Shard("shop", 1)]),
    events.SuspectsFound(app="shop", count=30, batch=30),
    events.PoisonFailed(app="shop", job_id="j"),
    events.OrphanApp(app="shop"),
    events.AppServed(app="shop"),
    events.ClockOff(offset_ms=-6_000),
    events.ClockBack(offset_ms=-400),
    events.DrainAsked(),
    events.DrainLifted(),
    events.StillRunning(app="shop", job_ids=["j"]),
    events.MarksMissing(store="S3"),
    events.SettingKept(app="shop", setting="tables", kept="daily", configured="hourly"),
    events.Maintained(made=["t1"], dropped=["t0"], pruned=5),
    events.IngestMade(config="KafkaIngestConfig(topic='jobs')"),
    events.IngestStarted(topic="jobs", group="g"),
    events.IngestStopped(topic="jobs", group="g"),
    events.PartitionsHeld(topic="jobs", partitions=[0, 1, 4]),
    events.MessagesTaken(topic="jobs", received=9, accepted=6, repeated=1, failed=2),
    events.KeysReused(topic="jobs", count=1, keys=["k1"]),
    events.DeadLettersKept(topic="jobs", count=2, messages=["0@7", "3@1"], errors=["appName is required"]),
    events.DeadLettersSent(topic="jobs", dlq_topic="dead", count=2),
    events.DeadLettersRefused(topic="jobs", dlq_topic="dead", count=1, error="too large"),
    events.DeadLettersWait(topic="jobs", dlq_topic="dead", error="no such topic"),
    events.ChecksFailing(topic="jobs", count=1, error="no route", wait_ms=200),
    events.CheckHangs(topic="jobs", app="shop", after_ms=10_000),
    events.TopicAway(topic="jobs", error="no broker"),
    events.TopicBack(topic="jobs", away_ms=100),
    events.IngestPaused(topic="jobs", error="refused"),
    events.IngestResumed(topic="jobs", paused_ms=100),
    events.IngestThrottled(topic="jobs", rested_ms=6000, of_ms=60_000),
    events.PositionDiffers(topic="jobs", group="g", partition=1, position=5, committed=3, command="ingest offsets"),
    events.PositionsOvertaken(topic="jobs", partitions=[1]),
    events.OffsetGone(topic="jobs", partition=1, position=5, earliest=9, end=20, next=9),
    events.TopicAnew(topic="jobs", partition=1, position=5, topic_id="AAAA"),
    events.TaskFailed(part="settler", error="e"),
    events.JobsCancelled(app="shop", count=1),
    events.HttpOpened(url="http://127.0.0.1:7070"),
    events.HttpPortTaken(address="127.0.0.1:7070"),
    events.HttpUnencrypted(url="http://0.0.0.0:7070"),
    events.StreamDropped(address="127.0.0.1", reason="no event was read for 5 s"),
    events.HandlerMissing(app="shop", error="no module"),
    events.RequestFailed(method="GET", path="/v1/jobs", incident="i", cause=ValueError("x")),
]


class TestLogWriter:
    def test_every_event_has_a_line(self) -> None:
        kinds = {kind for kind in events.Event.__subclasses__() if kind.__module__ == events.__name__}
        assert set(LINES) == kinds - {events.Figures} == set(map(type, EVERY))

    def test_figures_are_counted_and_not_written(self, written: Written) -> None:
        configure_logging("debug", "json")
        for kind in events.Figures.__subclasses__():
            assert kind not in LINES
        LogWriter()(events.StoreCalled(operation="settle", took_us=5))
        LogWriter()(events.CallsEnded(app="shop", took_us=[5]))
        assert written.text == ""

    def test_every_line_is_a_sentence(self) -> None:
        for line in LINES.values():
            assert re.fullmatch(r"[A-Z].*:" if line.closing else r"[A-Z].*\.", line.sentence)
            assert "{" not in line.sentence, "ids are fields"

    def test_a_program_without_logging_is_told_which_job_failed_and_why(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(logging.Logger, "hasHandlers", lambda _: False)
        monkeypatch.setattr(logging.getLogger(), "handlers", [])
        failed = events.AttemptFailed(
            app="shop", job_id="j-1", attempt=2, error="ValueError:\nforged", request_id=None, next_due_ms=1
        )
        LogWriter()(failed)
        (line,) = capsys.readouterr().err.splitlines()
        assert line.endswith("Job j-1, attempt 2: ValueError: forged")

    @pytest.mark.parametrize(
        ("event", "ending"),
        [
            (events.HeartbeatFailing(error="refused"), "other nodes take its shards. refused"),
            (events.LeaseLapsed(silent_ms=10_400, error="refused"), "after 10.4 s without a heartbeat: refused"),
            (events.LeaseLapsed(silent_ms=10_400), "after 10.4 s without a heartbeat."),
        ],
    )
    def test_a_program_without_logging_is_told_why_heartbeats_fail(
        self, event: events.Event, ending: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(logging.Logger, "hasHandlers", lambda _: False)
        monkeypatch.setattr(logging.getLogger(), "handlers", [])
        LogWriter()(event)
        (line,) = capsys.readouterr().err.splitlines()
        assert line.endswith(ending)

    @pytest.mark.parametrize(
        ("event", "line"),
        [
            (
                events.IngestMade(config="KafkaIngestConfig(topic='jobs')"),
                "KafkaJobIngestConsumer created with config: KafkaIngestConfig(topic='jobs')",
            ),
            (events.IngestStarted(topic="jobs", group="g"), "Kafka ingest consumer started for topic: jobs"),
        ],
    )
    def test_the_lines_of_a_topic_door_are_found_as_a_whole(
        self, event: events.Event, line: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.INFO):
            LogWriter()(event)
        assert [(record.name, record.message) for record in caplog.records] == [
            ("infinite_scheduler.ingest.kafka", line)
        ]

    @pytest.mark.parametrize("event", EVERY, ids=lambda event: type(event).__name__)
    def test_every_event_is_written_with_its_fields(self, event: events.Event, written: Written) -> None:
        configure_logging("debug", "json")
        LogWriter()(event)
        (line,) = written.lines
        told = LINES[type(event)]
        assert line["message"] == (f"{told.sentence} {line[told.closing]}" if told.closing else told.sentence)
        assert line["logger"] == f"infinite_scheduler.{LINES[type(event)].part}"
        assert line["level"] == logging.getLevelName(LINES[type(event)].level).lower()
        if hasattr(event, "app"):
            assert line["app"] == "shop"
        if hasattr(event, "job_id"):
            assert line["job_id"] == "j"

    def test_fields_are_made_for_people(self, written: Written) -> None:
        configure_logging("debug", "json")
        write = LogWriter()
        write(EVERY[1])
        write(EVERY[3])
        write(events.ShardsTaken(shards={Shard("shop", number) for number in range(30)}))
        write(events.AttemptFailed(app="a", job_id="j", attempt=6, error="e", request_id=None, next_due_ms=None))
        write(events.AttemptFailed(app="a", job_id="j", attempt=6, error="e", request_id=None, next_due_ms=2**48 - 1))
        late, failed, taken, given_up, far = written.lines
        assert (late["count"], late["latest_ms"]) == (2, 8)
        assert failed["next_attempt"] == "1970-01-01T00:00:01.000+00:00"
        assert taken["shards"] == "shop/0-29"
        assert "no attempt is left" in given_up["message"]
        assert "request_id" not in given_up
        assert far["next_attempt"] == f"{2**48 - 1} ms"

    def test_what_must_never_happen_is_an_error_and_everyday_work_is_silent(self, written: Written) -> None:
        configure_logging("info", "json")
        write = LogWriter()
        for event in EVERY:
            write(event)
        levels = {line["message"]: line["level"] for line in written.lines}
        assert levels[LINES[events.Swept].sentence] == "error"
        assert levels[LINES[events.Early].sentence] == "warning"
        for silent in (events.JobsAccepted, events.HandedOver, events.JobsSettled):
            assert LINES[silent].sentence not in levels

    def test_a_store_that_is_away_warns_once_until_it_is_back(self, written: Written) -> None:
        configure_logging("info", "json")
        write = LogWriter()
        for _ in range(2):
            for _ in range(3):
                write(events.StoreAway(error="refused", kept=1))
            write(events.StoreBack(away_ms=10))
        assert [line["level"] for line in written.lines] == ["warning", "info", "warning", "info"]

    def test_without_configuration_lines_go_to_the_standard_library(self, caplog: pytest.LogCaptureFixture) -> None:
        LogWriter()(EVERY[8])
        (record,) = caplog.records
        assert record.levelname == "ERROR"
        assert record.getMessage() == LINES[events.Swept].sentence
        assert vars(record)["job_ids"] == ["j"]

    def test_an_event_that_nobody_knows_is_no_error(self, written: Written) -> None:
        class Strange(events.Event, frozen=True, kw_only=True):
            pass

        LogWriter()(Strange())
        assert not written.text


class TestConfiguration:
    def test_lines_of_handlers_carry_their_job(self, written: Written) -> None:
        configure_logging("info", "json")
        current_job.set(JOB)
        logging.getLogger("user").warning("sent %d texts", 2, extra={"to": "me"})
        structlog.get_logger("user").info("sent", to="me")
        for line in written.lines:
            assert line["job_id"] == JOB.id
            assert (line["app"], line["attempt"], line["request_id"], line["to"]) == ("shop", 3, "r9", "me")
        assert [line["message"] for line in written.lines] == ["sent 2 texts", "sent"]

    def test_lines_of_the_scheduler_do_not_carry_a_job_by_chance(self, written: Written) -> None:
        configure_logging("info", "json")
        current_job.set(JOB)
        LogWriter()(events.StoreBack(away_ms=1))
        assert "job_id" not in written.lines[0]

    def test_times_are_utc(self, written: Written) -> None:
        configure_logging("info", "json")
        logging.getLogger("user").warning("now")
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", written.lines[0]["timestamp"])

    def test_modules_have_levels_of_their_own(self, written: Written) -> None:
        configure_logging("error", "json", {"user.loud": "DEBUG", "infinite_scheduler.engine": "debug"})
        logging.getLogger("user.loud").debug("heard")
        structlog.get_logger("user.loud").debug("heard too")
        logging.getLogger("user.quiet").warning("not heard")
        LogWriter()(EVERY[2])
        LogWriter()(EVERY[0])
        assert [line["message"] for line in written.lines] == ["heard", "heard too", LINES[events.JobsSettled].sentence]

    def test_a_second_call_replaces_the_first(self, written: Written) -> None:
        configure_logging("debug", "console", {"user.loud": "debug"})
        early = structlog.get_logger("user")
        configure_logging("warning", "json")
        early.warning("once")
        logging.getLogger("user.loud").info("not heard")
        assert [line["message"] for line in written.lines] == ["once"]
        settings = log_config()
        assert settings is not None
        assert (settings.level, settings.format, settings.modules) == ("warning", "json", {})

    def test_the_console_is_readable_and_one_line_stays_one_line(self, written: Written) -> None:
        configure_logging("info", "console")
        LogWriter()(events.StoreAway(error="refused\n[error] forged", kept=2))
        (line,) = written.text.splitlines()
        assert "\x1b" not in line, "colours are for terminals"
        assert "The store does not answer." in line
        assert "kept=2" in line

    def test_colours_are_for_terminals_that_want_them(self, written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        monkeypatch.delenv("NO_COLOR", raising=False)
        configure_logging("info", "console")
        logging.getLogger("user").warning("colourful")
        monkeypatch.setenv("NO_COLOR", "1")
        configure_logging("info", "console")
        logging.getLogger("user").warning("plain")
        first, second = written.text.splitlines()
        assert "\x1b" in first
        assert "\x1b" not in second

    @pytest.mark.parametrize("style", ["console", "json"])
    def test_an_error_shows_its_traceback_but_no_values(self, written: Written, style: str) -> None:
        configure_logging("info", style)
        secret = "hunter2"
        try:
            raise ValueError(len(secret))
        except ValueError:
            logging.getLogger("user").exception("failed")
        assert "Traceback" in written.text
        assert secret not in written.text.replace('secret = "hunter2"', "")

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (("loud",), "'loud'.*debug, info, warning"),
            (("info", "xml"), "'xml'.*'console' or 'json'"),
            (("info", "json", {"user": "loud"}), "'loud' of 'user'"),
        ],
    )
    def test_wrong_values_are_refused_and_change_nothing(self, arguments: Any, says: str) -> None:
        before = list(logging.getLogger().handlers), logging.getLogger().level
        with pytest.raises(ConfigError, match=says):
            configure_logging(*arguments)
        assert (list(logging.getLogger().handlers), logging.getLogger().level) == before
