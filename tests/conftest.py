"""Shared fixtures: free ports and the scripted server. Property tests have no deadline."""

import signal
import socket
from collections.abc import AsyncIterator, Callable

import pytest
from hypothesis import settings
from scripted_server import ScriptedServer

# A shell that starts the tests in its background has them ignore Ctrl-C, and what they start too.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("embbench", deadline=None)  # shared machines pause at will
settings.load_profile("embbench")


@pytest.fixture
def free_port() -> Callable[[], int]:
    """A function that gives a loopback port that was free a moment ago."""

    def find() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
            return port

    return find


@pytest.fixture
async def scripted_server() -> AsyncIterator[ScriptedServer]:
    """A scripted server without delays or faults; change it with ``.script(...)``."""
    async with ScriptedServer() as server:
        yield server
