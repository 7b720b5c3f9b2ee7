"""The reference servers: OpenAI-compatible embedding servers of one or two processes.

They make embbench work on a laptop and reproduce the shape of a split server on any machine. They
do not replace the real servers. Started as ``python -m embbench.reference`` or ``embbench serve``;
nothing else in the package imports them but for `ServeOptions`.

What a server needs beyond the standard library is numpy and aiohttp, and the libraries of its
engine. orjson and uvloop are used where they are installed.
"""
