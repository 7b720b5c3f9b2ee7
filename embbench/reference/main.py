"""Runs a reference server from its options until SIGTERM or SIGINT.

In: `ServeOptions`. Out: a listening server; one log line says where. The processes: this one, and
with two processes a worker that it starts.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embbench.errors import EmbbenchError, TargetError
from embbench.reference.options import ServeOptions, parse_command

if TYPE_CHECKING:  # numpy must not be imported before its threads are limited
    from embbench.reference.backend import Backend
    from embbench.reference.metrics import Metrics

log = logging.getLogger("embbench.serve")

_LAST_BYTES_S = 1.0
"""For answers that are ready but not yet read by the client; requests in flight have their own."""

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def main(argv: Sequence[str], prog: str = "python -m embbench.reference") -> None:
    """Serve what a command line asks for, and end the process; with 2 on unknown flags.

    Raises EmbbenchError.
    """
    options, hop_fd = parse_command(argv, prog)
    if hop_fd is None:
        serve(options)
    else:
        serve_worker(options, hop_fd)
    if options.engine != "vllm":
        # the engine's thread may be in the middle of a batch, which would be torn from under it
        logging.shutdown()
        os._exit(0)


def serve(options: ServeOptions) -> None:
    """Serve until SIGTERM or SIGINT. Raises EmbbenchError if it cannot start or the worker dies."""
    _prepare(options)
    _obey_while_loading(options)
    with _bind(options) as listener:
        serve_any = _serve_two if options.processes == 2 else _serve_one
        _run(lambda: serve_any(options, listener))


def serve_worker(options: ServeOptions, hop_fd: int) -> None:
    """The worker of a two-process server, on an inherited connection."""
    _prepare(options)
    from embbench.reference import worker

    worker.settle()
    _obey_while_loading(options)
    with socket.socket(fileno=hop_fd) as connection:
        _run(lambda: worker.work(options, connection))


def _prepare(options: ServeOptions) -> None:
    logging.basicConfig(
        level=options.log_level.upper(),
        format="%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s",
        stream=sys.stderr,
    )
    if options.engine == "vllm":
        return  # it binds its threads itself
    wanted = dict.fromkeys(_THREAD_VARIABLES, str(options.threads))
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.environ.update(wanted)
        if "numpy" in sys.modules:
            # numpy reads them when it is imported: start again, this time with them
            argv = [sys.executable, "-m", "embbench.reference", *options.to_argv()]
            os.execv(sys.executable, argv)


def _obey_while_loading(options: ServeOptions) -> None:
    """An engine that loads holds up the event loop, so that only the process itself can obey.

    It may die on the spot, but for vLLM, which has to end its own processes first.
    """
    handler = (lambda *_: sys.exit(0)) if options.engine == "vllm" else signal.SIG_DFL
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)


def _bind(options: ServeOptions) -> socket.socket:
    """The address is taken before anything slow begins; it listens when the engine can answer."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _port_error(options, error) from None
    return listener


def _port_error(options: ServeOptions, error: OSError) -> EmbbenchError:
    where = f"{options.host}:{options.port}"
    return EmbbenchError(f"cannot listen on {where}: {error.strerror}; --port 0 picks a free one")


def _run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())


async def _serve_one(options: ServeOptions, listener: socket.socket) -> None:
    from embbench.reference.backend import LocalBackend
    from embbench.reference.load_engine import load_engine
    from embbench.reference.metrics import Metrics

    engine = load_engine(options)
    stop = _stop_event()
    await _listen(options, listener, LocalBackend(engine), Metrics(), stop, "bare")


async def _serve_two(options: ServeOptions, listener: socket.socket) -> None:
    stop = _stop_event()
    from embbench.reference import segments
    from embbench.reference.frontend import start_worker
    from embbench.reference.metrics import Metrics

    stale = segments.remove_stale(Path(options.shm_dir))
    if stale:
        log.warning("removed %d shared-memory segments of dead processes", stale)
    metrics = Metrics()
    start = asyncio.create_task(start_worker(options, metrics))
    await _first(start, stop)
    if stop.is_set():
        start.cancel()
        await asyncio.gather(start, return_exceptions=True)
        return
    backend = start.result()
    await _listen(options, listener, backend, metrics, stop, backend.hop)


def _stop_event() -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


async def _first(task: asyncio.Task[Any], stop: asyncio.Event) -> None:
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()


async def _listen(
    options: ServeOptions,
    listener: socket.socket,
    backend: "Backend",
    metrics: "Metrics",
    stop: asyncio.Event,
    hop: str,
) -> None:
    """Answer until told to stop, or until the backend fails, which is an error."""
    from aiohttp import web

    from embbench.reference.app import make_app

    metrics.set(
        "embbench_info",
        1,
        processes=str(options.processes),
        hop=hop,
        hop_asked="bare" if options.processes == 1 else options.hop,
        engine=options.engine,
        pooling=options.pooling,
        normalise=str(options.normalise).lower(),
        model=options.served_model_name or backend.facts.model,
        dtype=backend.facts.dtype,
        pool=backend.facts.pool,
        max_model_len=str(backend.facts.max_model_len),
    )
    runner = web.AppRunner(
        make_app(options, backend, metrics),
        access_log=None,
        keepalive_timeout=3600,
        shutdown_timeout=_LAST_BYTES_S,
    )
    failure = asyncio.create_task(backend.failure())
    try:
        await runner.setup()
        try:
            await web.SockSite(runner, listener, backlog=4096).start()
        except OSError as error:
            raise _port_error(options, error) from None
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        log.info("ready on http://%s:%d/v1, hop %s", shown, port, hop)
        await _first(failure, stop)
        with suppress(TimeoutError):
            # long enough for those who wait to read their 503, and for a SIGTERM to the whole
            # group, which reached the worker first, to arrive here
            await asyncio.wait_for(stop.wait(), 0.5)
        if not stop.is_set():
            raise TargetError(failure.result())
    finally:
        failure.cancel()
        await runner.cleanup()
        await backend.close()
        log.info("stopped")
