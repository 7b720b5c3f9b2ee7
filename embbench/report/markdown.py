"""Blocks as GitHub-flavoured Markdown, fit to be pasted into a pull-request comment.

Foreign text (names, error messages of servers) is escaped so that it stays text: no table is
broken, no HTML begins, nobody is mentioned, no terminal is driven. What exceeds GitHub's limit for
a comment is left out from the end, details first, and the last line says so.
"""

import re
from dataclasses import replace
from typing import assert_never

from embbench.report.blocks import Block, Blocks, Code, Details, Heading, Listing, Table, Text

LIMIT = 65_536
"""GitHub's limit for a comment, in characters; here in UTF-8 bytes, which are never fewer."""

LONGEST = 600
"""No single text is longer: a server's error page is quoted by its beginning."""

_TERMINAL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)?", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


def clean(text: str) -> str:
    """One line of plain text, no terminal sequences or control codes, `LONGEST` at most."""
    line = " ".join(_CONTROL.sub(" ", _TERMINAL.sub("", text)).split())
    line = line.encode("utf-8", "replace").decode()  # a lone surrogate cannot be written
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"


def escape(text: str) -> str:
    """Plain text as Markdown that shows it as it is, and is still readable where it is not shown.

    Only what could begin something is escaped: intervals such as [1 to 2] stay as they are.
    """
    line = re.sub(r"[\\`*|~]", r"\\\g<0>", clean(text))
    line = re.sub(r"&(?=#?\w+;)", "&amp;", line).replace("<", "&lt;")
    line = re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", line)  # inside a word it is no emphasis
    line = re.sub(r"\](?=[(\[:])", r"\\]", line)  # links, references
    line = re.sub(r"(?<!\w)@(?=\w)", "@<!-- -->", line)  # a name would be notified
    line = re.sub(r"(?<=\s)#+$", r"\\\g<0>", line)  # the end of a heading
    line = re.sub(r"^(\d{1,9})([.)])(?=\s|$)", r"\1\\\2", line)  # lists
    return re.sub(r"^(?:[-+](?=\s|$)|-(?=[-\s]*$)|#{1,6}(?=\s|$)|[>\[])", r"\\\g<0>", line)


def render(blocks: Blocks, limit: int = LIMIT) -> str:
    """Markdown of at most ``limit`` UTF-8 bytes."""
    kept = list(blocks)
    left_out: list[str] = []
    text = _join(kept, left_out)
    while len(text.encode()) > limit:
        details = [at for at, block in enumerate(kept) if isinstance(block, Details)]
        if details:
            block = kept.pop(details[-1])
            assert isinstance(block, Details)
            left_out.insert(0, block.summary)
        elif not _shorten(kept):
            kept.pop()
        text = _join(kept, left_out)
    return text


def _shorten(blocks: list[Block]) -> bool:
    """Take the second half off the longest table or listing; False if there is none to halve."""
    sizes = [
        len(b.rows) if isinstance(b, Table) else len(b.items) if isinstance(b, Listing) else 0
        for b in blocks
    ]
    if max(sizes, default=0) < 2:
        return False
    at = sizes.index(max(sizes))
    half = sizes[at] // 2
    block = blocks[at]
    if isinstance(block, Table):
        blocks[at] = replace(block, rows=block.rows[:half])
    elif isinstance(block, Listing):
        blocks[at] = replace(block, items=block.items[:half])
    blocks.insert(at + 1, Text(f"({sizes[at] - half} more lines are left out here.)"))
    return True


def _join(blocks: Blocks, left_out: list[str]) -> str:
    parts = [_block(block) for block in blocks]
    if left_out:
        parts.append(
            _block(
                Text(
                    f"Left out, to fit into one comment: {'; '.join(left_out)}. "
                    "The HTML report has everything."
                )
            )
        )
    return "\n\n".join(parts) + "\n"


def _block(block: Block) -> str:
    match block:
        case Heading(level, text):
            return f"{'#' * level} {escape(text)}"
        case Text(text):
            return escape(text)
        case Code(text):
            return _fenced(text)
        case Listing(items, numbered):
            return "\n".join(
                f"{f'{number}.' if numbered else '-'} {escape(item)}"
                for number, item in enumerate(items, 1)
            )
        case Table():
            return _table(block)
        case Details(summary, blocks):
            inner = "\n\n".join(map(_block, blocks))
            return f"<details>\n<summary>{escape(summary)}</summary>\n\n{inner}\n\n</details>"
        case _:
            assert_never(block)


def _fenced(text: str) -> str:
    line = clean(text)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", line)), default=0))
    return f"{fence}\n{line}\n{fence}"


def _table(table: Table) -> str:
    rule = [":--" if column < table.left else "--:" for column in range(len(table.header))]
    lines = [[escape(text) for text in table.header], rule]
    lines += [[escape(text) for text in row] for row in table.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
