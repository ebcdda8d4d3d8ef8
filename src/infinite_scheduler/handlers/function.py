"""What a user's callable is: its name, async or not, fit to be a handler or not."""

import inspect
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from sys import modules
from typing import Any

from infinite_scheduler.errors import HandlerError


def name_of(function: object) -> str:
    """The "module:name" of a callable, or what comes closest to it."""
    module = getattr(function, "__module__", None) or type(function).__module__
    return f"{module}:{getattr(function, '__qualname__', None) or type(function).__qualname__}"


def is_async(function: Callable[..., Any]) -> bool:
    """Must it be awaited? Sees through partials, bound methods and objects whose `__call__` is async."""
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def check_function(function: object, name: str) -> None:
    """Refuse what could be called but would not do the work."""
    if not callable(function):
        raise HandlerError(f"handler {name!r} is {type(function).__name__} object, which cannot be called")
    if inspect.isclass(function):
        raise HandlerError(
            f"handler {name!r} is a class: pass a function, or an object of that class that can be called"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise HandlerError(f"handler {name!r} has a yield in it, so that calling it would run nothing: use return")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions of C have none
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise HandlerError(f"handler {name!r} has the parameters {signature}: it is called with one, {error}") from None


def resolve(name: str) -> Callable[[Any], Any]:
    """What "module:name" names in this process; `__main__` is the user's script, in worker processes too."""
    module_name, _, path = name.partition(":")
    __import__(module_name)
    return attrgetter(path)(modules[module_name])  # type: ignore[no-any-return]


def check_importable(function: object, name: str) -> None:
    """Refuse what another process could not find by its name."""
    try:
        found: object = resolve(name)
    except (AttributeError, ImportError):
        found = None
    if found != function:
        raise HandlerError(
            f"handler {name!r} cannot run in a process pool: worker processes import it by its name, "
            "so it must be a function at the top level of a module"
        )
