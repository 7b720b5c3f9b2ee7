"""The rest of a large request: what the kernel did not take at once.

In: a socket that a transport reads from, and bytes. Out: the bytes on their way, as the kernel has
room. Over a descriptor of its own, because a transport closes on a failed write, and would lose an
answer such as 413 that a server gave before it stopped reading.
"""

import asyncio
import socket
from collections.abc import Callable


class Rest:
    """Sends on until all is sent, the other side refuses, or `stop`."""

    def __init__(
        self, sock: socket.socket, data: memoryview, refused: Callable[[OSError], None]
    ) -> None:
        self.sent = False
        self._data = data
        self._refused = refused
        self._sock: socket.socket | None = sock.dup()
        self._loop = asyncio.get_running_loop()
        self._loop.add_writer(self._sock.fileno(), self._on_writable)

    def _on_writable(self) -> None:
        assert self._sock is not None
        try:
            self._data = self._data[self._sock.send(self._data) :]
        except BlockingIOError:
            return
        except OSError as exc:
            self.stop()
            self._refused(exc)
            return
        if not self._data:
            self.sent = True
            self.stop()

    def stop(self) -> None:
        """Send no more; safe to call twice."""
        if self._sock is not None:
            self._loop.remove_writer(self._sock.fileno())
            self._sock.close()
            self._sock = None
