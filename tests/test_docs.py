"""Documentation is held against the code: made pages, links, commands, exit codes."""

import re
from pathlib import Path

import pytest

from embbench.cli.pages import cli_page, config_page

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("results/*.md")]


@pytest.mark.parametrize(("name", "page"), [("cli", cli_page), ("config", config_page)])
def test_made_pages_are_those_of_the_code(name: str, page: object) -> None:
    assert callable(page)
    written = (ROOT / "docs" / f"{name}.md").read_text()
    assert written == page(), "run: .venv/bin/python scripts/docs"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_every_verb_is_in_the_readme() -> None:
    verbs = re.findall(r"^## embbench (\w+)$", cli_page(), re.MULTILINE)
    readme = (ROOT / "README.md").read_text()
    assert len(verbs) >= 9
    for verb in verbs:
        assert f"`embbench {verb}" in readme
