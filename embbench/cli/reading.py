"""Verbs that read run directories: `report`, `compare`. They need no server."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from embbench.errors import ConfigError, RunError

EXIT_GATE = 4

Format = Annotated[
    str, typer.Option("--format", "-f", help="md (for a pull request), html, json or csv.")
]
OutputFile = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write to this file instead of stdout.")
]


def register(app: typer.Typer) -> None:
    """Add this module's verbs to the app."""
    app.command()(report)
    app.command()(compare)


def report(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    output_format: Format = "md",
    output: OutputFile = None,
    figures: Annotated[
        Path | None,
        typer.Option("--figures", help="Draw the figures too, as PNG files into this folder."),
    ] = None,
) -> None:
    """Print the matrices, findings and verdicts of a run."""
    from embbench.report import FORMATS, to_html
    from embbench.report.review import review
    from embbench.results.rundir import load_run

    _check_format(output_format, FORMATS)
    run = load_run(folder)
    summary = review(run)
    if output_format == "html" and run.trials:
        from embbench.report.plots import figures as draw

        text = to_html(summary, draw(run, summary))
    else:
        text = FORMATS[output_format](summary)
    _write(text, output)
    if figures is not None:
        from embbench.report.plots import save_figures

        for path in save_figures(run, figures):
            print(f"embbench: {path}", file=sys.stderr)


def compare(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="RUN [NEW]", help="One run: its targets. Two: the same targets."),
    ],
    base: Annotated[
        str | None, typer.Option("--base", help="The target that is compared against.")
    ] = None,
    candidate: Annotated[
        str | None, typer.Option("--candidate", help="The target that may be faster or slower.")
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", help="A fact that may differ between runs, such as host."),
    ] = None,
    min_effect: Annotated[
        float | None,
        typer.Option(
            "--min-effect",
            help="Smallest difference worth a word, in percent. Default: the A/A noise floor, at "
            "least 2.",
        ),
    ] = None,
    fail_on: Annotated[
        str | None,
        typer.Option(
            "--fail-on",
            help="Rules for CI, such as 'p99 slower by 5 % in b15-*': exit 4 if one is broken.",
        ),
    ] = None,
    output_format: Format = "md",
    output: OutputFile = None,
) -> None:
    """Say what got faster or slower: between the targets of a run, or between two runs."""
    from embbench.analysis.gates import evaluate, parse_rules
    from embbench.report.compare_runs import compare as judge
    from embbench.report.comparison import COMPARISON_FORMATS
    from embbench.results.rundir import load_run

    _check_format(output_format, COMPARISON_FORMATS)
    rules = parse_rules(fail_on) if fail_on is not None else ()
    if min_effect is not None and not 0 <= min_effect < 100:
        raise ConfigError(f"--min-effect {min_effect:g}: give percent, from 0 to below 100")
    effect = None if min_effect is None else min_effect / 100
    runs = [load_run(folder) for folder in folders]
    if len(runs) > 2:
        raise ConfigError(f"compare takes one run or two, not {len(runs)}")
    found = judge(*runs, base=base, candidate=candidate, allow=allow or (), min_effect=effect)
    gate = evaluate(rules, found.comparisons)
    _write(COMPARISON_FORMATS[output_format](runs, found, gate), output)
    if gate.broken:
        raise typer.Exit(EXIT_GATE)


def _check_format(name: str, known: object) -> None:
    assert isinstance(known, dict)
    if name not in known:
        raise ConfigError(f"--format {name}: formats are {', '.join(known)}")


def _write(text: str, output: Path | None) -> None:
    if output is None:
        sys.stdout.write(text)
        return
    try:
        output.write_text(text)
    except OSError as exc:
        raise RunError(f"{output}: cannot write there ({exc.strerror})") from exc
