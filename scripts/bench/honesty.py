"""How often is a verdict wrong? Counted where the truth is known.

    .venv/bin/python scripts/bench/honesty.py [--comparisons 1000] [--jobs 2]

Three questions, each also put to the common practice (one run each, figures side by side, 5 %
counts as a difference): how often equal servers are called different, how often a server that is
10 % slower is called so, and how often the 95 % interval holds the true ratio. Prints Markdown.
"""

import argparse
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import combinations

import numpy as np
from noise import SHAPES, latencies_ns, recorded_starts
from numpy.typing import ArrayLike, NDArray

from embbench.analysis.bootstrap import hierarchical_interval, trial_draws
from embbench.analysis.exact_tests import contrast, interval
from embbench.analysis.percentiles import PERCENTILES, Percentile, cell_percentile, percentile
from embbench.analysis.verdicts import Comparison, Question, compare_cells, judge, relative_to

THRESHOLD = 0.05
BOOTSTRAPPED = 40


@dataclass(frozen=True, slots=True)
class Row:
    """Shares in percent of the comparisons of one shape; each percentile is one comparison."""

    shape: str
    practice_wrong: float
    wrong: float
    practice_called: float
    called: tuple[float, ...]
    held: tuple[float, ...]
    bootstrap_held: float


def practice(base: ArrayLike, candidate: ArrayLike) -> NDArray[np.bool_]:
    """Which of the figures differ by 5 % or more of the smaller one, one run each."""
    ratio = np.array(candidate) / np.array(base)
    return np.asarray(np.maximum(ratio, 1 / ratio) >= 1 + THRESHOLD)


def measure(shape: str, comparisons: int, trials: int, requests: int) -> Row:
    """Compare equal servers, and then servers of which one is 10 % slower."""
    size = (comparisons, 2, trials, requests)
    answers: dict[float, list[Comparison]] = {}
    by_practice: dict[float, NDArray[np.bool_]] = {}
    for effect in (0.0, 0.1):
        times = latencies_ns(shape, size, effect=effect, seed=int(1000 * effect) + trials)
        answers[effect] = [
            answer
            for base, candidate in times
            for answer in compare_cells(base, candidate, PERCENTILES, paired=True)
        ]
        single = np.percentile(times[:, :, 0], PERCENTILES, axis=-1)
        if effect == 0:
            by_practice[effect] = practice(single[:, :, 0], single[:, :, 1])
            held_by_bootstrap = bootstrap_held(times[:BOOTSTRAPPED])
        else:
            by_practice[effect] = single[:, :, 1] / single[:, :, 0] >= 1 + THRESHOLD
    false = [a.verdict in ("faster", "slower") for a in answers[0.0]]
    called = np.array([a.verdict == "slower" for a in answers[0.1]]).reshape(-1, len(PERCENTILES))
    held = np.array([(a.low or 9) <= 1 <= (a.high or 0) for a in answers[0.0]])
    return Row(
        shape,
        100 * float(by_practice[0.0].mean()),
        100 * float(np.mean(false)),
        100 * float(by_practice[0.1].mean()),
        tuple(100 * called.mean(axis=0)),
        tuple(100 * held.reshape(-1, len(PERCENTILES)).mean(axis=0)),
        held_by_bootstrap,
    )


@dataclass(frozen=True, slots=True)
class Apart:
    """Two runs, one after the other: shares in percent of the comparisons of one shape.

    Each for taking the trials as if they had been driven together, for what embbench does with two
    runs that have nothing in common, and for what it does when both drove the same floor.
    """

    shape: str
    wrong: tuple[float, ...]
    called: tuple[float, ...]


def measure_apart(shape: str, comparisons: int, trials: int, requests: int) -> Apart:
    """Compare the second side of the first ``trials`` rounds with that of the next ``trials``."""
    shares: dict[float, tuple[float, ...]] = {}
    for effect, wanted in ((0.0, {"faster", "slower"}), (0.1, {"slower"})):
        times = latencies_ns(shape, (comparisons, 2, 2 * trials, requests), effect=0, seed=trials)
        slower = np.rint(times[:, 1, trials:] * (1 + effect)).astype(np.int64)
        hits = np.zeros((comparisons, 3, len(PERCENTILES)), bool)
        for number in range(comparisons):
            floor, target = times[number]
            sides = [cells(t) for t in (target[:trials], slower[number])]
            floors = [cells(t) for t in (floor[:trials], floor[trials:])]
            related = [
                [relative_to(s, f) for s, f in zip(side, under, strict=True)]
                for side, under in zip(sides, floors, strict=True)
            ]
            for way, (pair, apart) in enumerate(((sides, False), (sides, True), (related, False))):
                family = [Question(*both, False, apart=apart) for both in zip(*pair, strict=True)]
                hits[number, way] = [answer.verdict in wanted for answer in judge(family)]
        shares[effect] = tuple(100 * hits.mean(axis=(0, 2)))
    return Apart(shape, shares[0.0], shares[0.1])


def cells(trials: NDArray[np.int64]) -> list[Percentile]:
    """The cell's percentiles of an array (trials, requests)."""
    ordered = np.sort(trials, axis=-1)
    return [cell_percentile([percentile(t, p, ordered=True) for t in ordered]) for p in PERCENTILES]


def bootstrap_held(times: NDArray[np.int64]) -> float:
    """How often the hierarchical bootstrap's interval holds the true ratio of 1, in percent."""
    held: list[bool] = []
    for number, sides in enumerate(times):
        draws = [
            [trial_draws(t, seed=16 * number + i) for i, t in enumerate(side)] for side in sides
        ]
        for row in range(len(PERCENTILES)):
            base, candidate = ([trial[row] for trial in side] for side in draws)
            low, high = hierarchical_interval(base, candidate, paired=True, seed=number)
            held.append(low <= 1 <= high)
    return 100 * float(np.mean(held))


def splits(starts: int, most: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Every two disjoint sides of one to ``most`` starts each."""
    for size in range(1, most + 1):
        for base in combinations(range(starts), size):
            rest = [s for s in range(starts) if s not in base]
            for other in range(1, most + 1):
                yield from ((base, candidate) for candidate in combinations(rest, other))


def recorded_table() -> list[str]:
    """All splits of the recorded starts, all A/A: what each way of deciding makes of them."""
    names = ("faster", "slower", "no measurable difference", "too few trials", None)
    counts: dict[tuple[int, int], dict[str | None, int]] = {}
    by_t: dict[tuple[int, int], list[bool]] = {}
    for batch in (1, 15):
        starts = recorded_starts(batch)
        known = [[percentile(s, p) for s in starts] for p in PERCENTILES]
        for base, candidate in splits(len(starts), 4):
            sides = [
                [cell_percentile([one[i] for i in side]) for one in known]
                for side in (base, candidate)
            ]
            shape = (min(len(base), len(candidate)), max(len(base), len(candidate)))
            counts.setdefault(shape, dict.fromkeys(names, 0))
            family = [Question(b, c, paired=False) for b, c in zip(*sides, strict=True)]
            for question, answer in zip(family, judge(family), strict=True):
                counts[shape][answer.verdict] += 1
                if shape[0] >= 2:
                    by_t.setdefault(shape, []).append(_t_alone(question))
    practice_calls = [
        bool(called)
        for batch in (1, 15)
        for a, b in combinations(recorded_starts(batch), 2)
        for called in practice(
            [float(np.percentile(a, p)) for p in PERCENTILES],
            [float(np.percentile(b, p)) for p in PERCENTILES],
        )
    ]
    total = sum(sum(c.values()) for c in counts.values())
    wrong = sum(c["faster"] + c["slower"] for c in counts.values())
    lines = [
        f"Common practice: {sum(practice_calls)} of {len(practice_calls)} comparisons of two "
        f"starts find a difference ({100 * np.mean(practice_calls):.0f} %).",
        f"embbench: {wrong} of {total} find one ({100 * wrong / total:.2f} %).",
        "",
        "| trials a side | comparisons | faster or slower | too few trials "
        "| percentile not carried | by Student's t alone at 1 % |",
        "|:--|--:|--:|--:|--:|--:|",
    ]
    for shape, found in sorted(counts.items()):
        alone = f"{100 * np.mean(by_t[shape]):.1f} % wrong" if shape in by_t else "-"
        lines.append(
            f"| {shape[0]} against {shape[1]} | {sum(found.values())} "
            f"| {found['faster'] + found['slower']} | {found['too few trials']} | {found[None]} "
            f"| {alone} |"
        )
    return lines


def _t_alone(question: Question) -> bool:
    """Would Welch's 99 % interval alone call a difference?"""
    logs = [np.log(side.trials_ns) for side in (question.base, question.candidate)]
    low, high = interval(contrast(logs[0], logs[1], paired=False), 0.99)
    return bool(low > np.log(1.02) or high < -np.log(1.02))


def simulated_table(rows: Sequence[Row]) -> list[str]:
    """The honesty table of one plan."""
    lines = [
        "| noise | equal servers called different: common practice | embbench "
        "| 10 % slower called slower: common practice | embbench p50 / p90 / p99 "
        "| 95 % interval holds the truth p50 / p90 / p99 | hierarchical bootstrap's holds it |",
        "|:--|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {r.shape} | {r.practice_wrong:.0f} % | {r.wrong:.2f} % | {r.practice_called:.0f} % "
        f"| {_triple(r.called, 0)} % | {_triple(r.held, 1)} % | {r.bootstrap_held:.0f} % |"
        for r in rows
    ]
    mean = [float(np.mean([getattr(r, name) for r in rows])) for name in _AVERAGED]
    lines.append(
        f"| **all** | {mean[0]:.0f} % | **{mean[1]:.2f} %** | {mean[2]:.0f} % | {mean[3]:.0f} % "
        f"| {mean[4]:.1f} % | {mean[5]:.0f} % |"
    )
    return lines


def apart_table(rows: Sequence[Apart]) -> list[str]:
    """The honesty table of two runs, one after the other."""
    lines = [
        "| noise | equal servers called different: as if driven together | embbench, nothing in "
        "common | embbench, same floor in both | 10 % slower called slower: as if together "
        "| nothing in common | same floor |",
        "|:--|--:|--:|--:|--:|--:|--:|",
    ]
    means = Apart(
        "**all**",
        tuple(np.mean([r.wrong for r in rows], axis=0)),
        tuple(np.mean([r.called for r in rows], axis=0)),
    )
    return lines + [
        f"| {r.shape} | {' | '.join(f'{w:.2f} %' for w in r.wrong)} "
        f"| {' | '.join(f'{c:.0f} %' for c in r.called)} |"
        for r in (*rows, means)
    ]


_AVERAGED = ("practice_wrong", "wrong", "practice_called", "called", "held", "bootstrap_held")


def _triple(values: Sequence[float], digits: int) -> str:
    return " / ".join(f"{v:.{digits}f}" for v in values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--comparisons", type=int, default=1000, help="of each noise and effect")
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    print("## Recorded: eight starts of one real server, every split\n")
    print("\n".join(recorded_table()))
    for trials, requests in ((8, 400), (5, 400)):
        work = partial(measure, comparisons=asked.comparisons, trials=trials, requests=requests)
        with ProcessPoolExecutor(asked.jobs) as pool:
            rows = list(pool.map(work, SHAPES))
        count = len(SHAPES) * asked.comparisons * len(PERCENTILES)
        plan = f"{trials} trials of {requests} requests"
        print(f"\n## Simulated, one run: {plan}, {count} comparisons\n")
        print("\n".join(simulated_table(rows)))
    few = asked.comparisons // 2
    with ProcessPoolExecutor(asked.jobs) as pool:
        work_apart = partial(measure_apart, comparisons=few, trials=8, requests=200)
        apart = list(pool.map(work_apart, SHAPES))
    count = len(SHAPES) * few * len(PERCENTILES)
    print(f"\n## Simulated, two runs: 8 trials of 200 requests, {count} comparisons\n")
    print("\n".join(apart_table(apart)))


if __name__ == "__main__":
    main()
