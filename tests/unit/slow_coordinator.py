"""A broker that knows one group and one topic, and is made to answer about the group late or wrongly.

It speaks as much of Kafka's protocol as such questions take, in old versions, which have the simplest form.
"""

import socketserver
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from typing import Final, cast

GROUP: Final = "readers"
TOPIC: Final = "jobs"
OFFSET: Final = 5


class Kind(IntEnum):
    """The kinds of questions that it understands."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    DESCRIBE_GROUPS = 15
    API_VERSIONS = 18
    DELETE_GROUPS = 42


VERSIONS: Final[Mapping[Kind, int]] = {
    Kind.PRODUCE: 7,  # never asked; without them librdkafka takes it for a broker of another age
    Kind.FETCH: 11,
    Kind.LIST_OFFSETS: 2,
    Kind.METADATA: 4,
    Kind.OFFSET_FETCH: 5,
    Kind.FIND_COORDINATOR: 1,
    Kind.DESCRIBE_GROUPS: 2,
    Kind.API_VERSIONS: 3,
    Kind.DELETE_GROUPS: 1,
}


class SlowCoordinator(socketserver.ThreadingTCPServer):
    """Refuses the first questions for offsets with these errors; takes its time to say who the coordinator is."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, errors: list[int], found_after_s: float) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.errors = errors
        self.found_after_s = found_after_s

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.port}"

    def answer(self, kind: int) -> bytes:
        """What stands in the answer to a question of this kind."""
        match kind:
            case Kind.API_VERSIONS:
                known = b"".join(struct.pack(">hhhx", each, 0, last) for each, last in VERSIONS.items())
                return _short(0) + bytes([len(VERSIONS) + 1]) + known + _int(0) + b"\0"
            case Kind.METADATA:
                partition = _short(0) + _int(0) + _int(1) + 2 * (_int(1) + _int(1))
                topic = _short(0) + _text(TOPIC) + b"\0" + _int(1) + partition
                return _int(0) + _int(1) + self._broker() + _short(-1) + _text("cluster") + _int(1) + _int(1) + topic
            case Kind.FIND_COORDINATOR:
                time.sleep(self.found_after_s)
                return _int(0) + _short(0) + _short(-1) + self._broker()
            case Kind.OFFSET_FETCH if self.errors:
                return _int(0) + _int(0) + _short(self.errors.pop(0))
            case Kind.OFFSET_FETCH:
                partition = _int(0) + struct.pack(">q", OFFSET) + _int(-1) + _short(-1) + _short(0)
                return _int(0) + _int(1) + _text(TOPIC) + _int(1) + partition + _short(0)
            case Kind.DESCRIBE_GROUPS:
                return _int(0) + _int(1) + _short(0) + _text(GROUP) + _text("Empty") + 2 * _text("") + _int(0)
            case _:
                return _int(0) + _int(1) + _text(GROUP) + _short(0)

    def _broker(self) -> bytes:
        return _int(1) + _text("127.0.0.1") + _int(self.port)


class _Connection(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        broker = cast("SlowCoordinator", self.server)
        while size := self.rfile.read(4):
            kind, _, number = struct.unpack(">hhi", self.rfile.read(*struct.unpack(">i", size))[:8])
            answer = _int(number) + broker.answer(kind)
            self.wfile.write(_int(len(answer)) + answer)


@contextmanager
def slow_coordinator(*errors: int, found_after_s: float = 0) -> Iterator[str]:
    """The address of such a broker."""
    with SlowCoordinator(list(errors), found_after_s) as broker:
        threading.Thread(target=broker.serve_forever, daemon=True).start()
        yield broker.url
        broker.shutdown()


def _short(number: int) -> bytes:
    return struct.pack(">h", number)


def _int(number: int) -> bytes:
    return struct.pack(">i", number)


def _text(text: str) -> bytes:
    return _short(len(text)) + text.encode()
