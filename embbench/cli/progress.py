"""Progress on stderr: a live line on a terminal; elsewhere only the few lines that stay."""

import sys
from types import TracebackType
from typing import Self


class Progress:
    """Shows how far a run is. It never touches stdout, and never runs in a load process."""

    def __init__(self, total: int, *, quiet: bool) -> None:
        self._total = total
        self._quiet = quiet
        self._shown = not quiet and sys.stderr.isatty()

    def __enter__(self) -> Self:
        if self._shown:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TimeElapsedColumn(),
                BarColumn(bar_width=20),
                MofNCompleteColumn(),
                TextColumn("trials  {task.description}", markup=False),
                console=Console(stderr=True),
                transient=True,
                refresh_per_second=4,
            )
            self._task = self._bar.add_task("", total=self._total)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._shown:
            self._bar.stop()

    def step(self, text: str) -> None:
        """What is going on now; replaces the last step."""
        if self._shown:
            self._bar.update(self._task, description=" ".join(text.split())[:160])

    def trial_done(self) -> None:
        """One more trial is on disk."""
        if self._shown:
            self._bar.advance(self._task)

    def say(self, text: str) -> None:
        """A line that stays, also where there is no terminal."""
        if self._quiet:
            return
        if self._shown:
            self._bar.console.print(f"embbench: {text}", markup=False, highlight=False)
        else:
            print(f"embbench: {text}", file=sys.stderr, flush=True)
