"""Figures: what is drawn is what was measured, and what may not be used is not drawn."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from made_runs import samples_of, write_run
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import to_rgba
from numpy.typing import NDArray

from embbench.errors import RunError
from embbench.findings import Finding
from embbench.report import plots, summarise
from embbench.report.plots.requests import _slowest_and_some, _thinned
from embbench.results.rundir import Run, load_run

OPEN, CLOSED = "b15-isl80-float-rate10", "b64-isl80-float-closed1"
PUBLISHED = Path(__file__).parents[2] / "results" / "published-gb200-2"
WHITE = to_rgba("white")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Two trials of 1 to 10 ms and 2 to 20 ms against three times as much; one cell INVALID."""
    ten = [float(k) for k in range(1, 11)]
    trials = {
        ("bare", OPEN): [samples_of(ten), samples_of([2 * k for k in ten])],
        ("shm", OPEN): [samples_of([3 * k for k in ten], failed=2)] * 2,
        ("bare", CLOSED): [samples_of([50.0] * 6)] * 2,
        ("shm", CLOSED): [samples_of([77_777.0] * 6)] * 2,
    }
    return write_run(tmp_path, trials, [Finding("norm", "fail", "norm 3", "", "shm", CLOSED)])


def clouds(axes: Axes) -> list[PathCollection]:
    """The marks, one collection a target or trial."""
    return [cloud for cloud in axes.collections if isinstance(cloud, PathCollection)]


def points(axes: Axes) -> list[NDArray[np.float64]]:
    """The marks as data, [points, (x, y)]."""
    return [np.asarray(cloud.get_offsets()) for cloud in clouds(axes)]


def hollow(axes: Axes) -> list[bool]:
    """Whether all marks of a collection are empty inside."""
    return [bool((np.asarray(c.get_facecolor()) == WHITE).all()) for c in clouds(axes)]


def test_percentiles_stand_where_they_were_measured(run: Run) -> None:
    p50_ms, p90_ms, p99_ms, p50_ratio, *_ = plots.percentiles(summarise(run)).axes
    bare, shm = points(p50_ms)
    # geometric mean of 5.5 and 11; three times 5.5 in both trials
    assert bare[:, 1] == pytest.approx([5.5 * 2**0.5, 50.0])
    assert shm[:, 1] == pytest.approx([16.5])  # and nothing of the INVALID cell
    assert points(p50_ratio)[0][:, 1] == pytest.approx([3 / 2**0.5])
    assert hollow(p50_ms) == [False, False]
    assert hollow(p90_ms) == hollow(p99_ms) == [True, True]  # 20 requests carry neither


def test_every_trial_has_its_dot_and_invalid_cells_say_so(run: Run) -> None:
    canvas = plots.trials(summarise(run))
    open_p50, closed_p50 = canvas.axes[0], canvas.axes[3]
    bare, shm = points(open_p50)
    assert bare[:, 0] == pytest.approx([5.5, 11.0])
    assert shm[:, 0] == pytest.approx([16.5, 16.5])
    assert [text.get_text() for text in closed_p50.texts] == ["INVALID"]
    assert len(points(closed_p50)) == 1


def test_a_distribution_reaches_from_the_fastest_to_the_slowest(run: Run) -> None:
    whole, tail = plots.distribution(run, summarise(run), OPEN).axes
    for axes, first, last in ((whole, 0.1, 1.0), (tail, 1.0, 0.1)):
        curves = [np.asarray(line.get_xydata()) for line in axes.lines]
        assert len(curves) == 4  # two targets, two trials
        assert curves[1][:, 0] == pytest.approx([2.0 * k for k in range(1, 11)])
        assert curves[1][[0, -1], 1] == pytest.approx([first, last])


def test_over_time_shows_each_request_and_each_failure(run: Run) -> None:
    canvas = plots.over_time(run, summarise(run), OPEN)
    bare, shm = canvas.axes
    assert [text.get_title(loc="left") for text in (bare, shm)] == ["bare", "shm"]
    expected = np.array([(k / 10, k + 1) for k in range(10)])
    assert points(bare)[0] == pytest.approx(expected)
    crosses = [cloud for cloud in points(shm) if len(cloud) == 2]
    assert len(crosses) == 2  # two trials
    assert crosses[0][:, 0] == pytest.approx([1.0, 1.1])


def test_a_load_curve_has_its_rates_and_a_ring_at_the_knee(tmp_path: Path) -> None:
    trials = {
        ("bare", f"b1-isl80-float-rate{rate}"): [
            samples_of([1000 / (100 - rate)] * 400, gap_ms=1000 / rate)
        ]
        for rate in (20, 50, 80)
    }
    run = write_run(tmp_path, trials)
    names = [picture.name for picture in plots.pictures(run, summarise(run))]
    assert names[2] == "load-curve-batch1-ISL80-float"
    p50, *_ = plots.load_curves(summarise(run), "batch 1, ISL 80, float").axes
    marks, ring = points(p50)
    assert marks == pytest.approx(np.array([(20, 12.5), (50, 20), (80, 50)]))
    assert ring == pytest.approx(np.array([(50, 20)]))


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_all_figures_are_files_of_their_kind(run: Run, kind: plots.Kind) -> None:
    drawn = list(plots.pictures(run, summarise(run), kind))
    assert [picture.name for picture in drawn] == [
        "percentiles",
        "trials",
        *(f"{name}-{slug}" for slug in (OPEN, CLOSED) for name in ("distribution", "over-time")),
    ]
    for picture in drawn:
        if kind == "svg":
            assert ElementTree.fromstring(picture.data).tag.endswith("svg")
        else:
            assert picture.data.startswith(b"\x89PNG")


def test_the_same_run_gives_the_same_bytes(run: Run) -> None:
    first, second = (plots.figures(run, summarise(run)) for _ in range(2))
    assert first == second


def test_a_published_run_has_percentiles_only() -> None:
    run = load_run(PUBLISHED)
    assert [p.name for p in plots.pictures(run, summarise(run))] == ["percentiles"]
    canvas = plots.percentiles(summarise(run))
    assert [len(cloud) for cloud in points(canvas.axes[0])] == [6] * 5


def test_figures_are_saved_or_the_folder_is_named(run: Run, tmp_path: Path) -> None:
    paths = plots.save_figures(run, tmp_path / "new" / "figures")
    assert len(paths) == 6
    assert all(path.stat().st_size > 1000 for path in paths)
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot draw figures there"):
        plots.save_figures(run, tmp_path / "file")


def test_a_thinned_picture_keeps_the_slowest() -> None:
    assert set(range(99_900, 100_000)) < set(_thinned(100_000).tolist())
    assert len(_thinned(100_000)) < 5000
    values = np.ones(100_000)
    values[12_345] = 9.0
    kept = _slowest_and_some(values)
    assert 12_345 in kept
    assert len(kept) < 5000


def test_reports_do_not_load_matplotlib() -> None:
    code = "import sys, embbench.report; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
