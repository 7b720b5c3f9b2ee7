"""Numbers as they are printed: one way for each unit."""

import math
import re
from dataclasses import dataclass
from decimal import Decimal

NOTHING = "–"
"""What is printed for what is not there; never 0."""


def ms(value_ns: float | None) -> str:
    """Nanoseconds as milliseconds: three digits at least, one decimal at least."""
    if value_ns is None:
        return NOTHING
    if math.isinf(value_ns):
        return "∞"
    value = value_ns / 1e6
    if value < 0.1:
        return f"{value:.4f}"
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def ratio(value: Decimal | float | None) -> str:
    """A factor, such as ×1.04."""
    return "" if value is None else f"×{value:.2f}"


def amount(value_bytes: float | None) -> str:
    """Bytes in the unit that leaves three digits or so; powers of 1,000."""
    if value_bytes is None:
        return NOTHING
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value_bytes >= size:
            scaled = value_bytes / size
            return f"{scaled:.2f} {unit}" if scaled < 10 else f"{scaled:.1f} {unit}"
    return f"{value_bytes:.0f} B"


def share(value: float) -> str:
    """A share of one as percent; what is not quite all never reads 100 %."""
    percent = 100 * value
    if 99.95 <= percent < 100 or 0 < percent < 0.05:
        return f"{percent:.3g} %" if percent < 1 else ">99.9 %"
    return f"{percent:.3g} %"


def count(value: int) -> str:
    """A whole number with thousands apart."""
    return f"{value:,}"


@dataclass(frozen=True, slots=True)
class CellName:
    """What a cell's slug says: `Work.slug`, taken apart again."""

    batch: int
    isl: int
    encoding: str
    load: str

    @classmethod
    def of(cls, slug: str) -> "CellName":
        """Raises `ValueError` if the slug is not one of `Work`."""
        found = re.fullmatch(r"b(\d+)-isl(\d+)-(float|base64)-(.+)", slug)
        if found is None:
            raise ValueError(f"'{slug}' is not the name of a cell")
        return cls(int(found[1]), int(found[2]), found[3], found[4])

    @property
    def open_loop(self) -> bool:
        """Whether requests left on a schedule."""
        return self.load.startswith("rate")

    @property
    def rate_rps(self) -> float | None:
        """Requests a second of an open loop; None in closed loop, or where it is not known."""
        found = re.match(r"rate([\d.]+(?:e[+-]\d+)?)", self.load)
        return float(found[1]) if found else None

    @property
    def load_label(self) -> str:
        """The load in words."""
        if found := re.fullmatch(r"rate([\d.e+-]+?)(?:-(poisson|trace))?(?:-cap(\d+))?", self.load):
            words = [f"open, {found[1]}/s"]
            words += [found[2]] if found[2] else []
            words += [f"≤ {found[3]} in flight"] if found[3] else []
            return ", ".join(words)
        if found := re.fullmatch(r"closed(\d+)(?:-think([\d.e+-]+s))?", self.load):
            clients = f"closed, {found[1]} client{'s' if found[1] != '1' else ''}"
            return clients + (f", think {found[2]}" if found[2] else "")
        return f"open, {self.load}" if self.open_loop else self.load
