"""The gate's grammar, and what each rule catches."""

from typing import Any

import pytest

from embbench.analysis.gates import Rule, evaluate, parse_rules
from embbench.analysis.verdicts import Comparison
from embbench.errors import ConfigError


def comparison(p: float, verdict: Any, low: float = 0.9, high: float = 1.1) -> Comparison:
    return Comparison(
        key=("shm", "b15-isl80-float-rate10"), p=p, verdict=verdict, reason="", low=low, high=high
    )


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("p99 slower", ("slower", 99, 0, "*")),
        ("slower", ("slower", None, 0, "*")),
        ("P50 Slower BY 5%", ("slower", 50, 0.05, "*")),
        ("p99.9 faster by 2.5 % in shm", ("faster", 99.9, 0.025, "shm")),
        ("too  few   trials", ("too few trials", None, 0, "*")),
        ("p99 no verdict in b15-*", ("no verdict", 99, 0, "b15-*")),
        ("not comparable", ("not comparable", None, 0, "*")),
    ],
)
def test_rules_are_read(text: str, rule: tuple[Any, ...]) -> None:
    (found,) = parse_rules(text)
    assert (found.condition, found.p, pytest.approx(found.share), found.pattern) == rule


def test_rules_are_many() -> None:
    assert [r.text for r in parse_rules("p50 slower, p99 slower by 10 %")] == [
        "p50 slower",
        "p99 slower by 10 %",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "p99 slower"),
        ("p99 slwer", "did you mean 'slower'"),
        ("p99 worse", "CONDITION one of faster, slower"),
        ("p99 slower more", "did you mean 'slower'"),
        ("p99 slower by 5", "'by 5 %'"),
        ("too few trials by 5 %", "'by' goes with"),
        ("p100 slower", "between p0 and p100"),
        ("p50 slower,", "CONDITION"),
        ("p50 slower; p99 slower", "CONDITION|did you mean"),
    ],
)
def test_what_is_not_a_rule_is_said_to_be_none(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_rules(text)


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("p99 slower", True),
        ("slower", True),
        ("p50 slower", False),
        ("p99 faster", False),
        ("p99 slower by 5 %", True),
        ("p99 slower by 20 %", False),
        ("p99 slower in shm", True),
        ("p99 slower in b15-*", True),
        ("p99 slower in opt-2", False),
    ],
)
def test_a_rule_is_broken_by_what_fits_all_of_it(text: str, broken: bool) -> None:
    slow = comparison(99, "slower", 1.1, 1.3)
    gate = evaluate(parse_rules(text), [slow, comparison(50, "no measurable difference")])
    assert [one for _, one in gate.broken] == ([slow] if broken else [])
    assert gate.undecided == ()


def test_faster_by_looks_at_the_other_end() -> None:
    fast = comparison(50, "faster", 0.7, 0.93)
    assert evaluate(parse_rules("faster by 5 %"), [fast]).broken
    assert not evaluate(parse_rules("faster by 10 %"), [fast]).broken


def test_what_could_not_be_decided_is_told_apart_from_what_passed() -> None:
    few, opened = comparison(50, "too few trials"), comparison(99, None)
    gate = evaluate(parse_rules("p99 slower"), [few, opened])
    assert (gate.broken, gate.undecided) == ((), (opened,))
    gate = evaluate(parse_rules("p99 no verdict, too few trials"), [few, opened])
    assert {one.p for _, one in gate.broken} == {50, 99}
    assert gate.undecided == ()


def test_a_published_comparison_without_interval_breaks_nothing_by_accident() -> None:
    bare = Comparison(key=(), p=50, verdict=None, reason="no samples", ratio=1.4)
    assert not Rule("slower", "slower").is_broken_by(bare)
    assert evaluate(parse_rules("slower"), [bare]).undecided == (bare,)
