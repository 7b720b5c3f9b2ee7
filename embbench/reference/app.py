"""The HTTP side: aiohttp handlers over a backend.

In: requests. Out: OpenAI-shaped answers and errors, and the counters of /metrics.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from aiohttp import web

from embbench.reference import fastjson
from embbench.reference.api import Limits, RequestError, parse_request, render
from embbench.reference.backend import Backend
from embbench.reference.metrics import Metrics
from embbench.reference.options import ServeOptions

log = logging.getLogger("embbench.http")

EMBEDDINGS = "/v1/embeddings"


def make_app(options: ServeOptions, backend: Backend, metrics: Metrics) -> web.Application:
    """The application of a server that is ready."""
    server = _Server(options, backend, metrics)
    app = web.Application(
        middlewares=[server.answer_errors], client_max_size=int(options.max_body_mb * 1e6)
    )
    app.on_shutdown.append(server.drain)
    app.router.add_post(EMBEDDINGS, server.embeddings)
    app.router.add_get("/v1/models", server.models)
    app.router.add_get("/health", server.health)
    app.router.add_get("/metrics", server.metrics_page)
    return app


class _Server:
    def __init__(self, options: ServeOptions, backend: Backend, metrics: Metrics) -> None:
        self._backend, self._metrics = backend, metrics
        self._model = options.served_model_name or backend.facts.model
        self._limits = Limits(
            model=self._model,
            dimension=backend.facts.dimension,
            max_batch=options.max_batch,
            # a per-token matrix has no dimension that could be cut
            allow_dimensions=options.allow_dimensions and options.pooling == "embed",
        )
        self._created_s = int(time.time())
        self._shutdown_s = options.shutdown_s
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def drain(self, _app: web.Application) -> None:
        """Let requests in flight finish, for as long as the options allow."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), self._shutdown_s)

    async def embeddings(self, request: web.Request) -> web.Response:
        start_ns = time.perf_counter_ns()
        wanted = parse_request(await request.read(), self._limits)
        answer = await self._backend.embed(wanted.inputs, wanted.dimensions)
        render_ns = time.perf_counter_ns()
        # in a thread: printing a large batch must not hold up other answers more than it has to
        body = await asyncio.to_thread(
            render, answer.vectors, answer.tokens, wanted.encoding, self._model
        )
        end_ns = time.perf_counter_ns()
        self._metrics.add("embbench_inputs_total", len(wanted.inputs))
        self._metrics.add("embbench_prompt_tokens_total", answer.tokens)
        stages = {**answer.seconds, "render": (end_ns - render_ns) / 1e9}
        for stage, seconds in stages.items():
            self._metrics.add("embbench_seconds_total", seconds, stage=stage)
        took_ms = f"{(end_ns - start_ns) / 1e6:.3f}"
        return _json(body, 200, {"openai-processing-ms": took_ms})

    async def models(self, _request: web.Request) -> web.Response:
        model = {
            "id": self._model,
            "object": "model",
            "created": self._created_s,
            "owned_by": "embbench",
            "max_model_len": self._backend.facts.max_model_len,
        }
        return _json(fastjson.dumps({"object": "list", "data": [model]}))

    async def health(self, _request: web.Request) -> web.Response:
        return _json(fastjson.dumps({"status": "ok"}))

    async def metrics_page(self, _request: web.Request) -> web.Response:
        await self._backend.refresh_metrics()
        self._metrics.set("embbench_in_flight", self._in_flight)
        return web.Response(text=self._metrics.page(), content_type="text/plain")

    @web.middleware
    async def answer_errors(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Count requests, and give every error OpenAI's shape."""
        self._in_flight += 1
        self._idle.clear()
        try:
            response = await handler(request)
        except RequestError as error:
            response = _json(error.body(), error.status)
        except web.HTTPException as error:
            allow = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
            response = _json(_http_error(request, error).body(), error.status, allow)
        except Exception:
            log.exception("a request failed")
            response = _json(RequestError(500, "the server failed; see its log").body(), 500)
        finally:
            self._in_flight -= 1
            if self._in_flight == 0:
                self._idle.set()
        if request.path == EMBEDDINGS:
            self._metrics.add("embbench_requests_total", 1, status=str(response.status))
            if response.status >= 400:
                self._metrics.add("embbench_errors_total", 1)
        return response


def _http_error(request: web.Request, error: web.HTTPException) -> RequestError:
    match error.status:
        case 404:
            return RequestError(404, f"no such path: {request.path}")
        case 405:
            return RequestError(405, f"{request.path} does not take {request.method}")
        case 413:
            return RequestError(413, f"the body is too large: {error.text}", code="body_too_large")
        case _:
            return RequestError(error.status, error.text or error.reason)


def _json(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")
