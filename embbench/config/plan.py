"""The plan: every cell and trial of a run, in order, before anything is launched.

In: a resolved `RunConfig`. Out: a `Plan`. Texts and schedules depend on `Work` and the trial
number only, so that every target meets the same work.
"""

from dataclasses import dataclass
from typing import Literal

Encoding = Literal["float", "base64"]
Arrival = Literal["constant", "poisson", "trace"]


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Requests leave on an absolute schedule, whatever comes back."""

    rate_rps: float
    arrival: Arrival = "constant"
    trace: str | None = None
    max_in_flight: int | None = None

    @property
    def slug(self) -> str:
        """The load as part of a file name, such as ``rate10`` or ``rate10-poisson``."""
        slug = f"rate{self.rate_rps:g}"
        if self.arrival != "constant":
            slug += f"-{self.arrival}"
        return slug if self.max_in_flight is None else f"{slug}-cap{self.max_in_flight}"


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """``concurrency`` clients, each sends its next request when its answer has come."""

    concurrency: int
    think_time_s: float = 0.0

    @property
    def slug(self) -> str:
        """The load as part of a file name, such as ``closed1``."""
        slug = f"closed{self.concurrency}"
        return slug if self.think_time_s == 0 else f"{slug}-think{self.think_time_s:g}s"


@dataclass(frozen=True, slots=True)
class Work:
    """What every target meets: a cell without its target, and how many requests it takes."""

    batch: int
    isl: int
    encoding: Encoding
    load: OpenLoop | ClosedLoop
    requests: int
    warmup: int

    @property
    def slug(self) -> str:
        """A stable name, such as ``b15-isl80-float-rate10``: file name and key."""
        return f"b{self.batch}-isl{self.isl}-{self.encoding}-{self.load.slug}"


@dataclass(frozen=True, slots=True)
class Trial:
    """One measured repetition of a cell: ``target`` x ``work``, the ``index``-th of its kind."""

    target: str
    work: Work
    index: int


@dataclass(frozen=True, slots=True)
class Episode:
    """Targets that are up at the same time, from fresh starts, and the trials driven meanwhile.

    ``exclusive`` placement has one target an episode, ``co-resident`` has all of them.
    """

    targets: tuple[str, ...]
    trials: tuple[Trial, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a run will do, in order."""

    targets: tuple[str, ...]
    work: tuple[Work, ...]
    episodes: tuple[Episode, ...]
