"""For tests: a clock moved by hand, a node that follows it, a broker, the promises of stores and handlers."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from infinite_scheduler.kafka.embedded import embedded_broker
    from infinite_scheduler.testing.handler_contract import HandlerContract
    from infinite_scheduler.testing.harness import Delivery, Harness
    from infinite_scheduler.testing.manual_clock import ManualClock
    from infinite_scheduler.testing.store_contract import StoreContract

_HOME = {
    "ManualClock": "testing.manual_clock",
    "Delivery": "testing.harness",
    "Harness": "testing.harness",
    "embedded_broker": "kafka.embedded",
    "HandlerContract": "testing.handler_contract",  # needs pytest and pytest-asyncio, so it is loaded only when used
    "StoreContract": "testing.store_contract",  # needs them too
}

__all__ = ["Delivery", "HandlerContract", "Harness", "ManualClock", "StoreContract", "embedded_broker"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"infinite_scheduler.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
