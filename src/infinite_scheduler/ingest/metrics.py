"""What is counted of a topic that brings jobs, by the names that people know."""

from typing import Final

TAKEN: Final = ("messagesReceived", "messagesProcessed", "messagesFailed", "duplicatesSkipped")
"""What has become of messages."""

METRICS: Final = (*TAKEN, "messagesSentToDLQ", "idempotencyCacheSize")
