"""What is counted for a topic that brings jobs, by the names that people know."""

from typing import Final

TAKEN: Final = ("messagesReceived", "messagesProcessed", "messagesFailed", "duplicatesSkipped")
"""What happened to messages."""

METRICS: Final = (*TAKEN, "messagesSentToDLQ", "idempotencyCacheSize")
