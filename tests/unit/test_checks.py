"""What an app demands of a job's data: fields that are there, and a function that has the last word."""

from collections.abc import Callable
from typing import Any

import pytest

from infinite_scheduler import Scheduler
from infinite_scheduler.errors import HandlerError, InvalidPayload, UnknownApp
from infinite_scheduler.handlers.checks import Checks
from infinite_scheduler.testing import Harness


def raising(error: BaseException) -> Callable[[Any], None]:
    def validate(data: Any) -> None:
        raise error

    return validate


def refuses(data: object) -> bool:
    return data != "bad"


async def unsuitable(data: Any) -> None: ...


def test_nothing_is_checked_unless_something_is_demanded() -> None:
    assert not Checks()
    Checks()({"anything": 1})
    assert Checks(["a"])
    assert Checks(validate=refuses)


@pytest.mark.parametrize("data", [{"a": 0, "b": ""}, {"a": False, "b": [], "c": None}])
def test_data_with_all_fields_is_accepted(data: object) -> None:
    Checks(["a", "b"])(data)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"a": 1}, "b is required in jobData"),
        ({"a": 1, "b": None}, "b is required in jobData"),
        ({}, "a, b are required in jobData"),
        ([], "jobData must be an object with a, b"),
        ("text", "jobData must be an object with a, b"),
        (None, "jobData must be an object with a, b"),
    ],
)
def test_data_without_a_field_is_refused(data: object, text: str) -> None:
    with pytest.raises(InvalidPayload) as raised:
        Checks(["a", "b"])(data)
    assert str(raised.value) == text


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("too long"), "jobData was refused: too long"),
        (ValueError(), "jobData was refused: ValueError: "),
        (KeyError("to"), "jobData was refused: KeyError: 'to'"),
        (TypeError("no text"), "jobData was refused: TypeError: no text"),
        (AttributeError("no get"), "jobData was refused: AttributeError: no get"),
        (AssertionError("odd"), "jobData was refused: AssertionError: odd"),
        (InvalidPayload("as it is"), "as it is"),
        (UnknownApp("x", ["y"]), "jobData was refused: "),
    ],
)
def test_a_function_refuses_by_what_it_raises(error: Exception, text: str) -> None:
    with pytest.raises(InvalidPayload) as raised:
        Checks(validate=raising(error))({})
    assert str(raised.value).startswith(text)


def test_a_function_refuses_by_returning_false() -> None:
    checks = Checks(validate=refuses)
    checks("good")
    with pytest.raises(InvalidPayload, match=r"jobData was refused by .*test_checks:refuses"):
        checks("bad")


@pytest.mark.parametrize("error", [ConnectionError("away"), TimeoutError(), OSError()])
def test_what_may_pass_comes_through(error: Exception) -> None:
    with pytest.raises(type(error)):
        Checks(validate=raising(error))({})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"required": "phoneNumber"}, "required is 'phoneNumber'; expected a list of names"),
        ({"required": [""]}, "expected a list of names"),
        ({"required": [5]}, "expected a list of names"),
        ({"validate": unsuitable}, "is async; doors need a plain function: use def"),
        ({"validate": 5}, "cannot be called"),
    ],
)
def test_what_cannot_check_is_refused_at_once(options: dict[str, Any], text: str) -> None:
    with pytest.raises(HandlerError, match=text):
        Checks(**options)
    with pytest.raises(HandlerError, match=text):
        Scheduler("sqlite:///:memory:").app("sms", **options)(print)


def test_a_handler_says_whether_it_looks_at_data() -> None:
    scheduler = Scheduler("sqlite:///:memory:")
    scheduler.app("free")(print)
    scheduler.app("picky", required=["a"])(print)
    assert {name: handler.checks for name, handler in scheduler.apps.items()} == {"free": False, "picky": True}
    scheduler.apps["picky"].check({"a": 1})


async def test_a_harness_checks_like_the_node_that_it_stands_for() -> None:
    async with Harness() as h:
        h.scheduler.app("picky", required=["a"])(print)
        handler = h.scheduler.apps["picky"]
        assert handler.checks
        assert handler.adopt({"a": 1}) is None
        with pytest.raises(InvalidPayload, match="a is required"):
            handler.check({})
