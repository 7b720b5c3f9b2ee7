"""Diagnose: findings in words, computed, each with what to do.

In: samples and summaries of a run. Out: `Finding`s of severity warn or info; none of them makes a
cell INVALID. On noise without a cause each check stays silent in at least 99 of 100 trials
(`FALSE_ALARM`; tests/test_diagnose.py counts), and what is found is also large enough to matter.

within   one trial: warm-up not over, drift, two humps, a queue that grew
across   the trials of a cell, and targets beside each other: a trial out of line, a tail, starts
"""

from embbench.analysis.diagnose.across import odd_trials, start_spread, tail_against_floor
from embbench.analysis.diagnose.within import trial_findings

FALSE_ALARM = 0.01

__all__ = [
    "FALSE_ALARM",
    "odd_trials",
    "start_spread",
    "tail_against_floor",
    "trial_findings",
]
