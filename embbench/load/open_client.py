"""Which client sends the requests: in a name and its options, out an open `Client`."""

from collections.abc import Awaitable, Callable
from typing import assert_never

from embbench.load.arena import Arena
from embbench.load.client import Client, ClientName, ClientOptions


async def open_client(name: ClientName, options: ClientOptions, arena: Arena) -> Client:
    """The client of that name. Raises `LoadError` if the URL or a header cannot be used."""
    opener: Callable[[ClientOptions, Arena], Awaitable[Client]]
    match name:
        case "buffered":
            from embbench.load.buffered import open_buffered as opener
        case "aiohttp":
            from embbench.load.aio import open_aiohttp as opener
        case _:
            assert_never(name)
    return await opener(options, arena)
