"""Summaries of trials whose every request is known."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from embbench.analysis.summary import cell_summary, trial_summary
from embbench.errors import RunError
from embbench.results.pieces import sample_batches
from embbench.results.samples import MEASURED, RECORD, WARMUP, Samples, write_samples

MS = 1_000_000


def trial(
    latencies_ms: list[float],
    *,
    failures_ms: tuple[float, ...] = (),
    lag_ms: float = 0.0,
    gap_ms: float = 100.0,
    warmup: int = 3,
) -> Samples:
    """Requests ``gap_ms`` apart, sent ``lag_ms`` late; failures last; warm-up takes 5 s each."""
    times = [*([5000.0] * warmup), *latencies_ms, *failures_ms]
    rows = np.zeros(len(times), RECORD)
    rows["phase"] = [WARMUP] * warmup + [MEASURED] * (len(times) - warmup)
    rows["intended_start_ns"] = 10**12 + np.arange(len(times)) * round(gap_ms * MS)
    rows["start_ns"] = rows["intended_start_ns"] + round(lag_ms * MS)
    rows["end_ns"] = rows["start_ns"] + np.rint(np.array(times) * MS).astype(np.int64)
    rows["error"] = -1
    rows["status"] = 200
    if failures_ms:
        rows["error"][-len(failures_ms) :] = 0
    rows["request_bytes"], rows["response_bytes"] = 700, 22_000
    return Samples(rows, ("http 503",))


def test_a_trial_is_summarised_without_its_warm_up() -> None:
    found = trial_summary(trial(list(range(1, 101))), time="response")
    assert (found.n, found.failed, found.errors) == (100, 0, {})
    assert [p.value_ns for p in found.percentiles] == pytest.approx(
        [50.5 * MS, 90.1 * MS, 99.01 * MS]
    )
    assert (found.min_ns, found.max_ns) == (1 * MS, 100 * MS)
    assert found.mean_ns == pytest.approx(50.5 * MS)
    assert found.sent_rps == pytest.approx(10)
    assert found.answered_rps == pytest.approx(100 / 10.0)
    assert (found.request_bytes, found.response_bytes) == (700, 22_000)
    assert found.adjusted == ()


def test_a_late_send_is_in_the_response_time_and_not_in_the_service_time() -> None:
    late = trial([20.0] * 50, lag_ms=30)
    response, service = (trial_summary(late, time=t) for t in ("response", "service"))
    assert response.percentiles[0].value_ns == 50 * MS
    assert service.percentiles[0].value_ns == 20 * MS
    assert (service.send_lag_p50_ns, service.send_lag_max_ns) == (30 * MS, 30 * MS)


def test_a_server_that_refuses_fast_does_not_look_fast() -> None:
    found = trial_summary(trial([100.0] * 60, failures_ms=(1.0,) * 40), time="response")
    assert (found.n, found.failed, found.errors) == (60, 40, {"http 503": 40})
    assert found.percentiles[0].value_ns == 100 * MS
    assert [a.value_ns for a in found.adjusted] == [100 * MS, math.inf, math.inf]


def test_when_everything_fails_figures_are_absent_and_never_zero() -> None:
    found = trial_summary(trial([], failures_ms=(1.0,) * 5), time="response")
    assert (found.n, found.failed, found.min_ns, found.mean_ns, found.max_ns) == (0, 5, *[None] * 3)
    assert [p.value_ns for p in found.percentiles] == [None] * 3
    assert found.answered_rps is None
    cell = cell_summary([found, found])
    assert (cell.n, cell.failed, cell.errors) == (0, 10, {"http 503": 10})
    assert [p.value_ns for p in cell.percentiles] == [None] * 3
    assert [a.value_ns for a in cell.adjusted] == [math.inf] * 3


def test_nothing_at_all_is_no_crash() -> None:
    found = trial_summary(trial([], warmup=0), time="response")
    assert (found.n, found.failed, found.sent_rps, found.send_lag_p99_ns) == (0, 0, None, None)


def test_a_cell_holds_its_trials_and_their_rounds() -> None:
    trials = [
        trial_summary(trial([v] * 50, failures_ms=bad), time="response", round_index=i)
        for i, (v, bad) in enumerate([(10.0, ()), (40.0, (2.0,))])
    ]
    cell = cell_summary(trials)
    assert (cell.n, cell.failed, cell.min_ns, cell.max_ns) == (100, 1, 10 * MS, 40 * MS)
    assert cell.at(50).value_ns == pytest.approx(20 * MS)
    assert cell.at(50).rounds == (0, 1)
    assert [a.value_ns for a in cell.adjusted] == pytest.approx([20 * MS, 20 * MS, math.inf])
    text = json.dumps(cell.to_json(), allow_nan=False)
    assert json.loads(text)["adjusted"][2]["value_ns"] == "inf"


def test_a_trial_in_pieces_is_the_same_trial(tmp_path: Path) -> None:
    whole = trial(list(np.linspace(10, 90, 400)), failures_ms=(1.0, 2.0), lag_ms=3)
    path = tmp_path / "trial.parquet"
    write_samples(path, whole, {})
    pieces = list(sample_batches(path, rows=150))
    assert [len(p) for p in pieces] == [150, 150, 105]
    expected = trial_summary(whole, time="service")
    assert trial_summary(pieces, time="service") == expected
    assert expected.errors == {"http 503": 2}
    lean = sample_batches(path, ("start_ns", "end_ns", "error", "phase"), rows=150)
    assert trial_summary(lean, time="service").percentiles == expected.percentiles
    assert trial_summary([], time="service").n == 0


def test_a_file_that_cannot_be_read_is_said_to_be_so(tmp_path: Path) -> None:
    path = tmp_path / "trial.parquet"
    with pytest.raises(RunError, match="not readable as samples"):
        list(sample_batches(path))
    write_samples(path, trial([1.0]), {})
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(RunError, match="cut short"):
        list(sample_batches(path))
    write_samples(path, trial([1.0]), {"embbench_schema": "99"})
    with pytest.raises(RunError, match="schema 99"):
        list(sample_batches(path))
