"""The command line: thin verbs over the library, and the only code that prints.

stdout carries the report and nothing else; progress and warnings go to stderr. Exit codes: 0 fine,
1 embbench could not do it, 2 usage or config, 3 the run is INVALID, 4 the gate of `compare`
failed, 130 interrupted.
"""

import sys

import typer

from embbench.cli import inspecting, reading, running, serving
from embbench.errors import EmbbenchError
from embbench.version import __version__

app = typer.Typer(
    name="embbench",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="markdown",
)
for module in (running, reading, inspecting, serving):
    module.register(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"embbench {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", is_eager=True, callback=_print_version, help="Print the version."
    ),
) -> None:
    """Latency matrices of OpenAI-compatible embedding servers, with every answer checked."""


def main() -> None:
    """The console script: runs a verb and words its errors."""
    try:
        app()
    except EmbbenchError as exc:
        print(f"embbench: {exc}", file=sys.stderr)
        sys.exit(exc.exit_code)
    except BrokenPipeError:
        # The reader of stdout went away, as `| head` does.
        sys.stderr.close()
        sys.exit(1)
