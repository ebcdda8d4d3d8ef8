"""URLs of servers that speak for a store: how they are written, and what they may not contain."""

import pytest

from infinite_scheduler.config import load_settings
from infinite_scheduler.errors import ConfigError
from infinite_scheduler.store import open_store, shown_url
from infinite_scheduler.store.http.http_address import HttpAddress, http_address
from infinite_scheduler.testing import ManualClock

TOKEN = "0b2d5e0ff3a94ab0a2c4"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://here:7070", HttpAddress(base="http://here:7070")),
        ("HTTP://here:7070/", HttpAddress(base="http://here:7070")),
        ("https://here/scheduler/", HttpAddress(base="https://here/scheduler")),
        ("http://[::1]:7070", HttpAddress(base="http://[::1]:7070")),
        ("https://here?sslrootcert=system", HttpAddress(base="https://here", sslrootcert="system")),
        (
            "https://here?sslrootcert=/a%20b.pem&connect_timeout=2.5",
            HttpAddress(base="https://here", sslrootcert="/a b.pem", connect_timeout_s=2.5),
        ),
    ],
)
def test_a_url_names_a_server(url: str, address: HttpAddress) -> None:
    assert http_address(url) == address


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://ci:hunter2@here:7070", "expected no user and no password: leave them out, and set store.token"),
        ("http://ci@here:7070", "expected no user and no password"),
        ("http://", "expected a host"),
        ("http://:7070", "expected a host"),
        ("http://here:70700", "expected a port from 1 to 65535"),
        ("http://here:0", "expected a port from 1 to 65535"),
        ("http://here:7070#there", "expected http://HOST:7070"),
        ("http://here?sslrootcert=/ca.pem", "sslrootcert is for TLS: use https://"),
        ("https://here?sslrootcrt=/ca.pem", "unknown option sslrootcrt; use one of sslrootcert, connect_timeout; did"),
        ("https://here?token=hunter2", "unknown option token"),
        ("https://here?connect_timeout=soon", "expected connect_timeout to be a number of seconds"),
        ("https://here?connect_timeout=1&connect_timeout=2", "given twice"),
    ],
)
def test_what_cannot_be_a_server_is_refused_in_words_and_without_secrets(url: str, words: str) -> None:
    for refusing in (lambda: http_address(url), lambda: load_settings(overrides={"store.url": url}, environ={})):
        with pytest.raises(ConfigError) as refused:
            refusing()
        assert words in str(refused.value)
        assert "hunter2" not in str(refused.value)


def test_certificate_authorities_that_cannot_be_read_are_named() -> None:
    with pytest.raises(ConfigError, match=r"/nowhere/ca\.pem cannot be used"):
        http_address("https://here?sslrootcert=/nowhere/ca.pem").tls  # noqa: B018


def test_settings_beside_the_url_add_to_it_or_contradict_it() -> None:
    settings = load_settings(
        overrides={"store": {"url": "https://here", "sslrootcert": "/ca.pem", "connect_timeout": "2s"}}, environ={}
    )
    assert http_address(settings.store.address_url) == HttpAddress(
        base="https://here", sslrootcert="/ca.pem", connect_timeout_s=2.0
    )
    with pytest.raises(ConfigError, match=r"store\.user = .*: contradicts store\.url, which names an HTTP server"):
        load_settings(overrides={"store": {"url": "https://here", "user": "me"}}, environ={})


def test_a_token_is_shown_nowhere() -> None:
    environ = {"INFINITE_SCHEDULER_STORE__TOKEN": TOKEN, "INFINITE_SCHEDULER_STORE__URL": "http://here:7070"}
    settings = load_settings(environ=environ)
    assert settings.store.options == {"token": TOKEN}
    assert TOKEN not in repr(settings)
    assert TOKEN not in repr(open_store(settings.store.address_url, ManualClock(), settings.store.options))
    with pytest.raises(ConfigError) as refused:
        load_settings(environ={**environ, "INFINITE_SCHEDULER_STORE__TOKEN": "short"})
    assert str(refused.value).startswith("store.token = *** (INFINITE_SCHEDULER_STORE__TOKEN): ")
    assert "short" not in str(refused.value)


def test_a_url_is_shown_without_what_may_be_a_secret() -> None:
    assert shown_url("https://here?sslrootcert=/ca.pem&token=hunter2") == "https://here?sslrootcert=/ca.pem&token=***"
    assert shown_url("http://me:hunter2@here") == "http://me:***@here"
