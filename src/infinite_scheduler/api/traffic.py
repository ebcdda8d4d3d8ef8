"""The requests of a server: those in progress, those that a stop has ended, and what is counted of all."""

from infinite_scheduler.observe.http_requests import HttpRequests


class Traffic:
    """What goes in and out of one server."""

    def __init__(self) -> None:
        self.answered = HttpRequests()
        self.in_progress = 0
        self.abandoned = 0
        """Requests that were ended by a stop before they had an answer."""
