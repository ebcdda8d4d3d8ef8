"""How a database server is named, and what of it people may see."""

import ssl
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infinite_scheduler.errors import ConfigError
from infinite_scheduler.secrets import without_secrets
from infinite_scheduler.store.sql.server.address import (
    Address,
    address_of,
    make_address,
    read_url,
    shown_url,
    write_url,
)
from infinite_scheduler.store.sql.server.driver_arguments import psycopg_arguments, pymysql_arguments, require_driver
from infinite_scheduler.store.sql.server.java import IGNORED, REFUSED
from infinite_scheduler.store.sql.server.url_options import OWN, SHARED, Kind

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
labels = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True)
hosts = (
    st.lists(labels, min_size=1, max_size=3).map(".".join)
    | st.ip_addresses().map(str)
    | st.just("fe80::1%eth0")
    | st.just("bücher.example")
    | texts.map(lambda text: f"/{text}")
)
addresses = st.fixed_dictionaries(
    {"kind": st.sampled_from(["mariadb", "postgres"]), "database": texts},
    optional={
        "user": texts,
        "password": texts,
        "host": hosts,
        "port": st.integers(1, 65535).map(str),
        "sslmode": st.sampled_from(["disable", "prefer", "require", "verify-ca", "verify-full"]),
        "sslcert": texts,
        "connect_timeout": st.integers(1, 3600).map(str),
        "application_name": texts,
    },
)


def refusal(url: str) -> str:
    with pytest.raises(ConfigError) as raised:
        address_of(url)
    return str(raised.value)


class TestReading:
    @pytest.mark.parametrize(
        ("scheme", "kind", "port"),
        [
            ("mysql", "mariadb", 3306),
            ("mariadb", "mariadb", 3306),
            ("mysql+pymysql", "mariadb", 3306),
            ("mariadb+pymysql", "mariadb", 3306),
            ("jdbc:mysql", "mariadb", 3306),
            ("jdbc:mariadb", "mariadb", 3306),
            ("postgresql", "postgres", 5432),
            ("postgres", "postgres", 5432),
            ("postgresql+psycopg", "postgres", 5432),
            ("jdbc:postgresql", "postgres", 5432),
            ("MySQL", "mariadb", 3306),
        ],
    )
    def test_every_scheme_has_its_kind_and_its_port(self, scheme: str, kind: Kind, port: int) -> None:
        assert address_of(f"{scheme}://db/jobs") == Address(kind=kind, host="db", port=port, database="jobs")
        full = Address(kind=kind, host="db", port=7, database="jobs", user="me", password="secret")
        assert address_of(f"{scheme}://me:secret@db:7/jobs") == full
        assert address_of(f"{scheme}://db:7/jobs?user=me&password=secret") == full

    @given(addresses)
    def test_what_is_written_is_read_back(self, said: dict[str, str]) -> None:
        assert read_url(write_url(said)) == said
        assert address_of(write_url(said)) == make_address(said)

    @given(texts, texts)
    def test_names_and_passwords_are_percent_decoded(self, user: str, password: str) -> None:
        login = f"{quote(user, safe='')}:{quote(password, safe='')}"
        address = address_of(f"mysql://{login}@db/jobs")
        assert (address.user, address.password) == (user, password)

    def test_a_plus_sign_and_a_lone_percent_sign_stay(self) -> None:
        assert address_of("mysql://db/jobs?password=a+b%").password == "a+b%"
        assert address_of("mysql://me:a+b%@db/jobs").password == "a+b%"

    @pytest.mark.parametrize(
        ("server", "host", "port"),
        [
            ("", "localhost", 5432),
            (":99", "localhost", 99),
            ("db:", "db", 5432),
            ("10.0.0.1", "10.0.0.1", 5432),
            ("[::1]", "::1", 5432),
            ("[::1]:99", "::1", 99),
            ("[fe80::1%25eth0]", "fe80::1%eth0", 5432),
        ],
    )
    def test_a_host_is_a_name_or_a_number(self, server: str, host: str, port: int) -> None:
        address = address_of(f"postgresql://me@{server}/jobs")
        assert (address.host, address.port) == (host, port)

    @pytest.mark.parametrize(
        "url",
        [
            "mysql:///jobs?unix_socket=/run/it.sock",
            "mysql://localhost/jobs?unix_socket=/run/it.sock",
            "jdbc:mariadb:///jobs?localSocket=/run/it.sock",
            "mysql://%2Frun%2Fit.sock/jobs",
            "postgresql:///jobs?host=/run/it.sock",
            "postgresql://%2Frun%2Fit.sock/jobs",
        ],
    )
    def test_a_socket_stands_instead_of_a_host(self, url: str) -> None:
        assert address_of(url).socket == "/run/it.sock"

    def test_an_empty_option_counts_as_not_given(self) -> None:
        assert address_of("mysql://db/jobs?&password=&sslmode=&") == address_of("mysql://db/jobs")

    @pytest.mark.parametrize("name", sorted(IGNORED))
    def test_what_concerns_java_alone_is_accepted(self, name: str) -> None:
        assert address_of(f"jdbc:mysql://db/jobs?{name}=x") == address_of("mysql://db/jobs")
        assert address_of(f"jdbc:postgresql://db/jobs?{name}=x") == address_of("postgresql://db/jobs")

    def test_times_count_in_seconds_but_in_the_java_drivers_of_mysql(self) -> None:
        assert address_of("mysql://db/jobs").connect_timeout == 5
        assert address_of("mysql://db/jobs?connect_timeout=2.5").connect_timeout == 2.5
        assert address_of("jdbc:mysql://db/jobs?connectTimeout=2500").connect_timeout == 2.5
        assert address_of("jdbc:postgresql://db/jobs?connectTimeout=7").connect_timeout == 7
        assert address_of("jdbc:postgresql://db/jobs?loginTimeout=7").connect_timeout == 7


class TestTlsWords:
    @pytest.mark.parametrize(
        ("query", "mode"),
        [
            ("", None),
            ("sslmode=require", "require"),
            ("sslMode=DISABLED", "disable"),
            ("sslMode=PREFERRED", "prefer"),
            ("sslMode=REQUIRED", "require"),
            ("ssl-mode=VERIFY_CA", "verify-ca"),
            ("ssl_mode=VERIFY_IDENTITY", "verify-full"),
            ("sslMode=verify-full", "verify-full"),
            ("sslMode=trust", "require"),
            ("useSSL=false", "disable"),
            ("useSSL=true", "prefer"),
            ("useSSL=true&requireSSL=false", "prefer"),
            ("useSSL=true&requireSSL=true", "require"),
            ("useSSL=true&verifyServerCertificate=true", "verify-ca"),
            ("useSSL=true&trustServerCertificate=true", "require"),
            ("useSSL=false&sslMode=REQUIRED", "require"),
            ("ssl=true", "require"),
            ("ssl=false", "disable"),
            ("sslrootcert=ca.pem", "verify-full"),
            ("ssl_ca=ca.pem&sslmode=verify-ca", "verify-ca"),
        ],
    )
    def test_mysqls_words_become_postgresqls(self, query: str, mode: str | None) -> None:
        assert address_of(f"jdbc:mysql://db/jobs?{query}").sslmode == mode

    @pytest.mark.parametrize(
        ("query", "mode"),
        [
            ("", None),
            ("sslmode=prefer", "prefer"),
            ("ssl=true", "verify-full"),
            ("ssl=false", None),
            ("ssl=true&sslmode=require", "require"),
            ("sslrootcert=ca.pem", "verify-full"),
            ("sslrootcert=system", "verify-full"),
        ],
    )
    def test_postgresqls_words_stay(self, query: str, mode: str | None) -> None:
        assert address_of(f"jdbc:postgresql://db/jobs?{query}").sslmode == mode


class TestRefusals:
    @pytest.mark.parametrize(
        ("url", "expected"),
        [
            ("mysql://db", "expected a database: mariadb://USER:PASSWORD@HOST:3306/DATABASE"),
            ("postgresql://db/", "expected a database: postgresql://USER:PASSWORD@HOST:5432/DATABASE"),
            ("oracle://db/jobs", "expected a URL that begins with mysql://, mariadb://"),
            ("mysql+mysqldb://db/jobs", "expected a URL that begins with mysql://"),
            ("jdbc:mysql:replication://db/jobs", "expected a URL that begins with mysql://"),
            ("mysql:db/jobs", "expected a URL that begins with mysql://"),
            ("mysql://db/jobs/more", "expected mariadb://USER:PASSWORD@HOST:3306/DATABASE"),
            ("mysql://db:port/jobs", "expected mariadb://USER:PASSWORD@HOST:3306/DATABASE"),
            ("mysql://::1/jobs", "write an IPv6 host in brackets"),
            ("mysql://db:70000/jobs", "expected port to be a number from 1 to 65535"),
            ("mysql://db:0/jobs", "expected port to be a number from 1 to 65535"),
            ("postgresql://one,two/jobs", "expected one host"),
            ("postgresql://[db:5432]/jobs", "expected a host alone, without a port"),
            ("postgresql://a%20b/jobs", "expected the name or the address of a host"),
            ("mysql://db/jobs?sslmode=maybe", "expected sslmode to be one of disable, prefer, require, verify-ca"),
            ("mysql://db/jobs?useSSL=perhaps", "expected useSSL=true or useSSL=false"),
            ("mysql://db/jobs?sslmode", "expected NAME=VALUE"),
            ("mysql://db/jobs?connect_timeout=soon", "expected connect_timeout to be a number of seconds, more than 0"),
            ("mysql://db/jobs?connect_timeout=0", "expected connect_timeout to be a number of seconds, more than 0"),
            ("mysql://db/jobs?connect_timeout=nan", "expected connect_timeout to be a number of seconds, more than 0"),
            ("mysql://db/jobs?sslmode=require&ssl-mode=disable", "the option sslmode is given twice"),
            ("mysql://me@db/jobs?user=you", "user is given twice, with different values"),
            ("mysql://db/jobs?sslkey=key.pem", "expected sslcert too"),
            ("mysql://db/jobs?sslrootcert=system&sslmode=require", "expected verify-full, since sslrootcert is system"),
            ("mysql://me:%ff@db/jobs", "expected UTF-8 after the percent signs"),
            ("postgresql://db/jobs?options=-c%20a%3Db", "the option options is not supported: poolers refuse it"),
            ("jdbc:postgresql://db/jobs?currentSchema=a", "ALTER ROLE … SET search_path"),
        ],
    )
    def test_a_mistake_is_told_with_what_is_expected(self, url: str, expected: str) -> None:
        assert expected in refusal(url)
        assert refusal(url).startswith(f"store URL {shown_url(url)}: ")

    @pytest.mark.parametrize("kind", ["mariadb", "postgres"])
    def test_an_unknown_option_is_refused_with_the_known_ones(self, kind: Kind) -> None:
        scheme = "postgresql" if kind == "postgres" else kind
        text = refusal(f"{scheme}://db/jobs?sslmod=require")
        assert "unknown option sslmod; use one of application_name, " in text
        assert text.endswith("; did you mean sslmode?")
        assert all(name in text for name in (*SHARED, *OWN[kind]))
        assert "did you mean" not in refusal(f"{scheme}://db/jobs?zzzzzz=1")

    @pytest.mark.parametrize("name", REFUSED)
    def test_an_option_that_would_be_missed_says_what_to_write_instead(self, name: str) -> None:
        assert f"the option {name} is not supported: {REFUSED[name]}" in refusal(f"jdbc:mysql://db/jobs?{name}=x")

    @pytest.mark.parametrize(
        "url",
        [
            "mysql://me:geh/eim@db/jobs",
            "mysql://me:geh?eim@db/jobs",
            "mysql://me:geh@eim@db",
            "mysql://me:geh:eim@db",
            "mysql://me:12/eim@db/jobs",
            "mysql://me:12?eim@db/jobs",
            "mysql://me:12?eim=1@db/jobs",
            "mysql://me:a@b/c?geh/eim=1@db/jobs",
            "mysql://me:geheim",
            "mysql://me:geheim@db:x/jobs",
            "mysql://me:geh%ffeim@db/jobs",
            "mysql://me:geheim@db/jobs?password=eim2",
            "jdbc:mysql://db/jobs?user=me&password=geheim&zz=1",
            "jdbc:mysql://db/jobs?trustCertificateKeyStorePassword=geheim",
            "jdbc:mysql://db/jobs?passwort=geheim",
            "oracle://me:geheim@db/jobs",
        ],
    )
    def test_a_refusal_shows_no_part_of_a_password(self, url: str) -> None:
        text = refusal(url)
        assert "***" in text
        assert "geh" not in text
        assert "eim" not in text


class TestSecrets:
    def test_an_address_does_not_show_its_secrets(self) -> None:
        address = address_of("mysql://me:geheim@db/jobs?sslcert=c&sslkey=k&sslpassword=geheim")
        assert "geheim" not in repr(address)
        assert str(address) == "mariadb://me@db:3306/jobs"
        assert str(address_of("postgresql://m%40e@[::1]/jobs")) == "postgresql://m%40e@[::1]:5432/jobs"
        assert str(address_of("postgresql://%2Frun/jobs")) == "postgresql://%2Frun/jobs"

    @pytest.mark.parametrize(
        ("url", "shown"),
        [
            ("mysql://me:geheim@db:1/jobs?sslmode=require", "mysql://me:***@db:1/jobs?sslmode=require"),
            ("mysql://me@db/jobs", "mysql://me@db/jobs"),
            ("mysql://db", "mysql://db"),
            (
                "jdbc:mysql://db/jobs?user=me@home&password=geheim&useSSL=true",
                "jdbc:mysql://db/jobs?user=me@home&password=***&useSSL=true",
            ),
            ("postgresql://db/jobs?sslpassword=geheim&token=geheim", "postgresql://db/jobs?sslpassword=***&token=***"),
            ("postgresql://me:a/b@db/jobs", "postgresql://me:***@db/jobs"),
            ("mysql://me:geheim", "mysql://me:***"),
            ("kafka://me:geheim@one:9092", "kafka://me:***@one:9092"),
            ("sqlite:////srv/a:b@c.db", "sqlite:////srv/a:b@c.db"),
            ("sqlite:///jobs.db?key=geheim", "sqlite:///jobs.db?key=***"),
            ("shop.jobs:send", "shop.jobs:send"),
            ("30s", "30s"),
            ("", ""),
        ],
    )
    def test_a_url_is_shown_without_its_secrets(self, url: str, shown: str) -> None:
        assert shown_url(url) == shown
        assert shown_url(shown) == shown

    def test_a_text_is_shown_without_the_secrets_of_its_urls(self) -> None:
        text = 'cannot open "mysql://me:geheim@db/jobs" (was postgresql://me:geheim@db/jobs?password=x ): refused'
        shown = 'cannot open "mysql://me:***@db/jobs" (was postgresql://me:***@db/jobs?password=*** ): refused'
        assert without_secrets(text) == shown

    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("invalid dsn: password=geheim host=db", "invalid dsn: password=*** host=db"),
            ("Driver={x};UID=me;PWD=geheim", "Driver={x};UID=me;PWD=***"),
            ("(pwd: geheim)", "(pwd: ***"),
            ("{'passwd': 'ge heim', 'host': 'db'}", "{'passwd': *** 'host': 'db'}"),
            (r'password = "ge \" heim" port=1', "password = *** port=1"),
            ("password='ge heim", "password=***"),
            ("sslpassword=ge://heim MYSQL_PWD=geheim", "sslpassword=*** MYSQL_PWD=***"),
            ("Access denied for user 'me'@'db' (using password: YES)",) * 2,
            ('FATAL:  password authentication failed for user "me"',) * 2,
            ("fe_sendauth: no password supplied",) * 2,
            ("client.secret='ge heim' and api_token: geheim", "client.secret=*** and api_token: ***"),
        ],
    )
    def test_a_text_is_shown_without_what_it_calls_a_password(self, text: str, shown: str) -> None:
        assert without_secrets(text) == shown

    @given(
        st.lists(st.sampled_from(["cannot", "connect:", "host=db", "(using", "user='me'", "mysql://me@db/jobs"])),
        st.sampled_from(["password", "PASSWORD", "passwd", "Pwd", "pwd", "sslpassword", "passphrase", "pass"]),
        st.sampled_from(["=", ":", ": ", " = ", "': ", '":']),
        st.text("abz019:=&;,@/?#%()\\\"'", min_size=3).filter(lambda text: len(set(text)) > 2),
        st.sampled_from(["", "'", '"']),
        st.lists(st.sampled_from(["port=5432", "refused", "'quoted'", "postgresql://me@db/jobs"])),
    )
    def test_what_a_driver_calls_a_password_is_never_shown(
        self, before: list[str], name: str, sign: str, password: str, quote: str, behind: list[str]
    ) -> None:
        value = quote + (password.replace("\\", "\\\\").replace(quote, f"\\{quote}") if quote else password) + quote
        text = " ".join([*before, name + sign + value, *behind])
        head = " ".join([*before, name + sign])
        shown = without_secrets(text)
        assert shown.startswith(f"{head}***")
        assert value not in shown
        assert password not in shown.removeprefix(head)

    @given(addresses, st.text("0123456789", min_size=12, max_size=12))
    def test_no_password_is_ever_shown(self, said: dict[str, str], password: str) -> None:
        url = write_url({**said, "password": password, "user": "me", "database": "jobs", "port": "1"})
        assert f":{password}@" in url
        assert f":{password}@" not in shown_url(url)
        assert read_url(shown_url(url))["password"] == "***"


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate with its key, made for this test."""
    from datetime import UTC, datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a test")])
    days = datetime(2020, 1, 1, tzinfo=UTC), datetime(2099, 1, 1, tzinfo=UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), *days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    made = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    lock = serialization.BestAvailableEncryption(b"geheim")
    forms = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (tmp_path / "cert.pem").write_bytes(made)
    (tmp_path / "key.pem").write_bytes(key.private_bytes(*forms, serialization.NoEncryption()))
    (tmp_path / "locked.pem").write_bytes(key.private_bytes(*forms, lock))
    return tmp_path


class TestPyMySQL:
    def test_the_arguments_are_the_address(self) -> None:
        address = address_of("mysql://me:geh%C3%A9im%E2%82%AC@db:7/jobs?connect_timeout=3&read_timeout=9")
        assert pymysql_arguments(address) == {
            "host": "db",
            "port": 7,
            "database": "jobs",
            "user": "me",
            "password": "gehéim€".encode(),
            "connect_timeout": 3,
            "program_name": "infinite-scheduler",
            "read_timeout": 9,
        }

    @pytest.mark.parametrize("query", ["", "sslmode=require", "sslmode=disable", "unix_socket=/x", "bind_address=::1"])
    def test_the_driver_takes_them(self, query: str) -> None:
        import pymysql

        connection = pymysql.connect(defer_connect=True, **pymysql_arguments(address_of(f"mysql://me:x@/jobs?{query}")))
        assert not connection.open

    def test_a_socket_and_disable_mean_no_tls(self) -> None:
        for query in ("unix_socket=/run/it.sock&sslmode=verify-full", "sslmode=disable"):
            arguments = pymysql_arguments(address_of(f"mysql:///jobs?{query}"))
            assert arguments["ssl_disabled"] is True
            assert "ssl" not in arguments

    @pytest.mark.parametrize(
        ("query", "verifies", "names"),
        [
            ("sslmode=require", False, False),
            ("sslmode=require&sslrootcert=cert.pem", True, False),
            ("sslmode=verify-ca", True, False),
            ("sslmode=verify-ca&sslrootcert=cert.pem", True, False),
            ("sslmode=verify-full", True, True),
            ("sslrootcert=cert.pem", True, True),
            ("sslrootcert=system", True, True),
            ("sslmode=require&sslcert=cert.pem&sslkey=key.pem", False, False),
            ("sslcert=cert.pem&sslkey=key.pem", False, False),
            ("sslcert=cert.pem&sslkey=locked.pem&sslpassword=geheim", False, False),
        ],
    )
    def test_a_mode_checks_what_it_says(
        self, query: str, verifies: bool, names: bool, certificate: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(certificate)
        context = pymysql_arguments(address_of(f"mysql://db/jobs?{query}"))["ssl"]
        assert (context.verify_mode == ssl.CERT_REQUIRED, context.check_hostname) == (verifies, names)
        if "sslrootcert=cert" in query:
            assert [found["subject"] for found in context.get_ca_certs()] == [((("commonName", "a test"),),)]

    @pytest.mark.parametrize(
        ("query", "expected"),
        [
            ("sslrootcert=gone.pem", "sslrootcert gone.pem cannot be used: No such file or directory"),
            ("sslrootcert=key.pem", "sslrootcert key.pem cannot be used: "),
            ("sslcert=gone.pem", "sslcert gone.pem cannot be used: No such file"),
            ("sslcert=cert.pem&sslkey=locked.pem", "sslcert cert.pem with sslkey locked.pem cannot be used: "),
        ],
    )
    def test_a_file_that_cannot_be_used_is_named(
        self, query: str, expected: str, certificate: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(certificate)
        with pytest.raises(ConfigError) as raised:
            pymysql_arguments(address_of(f"mysql://db/jobs?{query}"))
        assert str(raised.value).startswith(expected)


class TestPsycopg:
    def test_the_arguments_are_the_address(self) -> None:
        query = "connect_timeout=2.5&sslmode=verify-ca&sslrootcert=ca.pem&keepalives_idle=9"
        address = address_of(f"postgresql://me:geheim@db:7/jobs?{query}")
        assert psycopg_arguments(address) == {
            "host": "db",
            "port": 7,
            "dbname": "jobs",
            "user": "me",
            "password": "geheim",
            "connect_timeout": 3,
            "application_name": "infinite-scheduler",
            "sslmode": "verify-ca",
            "sslrootcert": "ca.pem",
            "keepalives_idle": "9",
        }

    def test_what_is_not_said_is_left_to_libpq(self) -> None:
        arguments = psycopg_arguments(address_of("postgresql:///jobs?host=/run/postgresql"))
        assert arguments.keys() == {"host", "port", "dbname", "connect_timeout", "application_name"}
        assert arguments["host"] == "/run/postgresql"

    @given(addresses)
    def test_libpq_knows_every_argument(self, said: dict[str, str]) -> None:
        from psycopg.conninfo import conninfo_to_dict, make_conninfo

        own = dict.fromkeys(OWN["postgres"], "1")
        arguments = psycopg_arguments(make_address({**own, **said, "kind": "postgres"}))
        if any("\0" in str(value) for value in arguments.values()):
            return  # no server takes it
        read = conninfo_to_dict(make_conninfo("", **arguments))
        assert read == {name: str(value) for name, value in arguments.items()}


class TestDrivers:
    def test_a_driver_that_is_there_is_enough(self) -> None:
        require_driver("mariadb")
        require_driver("postgres")

    @pytest.mark.parametrize(
        ("kind", "module", "line"),
        [
            ("mariadb", "pymysql", "pip install 'infinite-scheduler[mysql]'"),
            ("postgres", "psycopg", "pip install 'infinite-scheduler[postgres]'"),
        ],
    )
    def test_a_missing_driver_says_how_to_install_it(
        self, kind: Kind, module: str, line: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ConfigError) as raised:
            require_driver(kind)
        assert str(raised.value).endswith(line)
