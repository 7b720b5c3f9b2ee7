"""The look of all figures: a colour, a marker and a line a target, axes in plain numbers, legends.

Colours are Okabe & Ito's, safe for colour-blind readers; markers and lines differ too, so that a
grey print can be read.
"""

from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Literal

from embbench.report.model import Cell, Report
from embbench.report.units import CellName

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure as Canvas

Kind = Literal["svg", "png"]

_INKS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
_MARKERS = "osD^vPX*"
_DASHES: tuple[tuple[int, ...], ...] = (
    *((), (5, 2), (6, 1, 1, 1), (1, 1)),
    *((6, 1, 1, 1, 1, 1), (8, 3), (3, 4), (2, 2)),
)


def canvas_of(width: float, height: float) -> "Canvas":
    from matplotlib.figure import Figure as MatplotlibFigure

    return MatplotlibFigure(figsize=(width, height), layout="constrained")


def ink_of(number: int) -> str:
    return _INKS[number % len(_INKS)]


def marker_of(number: int) -> str:
    return _MARKERS[number % len(_MARKERS)]


def line_of(number: int) -> tuple[int, tuple[int, ...]]:
    return 0, _DASHES[number % len(_DASHES)]


def tick(report: Report, slug: str) -> str:
    name = CellName.of(slug)
    names = [CellName.of(other) for other in report.slugs]
    lines = [str(name.batch), name.load_label.replace(", ", "\n")]
    lines += [f"ISL {name.isl}"] if len({other.isl for other in names}) > 1 else []
    lines += [name.encoding] if len({other.encoding for other in names}) > 1 else []
    return "\n".join(lines)


def title(slug: str) -> str:
    name = CellName.of(slug)
    return f"batch {name.batch}, {name.load_label}, ISL {name.isl}, {name.encoding}"


def plain_log(axis: "Axis") -> None:
    """Numbers on a logarithmic axis as people write them: 20, 50, 100; closer on a short axis.

    Call it when everything is drawn: the axis must know its length.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    steps = (1, 1.5, 2, 3, 4, 5, 7) if high < 8 * low else (1, 2, 5)
    axis.set_major_locator(LogLocator(10, subs=steps))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def legend(canvas: "Canvas", report: Report, slugs: Sequence[str]) -> None:
    """The targets above the axes; where cells are not drawn, it says so."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D(
            [],
            [],
            color=ink_of(number),
            linestyle=line_of(number),
            marker=marker_of(number),
            markersize=5,
            label=target + _not_drawn([report.cells[target, slug] for slug in slugs]),
        )
        for number, target in enumerate(report.targets)
    ]
    columns = min(6, len(handles))
    canvas.legend(handles=handles, loc="outside upper center", ncols=columns, frameon=False)


def _not_drawn(cells: Sequence[Cell]) -> str:
    missing = [cell.state for cell in cells if not cell.figures]
    if not missing:
        return ""
    where = "" if len(missing) == len(cells) else f" in {len(missing)} of {len(cells)}"
    return f" ({', '.join(sorted(set(missing)))}{where})"


def encoded(canvas: "Canvas", name: str, kind: Kind) -> bytes:
    """The figure as a file; the same figure gives the same bytes."""
    from matplotlib import rc_context

    out = BytesIO()
    with rc_context({"svg.hashsalt": name}):
        metadata = {"Date": None} if kind == "svg" else None
        canvas.savefig(out, format=kind, dpi=120, metadata=metadata)
    return out.getvalue()
