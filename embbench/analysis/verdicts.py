"""Compare: verdicts over the percentiles of two sides, for a whole family of comparisons at once.

In: `Question`s, each with the cell percentiles of a base and a candidate. Out: one `Comparison`
each. A verdict needs all of:

- trials: enough for the exact test to reach 1 % (`evidence.enough_trials`);
- size: the interval of the ratio is clear of ``min_effect``, the smallest difference worth a word;
- evidence: the exact test is at most 1 %, whatever the latencies' distribution, and Student's
  p-value is at most 1 % after the Benjamini-Hochberg correction for all comparisons of the family.

Percentiles that the sample cannot carry, and sides without trials, get no verdict at all.
docs/statistics.md tells why, and how often each of these is wrong.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from embbench.analysis.exact_tests import (
    ALPHA,
    PAIRS,
    Contrast,
    beyond_p,
    contrast,
    enough_trials,
    false_discovery,
    interval,
)
from embbench.analysis.percentiles import (
    CONFIDENCE,
    PERCENTILES,
    Percentile,
    cell_percentile,
    percentile,
    requests_needed,
)
from embbench.analysis.questions import MIN_EFFECT, Comparison, Question, Verdict

__all__ = [
    "MIN_EFFECT",
    "Comparison",
    "Question",
    "Verdict",
    "compare_cells",
    "detectable_log",
    "judge",
    "min_effects",
    "noise_floor",
    "relative_to",
]

APART_EFFECT, APART_SPREADS = 0.05, 3.0
"""Two runs, one after the other: the least difference called, as a share and in standard deviations
of a trial. What the machine did in between cannot be told from what the target did; it is taken to
be no more than three times what a run shows from trial to trial.
"""

POWER = 0.8


@dataclass(frozen=True, slots=True)
class _Evidence:
    question: Question
    contrast: Contrast
    trials: tuple[int, int]
    threshold: float


def judge(
    questions: Iterable[Question], min_effect: float | Mapping[float, float] = MIN_EFFECT
) -> tuple[Comparison, ...]:
    """Answer a family of questions, in order, corrected for their number.

    ``min_effect`` is a share (0.05 for 5 %), or one for each percentile; see `noise_floor`.
    """
    asked = list(questions)
    answers: list[Comparison] = []
    weighed: dict[int, _Evidence] = {}
    for index, question in enumerate(asked):
        effect = min_effect if isinstance(min_effect, int | float) else min_effect[question.base.p]
        answer = _without_evidence(question, effect)
        both = _logs(question)
        if both is not None and min(len(both[0]), len(both[1])) >= 2:
            base, candidate, paired = both
            if question.apart:
                effect = max(effect, _apart_effect(base, candidate))
            found = contrast(base, candidate, paired=paired)
            evidence = _Evidence(question, found, (len(base), len(candidate)), math.log1p(effect))
            answer = replace(_with_interval(answer, evidence), min_effect=effect)
            if answer.verdict is None and not answer.reason:
                weighed[index] = evidence
        answers.append(answer)
    raw = np.array([float(beyond_p(e.contrast, e.threshold)) for e in weighed.values()])
    adjusted = false_discovery(raw)
    called = int((adjusted <= ALPHA).sum())
    for (index, evidence), p_value in zip(weighed.items(), adjusted, strict=True):
        answers[index] = _with_verdict(
            answers[index],
            evidence,
            float(p_value),
            len(raw),
            ALPHA * min(1.0, (called + 1) / len(raw)),
        )
    return tuple(answers)


def compare_cells(
    base: Sequence[NDArray[np.int64]],
    candidate: Sequence[NDArray[np.int64]],
    ps: Sequence[float] = PERCENTILES,
    *,
    paired: bool = False,
    min_effect: float | Mapping[float, float] = MIN_EFFECT,
) -> tuple[Comparison, ...]:
    """Compare one cell of two targets: successes' latencies in ns, one array a trial.

    ``paired`` says that trial i of both was driven in the same round. The family is ``ps``; use
    `judge` for all cells of a report at once.
    """

    def cell(trials: Sequence[NDArray[np.int64]]) -> list[Percentile]:
        ordered = [np.sort(t) for t in trials]
        return [cell_percentile([percentile(t, p, ordered=True) for t in ordered]) for p in ps]

    sides = zip(cell(base), cell(candidate), strict=True)
    return judge((Question(b, c, paired) for b, c in sides), min_effect)


def relative_to(side: Percentile, control: Percentile) -> Percentile:
    """Each trial's percentile divided by the control's of the same round, for two runs to compare.

    Two runs are far apart in time, and what the machine did in between looks like a difference. If
    the same control target (the floor) was driven in every round of both, comparing the ratios to
    it takes that out. The values are ratios, not nanoseconds. Without a common round nothing is
    left: the result is not closed.
    """
    by_round = dict(zip(control.rounds, control.trials_ns, strict=True))
    kept = [
        (value / by_round[number], number)
        for value, number in zip(side.trials_ns, side.rounds, strict=True)
        if number in by_round
    ]
    values = tuple(value for value, _ in kept)
    logs = np.log(values)
    return Percentile(
        side.p,
        float(np.exp(logs.mean())) if kept else None,
        None,
        None,
        side.closed and control.closed and bool(kept),
        side.n,
        values,
        tuple(number for _, number in kept),
    )


def noise_floor(pairs: Iterable[Question]) -> dict[float, float]:
    """The largest difference seen between equal targets, for each percentile, as a share.

    In: the questions of an A/A pair, one a cell and percentile. Open percentiles count only where
    no cell has a closed one: better a floor that is too high than none.
    """
    closed: dict[float, float] = {}
    opened: dict[float, float] = {}
    for question in pairs:
        base, candidate = question.base, question.candidate
        if not (base.value_ns and candidate.value_ns):
            continue
        seen = math.expm1(abs(math.log(candidate.value_ns / base.value_ns)))
        floor = closed if base.closed and candidate.closed else opened
        floor[base.p] = max(seen, floor.get(base.p, 0.0))
    return opened | closed


def min_effects(
    floor: Mapping[float, float], ps: Sequence[float] = PERCENTILES, least: float = MIN_EFFECT
) -> dict[float, float]:
    """The default ``min_effect`` of each percentile: the A/A noise floor, and never under 2 %."""
    return {p: max(least, floor.get(p, 0.0)) for p in ps}


def _without_evidence(question: Question, effect: float) -> Comparison:
    """What can be said before any trial is looked at; no verdict and no reason if nothing."""
    base, candidate = question.base, question.candidate
    answer = Comparison(
        question.key,
        base.p,
        None,
        "",
        base_ns=base.value_ns,
        candidate_ns=candidate.value_ns,
        trials=(len(base.trials_ns), len(candidate.trials_ns)),
        min_effect=effect,
    )
    if question.refused:
        return replace(answer, verdict="not comparable", reason=question.refused)
    for name, side in (("base", base), ("candidate", candidate)):
        if side.value_ns is None:
            why = f"the {name} has no successful request"
            return replace(answer, verdict="not comparable", reason=why)
    if math.isfinite(base.value_ns or 0) and math.isfinite(candidate.value_ns or 0):
        answer = replace(answer, ratio=(candidate.value_ns or 0) / (base.value_ns or 1))
    if not base.trials_ns or not candidate.trials_ns:
        return replace(answer, reason="percentiles only: no samples and no trials")
    if not (base.closed and candidate.closed):
        side = candidate if base.closed else base
        least, trials = requests_needed(base.p, len(side.trials_ns)), len(side.trials_ns)
        why = f"{side.n} requests in {trials} {'trial' if trials == 1 else 'trials'} cannot carry"
        return replace(answer, reason=f"{why} a p{base.p:g}; {least} in each can")
    paired = question.paired and len(set(base.rounds) & set(candidate.rounds)) >= PAIRS
    if not enough_trials(*answer.trials, paired=paired):
        b, c = answer.trials
        why = f"{b} against {c} trials cannot tell chance from change at 1 %; 5 against 5 can"
        return replace(answer, verdict="too few trials", reason=why)
    return answer


def _logs(question: Question) -> tuple[NDArray[np.float64], NDArray[np.float64], bool] | None:
    """The logarithms of both sides' trials; of the common rounds only, if there are enough."""
    base, candidate = question.base, question.candidate
    values = (*base.trials_ns, *candidate.trials_ns)
    if question.refused or not all(v > 0 and math.isfinite(v) for v in values):
        return None
    by_round = [dict(zip(s.rounds, s.trials_ns, strict=True)) for s in (base, candidate)]
    common = sorted(by_round[0].keys() & by_round[1].keys())
    if question.paired and len(common) >= PAIRS:
        pair = [np.log([side[number] for number in common]) for side in by_round]
        return pair[0], pair[1], True
    return np.log(base.trials_ns), np.log(candidate.trials_ns), False


def _apart_effect(base: NDArray[np.float64], candidate: NDArray[np.float64]) -> float:
    """The least difference of two runs that is more than a machine does by itself, as a share."""
    squares = sum(float(((side - side.mean()) ** 2).sum()) for side in (base, candidate))
    spread = math.sqrt(squares / (len(base) + len(candidate) - 2))
    return max(APART_EFFECT, math.expm1(APART_SPREADS * spread))


def _with_interval(answer: Comparison, evidence: _Evidence) -> Comparison:
    low, high = interval(evidence.contrast, CONFIDENCE)
    return replace(
        answer,
        ratio=float(np.exp(evidence.contrast.difference)),
        low=float(np.exp(low)),
        high=float(np.exp(high)),
        trials=evidence.trials,
        analysis=evidence.contrast.analysis,
        exact_p=float(evidence.contrast.exact),
    )


def _with_verdict(
    answer: Comparison, evidence: _Evidence, p_value: float, family: int, level: float
) -> Comparison:
    """``level`` is what the uncorrected p-value of this comparison had to reach."""
    found = evidence.contrast
    spread, freedom = float(found.spread), float(found.freedom)
    seen = math.expm1(detectable_log(spread, freedom, evidence.threshold, level))
    direction: Verdict = "slower" if found.difference > 0 else "faster"
    low, high = (float(end) for end in interval(found, CONFIDENCE))
    beyond = low > evidence.threshold or high < -evidence.threshold
    if p_value <= ALPHA and float(found.exact) <= ALPHA:
        verdict = direction
        reason = f"by more than {100 * answer.min_effect:.3g} %, p = {p_value:.1g}"
    else:
        verdict = "no measurable difference"
        reason = f"a slowdown of {100 * seen:.2g} % or more would have been seen"
        if beyond:
            reason += (
                f"; leans to {direction}, but p = {max(p_value, float(found.exact)):.2g} is not "
                f"below {ALPHA:g} over {family} comparisons: more trials would tell"
            )
    return replace(answer, verdict=verdict, reason=reason, p_value=p_value, detectable=seen)


def detectable_log(spread: float, freedom: float, threshold: float, level: float = ALPHA) -> float:
    """The smallest true difference of logarithms that is called in `POWER` of all repetitions.

    The usual sum of two quantiles of Student's t (Bloom, Evaluation Review 19, 1995), on top of the
    threshold that the interval must be clear of.
    """
    from scipy.special import stdtrit

    steps = stdtrit(freedom, 1 - level / 2) + stdtrit(freedom, POWER)
    return float(threshold + steps * spread)
