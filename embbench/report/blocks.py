"""What a document is made of before it is Markdown or HTML; texts are plain, renderers escape."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading; level 1 is the document's title."""

    level: int
    text: str


@dataclass(frozen=True, slots=True)
class Text:
    """One paragraph."""

    text: str


@dataclass(frozen=True, slots=True)
class Code:
    """A command line, or other text to be copied as it is."""

    text: str


@dataclass(frozen=True, slots=True)
class Listing:
    """Items, with dots or with numbers from 1."""

    items: tuple[str, ...]
    numbered: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """``left`` columns from the start are aligned left, the others right."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 0


@dataclass(frozen=True, slots=True)
class Details:
    """Blocks behind a line that opens them; the first to go when space is short."""

    summary: str
    blocks: tuple["Block", ...]


Block: TypeAlias = Heading | Text | Code | Listing | Table | Details
Blocks: TypeAlias = Sequence[Block]
