import re
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from infinite_scheduler.errors import ConfigError, SendError
from infinite_scheduler.kafka.broker_errors import config_error, is_permanent, reason, send_error
from infinite_scheduler.kafka.options import OWNED, KafkaOptions
from infinite_scheduler.secrets import without_secrets

SECRET = "t0p-s3cret"
SECRETS = {
    "sasl.password": SECRET,
    "ssl.key.password": SECRET,
    "ssl.key.pem": f"-----BEGIN {SECRET}-----",
    "sasl.oauthbearer.client.secret": SECRET,
    "sasl.oauthbearer.config": f"principal=a extension_b={SECRET}",
    "sasl.oauthbearer.extensions": f"logicalCluster=a,key={SECRET}",
    "sasl.kerberos.kinit.cmd": f"echo {SECRET} | kinit me",
    "sasl.jaas.config": f'PlainLoginModule required username="u" password="{SECRET}";',
    "sasl.oauthbearer.assertion.private.key.passphrase": SECRET,
}


@pytest.mark.parametrize("servers", ["", "  ", ",", " , ", None, 9092])
def test_servers_that_are_none_are_refused_with_an_example(servers: Any) -> None:
    with pytest.raises(ConfigError, match="localhost:9092"):
        KafkaOptions(servers)


@pytest.mark.parametrize("name", OWNED)
def test_a_property_that_the_code_relies_on_cannot_be_set_and_the_refusal_says_why(name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}'.*cannot be set: .*{OWNED[name][:10]}"):
        KafkaOptions("localhost:9092", {name: "x"})


@pytest.mark.parametrize("value", [None, [1], {"a": 1}, print])
def test_a_property_is_a_plain_value(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"'linger.ms'.*expected a text, a number or a boolean"):
        KafkaOptions("localhost:9092", {"linger.ms": value})


def test_a_property_needs_a_name() -> None:
    with pytest.raises(ConfigError, match="has the name ''"):
        KafkaOptions("localhost:9092", {"": 1})


def test_a_wrong_value_of_a_secret_is_not_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        KafkaOptions("localhost:9092", {"sasl.password": [SECRET]})  # type: ignore[dict-item]
    assert SECRET not in str(caught.value)


def test_properties_of_users_beat_defaults_and_what_the_code_relies_on_beats_both() -> None:
    options = KafkaOptions("localhost:9092", {"linger.ms": 7, "client.id": "mine"})
    settings = options.client({"linger.ms": 1, "batch.size": 9}, client_id="ours")
    assert settings == {"bootstrap.servers": "localhost:9092", "linger.ms": 7, "batch.size": 9, "client.id": "ours"}


@pytest.mark.parametrize(("name", "value"), SECRETS.items())
def test_a_secret_is_shown_in_no_form(name: str, value: str) -> None:
    options = KafkaOptions("localhost:9092", {name: value, "linger.ms": 3})
    shown = f"{options!r} {options} {options.shown} {[options]}"
    assert SECRET not in shown
    assert "'linger.ms': 3" in shown
    assert SECRET not in options.without_secrets(f"it failed with {value} and {value!r}")


def test_a_secret_in_the_brokers_address_or_in_a_url_is_masked() -> None:
    options = KafkaOptions("SASL_SSL://user:t0p-s3cret@kafka:9092", {"a.url": f"https://me:{SECRET}@login/x"})
    assert SECRET not in repr(options)
    assert "kafka:9092" in repr(options)


@pytest.mark.parametrize(
    "text",
    [
        f'required username="u" password="{SECRET}";',
        f"sasl.password={SECRET}, more",
        f"sasl.password: {SECRET}",
        f"client.secret='{SECRET}'",
        f"https://user:{SECRET}@host/path",
    ],
)
def test_what_looks_like_a_secret_in_a_text_is_masked(text: str) -> None:
    assert SECRET not in without_secrets(text)
    assert "***" in without_secrets(text)


def test_a_text_without_secrets_stays_as_it_is() -> None:
    text = "127.0.0.1:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection refused (after 0ms in state CONNECT)"
    assert without_secrets(text) == text


OPTIONS = KafkaOptions("broker:9092", {"sasl.password": SECRET})


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.INVALID_RECORD,
        KafkaError._UNKNOWN_PARTITION,
    ],
)
def test_an_error_that_comes_again_each_time_is_permanent(code: int) -> None:
    assert is_permanent(KafkaError(code))
    assert not send_error(KafkaError(code), OPTIONS, "orders").retryable


@pytest.mark.parametrize(
    "code",
    [
        KafkaError._MSG_TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError._AUTHENTICATION,
        KafkaError._PURGE_QUEUE,
        KafkaError.LEADER_NOT_AVAILABLE,
    ],
)
def test_an_error_that_may_pass_is_worth_another_try(code: int) -> None:
    assert not is_permanent(KafkaError(code))
    assert send_error(KafkaError(code), OPTIONS, "orders").retryable


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (KafkaError._UNKNOWN_TOPIC, "topic 'orders' does not exist on broker:9092: create it"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "not allowed to use topic 'orders'"),
        (KafkaError.MSG_SIZE_TOO_LARGE, "too large for topic 'orders': send less"),
        (
            KafkaError._ALL_BROKERS_DOWN,
            "no broker at broker:9092 can be reached.*check that security.protocol is what it expects",
        ),
        (KafkaError._AUTHENTICATION, "broker:9092 refuses the login"),
        (KafkaError._SSL, "check security.protocol"),
        (KafkaError.REBALANCE_IN_PROGRESS, "topic 'orders' on broker:9092.*REBALANCE_IN_PROGRESS"),
        (KafkaError.FENCED_INSTANCE_ID, "give every node its own"),
        (KafkaError._FATAL, "group.instance.id is set, give every node its own; a producer needs .* IdempotentWrite"),
    ],
)
def test_an_error_says_where_and_what_to_change(code: int, words: str) -> None:
    assert re.search(words, reason(KafkaError(code), OPTIONS, "orders"))


def test_a_certificate_that_is_not_accepted_is_told_from_other_troubles_of_tls() -> None:
    untrusted = "SSL handshake failed: error:0A000086:SSL routines::certificate verify failed: broker certificate ..."
    for code in (KafkaError._SSL, KafkaError._TRANSPORT):
        told = reason(KafkaError(code, untrusted), OPTIONS)
        assert told.startswith("the certificate of Kafka at broker:9092 was not accepted: check that ssl.ca.location")
        assert untrusted in told
    plain = "SSL handshake failed: Disconnected: connecting to a PLAINTEXT broker listener?"
    assert "check security.protocol" in reason(KafkaError(KafkaError._SSL, plain), OPTIONS)


def test_an_error_carries_no_secret() -> None:
    error = KafkaError(KafkaError._AUTHENTICATION, f"login with {SECRET} failed")
    assert SECRET not in reason(error, OPTIONS)
    assert SECRET not in str(config_error(KafkaException(error), OPTIONS))


def test_an_error_carries_no_secret_that_the_options_do_not_know() -> None:
    error = KafkaError(KafkaError._AUTHENTICATION, 'module required username="u" password="an0ther";')
    assert "an0ther" not in reason(error, OPTIONS)


def test_a_time_out_is_explained_by_what_the_connection_suffers_from() -> None:
    trouble = KafkaError(KafkaError._RESOLVE, "unknown host")
    error = send_error(KafkaError(KafkaError._MSG_TIMED_OUT), OPTIONS, "orders", trouble=trouble)
    assert "correct bootstrap_servers" in str(error)
    assert isinstance(error, SendError)
    assert error.code == "_MSG_TIMED_OUT"
