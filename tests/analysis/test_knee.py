"""The knee of a rate sweep, on queues whose answer is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embbench.analysis.knee import find_knee


def mm1(rates: list[float], capacity: float) -> list[float]:
    """Mean response time of an M/M/1 queue in ns."""
    return [1e9 / (capacity - rate) for rate in rates]


def test_an_mm1_queue_bends_at_half_of_its_capacity() -> None:
    """Kleinrock 1979: power is greatest where the load is one half."""
    rates = [10.0 * n for n in range(1, 10)]
    knee = find_knee(rates, rates, mm1(rates, 100.0))
    assert knee is not None
    assert (knee.rate_rps, rates[knee.index]) == (50.0, 50.0)
    assert "faster than throughput" in knee.why


@given(st.permutations(range(9)))
def test_the_order_of_rates_does_not_matter(order: list[int]) -> None:
    rates = [10.0 * (n + 1) for n in order]
    knee = find_knee(rates, rates, mm1(rates, 100.0))
    assert knee is not None
    assert knee.rate_rps == 50.0
    assert rates[knee.index] == 50.0


def test_a_server_of_constant_time_bends_where_it_no_longer_keeps_up() -> None:
    """Ten places of 100 ms each: 100/s at most, and no queue below that."""
    rates = [20.0, 40.0, 60.0, 80.0, 100.0, 120.0]
    answered = [min(rate, 100.0) for rate in rates]
    response = [0.1e9] * 5 + [2e9]
    knee = find_knee(rates, answered, response)
    assert knee is not None
    assert knee.rate_rps == 100.0
    assert "kept up" in knee.why


def test_no_knee_in_sight() -> None:
    rates = [1.0, 2.0, 3.0, 4.0]
    assert find_knee(rates, rates, [1e6] * 4) is None  # flat: the knee is beyond
    assert find_knee(rates[:2], rates[:2], [1e6, 9e9]) is None  # too few rates to bend
    assert find_knee(rates, [0.5] * 4, [1e6] * 4) is None  # never kept up
    assert find_knee([], [], []) is None


@pytest.mark.parametrize("share", [0.985, 0.2])
def test_rates_beyond_the_first_miss_do_not_count(share: float) -> None:
    rates = [10.0, 20.0, 30.0, 40.0]
    answered = [10.0, 20.0, 30.0 * share, 40.0]
    knee = find_knee(rates, answered, list(np.array([1.0, 1.5, 2.0, 2.0]) * 1e6))
    assert knee is not None
    assert knee.rate_rps == 20.0
