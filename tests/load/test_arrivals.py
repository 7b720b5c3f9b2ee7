"""Schedules: exact, absolute, and the same for the same seed."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embbench.config.plan import OpenLoop
from embbench.errors import ConfigError
from embbench.load.arrivals import intended_offsets_ns


def test_constant_is_exact_to_the_last_request() -> None:
    offsets = intended_offsets_ns(OpenLoop(1000.0), 1_000_001, 0)
    assert offsets.dtype == np.int64
    assert (offsets == np.arange(1_000_001) * 1_000_000).all()
    thirds = intended_offsets_ns(OpenLoop(3.0), 300_001, 0)
    assert thirds[-1] == 100_000 * 1_000_000_000  # no drift from summing rounded gaps
    assert abs(np.diff(thirds) - 1e9 / 3).max() <= 1


@given(st.floats(0.01, 1e6), st.integers(0, 200), st.integers(0, 2**32))
def test_first_is_zero_and_time_never_runs_back(rate: float, count: int, seed: int) -> None:
    for arrival in ("constant", "poisson"):
        offsets = intended_offsets_ns(OpenLoop(rate, arrival), count, seed)
        assert len(offsets) == count
        assert (offsets[:1] == 0).all()
        assert (np.diff(offsets) >= 0).all()


def test_poisson_has_the_rate_and_the_spread_of_its_name() -> None:
    gaps_s = np.diff(intended_offsets_ns(OpenLoop(200.0, "poisson"), 50_001, 7)) / 1e9
    assert np.mean(gaps_s) == pytest.approx(1 / 200, rel=0.02)  # sd of the mean: 0.45 %
    assert np.std(gaps_s) == pytest.approx(1 / 200, rel=0.03)
    assert (gaps_s > 1 / 200).mean() == pytest.approx(np.exp(-1), abs=0.01)


def test_a_seed_is_a_schedule_and_zero_is_a_seed() -> None:
    load = OpenLoop(10.0, "poisson")
    zero = intended_offsets_ns(load, 100, 0)
    assert (zero == intended_offsets_ns(load, 100, 0)).all()
    assert (zero != intended_offsets_ns(load, 100, 1)).any()
    assert (zero[:50] == intended_offsets_ns(load, 50, 0)).all()


def test_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    path.write_text("# seconds\n100.5\n\n100.5  # twice at once\n101.25\n103\n")
    offsets = intended_offsets_ns(OpenLoop(1.0, "trace", str(path)), 3, 0)
    assert offsets.tolist() == [0, 0, 750_000_000]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0\n1\n", "2 offsets for 3 requests"),
        ("0\n2\n1\n", ":3: 1 comes before"),
        ("0\none\n2\n", ":2: 'one' is not an offset"),
        ("0\nnan\n2\n", ":2: 'nan' is not an offset"),
        ("0\ninf\n2\n", ":2: 'inf' is not an offset"),
        ("", "0 offsets"),
    ],
)
def test_traces_of_no_use(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "trace.txt"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        intended_offsets_ns(OpenLoop(1.0, "trace", str(path)), 3, 0)


def test_a_trace_that_is_not_there(tmp_path: Path) -> None:
    for trace in (None, str(tmp_path / "none"), str(tmp_path)):
        with pytest.raises(ConfigError):
            intended_offsets_ns(OpenLoop(1.0, "trace", trace), 3, 0)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_rates_of_no_use(rate: float) -> None:
    for arrival in ("constant", "poisson"):
        with pytest.raises(ConfigError, match="rate"):
            intended_offsets_ns(OpenLoop(rate, arrival), 3, 0)
