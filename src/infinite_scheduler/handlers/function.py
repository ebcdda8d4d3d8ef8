"""What a user's callable is: its name, whether it is async, and whether it can be a handler."""

import inspect
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from sys import modules
from typing import Any

from infinite_scheduler.errors import HandlerError


def name_of(function: object) -> str:
    """The "module:name" of a callable, or the closest to it."""
    module = getattr(function, "__module__", None) or type(function).__module__
    return f"{module}:{getattr(function, '__qualname__', None) or type(function).__qualname__}"


def is_async(function: Callable[..., Any]) -> bool:
    """Must it be awaited? Looks through partials, bound methods and objects whose `__call__` is async."""
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def check_function(function: object, name: str) -> None:
    """Refuse objects that are callable but would not do the work."""
    if not callable(function):
        raise HandlerError(f"handler {name!r} is {type(function).__name__} object, which cannot be called")
    if inspect.isclass(function):
        raise HandlerError(
            f"handler {name!r} is a class: pass a function, or an instance of the class that can be called"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise HandlerError(f"handler {name!r} contains yield, so calling it would run nothing: use return")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some C functions have none
        return
    try:
        signature.bind(None)
    except TypeError:
        message = f"handler {name!r} must take one argument, the job; its signature is {signature}"
        raise HandlerError(message) from None


def resolve(name: str) -> Callable[[Any], Any]:
    """Find "module:name" in this process; `__main__` is the user's script, in worker processes too."""
    module_name, _, path = name.partition(":")
    __import__(module_name)
    return attrgetter(path)(modules[module_name])  # type: ignore[no-any-return]


def check_importable(function: object, name: str) -> None:
    """Refuse a function that another process could not find by its name."""
    try:
        found: object = resolve(name)
    except (AttributeError, ImportError):
        found = None
    if found != function:
        raise HandlerError(
            f"handler {name!r} cannot run in a process pool: worker processes import it by its name, "
            "so it must be a function at the top level of a module"
        )
