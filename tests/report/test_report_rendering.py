"""Markdown and HTML: foreign text stays text, and a comment fits. The oracle is a parser."""

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from made_runs import samples_of, write_run
from markdown_it import MarkdownIt
from markdown_it.token import Token

from embbench.findings import Finding
from embbench.report import html, markdown, summarise, to_html, to_markdown
from embbench.report.blocks import Block, Code, Details, Heading, Listing, Table, Text

PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])

NASTY = [
    "a | b \\| c \\\\| d",
    "<script>alert(1)</script>",
    "</details></summary>",
    "`code` ``two`` ```three",
    "*bold* _under_ __double__ ~~gone~~ snake_case_name",
    "[link](http://example.com) ![image](x.png)",
    "line one\nline two\r\n\r\n# not a heading",
    "\x1b[31mred\x1b[0m \x07 bell \x9b31m \u202e reversed \ufeff",
    "&amp; &lt; &#42; &copy;",
    "# heading",
    "1. item",
    "- dash",
    "+ plus",
    "===",
    "---",
    "- - -",
    "> quote",
    "[ ] task",
    "[a]: http://example.com",
    "[1.00 to 2.00]",
    "=",
    "#",
    "@someone and mail@example.com",
    "-",
    "\ud800 lone",
    "",
]


def visible(token: Token) -> str:
    """The text that a reader sees of an inline token; HTML comments are not seen."""
    parts = []
    for child in token.children or ():
        if child.type in ("text", "code_inline", "text_special"):
            parts.append(child.content)
        elif child.type == "html_inline":
            assert child.content == "<!-- -->"
        else:
            raise AssertionError(f"{child.type} in {token.content!r}: text became markup")
    return "".join(parts)


def inlines(source: str) -> list[str]:
    return [visible(token) for token in PARSER.parse(source) if token.type == "inline"]


def nasty(test: Callable[[str], None]) -> Callable[[], None]:
    """Every nasty text as an example of a property of one text."""
    for text in NASTY:
        test = example(text=text)(test)
    texts = st.text(max_size=80) | st.text(alphabet=" -_*`~|[]()<>#.1!&;:\\a\n", max_size=20)
    prepared = settings(deadline=None, max_examples=100)(given(text=texts)(test))
    return cast("Callable[[], None]", prepared)


@nasty
def test_a_table_cell_shows_its_text_and_breaks_no_row(text: str) -> None:
    source = markdown.render([Table(("left", "right"), ((text, "x"), ("y", text)), left=1)])
    assert source.count("\n") == 4  # header, rule, two rows
    assert inlines(source) == [
        "left",
        "right",
        markdown.clean(text),
        "x",
        "y",
        markdown.clean(text),
    ]


@nasty
def test_paragraphs_items_headings_and_summaries_show_their_text(text: str) -> None:
    shown = markdown.clean(text)
    if not shown:
        return
    assert inlines(markdown.render([Text(text)])) == [shown]
    assert inlines(markdown.render([Heading(3, f"x {text}")])) == [f"x {shown}"]
    assert inlines(markdown.render([Listing((text, "other"))])) == [shown, "other"]
    assert inlines(markdown.render([Listing((text, "other"), numbered=True)])) == [shown, "other"]
    folded = markdown.render([Details(text, (Text("inside"),))])
    assert folded.count("</summary>") == folded.count("</details>") == 1


@nasty
def test_a_command_stays_in_its_fence(text: str) -> None:
    (token,) = PARSER.parse(markdown.render([Code(text)]))
    assert token.type == "fence"
    assert token.content.strip() == markdown.clean(text)


@nasty
def test_no_control_codes_come_through(text: str) -> None:
    for rendered in (markdown.render([Text(text)]), html.render([Text(text)])):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", rendered)
        assert "\x1b" not in rendered
        rendered.encode()


def test_nobody_is_mentioned_and_addresses_stay() -> None:
    assert markdown.escape("@someone, a@b") == "@<!-- -->someone, a@b"


def test_a_long_text_is_quoted_by_its_beginning() -> None:
    assert markdown.clean("x" * 10_000) == "x" * (markdown.LONGEST - 1) + "…"


# --- the limit


@pytest.mark.parametrize("limit", [markdown.LIMIT, 20_000, 3_000, 300])
def test_a_comment_fits_whatever_the_run_holds(tmp_path: Path, limit: int) -> None:
    cells = [f"b{batch}-isl80-float-closed1" for batch in range(1, 31)]
    targets = [f"target-{i}" for i in range(6)]
    one = samples_of([1.0] * 3)
    trials = {(target, cell): [one] for cell in cells for target in targets}
    findings = [
        Finding(f"check-{i}", "warn", "ж" * 500, target=target)
        for i in range(40)
        for target in targets
    ]
    text = to_markdown(summarise(write_run(tmp_path, trials, findings)), limit)
    assert len(text.encode()) <= limit
    assert text.count("<details>") == text.count("</details>")
    if limit >= 3_000:
        assert "### p50, ms" in text
        assert re.search(r"Left out, to fit into one comment: .*Every cell", text)
        assert "more lines are left out here" in text
    PARSER.parse(text)


def test_details_go_first_and_from_the_end() -> None:
    blocks: list[Block] = [
        Heading(2, "title"),
        Details("first", (Text("x" * 500),)),
        Details("second", (Text("y" * 500),)),
        Table(("a",), tuple((str(i),) for i in range(50))),
    ]
    whole = markdown.render(blocks)
    assert markdown.render(blocks, len(whole.encode())) == whole
    shorter = markdown.render(blocks, len(whole.encode()) - 1)
    assert "first" in shorter
    assert "yyy" not in shorter
    assert "Left out, to fit into one comment: second." in shorter
    assert "| 49 |" in shorter


# --- HTML


class Page(HTMLParser):
    """Checks nesting and gathers text, tags and attributes."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.urls: list[str] = []
        self.text = ""
        self.feed(source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.urls += [value or "" for name, value in attrs if name in ("src", "href")]
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_self_contained_and_well_formed(tmp_path: Path) -> None:
    trials = {(target, "b1-isl80-float-rate10"): [samples_of([1.0] * 9)] for target in NASTY[:9]}
    report = summarise(write_run(tmp_path, trials, description="<b>title</b> | it"))
    png = b"\x89PNG\r\n\x1a\n" + b"0"
    page = Page(to_html(report, {"Latency <1>": b"<svg/>", "dots": png}))
    assert "script" not in page.tags
    assert [url.split(",")[0] for url in page.urls] == [
        "data:image/svg+xml;base64",
        "data:image/png;base64",
    ]
    assert "<script>alert(1)</script>" in page.text
    assert "<b>title</b> | it" in page.text


@nasty
def test_html_shows_text_as_text(text: str) -> None:
    page = Page(html.render([Table((text,), ((text,),)), Listing((text,)), Details(text, ())]))
    assert page.text.count(markdown.clean(text)) >= 4
    assert page.tags <= {
        *("html", "head", "meta", "title", "style", "body", "details", "summary", "ul", "li"),
        *("div", "table", "thead", "tbody", "tr", "th", "td"),
    }
