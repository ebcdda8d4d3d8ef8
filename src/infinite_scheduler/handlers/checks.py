"""What an app requires of a job's data before a door accepts it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from infinite_scheduler.errors import HandlerError, InvalidPayload, InvalidRequest
from infinite_scheduler.handlers.function import check_function, is_async, name_of

Validate = Callable[[Any], object]
"""Checks a job's data: returns False or raises if the data is wrong."""

REFUSALS: Final = (InvalidRequest, ValueError, TypeError, LookupError, AttributeError, AssertionError)
"""What a function raises about data that it cannot use. Anything else, such as a lost connection, may be temporary."""


class Checks:
    """Required fields, and a function of the user's that decides last."""

    def __init__(self, required: Sequence[str] = (), validate: Validate | None = None) -> None:
        names: Sequence[object] = required  # the declared type is not enough: users pass anything
        if isinstance(required, str) or not all(name and isinstance(name, str) for name in names):
            raise HandlerError(f"required is {required!r}; expected a list of names, such as ['phoneNumber']")
        if validate is not None:
            check_function(validate, name_of(validate))
            if is_async(validate):
                raise HandlerError(f"validate {name_of(validate)!r} is async; doors need a plain function: use def")
        self._required = tuple(required)
        self._validate = validate

    def __bool__(self) -> bool:
        """Is there anything to check?"""
        return bool(self._required or self._validate)

    def __call__(self, data: Any) -> None:
        """Raise InvalidPayload with what is wrong with the data; an error that may be temporary is passed through."""
        check_required(data, self._required)
        if self._validate is None:
            return
        try:
            answer = self._validate(data)
        except InvalidPayload:
            raise
        except REFUSALS as error:
            raise InvalidPayload(f"jobData was refused: {_reason(error)}") from error
        if answer is False:
            raise InvalidPayload(f"jobData was refused by {name_of(self._validate)}")


def check_required(data: object, required: Sequence[str]) -> None:
    """Refuse data without these fields; null counts as missing."""
    if not required:
        return
    if not isinstance(data, Mapping):
        raise InvalidPayload(f"jobData must be an object with {', '.join(required)}")
    missing = [name for name in required if data.get(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise InvalidPayload(f"{', '.join(missing)} {verb} required in jobData")


def _reason(error: BaseException) -> str:
    text = str(error)
    return text if isinstance(error, InvalidRequest | ValueError) and text else f"{type(error).__name__}: {text}"
