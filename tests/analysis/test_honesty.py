"""How often verdicts are wrong where the truth is known: scripts/bench/honesty.py in small.

The simulated part is seeded, so it cannot fail by chance; the recorded part is complete.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts" / "bench"


@pytest.fixture(scope="module")
def honesty() -> Any:
    sys.path.insert(0, str(SCRIPTS))
    try:
        module: Any = importlib.import_module("honesty")
    finally:
        sys.path.remove(str(SCRIPTS))
    module.BOOTSTRAPPED = 5
    return module


def test_no_split_of_eight_starts_of_one_server_is_called_a_difference(honesty: Any) -> None:
    lines = honesty.recorded_table()
    practice = lines[0].split()
    assert int(practice[2]) > 140  # the common practice finds one in most of the 168
    assert practice[4] == "168"
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[5:]]
    assert len(rows) == 10
    compared = sum(int(row[1]) for row in rows)
    called = sum(int(row[2]) for row in rows)
    assert compared == 30_492
    assert called <= 0.01 * compared


@pytest.mark.parametrize(("trials", "power"), [(8, 0.40), (5, 0.28)])
def test_equal_servers_are_called_equal_and_intervals_hold_the_truth(
    honesty: Any, trials: int, power: float
) -> None:
    rows = [honesty.measure(shape, 60, trials, 400) for shape in honesty.SHAPES]
    assert len(rows) == 10
    assert np.mean([r.wrong for r in rows]) <= 1.0
    assert max(r.wrong for r in rows) <= 3.4  # two of sixty families, all of whose cells move
    assert 93 <= np.mean([r.held for r in rows]) <= 97.5
    # not for the want of verdicts: a true 10 % is found as often as noise allows
    assert np.mean([r.called for r in rows]) >= 100 * power
    quiet = [r for r in rows if r.shape in ("log-normal", "bimodal")]
    assert all(r.called[0] > 95 for r in quiet)
    assert np.mean([r.practice_wrong for r in rows]) > 30
