"""What a trial asks of the load processes, and what comes back.

In: a `TrialJob` from the conductor. Out: a `TrialResult`. Between conductor and load process:
`ShardJob`, `Go` and `ShardResult`, pickled.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embbench.config.plan import ClosedLoop, OpenLoop
from embbench.load.client import ClientName, ClientOptions
from embbench.load.kept_bodies import KeptBodies
from embbench.load.request_bodies import BodyFile
from embbench.results.samples import Samples


@dataclass(frozen=True, slots=True)
class TrialJob:
    """One trial. The order of requests is the order of the body files.

    A closed loop's start-up burst is sent with the last ``concurrency`` warm-up bodies, whose
    clients go on to the measured ones without a pause; the warm-up bodies before those are sent
    first, and their answers awaited. In an open loop the first warm-up request goes alone and the
    others at the trial's mean rate. ``warmup_bodies`` is None where there is no warm-up.
    """

    url: str
    """The full URL, such as ``http://127.0.0.1:8000/v1/embeddings``; ``http+unix://`` works too."""
    bodies: BodyFile
    load: OpenLoop | ClosedLoop
    work_dir: Path
    """Where the raw records of the trial in progress are written; they are removed at its end."""
    warmup_bodies: BodyFile | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    offsets_ns: NDArray[np.int64] | None = None
    """Open loop only: `intended_offsets_ns`, one for each body."""
    timeout_s: float = 60.0
    keep: NDArray[np.bool_] | None = None
    """Measured requests whose response bodies are kept; None keeps all that fit."""
    keep_warmup: bool = False
    expected_response_bytes: int = 0
    """Size of a response body, as a hint; 0 lets the warm-up find out."""
    arena_bytes: int = 1 << 30
    """Bound on the memory for kept bodies, over all load processes."""
    max_body_bytes: int = 1 << 30
    tls_verify: bool = True


@dataclass(frozen=True, slots=True)
class LoadHealth:
    """How the load generator itself did during the measured part of a trial."""

    origin_ns: int
    """When the measured part began: the schedule's zero on CLOCK_MONOTONIC."""
    wall_s: float
    """From the origin to the end of the last measured request."""
    planned_rps: float | None
    """Open loop: requests a second between the first and the last intended start."""
    achieved_rps: float
    """Requests a second between the first and the last start; for closed loops, answers a second
    from the first start to the last end."""
    in_flight_max: int
    send_lag_p50_ns: int
    send_lag_p99_ns: int
    send_lag_max_ns: int
    stalls: tuple[tuple[int, int], ...]
    """(time_ns, length_ns) of each time that a load process's loop stood still for over 1 ms."""
    client_cpu_s: tuple[float, ...]
    """CPU seconds of each load process in the measured part."""
    client_rss_bytes: tuple[int, ...]
    """Peak resident set of each load process, the pages of kept bodies included."""
    burst_in_statistics: int
    """Closed loop: measured requests in the start-up burst, for want of warm-up bodies."""
    client: ClientName = "buffered"


@dataclass(frozen=True, slots=True)
class TrialResult:
    """A trial as it was driven; requests that failed are in ``samples`` too."""

    samples: Samples
    kept: KeptBodies
    health: LoadHealth


@dataclass(frozen=True, slots=True)
class ShardJob:
    """One load process's part of a trial: requests ``shard``, ``shard + shards``, ..."""

    shard: int
    shards: int
    client: ClientName
    options: ClientOptions
    bodies: Path
    warmup_bodies: Path | None
    load: OpenLoop | ClosedLoop
    """With this shard's part of the concurrency or of the in-flight cap."""
    offsets_ns: NDArray[np.int64] | None
    """Of this shard's requests only: a schedule can be long."""
    warmup_gap_ns: int
    keep: bytes | None
    """One byte for each request of the trial, 0 for a body that is not kept."""
    keep_warmup: bool
    arena: str
    expected_response_bytes: int
    rows: Path
    keep_awake: bool
    """The core does not sleep, if the process has one of its own."""
    stalls: bool = True
    collect_garbage: bool = False


@dataclass(frozen=True, slots=True)
class Go:
    """The measured part begins at ``origin_ns``, for all load processes."""

    origin_ns: int


@dataclass(frozen=True, slots=True)
class ShardResult:
    """What one load process has to say beside its raw rows."""

    error_names: tuple[str, ...]
    content_types: tuple[str, ...]
    unkept: int
    stalls: tuple[tuple[int, int], ...]
    cpu_s: float
    rss_bytes: int
    burst_in_statistics: int
