"""What runs beside the engine of a node: started after it, stopped before it."""

from typing import Protocol


class Part(Protocol):
    """One part of a node, such as its HTTP server."""

    @property
    def problem(self) -> str | None:
        """Why it does not do its work although it was started; None: it does."""
        ...

    async def start(self) -> None:
        """Begin to work, or raise what the operator must change; then the node does not start."""
        ...

    async def stop(self) -> bool:
        """Finish what is in progress. False: some of it had to be abandoned. A second call does nothing."""
        ...
