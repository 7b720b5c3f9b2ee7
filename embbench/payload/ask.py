"""One embedding request off the clock: the gate's and the content checks' way to ask.

In: an `Endpoint` and some inputs. Out: a `Reply` with the body as it came, never more than a
limit of it. Whatever goes wrong on the way is a `WireError` with a name, like a wrong payload.
"""

import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
import numpy as np
import orjson
from numpy.typing import NDArray

from embbench.config.plan import Encoding
from embbench.errors import TargetError
from embbench.payload.checks import Flaw, check_content
from embbench.payload.identity import Known
from embbench.payload.wire import Decoded, Matrix, WireError, decode, gunzip
from embbench.targets.endpoint import Endpoint

_TOO_MUCH: Final = (400, 413, 422)
BODY_BYTES_MAX: Final = 1 << 28
"""Off the clock batches are small; a longer answer is not read to its end."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer as it came: transfer encoding removed, content encoding not."""

    status: int
    body: bytes
    content_type: str
    coding: str
    chunked: bool

    def decode(self, count: int, dimension: int | None = None) -> Decoded:
        """The vectors. Raises `WireError`."""
        if self.coding not in ("", "identity", "gzip"):
            raise WireError("coding", f"content coding {self.coding}, which was not asked for")
        return decode(
            self.body,
            count=count,
            dimension=dimension,
            status=self.status,
            content_type=self.content_type,
            gzip=self.coding == "gzip",
        )


class Asker:
    """A connection to one target; ``async with Asker(endpoint) as asker``."""

    def __init__(self, endpoint: Endpoint, timeout_s: float = 120.0) -> None:
        self.endpoint = endpoint
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        secure = self.endpoint.base_url.startswith("https")
        connector = aiohttp.TCPConnector(ssl=ssl.create_default_context() if secure else True)
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=self._timeout,
            auto_decompress=False,
            headers={"Accept-Encoding": "identity", **self.endpoint.headers},
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def ask(
        self,
        inputs: Sequence[str] | Sequence[list[int]],
        encoding: Encoding = "float",
        **extra: Any,
    ) -> Reply:
        """Embed ``inputs`` in one request. Raises `WireError` if no answer came."""
        body = {
            "model": self.endpoint.model,
            "input": list(inputs),
            "encoding_format": encoding,
            **extra,
        }
        return await self._exchange("POST", "/embeddings", orjson.dumps(body))

    async def count_tokens(self, texts: list[str]) -> int | None:
        """Tokens of these texts by the server's own usage, whatever the vectors look like.

        Several texts that are refused together are asked for in halves. None if the server does
        not tell. Raises `TargetError` if it does not answer, or not in JSON.
        """
        try:
            reply = await self.ask(texts)
            if reply.status in _TOO_MUCH and len(texts) > 1:
                half = len(texts) // 2
                counts = [await self.count_tokens(part) for part in (texts[:half], texts[half:])]
                told = [count for count in counts if count is not None]
                return sum(told) if len(told) == len(counts) else None
            return _usage_of(reply, len(texts))
        except WireError as error:
            where = f"target '{self.endpoint.target}' at {self.endpoint.base_url}"
            raise TargetError(f"{where} cannot be asked for token counts: {error}") from None

    async def models(self) -> Any:
        """The answer of ``/models`` as JSON values, or None."""
        try:
            reply = await self._exchange("GET", "/models", None)
            return orjson.loads(reply.body) if reply.status == 200 else None
        except (WireError, orjson.JSONDecodeError):
            return None

    async def _exchange(self, method: str, path: str, body: bytes | None) -> Reply:
        assert self._session is not None
        headers = {"Content-Type": "application/json"} if body is not None else {}
        url = self.endpoint.base_url.rstrip("/") + path
        try:
            async with self._session.request(
                method, url, data=body, headers=headers, allow_redirects=False
            ) as response:
                return Reply(
                    response.status,
                    await _read(response),
                    response.headers.get("Content-Type", ""),
                    response.headers.get("Content-Encoding", "").lower(),
                    response.headers.get("Transfer-Encoding", "").lower() == "chunked",
                )
        except TimeoutError:
            what = f"no complete answer within {self._timeout_s:g} s"
            raise WireError("timeout", what) from None
        except (aiohttp.ClientError, OSError) as exc:
            raise WireError("connection", f"no answer: {_words(exc)}") from None


def _usage_of(reply: Reply, texts: int) -> int | None:
    if reply.status != 200:
        reply.decode(texts)  # raises, with the server's words
    body = gunzip(reply.body) if reply.coding == "gzip" else reply.body
    try:
        tokens = orjson.loads(body)["usage"]["prompt_tokens"]
    except orjson.JSONDecodeError:
        raise WireError("not-json", "no JSON to read usage from") from None
    except (KeyError, TypeError):
        return None
    return tokens if isinstance(tokens, int) and not isinstance(tokens, bool) else None


async def _read(response: aiohttp.ClientResponse) -> bytes:
    announced = response.content_length or 0
    if announced > BODY_BYTES_MAX:
        response.close()
        raise WireError("too-large", f"a body of {announced} bytes is announced")
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_chunked(1 << 18):
        parts.append(part)
        size += len(part)
        if size > BODY_BYTES_MAX:
            response.close()
            raise WireError("too-large", f"the body does not end after {size} bytes")
    return b"".join(parts)


def _words(exc: Exception) -> str:
    """One line about a transport error."""
    text = " ".join(str(exc).split())
    return f"{text} ({type(exc).__name__})" if text else type(exc).__name__


async def known_vectors(
    asker: Asker,
    bodies: Callable[[int], bytes],
    *,
    requests: int,
    batch: int,
    encoding: Encoding,
    dimension: int | None,
    seed: int,
    dimensions: int | None = None,
    cosine_min: float = 0.999,
    singles: int = 8,
    mixed: int = 64,
) -> tuple[tuple[Known, ...], tuple[Flaw, ...]]:
    """Ask again, after a trial, for a seeded sample of its texts, to check its vectors against.

    ``singles`` texts are asked one by one, and up to ``mixed`` others together, from many requests
    and positions, in two orders: if both agree they are known, and if not the server mixes its
    answers up. ``bodies(seq)`` is the body of a measured request. An answer
    that does not come is only a warning: the trial's own may still be right. ``dimensions`` is
    sent where the trial sent it.
    """
    total = requests * batch
    random = np.random.default_rng(seed)
    picks = random.permutation(random.choice(total, min(total, singles + mixed), replace=False))
    alone, together = np.sort(picks[:singles]), picks[singles : singles + min(mixed, batch)]
    texts = _Texts(bodies, batch)
    extra = {} if dimensions is None else {"dimensions": dimensions}

    async def ask(places: NDArray[np.int64]) -> Matrix:
        reply = await asker.ask([texts.at(int(place)) for place in places], encoding, **extra)
        return reply.decode(len(places), dimensions or dimension).matrix

    known: list[Known] = []
    flaws: list[Flaw] = []
    try:
        vectors = [await ask(alone[i : i + 1]) for i in range(len(alone))]
        if vectors:
            known.append(Known(alone // batch, alone % batch, np.concatenate(vectors)))
        if len(together) > 1:
            order = random.permutation(len(together))
            one, other = await ask(together), await ask(together[order])
            source = "the same text in another batch"
            again = other[np.argsort(order)]
            mixed_up = check_content(one, np.arange(len(one)), again, cosine_min, source)
            flaws = [
                replace(flaw, what=f"asked again after the trial: {flaw.what}", item=None)
                for flaw in mixed_up
            ]
            if not mixed_up:
                known.append(Known(together // batch, together % batch, one, source))
    except WireError as error:
        what = f"the texts of the trial could not be asked again: {error}"
        flaws.append(Flaw("content", "warn", what))
    return tuple(known), tuple(flaws)


class _Texts:
    """Texts of request bodies by their number in the trial; the last body stays parsed."""

    def __init__(self, bodies: Callable[[int], bytes], batch: int) -> None:
        self._bodies, self._batch = bodies, batch
        self._seq: int | None = None
        self._inputs: list[str] = []

    def at(self, place: int) -> str:
        seq, item = divmod(place, self._batch)
        if seq != self._seq:
            self._seq, self._inputs = seq, orjson.loads(self._bodies(seq))["input"]
        return self._inputs[item]
