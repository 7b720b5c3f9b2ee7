"""Evidence: how far two sets of trials differ, and how surprising that would be without a cause.

In: the logarithm of one percentile, one value a trial and side. Out: differences with intervals and
p-values. All functions work along the last axis, so that thousands of comparisons go at once.

Two analyses, chosen by the design and never by the data:

paired  both sides were driven in the same rounds, and there are at least `PAIRS` of them: Student's
        t on the differences within a round, and the exact sign-flip test (Fisher, The Design of
        Experiments, 1935, section 21). What the machine does to a whole round cancels.
groups  otherwise: Welch's t (Welch, Biometrika 34, 1947), and the exact permutation test (Pitman,
        Suppl. J. Royal Stat. Soc. 4, 1937). If the machine drifts, this errs towards no difference
        as long as the order of the sides was balanced.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, product
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Analysis = Literal["paired", "groups"]

ALPHA = 0.01
"""Chance of a verdict where nothing differs: of one comparison, and of a whole family."""

PAIRS = math.ceil(1 + math.log2(1 / ALPHA))
"""The fewest rounds with which the exact paired test can reach `ALPHA`: 2 / 2^8 = 0.008."""

_EXACT_UP_TO = 20_000


@dataclass(frozen=True, slots=True)
class Contrast:
    """Candidate minus base, on the logarithms; arrays of the leading shape of the input.

    ``spread`` is the standard error of ``difference``, ``freedom`` its degrees of freedom, and
    ``exact`` the p-value of the exact test of no difference at all.
    """

    analysis: Analysis
    difference: Floats
    spread: Floats
    freedom: Floats
    exact: Floats


def enough_trials(base: int, candidate: int, *, paired: bool) -> bool:
    """Can the exact test reach `ALPHA` at all? 5 against 5 can (2 of 252), 4 against 4 cannot.

    Fewer than 3 starts say nothing of how much starts differ, however many the other side has.
    """
    if paired and min(base, candidate) >= PAIRS:
        return True
    return min(base, candidate) >= 3 and 2 / math.comb(base + candidate, base) <= ALPHA


def contrast(base: Floats, candidate: Floats, *, paired: bool) -> Contrast:
    """Compare two sides (..., trials); ``paired`` says that trial i of both is of one round."""
    if paired and base.shape[-1] == candidate.shape[-1] >= PAIRS:
        gaps = candidate - base
        rounds = gaps.shape[-1]
        return Contrast(
            "paired",
            gaps.mean(axis=-1),
            gaps.std(axis=-1, ddof=1) / math.sqrt(rounds),
            np.full(gaps.shape[:-1], rounds - 1.0),
            sign_flip_p(gaps),
        )
    difference = candidate.mean(axis=-1) - base.mean(axis=-1)
    parts = [side.var(axis=-1, ddof=1) / side.shape[-1] for side in (base, candidate)]
    total = parts[0] + parts[1]
    weights = parts[0] ** 2 / (base.shape[-1] - 1) + parts[1] ** 2 / (candidate.shape[-1] - 1)
    least = float(min(base.shape[-1], candidate.shape[-1]) - 1)
    freedom = np.where(weights > 0, total**2 / np.where(weights > 0, weights, 1.0), least)
    return Contrast("groups", difference, np.sqrt(total), freedom, permutation_p(base, candidate))


def beyond_p(found: Contrast, threshold: Floats | float) -> Floats:
    """The p-value of a difference no larger than ``threshold`` either way.

    It is at most x exactly when the two-sided 1 - x interval is clear of the threshold, so the
    p-value and the interval that is shown can never contradict each other.
    """
    from scipy.special import stdtr

    excess = np.abs(found.difference) - threshold
    steps = np.where(excess > 0, np.inf, -np.inf)  # where all trials agree to the last digit
    np.divide(excess, found.spread, out=steps, where=found.spread > 0)
    p_value: Floats = np.minimum(1.0, 2 * stdtr(found.freedom, -steps))
    return p_value


def interval(found: Contrast, confidence: float) -> tuple[Floats, Floats]:
    """Student's two-sided interval of the difference."""
    from scipy.special import stdtrit

    half = stdtrit(found.freedom, (1 + confidence) / 2) * found.spread
    return found.difference - half, found.difference + half


def sign_flip_p(gaps: Floats) -> Floats:
    """Exact two-sided p of paired differences: the share of sign patterns with a mean as far off.

    More than 14 rounds are sampled, and counted so that the p-value stays valid (Phipson & Smyth,
    Stat. Appl. Genet. Mol. Biol. 9, 2010).
    """
    patterns, sampled = _sign_patterns(gaps.shape[-1])
    return _share_as_far(np.abs(gaps @ patterns.T), np.abs(gaps.sum(axis=-1)), sampled)


def permutation_p(base: Floats, candidate: Floats) -> Floats:
    """Exact two-sided p of two groups: the share of relabellings with means as far apart."""
    patterns, sampled = _labellings(base.shape[-1], candidate.shape[-1])
    values = np.concatenate([base, candidate], axis=-1)
    found = candidate.mean(axis=-1) - base.mean(axis=-1)
    return _share_as_far(np.abs(values @ patterns.T), np.abs(found), sampled)


def _share_as_far(all_ways: Floats, found: Floats, sampled: bool) -> Floats:
    # equal in exact arithmetic must be equal here, or the p-value would come out too small
    slack = 1e-9 * np.maximum(all_ways.max(axis=-1), 1e-300)
    far = all_ways >= (found - slack)[..., None]
    # the observed labelling is one more way, of which a sample need not know
    share: Floats = (far.sum(axis=-1) + sampled) / (all_ways.shape[-1] + sampled)
    return share


@lru_cache(maxsize=64)
def _sign_patterns(rounds: int) -> tuple[Floats, bool]:
    if 2**rounds <= _EXACT_UP_TO:
        return np.array(list(product((1.0, -1.0), repeat=rounds))), False
    random = np.random.default_rng(rounds)
    return random.choice((1.0, -1.0), (_EXACT_UP_TO, rounds)), True


@lru_cache(maxsize=256)
def _labellings(base: int, candidate: int) -> tuple[Floats, bool]:
    """Rows of weights whose product with the pooled values is the difference of the two means."""
    total = base + candidate
    exact = math.comb(total, candidate) <= _EXACT_UP_TO
    if exact:
        chosen = np.array(list(combinations(range(total), candidate)))
    else:
        ranks = np.random.default_rng(total).random((_EXACT_UP_TO, total))
        chosen = np.argsort(ranks, axis=1)[:, :candidate]
    weights = np.full((len(chosen), total), -1.0 / base)
    np.put_along_axis(weights, chosen, 1.0 / candidate, axis=1)
    return weights, not exact


def false_discovery(p_values: Floats) -> Floats:
    """Adjusted p-values of one family (Benjamini & Hochberg, J. Royal Stat. Soc. B 57, 1995).

    At most `ALPHA` of the verdicts drawn at an adjusted p of `ALPHA` are expected to be false, and
    where nothing differs at all the chance of even one verdict is at most `ALPHA`. Percentiles of
    the same samples and comparisons with the same base are positively dependent, under which it
    holds (Benjamini & Yekutieli, Annals of Statistics 29, 2001).
    """
    from scipy.stats import false_discovery_control

    if len(p_values) == 0:
        return p_values
    adjusted: Floats = false_discovery_control(p_values, method="bh")
    return adjusted
