"""What a report says, as values: every renderer starts from a `Report`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from embbench.analysis.percentiles import Percentile
from embbench.analysis.summary import CellSummary, Time
from embbench.analysis.verdicts import Comparison
from embbench.findings import Finding
from embbench.report.units import CellName

State = Literal["VALID", "INVALID", "not run", "published"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One statistic of one cell. ``text`` is what is printed, digit for digit.

    ``of`` is the percentile behind it (None for a mean), ``ratio`` is to the floor's figure.
    """

    text: str
    value_ns: float
    of: Percentile | None = None
    ratio: float | None = None

    @property
    def closed(self) -> bool:
        """Whether n can carry it."""
        return self.of is None or self.of.closed


@dataclass(frozen=True, slots=True)
class Wire:
    """What crossed the wire in a cell; bytes are means of a successful answer."""

    request_bytes: float | None
    response_bytes: float | None
    bytes_per_vector: float | None
    dimension: int | None
    chunked: bool
    gzip: bool


@dataclass(frozen=True, slots=True)
class Driven:
    """How the load went, over the trials of a cell: mean rates, the worst of the others."""

    trials: int
    planned: int | None
    asked_rps: float | None
    achieved_rps: float | None
    in_flight_max: int
    send_lag_p99_ns: int
    verified_share: float
    wire: Wire


@dataclass(frozen=True, slots=True)
class Cell:
    """One target's share of one row. ``figures`` and ``times`` are empty unless they may be used.

    ``n`` counts successes, ``failed`` failures, over all trials; both 0 before any trial.
    """

    target: str
    slug: str
    state: State
    reason: str = ""
    n: int = 0
    failed: int = 0
    errors: Mapping[str, int] = field(default_factory=dict)
    figures: Mapping[tuple[Time, str], Figure] = field(default_factory=dict)
    times: Mapping[Time, CellSummary] = field(default_factory=dict)
    driven: Driven | None = None

    @property
    def name(self) -> CellName:
        """Batch, ISL, encoding and load."""
        return CellName.of(self.slug)


@dataclass(frozen=True, slots=True)
class Report:
    """A run, summarised. ``statistics`` are the matrices that it has, in order."""

    meta: Mapping[str, Any]
    targets: tuple[str, ...]
    slugs: tuple[str, ...]
    floor: str | None
    baseline: str | None
    statistics: tuple[str, ...]
    cells: Mapping[tuple[str, str], Cell]
    findings: tuple[Finding, ...]
    comparisons: tuple[Comparison, ...] = ()

    @property
    def published(self) -> bool:
        """Figures printed elsewhere: no samples, no trials."""
        return bool(self.meta["kind"] == "published")

    def row(self, slug: str) -> tuple[Cell, ...]:
        """The cells of one row, by target."""
        return tuple(self.cells[target, slug] for target in self.targets)

    def times(self, slug: str) -> tuple[Time, ...]:
        """The times that a row is told in; in closed loop the two are one and the same."""
        if self.published or not CellName.of(slug).open_loop:
            return ("response",)
        return ("response", "service")
