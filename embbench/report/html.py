"""Blocks as one self-contained HTML file: no scripts, nothing loaded from anywhere."""

import base64
from collections.abc import Mapping
from html import escape
from typing import assert_never

from embbench.report.blocks import Block, Blocks, Code, Details, Heading, Listing, Table, Text
from embbench.report.markdown import clean

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .5rem 0; }
th, td { border: 1px solid #8886; padding: .2rem .6rem; text-align: right; vertical-align: top; }
th.l, td.l { text-align: left; }
pre { background: #8882; padding: .6rem; overflow-x: auto; }
img { max-width: 100%; background: white; }
summary { cursor: pointer; font-weight: 600; margin: .5rem 0; }
"""


def render(blocks: Blocks, pictures: Mapping[str, bytes] | None = None) -> str:
    """A page of these blocks, and of SVG or PNG ``pictures`` by their captions."""
    title = next((block.text for block in blocks if isinstance(block, Heading)), "embbench")
    body = [_block(block) for block in blocks]
    if pictures:
        body.append(_block(Heading(2, "Figures")))
        body += [_picture(caption, data) for caption, data in pictures.items()]
    return (
        "<!doctype html>\n"
        f'<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{_text(title)}</title>\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n" + "\n".join(body) + "\n</body>\n</html>\n"
    )


def _text(text: str) -> str:
    return escape(clean(text))


def _block(block: Block) -> str:
    match block:
        case Heading(level, text):
            return f"<h{level}>{_text(text)}</h{level}>"
        case Text(text):
            return f"<p>{_text(text)}</p>"
        case Code(text):
            return f"<pre>{_text(text)}</pre>"
        case Listing(items, numbered):
            tag = "ol" if numbered else "ul"
            return f"<{tag}>{''.join(f'<li>{_text(item)}</li>' for item in items)}</{tag}>"
        case Table():
            return _table(block)
        case Details(summary, blocks):
            inner = "\n".join(map(_block, blocks))
            return f"<details><summary>{_text(summary)}</summary>\n{inner}\n</details>"
        case _:
            assert_never(block)


def _table(table: Table) -> str:
    def line(tag: str, row: tuple[str, ...]) -> str:
        cells = (
            f"<{tag}{' class=l' if column < table.left else ''}>{_text(text)}</{tag}>"
            for column, text in enumerate(row)
        )
        return f"<tr>{''.join(cells)}</tr>"

    rows = "\n".join(line("td", row) for row in table.rows)
    head = line("th", table.header)
    body = f"<thead>{head}</thead>\n<tbody>\n{rows}\n</tbody>"
    return f'<div class="wide"><table>\n{body}\n</table></div>'


def _picture(caption: str, data: bytes) -> str:
    kind = "image/png" if data.startswith(b"\x89PNG") else "image/svg+xml"
    source = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    return (
        f'<figure><img src="{source}" alt="{_text(caption)}">'
        f"<figcaption>{_text(caption)}</figcaption></figure>"
    )
