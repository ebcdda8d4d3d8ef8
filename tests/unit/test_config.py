"""What the settings promise."""

import inspect
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from infinite_scheduler.config import (
    ExpireAfterSettings,
    KafkaApp,
    PythonApp,
    Settings,
    SmsRetryApp,
    format_duration,
    format_size,
    load_settings,
    parse_size,
    settings_at,
)
from infinite_scheduler.config.store_settings import StoreSettings
from infinite_scheduler.config.values import read_duration
from infinite_scheduler.errors import ConfigError, InvalidRequest
from infinite_scheduler.ingest.config import KafkaIngestConfig
from infinite_scheduler.kafka.options import OWNED, KafkaOptions
from infinite_scheduler.model import MAX_DUE_MS
from infinite_scheduler.store.sql.limits import SqlLimits
from infinite_scheduler.store.sql.server.address import CONNECT_TIMEOUT_S

APP = {"function": "shop.jobs:send"}


def load(overrides: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    return load_settings(overrides=overrides, environ=environ or {})


def load_toml(folder: Path, text: str, **more: Any) -> Settings:
    file = folder / "scheduler.toml"
    file.write_text(text, encoding="utf-8")
    return load_settings(file, environ=more.pop("environ", {}), **more)


def refusal(overrides: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as raised:
        load(overrides, environ)
    return str(raised.value)


class TestDefaults:
    def test_nothing_needs_to_be_set(self) -> None:
        settings = load()
        assert settings.store.url == "sqlite:///scheduler.db"
        assert settings.store.shards == 16
        assert settings.node.lease == timedelta(seconds=10)
        assert settings.window.lookahead == timedelta(seconds=30)
        assert settings.window.budget == 64 * 1024 * 1024
        assert settings.time.zone == "UTC"
        assert settings.apps == {}
        assert settings.source is None

    def test_an_app_needs_its_function_only(self) -> None:
        app = load({"apps.sms": APP}).apps["sms"]
        assert isinstance(app, PythonApp)
        assert (app.required, app.validation) == ((), None)
        assert (app.handler, app.batch, app.pool, app.shards) == ("python", None, None, None)
        assert (app.misfire, app.concurrency, app.timeout) == ("fire_now", 20, timedelta(seconds=30))
        assert (app.retry.delays, app.retry.max_attempts) == (None, 6)

    def test_the_environment_of_the_process_is_read_when_no_other_is_given(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("INFINITE_SCHEDULER_WINDOW__PAGE", "7")
        assert load_settings().window.page == 7
        assert load().window.page == 1000

    def test_settings_cannot_be_changed(self) -> None:
        settings = load()
        with pytest.raises(ValidationError):
            settings.window.page = 3  # type: ignore[misc]
        with pytest.raises(ValidationError):
            settings.window = settings.window  # type: ignore[misc]

    def test_a_password_is_not_in_the_repr(self) -> None:
        assert "secret" not in repr(load({"store.url": "mysql://me:secret@db/jobs"}))

    def test_importing_the_package_does_not_import_the_settings(self) -> None:
        code = "import sys, infinite_scheduler; sys.exit('pydantic' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class TestPrecedence:
    TOML = """
        store.url = "sqlite:///file.db"
        window = { page = 1, budget = 10 }
        apps.a = { function = "m:f", concurrency = 1 }
    """
    ENVIRON = {  # noqa: RUF012
        "INFINITE_SCHEDULER_STORE__URL": "sqlite:///environment.db",
        "INFINITE_SCHEDULER_WINDOW__PAGE": "2",
        "INFINITE_SCHEDULER_APPS__A__TIMEOUT": "5m",
    }

    def test_the_file_weighs_more_than_the_defaults(self, tmp_path: Path) -> None:
        assert load_toml(tmp_path, self.TOML).store.url == "sqlite:///file.db"

    def test_the_environment_weighs_more_than_the_file(self, tmp_path: Path) -> None:
        settings = load_toml(tmp_path, self.TOML, environ=self.ENVIRON)
        assert settings.store.url == "sqlite:///environment.db"
        assert settings.window.page == 2

    def test_arguments_weigh_more_than_the_environment(self, tmp_path: Path) -> None:
        settings = load_toml(tmp_path, self.TOML, environ=self.ENVIRON, overrides={"window.page": 3})
        assert settings.window.page == 3
        assert settings.store.url == "sqlite:///environment.db"

    def test_tables_are_merged_setting_by_setting(self, tmp_path: Path) -> None:
        settings = load_toml(tmp_path, self.TOML, environ=self.ENVIRON, overrides={"apps": {"a": {"batch": 9}}})
        app = settings.apps["a"]
        assert isinstance(app, PythonApp)
        assert (app.function, app.concurrency, app.timeout, app.batch) == ("m:f", 1, timedelta(minutes=5), 9)
        assert settings.window.budget == 10

    def test_lists_are_replaced_whole(self, tmp_path: Path) -> None:
        toml = '[apps.a]\nfunction = "m:f"\nretry = { delays = [1, 2, 3] }\n'
        settings = load_toml(tmp_path, toml, overrides={"apps.a.retry.delays": ["5s"]})
        assert settings.apps["a"].retry.delays == (timedelta(seconds=5),)

    def test_arguments_may_be_dotted_or_nested(self) -> None:
        assert load({"store.url": "sqlite:///x.db"}) == load({"store": {"url": "sqlite:///x.db"}})

    def test_an_argument_of_none_means_not_given(self) -> None:
        assert load(
            {"store.url": None, "window.page": 5}, {"INFINITE_SCHEDULER_STORE__URL": "sqlite:///e.db"}
        ).store.url == ("sqlite:///e.db")

    def test_only_the_outermost_names_of_arguments_are_split(self) -> None:
        modules = {"infinite_scheduler.engine": "debug"}
        assert load({"log.modules": modules}).log.modules == modules


class TestEnvironment:
    def test_lists_and_tables_are_json(self) -> None:
        settings = load(
            environ={
                "INFINITE_SCHEDULER_APPS__SMS_RETRY__FUNCTION": "m:f",
                "INFINITE_SCHEDULER_APPS__SMS_RETRY__RETRY__DELAYS": '["1s", 2]',
                "INFINITE_SCHEDULER_APPS__SMS_RETRY__MISFIRE": '{"expire_after": "3m"}',
                "INFINITE_SCHEDULER_LOG__MODULES": '{"infinite_scheduler.engine": "debug"}',
            }
        )
        app = settings.apps["sms_retry"]
        assert app.retry.delays == (timedelta(seconds=1), timedelta(seconds=2))
        assert app.misfire == ExpireAfterSettings(expire_after=timedelta(minutes=3))
        assert settings.log.modules == {"infinite_scheduler.engine": "debug"}

    def test_words_and_tables_reach_a_setting_that_takes_both(self) -> None:
        function = {"INFINITE_SCHEDULER_APPS__A__FUNCTION": "m:f"}
        word = load(environ={**function, "INFINITE_SCHEDULER_APPS__A__MISFIRE": "skip"})
        table = load(environ={**function, "INFINITE_SCHEDULER_APPS__A__MISFIRE__EXPIRE_AFTER": "90"})
        assert word.apps["a"].misfire == "skip"
        assert table.apps["a"].misfire == ExpireAfterSettings(expire_after=timedelta(seconds=90))

    def test_numbers_are_read_from_text(self) -> None:
        settings = load(
            environ={
                "INFINITE_SCHEDULER_STORE__SHARDS": "4",
                "INFINITE_SCHEDULER_NODE__LEASE": "60",
                "INFINITE_SCHEDULER_WINDOW__BUDGET": "1024",
                "INFINITE_SCHEDULER_APPS__A__FUNCTION": "m:f",
                "INFINITE_SCHEDULER_APPS__A__RETRY__JITTER": "0.5",
            }
        )
        assert (settings.store.shards, settings.node.lease, settings.window.budget) == (4, timedelta(minutes=1), 1024)
        assert settings.apps["a"].retry.jitter == 0.5

    def test_an_empty_variable_counts_as_not_set(self) -> None:
        assert load(environ={"INFINITE_SCHEDULER_NODE__ID": "", "INFINITE_SCHEDULER_CONFIG": ""}) == load()

    def test_other_variables_are_left_alone(self) -> None:
        assert load(environ={"STORE__URL": "x", "PATH": "/bin", "INFINITE_SCHEDULER_SOAK": "1"}) == load()

    @pytest.mark.parametrize(
        ("wrong", "meant"),
        [
            ("INFINITE_SCHEDULER_STORE_URL", "INFINITE_SCHEDULER_STORE__URL"),
            ("INFINITE_SCHEDULER_STROE__URL", "INFINITE_SCHEDULER_STORE"),
            ("INFINITE_SCHEDULER_STORE__ULR", "INFINITE_SCHEDULER_STORE__URL"),
            ("INFINITE_SCHEDULER_APPS__A__CONCURENCY", "INFINITE_SCHEDULER_APPS__A__CONCURRENCY"),
        ],
    )
    def test_an_unknown_variable_is_refused_with_the_nearest_known_one(self, wrong: str, meant: str) -> None:
        text = refusal({"apps.a": APP}, {wrong: "1"})
        assert "unknown setting" in text
        assert f"did you mean {meant}?" in text

    def test_a_wrong_value_names_its_variable(self) -> None:
        text = refusal(environ={"INFINITE_SCHEDULER_STORE__SHARDS": "many"})
        assert text == (
            'store.shards = "many" (INFINITE_SCHEDULER_STORE__SHARDS): expected a whole number from 1 to 256'
        )

    def test_a_variable_for_a_whole_table_that_is_no_json_is_refused(self) -> None:
        assert refusal(environ={"INFINITE_SCHEDULER_STORE": "x"}) == (
            'store = "x" (INFINITE_SCHEDULER_STORE): expected a table'
        )

    def test_a_list_that_is_no_json_is_refused(self) -> None:
        variable = "INFINITE_SCHEDULER_APPS__A__RETRY__DELAYS"
        assert refusal({"apps.a": APP}, {variable: "5s"}) == f'apps.a.retry.delays = "5s" ({variable}): expected a list'


class TestFile:
    def test_the_file_may_be_named_by_a_variable(self, tmp_path: Path) -> None:
        file = tmp_path / "my.toml"
        file.write_text("[window]\npage = 9\n", encoding="utf-8")
        settings = load(environ={"INFINITE_SCHEDULER_CONFIG": str(file)})
        assert settings.window.page == 9
        assert settings.source == file

    def test_an_argument_names_the_file_above_the_variable(self, tmp_path: Path) -> None:
        settings = load_toml(tmp_path, "", environ={"INFINITE_SCHEDULER_CONFIG": "/nowhere.toml"})
        assert settings.source == tmp_path / "scheduler.toml"

    def test_the_source_stays_right_when_the_working_directory_changes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "here.toml").write_text("", encoding="utf-8")
        monkeypatch.chdir(tmp_path)
        assert load_settings(Path("here.toml"), environ={}).source == tmp_path / "here.toml"

    def test_the_source_is_no_setting(self, tmp_path: Path) -> None:
        assert load_toml(tmp_path, "").model_dump() == load().model_dump()
        assert refusal({"source": "x"}) == "source (argument): unknown setting; did you mean store?"

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"configuration file .*gone\.toml does not exist"):
            load_settings(tmp_path / "gone.toml", environ={})

    def test_a_folder_is_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="cannot be read"):
            load_settings(tmp_path, environ={})

    def test_a_file_that_is_no_text_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "b.toml").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(ConfigError, match="cannot be read"):
            load_settings(tmp_path / "b.toml", environ={})

    @pytest.mark.parametrize(
        ("text", "line", "column"),
        [("[store]\nurl : 1\n", 2, 5), ("[store\n", 1, 7), ('[store]\nurl = "x', 2, 9), ("a = [1,\n2", 2, 2)],
    )
    def test_a_syntax_error_names_file_line_and_column(self, tmp_path: Path, text: str, line: int, column: int) -> None:
        with pytest.raises(ConfigError, match=rf"scheduler\.toml, line {line}, column {column}: \w") as raised:
            load_toml(tmp_path, text)
        assert "\n" not in str(raised.value)

    def test_a_wrong_value_names_the_file(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"window\.page = 5000 \(.*scheduler\.toml\): expected a whole number"):
            load_toml(tmp_path, "[window]\npage = 5000\n")


class TestWrongValues:
    @pytest.mark.parametrize(
        ("path", "value", "expected"),
        [
            ("store.url", "scheduler", "a store URL"),
            ("store.url", 5, "a string"),
            ("store.url", "mysql://db/jobs?sslmode=maybe", "sslmode to be one of disable, prefer"),
            ("store.url", "mysql://db", "a database: mariadb://USER:PASSWORD@HOST:3306/DATABASE"),
            ("store.url", "jdbc:oracle://db/jobs", "a URL that begins with mysql://"),
            ("store.kind", "oracle", '"mariadb", "mysql" or "postgresql"'),
            ("store.host", "", "a text that is not empty"),
            ("store.host", 5, "a string"),
            ("store.port", 0, "from 1 to 65535"),
            ("store.port", 65536, "from 1 to 65535"),
            ("store.database", " ", "a text that is not empty"),
            ("store.user", "", "a text that is not empty"),
            ("store.sslmode", "on", '"disable", "prefer", "require", "verify-ca" or "verify-full"'),
            ("store.sslrootcert", "", "a text that is not empty"),
            ("store.sslcert", [], "a string"),
            ("store.sslkey", "", "a text that is not empty"),
            ("store.connect_timeout", 0, "of 1ms or more"),
            ("store.connect_timeout", "2h", 'expected at most "1h"'),
            ("store.idle_in_transaction", 0, "of 1ms or more"),
            ("store.idle_in_transaction", "61m", 'at most "1h"'),
            ("store.lock_wait", "2h", 'at most "1h"'),
            ("store.lock_wait", "soon", "a duration"),
            ("store.silence", "10s", 'longer than lock_wait, which is "10s"'),
            ("store.silence", "2h", 'at most "1h"'),
            ("store.connections", 0, "from 1 to 100"),
            ("store.lanes", 5, "from 1 to 4"),
            ("store.lanes", 0, "from 1 to 4"),
            ("store.ddl", "sometimes", "true or false"),
            ("store.ddl", [], "true or false"),
            ("store.tables", "weekly", '"daily" or "hourly"'),
            ("store.shards", 0, "from 1 to 256"),
            ("store.shards", 257, "from 1 to 256"),
            ("store.shards", 1.5, "a whole number"),
            ("store.shards", True, "a whole number"),
            ("store.shards", [], "a whole number"),
            ("store.retention", "a week", "a duration"),
            ("store.retention", -1, "a duration of zero or more"),
            ("store.idempotency", "0s", "of 1ms or more"),
            ("node.id", "a b", "1 to 64 letters"),
            ("node.lease", "-5s", "a duration of zero or more"),
            ("node.heartbeat", 0, "of 1ms or more"),
            ("node.stop_timeout", False, "a duration"),
            ("node.request_poll", "0ms", "of 1ms or more"),
            ("window.budget", "64 apples", "a size"),
            ("window.budget", 0, "one byte or more"),
            ("window.budget", "0.5B", "one byte or more"),
            ("window.page", 1001, "from 1 to 1000"),
            ("time.zone", "Mars/Base", "an IANA time zone"),
            ("time.zone", "../../etc/passwd", "an IANA time zone"),
            ("time.zone", "Europe", "an IANA time zone"),
            ("limits.payload", -1, "a size"),
            ("limits.batch", 0, "1 or more"),
            ("log.level", "loud", '"debug", "info", "warning", "error" or "critical"'),
            ("log.format", "xml", '"console" or "json"'),
            ("log.modules", 3, "a table"),
            ("log.modules", {"x": "loud"}, '"debug"'),
            ("apps.a.handler", "webhook", "a known handler: python, kafka, sms_retry"),
            ("apps.a.handler", "kafak", "did you mean kafka?"),
            ("apps.a.handler", ["python"], "a known handler: python"),
            ("apps.a.validate", "check", '"module:name"'),
            ("apps.a.required", "phoneNumber", "a list"),
            ("apps.a.required", [""], "a text that is not empty"),
            ("apps", 3, "a table"),
            ("kafka", "localhost", "a table"),
            ("kafka.bootstrap_servers", "", '"HOST:PORT"'),
            ("kafka.bootstrap_servers", " , ", '"HOST:PORT"'),
            ("kafka.bootstrap_servers", "a:1,,b:2", '"HOST:PORT"'),
            ("kafka.bootstrap_servers", "a:0", '"HOST:PORT"'),
            ("kafka.bootstrap_servers", "a:70000", '"HOST:PORT"'),
            ("kafka.bootstrap_servers", "a b:1", '"HOST:PORT"'),
            ("kafka.bootstrap_servers", 9092, "a string"),
            ("kafka.security_protocol", "TLS", '"PLAINTEXT", "SSL", "SASL_PLAINTEXT" or "SASL_SSL"'),
            ("kafka.sasl_mechanism", "MD5", '"PLAIN", "SCRAM-SHA-256"'),
            ("kafka.sasl_username", "", "a text that is not empty"),
            ("kafka.ssl_ca_location", "", "a text that is not empty"),
            ("kafka.properties", 3, "a table"),
            ("kafka.properties", {"a.b": [1]}, "a text, a number, true or false"),
            ("kafka.properties", {" ": 1}, "the dotted name of a property"),
            ("ingest", {"topic": "a"}, "a list"),
            ("ingest", [3], "a table"),
            ("apps.a.function", "send", '"module:name"'),
            ("apps.a.function", "shop jobs:send", '"module:name"'),
            ("apps.a.function", "shop.jobs:", '"module:name"'),
            ("apps.a.batch", 0, "1 or more"),
            ("apps.a.pool", "fiber", '"thread" or "process"'),
            ("apps.a.retry", 3, "a table"),
            ("apps.a.retry.delays", [], "at least one duration"),
            ("apps.a.retry.delays", ["5s", "x"], "a duration"),
            ("apps.a.retry.factor", 0.5, "1 or more"),
            ("apps.a.retry.factor", float("nan"), "1 or more"),
            ("apps.a.retry.jitter", 1.5, "from 0 to 1"),
            ("apps.a.retry.max_attempts", 0, "1 or more"),
            ("apps.a.retry.count_from", "birth", '"attempt" or "creation"'),
            ("apps.a.retry.floor", "x", "a duration"),
            ("apps.a.retry.retry_on", ["OsError"], "did you mean OSError?"),
            ("apps.a.retry.retry_on", ["print"], "a built-in exception"),
            ("apps.a.retry.give_up_on", "OSError", "a list"),
            ("apps.a.misfire", "later", '"fire_now", "skip" or { expire_after = "10m" }'),
            ("apps.a.misfire", 5, '"fire_now", "skip" or { expire_after = "10m" }'),
            ("apps.a.misfire_threshold", "x", "a duration"),
            ("apps.a.concurrency", 0, "1 or more"),
            ("apps.a.timeout", 0, "of 1ms or more"),
            ("apps.a.shards", 300, "from 1 to 256"),
        ],
    )
    def test_a_wrong_value_names_the_setting_the_value_and_what_is_expected(
        self, path: str, value: object, expected: str
    ) -> None:
        text = refusal({**({} if path == "apps" else {"apps": {"a": APP}}), path: value})
        assert text.startswith(path)
        assert "(argument): expected" in text
        assert expected in text

    def test_the_value_is_shown_as_a_file_would_have_it(self) -> None:
        assert refusal({"log.format": "xml"}).startswith('log.format = "xml" (')
        assert refusal({"apps.a": APP, "apps.a.retry.delays": [1, "x"]}).startswith('apps.a.retry.delays[1] = "x" (')

    def test_a_long_value_is_cut_short(self) -> None:
        assert len(refusal({"log.format": "x" * 5000})) < 200

    @pytest.mark.parametrize("url", ["postgres//me:secret@db/jobs", "://me:sec:ret@db", " mysql://db?password=secret"])
    def test_a_refused_url_does_not_show_its_password(self, url: str) -> None:
        text = refusal({"store.url": url})
        assert "***" in text
        assert "ret" not in text

    def test_all_problems_are_listed_at_once(self) -> None:
        text = refusal({"store.shards": 0, "window.page": 0, "log.colour": True})
        assert text.splitlines()[0] == "3 settings are wrong:"
        assert [line.split()[0] for line in text.splitlines()[1:]] == ["store.shards", "window.page", "log.colour"]

    def test_a_wrong_setting_is_an_invalid_request(self) -> None:
        with pytest.raises(InvalidRequest):
            load({"store.shards": 0})

    @pytest.mark.parametrize("name", ["Sms", "1st", "a-b", "a" * 33, "", "_a", "a b", "naïve", "a\n"])
    def test_an_app_name_must_fit_into_table_names(self, name: str) -> None:
        text = refusal({"apps": {name: APP}})
        assert text.startswith(f"apps.{name} (argument): expected an app name")

    def test_a_missing_function_is_named(self) -> None:
        assert refusal({"apps.a": {"batch": 3}}).startswith(
            "apps.a.function is missing: The function that takes the job"
        )

    @pytest.mark.parametrize("error", [OSError("could not get source code"), TypeError("is a built-in class")])
    def test_a_missing_setting_is_named_also_where_no_sources_are_installed(
        self, monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        monkeypatch.setattr(inspect, "getsource", Mock(side_effect=error))
        assert refusal({"apps.a": {"batch": 3}}).splitlines()[0] == "apps.a.function is missing"

    def test_a_lookahead_that_is_not_longer_than_the_fetch_interval_is_refused_with_both(self) -> None:
        text = refusal({"window.lookahead": "25s"})
        assert text.startswith('window.lookahead = "25s"')
        assert 'fetch_interval, which is "25s"' in text
        load({"window.lookahead": "25001ms"})

    def test_a_lease_shorter_than_three_heartbeats_is_refused_with_both(self) -> None:
        text = refusal({"node": {"lease": "5s"}})
        assert text.startswith('node.lease = "5s"')
        assert 'heartbeat, which is "2s"' in text
        load({"node": {"lease": "6s"}})

    @pytest.mark.parametrize("name", ["initial", "factor", "maximum"])
    def test_delays_are_listed_or_grow_but_not_both(self, name: str) -> None:
        text = refusal({"apps.a": {**APP, "retry": {"delays": ["5s"], name: 1}}})
        assert text.startswith('apps.a.retry.delays = ["5s"]')
        assert f"either delays or {name}, not both" in text

    def test_delays_that_count_from_creation_must_ascend(self) -> None:
        text = refusal({"apps.a": {**APP, "retry": {"delays": ["5m", "1m"], "count_from": "creation"}}})
        assert text.startswith('apps.a.retry.delays = ["5m", "1m"]')
        assert "ascending" in text
        load({"apps.a": {**APP, "retry": {"delays": ["5m", "1m"]}}})

    def test_a_maximum_below_the_initial_wait_is_refused_with_both(self) -> None:
        text = refusal({"apps.a": {**APP, "retry": {"initial": "2h"}}})
        assert text == 'apps.a.retry.maximum = "1h": expected at least initial, which is "2h"'

    @pytest.mark.parametrize(
        ("path", "meant"),
        [
            ("stroe", "store"),
            ("windows", "window"),
            ("store.ulr", "store.url"),
            ("node.hartbeat", "node.heartbeat"),
            ("fetch_interval", "window.fetch_interval"),
            ("apps.a.concurency", "apps.a.concurrency"),
            ("apps.a.retry.max_attempt", "apps.a.retry.max_attempts"),
            ("apps.a.validat", "apps.a.validate"),
            ("kafka.bootstrap_server", "kafka.bootstrap_servers"),
            ("kafka.sasl_user", "kafka.sasl_username"),
        ],
    )
    def test_an_unknown_name_is_refused_with_the_nearest_known_one(self, path: str, meant: str) -> None:
        text = refusal({"apps": {"a": APP}, path: 1})
        assert text == f"{path} (argument): unknown setting; did you mean {meant}?"

    def test_an_unknown_name_like_no_other_is_refused_too(self) -> None:
        assert refusal({"zzz": 1}) == "zzz (argument): unknown setting"

    def test_an_unknown_name_inside_a_misfire_table_is_refused(self) -> None:
        text = refusal({"apps.a": {**APP, "misfire": {"expire_afer": "5m"}}})
        assert (
            "apps.a.misfire.expire_afer (argument): unknown setting; did you mean apps.a.misfire.expire_after?" in text
        )
        assert "apps.a.misfire.expire_after is missing" in text


SERVER = {"kind": "mysql", "host": "db", "database": "jobs", "user": "me"}


def environ(**values: str) -> dict[str, str]:
    return {f"INFINITE_SCHEDULER_STORE__{name.upper()}": value for name, value in values.items()}


class TestAddress:
    """Where the store is: a URL, or settings that make one."""

    @pytest.mark.parametrize(
        ("store", "url"),
        [
            ({}, "sqlite:///scheduler.db"),
            ({"url": "sqlite:///x.db", "password": "x"}, "sqlite:///x.db"),
            ({"password": "x", "connect_timeout": "3s"}, "sqlite:///scheduler.db"),
            ({"url": "mysql+pymysql://u:p@h/db?useSSL=true"}, "mysql+pymysql://u:p@h/db?useSSL=true"),
            (SERVER, "mariadb://me@db/jobs"),
            ({**SERVER, "kind": "mariadb", "port": 7}, "mariadb://me@db:7/jobs"),
            ({"kind": "postgresql", "database": "jobs"}, "postgresql:///jobs"),
            ({**SERVER, "host": "::1", "password": "p@:/"}, "mariadb://me:p%40%3A%2F@[::1]/jobs"),
            ({**SERVER, "host": "/run/x.sock"}, "mariadb://me@/jobs?unix_socket=%2Frun%2Fx.sock"),
            ({**SERVER, "connect_timeout": "1500ms"}, "mariadb://me@db/jobs?connect_timeout=1.5"),
            (
                {"kind": "postgresql", "database": "jobs", "sslmode": "require", "sslcert": "c", "sslkey": "k"},
                "postgresql:///jobs?sslmode=require&sslcert=c&sslkey=k",
            ),
            ({"url": "mysql://me@db/jobs", "password": "x"}, "mariadb://me:x@db/jobs"),
            ({"url": "mysql://me:x@db/jobs", "password": ""}, "mysql://me:x@db/jobs"),
            ({"url": "mysql://db", **SERVER}, "mariadb://me@db/jobs"),
            ({"url": "postgres://db/jobs", "sslrootcert": "ca"}, "postgresql://db/jobs?sslrootcert=ca"),
        ],
    )
    def test_the_settings_make_one_url(self, store: Mapping[str, Any], url: str) -> None:
        assert load({"store": store}).store.address_url == url

    @pytest.mark.parametrize(
        ("store", "text"),
        [
            (
                {"host": "db"},
                'store.kind is missing: expected "mariadb", "mysql" or "postgresql", since store.host means',
            ),
            ({"sslmode": "require"}, "store.kind is missing"),
            ({"kind": "mysql"}, "store.database is missing: expected the name of a database, since store.kind means"),
            ({**SERVER, "host": "db:3306"}, 'store.host = "db:3306" (argument): expected a host alone, without a port'),
            ({**SERVER, "host": "a,b"}, 'store.host = "a,b" (argument): expected one host'),
            ({**SERVER, "sslkey": "k"}, 'store.sslkey = "k" (argument): expected sslcert too'),
            (
                {"url": "mysql://me@other/jobs", **SERVER},
                'store.host = "db" (argument): contradicts store.url, which says "other": leave out one of the two',
            ),
            (
                {"url": "postgresql://db/jobs", "kind": "mysql"},
                'store.kind = "mysql" (argument): contradicts store.url',
            ),
            (
                {"url": "mysql://db:1/jobs", "port": 2},
                'store.port = 2 (argument): contradicts store.url, which says "1"',
            ),
            (
                {"url": "jdbc:mysql://db/jobs?useSSL=false", "sslmode": "require"},
                'store.sslmode = "require" (argument): contradicts store.url, which says "disable"',
            ),
            (
                {"url": "mysql://db/jobs?connect_timeout=3", "connect_timeout": "4s"},
                'store.connect_timeout = "4s" (argument): contradicts store.url, which says "3"',
            ),
            (
                {"url": "sqlite:///x.db", "host": "db"},
                'store.host = "db" (argument): contradicts store.url, which does not name a database server',
            ),
        ],
    )
    def test_what_is_missing_or_contradicts_is_named(self, store: Mapping[str, Any], text: str) -> None:
        assert refusal({"store": store}).startswith(text)

    def test_a_password_may_come_from_elsewhere(self, tmp_path: Path) -> None:
        secret = environ(password="a:b")
        separate = load_toml(tmp_path, '[store]\nkind = "mysql"\nhost = "db"\ndatabase = "jobs"', environ=secret)
        url = load_toml(tmp_path, 'store.url = "mysql://me@db/jobs"', environ=secret)
        assert separate.store.address_url == "mariadb://:a%3Ab@db/jobs"
        assert url.store.address_url == "mariadb://me:a%3Ab@db/jobs"

    @pytest.mark.parametrize("url", ["sqlite:///x.db", "postgresql://you:there@other/else"])
    def test_a_url_of_more_weight_outweighs_all_that_names_a_store(self, url: str, tmp_path: Path) -> None:
        toml = (
            '[store]\nkind = "mysql"\nhost = "db"\ndatabase = "jobs"\nsslmode = "require"\npassword = "x"\nshards = 4'
        )
        for more in ({"overrides": {"store.url": url}}, {"environ": environ(url=url)}):
            settings = load_toml(tmp_path, toml, **more)
            assert settings.store.address_url == url
            assert settings.store.shards == 4
        above = load_toml(tmp_path, toml, environ=environ(host="env", user="env"), overrides={"store.url": url})
        assert above.store.address_url == url

    def test_a_url_of_more_weight_without_a_password_takes_the_one_below(self) -> None:
        settings = load({"store.url": "mysql://me@db/jobs"}, environ(url="sqlite:///x.db", password="x"))
        assert settings.store.address_url == "mariadb://me:x@db/jobs"

    def test_settings_can_be_moved_to_another_store(self, tmp_path: Path) -> None:
        toml = '[store]\nkind = "mysql"\nhost = "db"\ndatabase = "jobs"\nretention = "3d"\n[window]\npage = 5'
        settings = load_toml(tmp_path, toml)
        moved = settings_at("sqlite:///x.db", settings)
        assert moved.store.address_url == moved.store.url == "sqlite:///x.db"
        assert (moved.store.retention, moved.window, moved.source) == (
            timedelta(days=3),
            settings.window,
            settings.source,
        )
        with pytest.raises(
            ConfigError, match=r'^store\.url = "mysql://me:\*\*\*@db" \(argument\): expected a database'
        ):
            settings_at("mysql://me:secret@db", settings)

    @pytest.mark.parametrize(
        "store",
        [
            {"password": 5050},
            {"password": ["5050"]},
            {"url": "mysql://me:x@db/jobs", "password": "5050"},
            {"url": "mysql://me:5050@db/jobs", "password": "x"},
            {"url": "mysql://me:5050@db"},
            {"url": "mysql://me:5050@db/jobs", "host": "other"},
            {**SERVER, "database": "", "password": "5050"},
        ],
    )
    def test_a_mistake_never_shows_a_password(self, store: Mapping[str, Any]) -> None:
        assert "5050" not in refusal({"store": store})
        with pytest.raises(ValidationError) as raised:
            Settings.model_validate({"store": store})
        assert "5050" not in str(raised.value)
        with pytest.raises(ValidationError) as raised:
            StoreSettings.model_validate(store)
        assert "5050" not in str(raised.value)

    def test_a_password_is_not_in_the_repr(self) -> None:
        assert "secret" not in repr(load({"store": {**SERVER, "password": "secret"}}))


def variables(table: str, **values: str) -> dict[str, str]:
    return {f"INFINITE_SCHEDULER_{table}__{name.upper()}": value for name, value in values.items()}


class TestKafka:
    """How the brokers are reached."""

    LOGIN = {  # noqa: RUF012
        "security_protocol": "sasl_ssl",
        "sasl_mechanism": "scram-sha-512",
        "sasl_username": "me",
        "sasl_password": "hush",
        "ssl_ca_location": "ca.pem",
        "ssl_certificate_location": "me.pem",
        "ssl_key_location": "me.key",
        "ssl_key_password": "hush",
    }

    def test_nothing_needs_to_be_set(self) -> None:
        assert load().kafka.options() == KafkaOptions("localhost:9092", {})

    @pytest.mark.parametrize("servers", ["kafka1:9092,kafka2:9092", "10.0.0.1", "[::1]:9092", "SASL_SSL://k:1"])
    def test_brokers_as_people_write_them(self, servers: str) -> None:
        assert load({"kafka.bootstrap_servers": servers}).kafka.options().bootstrap_servers == servers

    def test_spaces_between_brokers_do_not_matter(self) -> None:
        assert load({"kafka.bootstrap_servers": " a:1, b:2 "}).kafka.bootstrap_servers == "a:1,b:2"

    def test_logins_and_certificates_become_properties(self) -> None:
        assert load({"kafka": self.LOGIN}).kafka.options().properties == {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "me",
            "sasl.password": "hush",
            "ssl.ca.location": "ca.pem",
            "ssl.certificate.location": "me.pem",
            "ssl.key.location": "me.key",
            "ssl.key.password": "hush",
        }

    def test_the_environment_sets_everything(self) -> None:
        table = {"bootstrap_servers": "a:1", **self.LOGIN, "properties": '{"socket.timeout.ms": 5}'}
        read = load(environ=variables("KAFKA", **table)).kafka
        assert read == load({"kafka": {**table, "properties": {"socket.timeout.ms": 5}}}).kafka

    def test_properties_may_have_dots_without_quotes(self, tmp_path: Path) -> None:
        toml = '[kafka.properties]\nsocket.keepalive.enable = true\n"socket.timeout.ms" = 5\ndebug = "broker"'
        assert load_toml(tmp_path, toml).kafka.options().properties == {
            "socket.keepalive.enable": True,
            "socket.timeout.ms": 5,
            "debug": "broker",
        }

    @pytest.mark.parametrize("name", ["bootstrap.servers", "group.id", "enable.auto.commit", "acks"])
    def test_a_property_that_something_else_decides_is_refused_with_the_reason(self, name: str) -> None:
        text = refusal({"kafka.properties": {name: "x"}})
        assert text == f'kafka.properties.{name} = "x" (argument): cannot be set: {OWNED[name]}'
        assert refusal({"ingest": [{"properties": {name: "x"}}]}).startswith(f"ingest[0].properties.{name} = ")

    def test_a_setting_and_its_property_contradict_each_other(self) -> None:
        text = refusal({"kafka": {**self.LOGIN, "properties": {"sasl.username": "you"}}})
        assert text.startswith('kafka.sasl_username = "me" (argument): contradicts properties')

    @pytest.mark.parametrize("name", ["sasl_mechanism", "sasl_username", "ssl_ca_location", "ssl_key_location"])
    def test_a_setting_without_effect_is_refused(self, name: str) -> None:
        text = refusal({f"kafka.{name}": self.LOGIN[name]})
        assert text.startswith(f"kafka.{name} = ")
        assert 'has no effect while security_protocol is "PLAINTEXT"' in text
        load({"kafka": {name: self.LOGIN[name], "properties": {"security.protocol": "sasl_ssl"}}})

    def test_a_password_may_be_in_the_environment_without_need(self) -> None:
        settings = load(environ=variables("KAFKA", sasl_password="hush", ssl_key_password="hush"))
        assert settings.kafka.security_protocol is None

    def test_secrets_are_not_in_the_repr(self) -> None:
        properties = {"sasl.oauthbearer.client.secret": "hush"}
        settings = load({"kafka": {**self.LOGIN, "properties": properties}, "ingest": [{"properties": properties}]})
        assert "hush" not in repr(settings)
        assert "hush" not in repr(settings.kafka.options())

    @pytest.mark.parametrize(
        ("overrides", "environ"),
        [
            ({"kafka.sasl_password": ["hush"]}, {}),
            ({"kafka.properties": {"sasl.password": ["hush"]}}, {}),
            ({"kafka.properties": {"ssl": {"key": {"pem": ["hush"]}}}}, {}),
            ({"ingest": [{"properties": {"sasl.password": ["hush"]}}]}, {}),
            ({"kafka": {**LOGIN, "properties": {"sasl.password": "x"}}}, {}),
            ({}, variables("KAFKA", properties='{"sasl.password": "hush')),
            ({}, {"INFINITE_SCHEDULER_KAFKA": '{"sasl_password": "hush'}),
            ({}, {"INFINITE_SCHEDULER_INGEST": '[{"properties": {"sasl.password": "hush"}'}),
        ],
    )
    def test_a_mistake_never_shows_a_secret(self, overrides: Mapping[str, Any], environ: Mapping[str, str]) -> None:
        text = refusal(overrides, environ)
        assert "***" in text
        assert "hush" not in text


class TestIngest:
    """The topics that bring jobs."""

    def test_the_defaults_are_those_of_the_door(self) -> None:
        (table,) = load({"ingest": [{}]}).ingest
        door = KafkaIngestConfig()
        values = dict(table) | {"bootstrap_servers": load().kafka.bootstrap_servers}
        assert values == {name: getattr(door, name) for name in door.__struct_fields__}

    def test_the_example_of_the_guides(self, tmp_path: Path) -> None:
        toml = """
            [kafka]
            bootstrap_servers = "localhost:9092"
            [[ingest]]
            topic = "SMS_Retry"
            dlq_topic = "SMS_Retry_DLQ"
            group_id = "sms-retry-scheduler"
            [apps.sms_retry]
            handler = "sms_retry"
            topic = "SMS_Send"
            [apps.sms]
            handler = "kafka"
            topic = "sms.out"
        """
        settings = load_toml(tmp_path, toml)
        assert [(table.topic, table.dlq_topic, table.group_id) for table in settings.ingest] == [
            ("SMS_Retry", "SMS_Retry_DLQ", "sms-retry-scheduler")
        ]
        assert {name: type(app) for name, app in settings.apps.items()} == {"sms_retry": SmsRetryApp, "sms": KafkaApp}

    def test_an_empty_dead_letter_topic_means_none(self) -> None:
        assert load({"ingest": [{"dlq_topic": ""}]}).ingest[0].dlq_topic is None

    def test_a_variable_holds_the_list_whole(self, tmp_path: Path) -> None:
        variable = {"INFINITE_SCHEDULER_INGEST": '[{"topic": "a", "max_retries": "5"}, {"topic": "b"}]'}
        settings = load_toml(tmp_path, '[[ingest]]\ntopic = "c"', environ=variable)
        assert [(table.topic, table.max_retries) for table in settings.ingest] == [("a", 5), ("b", 3)]

    @pytest.mark.parametrize(
        ("table", "text"),
        [
            ({"topic": ""}, 'topic = "" (argument): expected the name of a topic'),
            ({"topic": " "}, 'topic = " " (argument): expected the name of a topic'),
            ({"topic": ".."}, "topic = "),
            ({"topic": "a" * 250}, "topic = "),
            ({"topic": "^all"}, "topic = "),
            ({"dlq_topic": " "}, "dlq_topic = "),
            ({"topic": "a", "dlq_topic": "a"}, 'dlq_topic = "a" (argument): expected another topic'),
            ({"group_id": ""}, 'group_id = "" (argument): expected the name of a consumer group'),
            ({"group_id": "\t "}, "group_id = "),
            ({"group_id": "g" * 256}, "group_id = "),
            ({"zone": "Mars"}, 'zone = "Mars" (argument): expected an IANA time zone'),
            ({"max_poll_records": 0}, "max_poll_records = 0 (argument): expected a whole number from 1"),
            (
                {"poll_timeout_ms": 60_001},
                "poll_timeout_ms = 60001 (argument): expected a whole number from 1 to 60000",
            ),
            ({"max_retries": -1}, "max_retries = -1 (argument): expected a whole number from 0 to 10"),
            ({"auto_offset_reset": "none"}, 'auto_offset_reset = "none" (argument): expected "earliest" or "latest"'),
            ({"enable_auto_commit": True}, "enable_auto_commit = true (argument): expected false: positions are"),
            ({"enabled": "perhaps"}, 'enabled = "perhaps" (argument): expected true or false'),
            ({"bootstrap_servers": ""}, 'bootstrap_servers = "" (argument): expected "HOST:PORT"'),
            ({"topik": "a"}, "topik (argument): unknown setting; did you mean ingest[1].topic?"),
        ],
    )
    def test_a_wrong_value_names_its_table(self, table: Mapping[str, Any], text: str) -> None:
        assert refusal({"ingest": [{"topic": "fine"}, table]}).startswith(f"ingest[1].{text}")

    def test_a_wrong_value_in_a_variable_names_it(self) -> None:
        text = refusal(environ={"INFINITE_SCHEDULER_INGEST": '[{"topik": "a"}]'})
        assert text == "ingest[0].topik (INFINITE_SCHEDULER_INGEST): unknown setting; did you mean ingest[0].topic?"
        assert "did you mean INFINITE_SCHEDULER_INGEST?" in refusal(environ={"INFINITE_SCHEDULER_INGEST_TOPIC": "a"})
        assert refusal(environ={"INFINITE_SCHEDULER_INGEST__0__TOPIC": "a"}).endswith("expected a list")

    def test_a_group_reads_a_topic_once(self) -> None:
        twice = [{"topic": "a"}, {"topic": "b"}, {"topic": "a"}]
        text = refusal({"ingest": twice})
        assert text.startswith('ingest[2].topic = "a" (argument): ingest[0] reads it in the same group')
        for other in ({"group_id": "g"}, {"enabled": False}):
            load({"ingest": [*twice[:2], {"topic": "a", **other}]})


class TestKinds:
    """What an app may be told depends on what takes its jobs."""

    def test_a_topic_is_all_that_a_kafka_app_needs(self) -> None:
        app = load({"apps.a": {"handler": "kafka", "topic": "out"}}).apps["a"]
        assert isinstance(app, KafkaApp)
        assert (app.topic, app.key, app.headers, app.value, app.required) == ("out", None, {}, "generic", ())

    def test_an_sms_retry_app_needs_nothing(self) -> None:
        app = load({"apps.a": {"handler": "sms_retry"}}).apps["a"]
        assert isinstance(app, SmsRetryApp)
        assert app.topic == "SMS_Send"

    @pytest.mark.parametrize("value", ["generic", "data", {"text": "{message}", "deep": {"list": [1, "{x}"]}}])
    def test_every_kind_of_value(self, value: Any) -> None:
        app = load({"apps.a": {"handler": "kafka", "topic": "out", "value": value}}).apps["a"]
        assert isinstance(app, KafkaApp)
        assert app.value == value

    @pytest.mark.parametrize("kind", [APP, {"handler": "kafka", "topic": "out"}, {"handler": "sms_retry"}])
    def test_every_kind_has_the_policies(self, kind: Mapping[str, Any]) -> None:
        policies = {"misfire": "skip", "misfire_threshold": "5s", "concurrency": 3, "timeout": "9s", "shards": 2}
        app = load({"apps.a": {**kind, **policies, "retry": {"max_attempts": 2}}}).apps["a"]
        assert (app.misfire, app.concurrency, app.shards, app.retry.max_attempts) == ("skip", 3, 2, 2)
        assert (app.misfire_threshold, app.timeout) == (timedelta(seconds=5), timedelta(seconds=9))

    def test_the_environment_sets_an_app_of_any_kind(self) -> None:
        environ = variables(
            "APPS__A", handler="kafka", topic="t", required='["x"]', value='{"x": "{y}"}', headers='{"h": "{y}"}'
        )
        app = load(environ={**environ, "INFINITE_SCHEDULER_APPS__A__RETRY__DELAYS": '["1s"]'}).apps["a"]
        assert isinstance(app, KafkaApp)
        assert (app.required, app.value, app.headers) == (("x",), {"x": "{y}"}, {"h": "{y}"})
        assert app.retry.delays == (timedelta(seconds=1),)
        python = load(environ=variables("APPS__A", function="m:f", validate="m:g")).apps["a"]
        assert isinstance(python, PythonApp)
        assert python.validation == "m:g"

    @pytest.mark.parametrize(
        ("app", "text"),
        [
            ({"handler": "kafka"}, "apps.a.topic is missing: The topic that the jobs are published to."),
            ({"handler": "kafka", "topic": ""}, 'apps.a.topic = "" (argument): expected the name of a topic'),
            ({"handler": "sms_retry", "topic": "a b"}, 'apps.a.topic = "a b" (argument): expected the name of a topic'),
            (
                {"handler": "kafka", "topic": "t", "value": "raw"},
                'apps.a.value = "raw" (argument): expected "generic", "data" or a table',
            ),
            (
                {"handler": "kafka", "topic": "t", "headers": {"h": 1}},
                "apps.a.headers.h = 1 (argument): expected a string",
            ),
            ({"handler": "kafka", "topic": "t", "key": ""}, 'apps.a.key = "" (argument): expected a text'),
            (
                {"handler": "kafka", "topic": "t", "kee": 1},
                "apps.a.kee (argument): unknown setting; did you mean apps.a",
            ),
            (
                {**APP, "topic": "t"},
                'apps.a.topic (argument): a setting of handler "kafka" or "sms_retry", but this app has',
            ),
            (
                {"handler": "kafka", "topic": "t", **APP},
                'apps.a.function (argument): a setting of handler "python", but this app has handler "kafka"',
            ),
            (
                {"handler": "sms_retry", "required": ["x"]},
                'apps.a.required (argument): a setting of handler "python" or "kafka", but this app has handler "sms_',
            ),
        ],
    )
    def test_a_wrong_app_is_told_what_to_change(self, app: Mapping[str, Any], text: str) -> None:
        assert refusal({"apps.a": app}).startswith(text)

    def test_an_app_may_have_the_name_of_a_setting(self) -> None:
        assert refusal({"apps.retry": {**APP, "concurency": 1}}).endswith("did you mean apps.retry.concurrency?")


class TestAccepted:
    def test_every_kind_of_misfire(self) -> None:
        for misfire, read in {"fire_now": "fire_now", "skip": "skip"}.items():
            assert load({"apps.a": {**APP, "misfire": misfire}}).apps["a"].misfire == read
        table = load({"apps.a": {**APP, "misfire": {"expire_after": "10m"}}})
        assert table.apps["a"].misfire == ExpireAfterSettings(expire_after=timedelta(minutes=10))

    def test_exceptions_by_name(self) -> None:
        names = ["OSError", "TimeoutError", "shop.errors:Busy", "shop:Outer.Inner"]
        assert load({"apps.a": {**APP, "retry": {"retry_on": names}}}).apps["a"].retry.retry_on == tuple(names)

    def test_a_log_level_in_capitals(self) -> None:
        assert load({"log.level": "DEBUG"}).log.level == "debug"

    def test_other_stores(self) -> None:
        for url in (
            "postgresql://u@h:5432/db?sslmode=require",
            "mysql+pymysql://u:p@h/db",
            "sqlite://",
            "sqlite:////x.db",
        ):
            assert load({"store.url": url}).store.url == url


class TestDurations:
    @given(st.integers(0, MAX_DUE_MS))
    def test_what_is_written_is_read_back(self, ms: int) -> None:
        value = timedelta(milliseconds=ms)
        assert read_duration(format_duration(value)) == value
        assert read_duration(value) == value

    @given(st.integers(0, 10**9))
    def test_a_number_counts_seconds(self, seconds: int) -> None:
        assert read_duration(seconds) == read_duration(str(seconds)) == timedelta(seconds=seconds)

    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("30s", timedelta(seconds=30)),
            ("5m", timedelta(minutes=5)),
            ("1h30m", timedelta(hours=1, minutes=30)),
            ("1h 30m", timedelta(hours=1, minutes=30)),
            ("200ms", timedelta(milliseconds=200)),
            ("2d", timedelta(days=2)),
            ("1w", timedelta(weeks=1)),
            ("1.5s", timedelta(milliseconds=1500)),
            (" 1m ", timedelta(minutes=1)),
            (0.25, timedelta(milliseconds=250)),
            ("0s", timedelta(0)),
        ],
    )
    def test_as_people_write_it(self, text: object, value: timedelta) -> None:
        assert read_duration(text) == value

    @pytest.mark.parametrize(
        "text", ["", " ", ".", "s", "5 minutes", "30m1h", "1s1s", "-1s", "1e3s", "1hour", "٣s", "1S"]
    )
    def test_other_text_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match="expected a duration of zero or more"):
            read_duration(text)

    @pytest.mark.parametrize("value", [None, True, [], -0.1, float("inf"), float("nan"), timedelta(-1)])
    def test_what_is_no_length_of_time_is_refused(self, value: object) -> None:
        with pytest.raises(ValueError, match="expected a duration of zero or more"):
            read_duration(value)

    @pytest.mark.parametrize("value", [1e300, "99999999999999d", "9" * 400])
    def test_what_cannot_be_counted_is_refused(self, value: object) -> None:
        with pytest.raises(ValueError, match="expected a duration of zero or more"):
            read_duration(value)

    @given(st.text() | st.from_regex(r"[0-9.]+(d|h|m|s|ms)", fullmatch=True))
    def test_no_text_breaks_the_reader(self, text: str) -> None:
        with suppress(ValueError):
            assert read_duration(text) >= timedelta(0)


class TestSizes:
    @given(st.integers(1, 1 << 60))
    def test_what_is_written_is_read_back(self, value: int) -> None:
        assert parse_size(format_size(value)) == parse_size(value) == parse_size(str(value)) == value

    @pytest.mark.parametrize(
        ("text", "value"),
        [("64MiB", 64 << 20), ("1MB", 10**6), ("1 GiB", 1 << 30), ("1.5KiB", 1536), ("3kB", 3000), ("7B", 7), (5, 5)],
    )
    def test_as_people_write_it(self, text: object, value: int) -> None:
        assert parse_size(text) == value

    @pytest.mark.parametrize("value", ["", "MiB", "-1MiB", "1mib", "1TBX", 0, -1, 1.5, True, None, "0.3B", "1e3"])
    def test_anything_else_is_refused(self, value: object) -> None:
        with pytest.raises(ValueError, match="expected a size"):
            parse_size(value)


def test_a_sql_store_does_by_itself_what_the_settings_say_it_does() -> None:
    every = StoreSettings()
    told = StoreSettings(**{name: getattr(every, name) for name in StoreSettings.model_fields}).options
    limits = SqlLimits()
    assert SqlLimits.of(told) == msgspec.structs.replace(limits, tables="daily")
    assert told.keys() == set(SqlLimits.__struct_fields__)
    assert every.connect_timeout.total_seconds() == CONNECT_TIMEOUT_S
