"""What librdkafka says by itself, at debug: what people must know of it is told by those who meet the error."""

import logging


class Chatter:
    """Takes librdkafka's log lines; pass one as `logger` to a client, which otherwise writes to standard error."""

    def __init__(self) -> None:
        self._logger = logging.getLogger("infinite_scheduler.kafka")

    def log(self, level: int, text: str, *values: object) -> None:
        """Write one line; librdkafka repeats itself, so whatever level it asks for is too loud."""
        del level
        self._logger.debug(text, *values)
