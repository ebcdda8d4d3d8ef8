"""librdkafka's own log lines, at debug level: what people must know is reported by the code that gets the error."""

import logging


class LibrdkafkaLog:
    """Takes librdkafka's log lines; pass one as `logger` to a client, which otherwise writes to standard error."""

    def __init__(self) -> None:
        self._logger = logging.getLogger("infinite_scheduler.kafka")

    def log(self, level: int, text: str, *values: object) -> None:
        """Write one line at debug level: librdkafka repeats itself, so its own levels are too loud."""
        del level
        self._logger.debug(text, *values)
