"""One check's outcome, as a value: what was found, where, how bad it is, and what to do."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["fail", "warn", "info"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One outcome of one check.

    ``fail`` makes the cell INVALID: its latencies are not used. ``warn`` and ``info`` are shown
    beside the numbers. ``target`` is always known; the other places narrow it down: ``cell`` is a
    ``Work.slug``, ``trial`` counts from 0, ``request`` is ``Sample.seq`` and ``item`` the position
    in the batch, both from 0. ``time_ns`` is on the trial's monotonic clock.
    """

    check: str
    severity: Severity
    what: str
    do: str = ""
    target: str = ""
    cell: str | None = None
    trial: int | None = None
    request: int | None = None
    item: int | None = None
    time_ns: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The finding as JSON-ready values; places that are not known are left out."""
        return {key: value for key, value in asdict(self).items() if value not in (None, "")}

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> "Finding":
        """The inverse of `to_json`."""
        return cls(**raw)
