"""The plan: every cell once a round, drift balanced, the story's cells as published."""

from collections import Counter
from itertools import pairwise

import pytest

from embbench.config.files import resolve
from embbench.config.grid import balanced_order, build_plan, estimate_s
from embbench.config.plan import ClosedLoop, OpenLoop
from embbench.config.schema import RunConfig
from embbench.errors import ConfigError


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_linear_drift_falls_on_all_items_alike(count: int, seed: int) -> None:
    orders = balanced_order(range(count), 2 * count, seed)
    places = {item: [order.index(item) for order in orders] for item in range(count)}
    assert {sum(p) for p in places.values()} == {count * (count - 1)}
    for first, second in zip(orders[::2], orders[1::2], strict=True):
        assert first == second[::-1]


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6])
def test_each_item_follows_each_other_equally_often(count: int) -> None:
    orders = balanced_order(range(count), 2 * count, seed=3)
    follows = Counter(pair for order in orders for pair in pairwise(order))
    assert len(follows) == count * (count - 1)
    assert len(set(follows.values())) == 1


def test_two_targets_go_abba() -> None:
    rounds = balanced_order("AB", 4, seed=1)
    assert "".join("".join(order) for order in rounds) in ("ABBABAAB", "BAABABBA")


def test_every_cell_is_driven_once_a_round_from_a_fresh_start() -> None:
    config = RunConfig(trials=4)
    plan = build_plan(config)
    driven = Counter((t.target, t.work, t.index) for e in plan.episodes for t in e.trials)
    assert set(driven.values()) == {1}
    assert len(driven) == 4 * 3 * 4
    assert all(len(episode.targets) == 1 for episode in plan.episodes)


def test_co_resident_alternates_targets_cell_by_cell() -> None:
    plan = build_plan(RunConfig(trials=2, placement="co-resident"))
    assert [set(e.targets) for e in plan.episodes] == [set(plan.targets)] * 2
    for episode in plan.episodes:
        by_cell = [episode.trials[i : i + 4] for i in range(0, len(episode.trials), 4)]
        assert all(len({t.work for t in group}) == 1 for group in by_cell)
        assert all({t.target for t in group} == set(plan.targets) for group in by_cell)


def test_the_batch_decides_the_load() -> None:
    work = {w.batch: w for w in build_plan(RunConfig()).work}
    assert work[15].load == work[64].load == OpenLoop(10)
    assert work[1024].load == ClosedLoop(1)


def test_a_cell_asked_for_twice_is_refused() -> None:
    config = resolve({"batches": [15, 15]}, "c.yaml")
    with pytest.raises(ConfigError, match="b15-isl80-float-rate10 is asked for twice"):
        build_plan(config)


def test_aa_launches_the_floor_once_more() -> None:
    config = RunConfig(aa=True)
    assert list(config.all_targets) == ["bare", "baseline", "opt-2", "shm", "bare-aa"]
    assert config.all_targets["bare-aa"].same_as == "bare"


def test_the_estimate_counts_the_schedule_and_the_starts() -> None:
    # 40 requests at 10/s last 4 s however quick the server, 3 s to start, for 1 target and 1 trial
    raw = {"batches": [1], "trials": 1, "loads": [{"rate_rps": 10, "requests": 40, "warmup": 0}]}
    config = resolve(raw, "c.yaml", only_targets=["bare"])
    assert estimate_s(config, build_plan(config)) == pytest.approx(7, abs=1)
