"""Every fault of the catalogue is caught in the right words, wherever it sits; oddities pass.

One encoding a fault and place; scripts/bench/fault_table runs all of them.
"""

import pytest
from catalogue import ITEM, LATE_FROM, OF_ANOTHER_MODEL, Place, places_of, run
from scripted_faults import FAULTS, ODDITIES
from scripted_server import ScriptedServer

from embbench.config.plan import Encoding

AT_1024 = [
    n for n in FAULTS if "one of 1024" in places_of(n) and FAULTS[n].stage in ("vectors", "value")
]
DATED_LATER = OF_ANOTHER_MODEL | {
    "swapped",
    "rotated",
    "renumbered",
    "random",
    "noisy",
    "batch-leaks",
}
"""Seen by the texts that are asked again, of which not every request has one."""


def encoding_of(name: str) -> Encoding:
    """The only one, or by turns one of both."""
    choices = FAULTS[name].encodings
    return choices[list(FAULTS).index(name) % len(choices)]  # type: ignore[return-value]


async def check(name: str, place: Place, server: ScriptedServer) -> tuple[int | None, int | None]:
    if place not in places_of(name):
        pytest.skip("not a place for this fault")
    outcome = await run(name, encoding_of(name), place, server)
    assert outcome.caught, f"{place}: {outcome.words or 'nothing was said'}"
    return outcome.request, outcome.item


def test_the_catalogue_is_large_enough() -> None:
    assert len(set(FAULTS) - set(ODDITIES)) >= 40
    assert len(ODDITIES) >= 8


@pytest.mark.parametrize("name", FAULTS)
async def test_at_the_gate(name: str, scripted_server: ScriptedServer) -> None:
    await check(name, "gate", scripted_server)


@pytest.mark.parametrize("name", FAULTS)
async def test_late_in_a_trial(name: str, scripted_server: ScriptedServer) -> None:
    request, _ = await check(name, "late", scripted_server)
    if name not in ODDITIES and name not in DATED_LATER:
        assert request == LATE_FROM


@pytest.mark.parametrize("name", AT_1024)
async def test_on_one_item_of_1024(name: str, scripted_server: ScriptedServer) -> None:
    request, item = await check(name, "one of 1024", scripted_server)
    if name not in ODDITIES:
        assert request == 1
        assert item in (ITEM, 4) if name == "swapped" else item in (ITEM, None)


@pytest.mark.parametrize("name", FAULTS)
async def test_on_one_target_of_two(name: str, scripted_server: ScriptedServer) -> None:
    request, _ = await check(name, "one target of two", scripted_server)
    if name not in ODDITIES:
        assert request == LATE_FROM
