"""Report: a pure reader of run directories.

In: a `Run`, and the comparisons made of it. Out: text: Markdown for a pull request, HTML, JSON,
CSV. Nothing here prints or starts anything.
"""

from collections.abc import Callable, Mapping

from embbench.report import html, markdown
from embbench.report.build import summarise
from embbench.report.model import Cell, Figure, Report
from embbench.report.sections import document
from embbench.report.tabular import matrix_csv, to_csv, to_json


def to_markdown(report: Report, limit: int = markdown.LIMIT) -> str:
    """A pull-request comment of at most ``limit`` bytes."""
    return markdown.render(document(report), limit)


def to_html(report: Report, pictures: Mapping[str, bytes] | None = None) -> str:
    """One self-contained page; ``pictures`` are SVG or PNG by caption (see `plots`)."""
    return html.render(document(report), pictures)


FORMATS: dict[str, Callable[[Report], str]] = {
    "md": to_markdown,
    "html": to_html,
    "json": to_json,
    "csv": to_csv,
}

__all__ = [
    "FORMATS",
    "Cell",
    "Figure",
    "Report",
    "matrix_csv",
    "summarise",
    "to_csv",
    "to_html",
    "to_json",
    "to_markdown",
]
