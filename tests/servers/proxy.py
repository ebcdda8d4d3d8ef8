"""A way to a server that a test can break: connections are cut at a chosen moment, or fall silent."""

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit


class Proxy:
    """Forwards connections to a server, for as long as it is left alone."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._cut_after: bytes | None = None
        self._hush_at: bytes | None = None
        self._turn = threading.Lock()
        self._loud = threading.Event()
        self._loud.set()
        self._closed = False
        self._open: set[socket.socket] = set()
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_after(self, words: bytes) -> None:
        """Hand the next message with these words on, wait for its answer, and cut the connection instead of giving it.

        So the server has done what it was asked, and the client does not know.
        """
        self._cut_after = words

    @property
    def waits_to_cut(self) -> bool:
        return self._cut_after is not None

    def fall_silent(self) -> None:
        """Forward nothing more, in either direction, and close nothing: as a network does that has lost its way."""
        self._loud.clear()

    def hush_at(self, words: bytes) -> None:
        """Fall silent at the next message with these words: it is not handed on."""
        self._hush_at = words

    def speak(self) -> None:
        self._loud.set()

    def cut(self) -> None:
        """Cut all connections."""
        for sock in list(self._open):
            _end(sock)

    def close(self) -> None:
        self._closed = True
        self._loud.set()
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self._target)
        except OSError:
            client.close()
            return
        self._open |= {client, server}
        try:
            while self._forward(client, server):
                pass
        except OSError:
            pass
        finally:
            self._open -= {client, server}
            client.close()
            server.close()

    def _forward(self, client: socket.socket, server: socket.socket) -> bool:
        """One message of one side; False when a connection has ended."""
        for source in select.select([client, server], [], [])[0]:
            data = source.recv(1 << 16)
            self._loud.wait()
            if not data or self._closed:
                return False
            if source is server:
                client.sendall(data)
                continue
            if self._hush_at and self._hush_at in data:
                self._hush_at = None
                self._loud.clear()
                self._loud.wait()
            is_last = self._has_the_words(data)
            server.sendall(data)
            if is_last:
                server.recv(1 << 16)
                self.cuts += 1
                return False
        return True

    def _has_the_words(self, data: bytes) -> bool:
        """Is this what a connection is to be cut after? One message is, however many have the words at once."""
        with self._turn:
            found = self._cut_after is not None and self._cut_after in data
            if found:
                self._cut_after = None
            return found


def _end(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxied(url: str) -> Iterator[tuple[Proxy, str]]:
    """A proxy before the server of an address, and the address by which it is reached; nothing is encrypted."""
    parts = urlsplit(url)
    assert parts.hostname
    assert parts.port
    proxy = Proxy(parts.hostname, parts.port)
    netloc = f"{parts.netloc.rpartition('@')[0]}@127.0.0.1:{proxy.port}"
    try:
        yield proxy, parts._replace(netloc=netloc, query="sslmode=disable").geturl()
    finally:
        proxy.close()
