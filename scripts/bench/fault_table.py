"""Every fault of the scripted server, in every place: which were caught, and in which words.

    scripts/bench/fault_table [--fault NAME ...] [--missed]

Places: at the gate before load; from the middle of a trial on (batch 15); on one item of 1024; on
one target of two. Oddities are answers that are strange and right: they must pass. Prints
Markdown; exit 1 if anything was missed, or an oddity refused.
"""

import argparse
import asyncio
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/support"))

from catalogue import PLACES, Outcome, Place, places_of, run
from scripted_faults import FAULTS, ODDITIES
from scripted_server import ScriptedServer


async def outcomes(names: list[str]) -> list[Outcome]:
    """All outcomes of these faults, one after the other."""
    found: list[Outcome] = []
    async with ScriptedServer() as server:
        for name in names:
            for encoding in FAULTS[name].encodings:
                found += [await run(name, encoding, place, server) for place in places_of(name)]
            print(f"\r{len(found)} cases", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return found


def table(found: list[Outcome]) -> str:
    """One row a fault: the places in short, and the words in the middle of a trial."""
    lines = [f"| fault | {' | '.join(PLACES)} | in words |", "|:--|" + ":-:|" * 4 + ":--|"]
    for name in dict.fromkeys(each.fault for each in found):
        mine = [each for each in found if each.fault == name]
        cells = " | ".join(mark(mine, place) for place in PLACES)
        words = next((each.words for each in mine if each.place == "late"), mine[0].words)
        words = "passes" if name in ODDITIES and not words else words.replace("|", "/")
        lines.append(f"| {name} | {cells} | {words} |")
    return "\n".join(lines)


def mark(mine: list[Outcome], place: Place) -> str:
    """Caught in all encodings, missed in one, or not a place for this fault."""
    here = [each.caught for each in mine if each.place == place]
    good = "passed" if mine[0].fault in ODDITIES else "caught"
    return "" if not here else good if all(here) else "MISSED"


def totals(found: list[Outcome]) -> str:
    """What was caught and missed, by place."""
    lines = [
        "| place | faults caught | missed | oddities passed | refused |",
        "|:--|--:|--:|--:|--:|",
    ]
    for place in PLACES:
        count = Counter(
            (each.fault in ODDITIES, each.caught) for each in found if each.place == place
        )
        numbers = [count[False, True], count[False, False], count[True, True], count[True, False]]
        lines.append(f"| {place} | {' | '.join(map(str, numbers))} |")
    return "\n".join(lines)


def main() -> int:
    """Run, print, and say by the exit status whether all is well."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--fault", action="append", choices=sorted(FAULTS), help="only this one")
    parser.add_argument("--missed", action="store_true", help="print what was missed only")
    options = parser.parse_args()
    found = asyncio.run(outcomes(options.fault or list(FAULTS)))
    missed = [each for each in found if not each.caught]
    faults = {each.fault for each in found} - set(ODDITIES)
    if not options.missed:
        print(f"{table(found)}\n")
    print(
        f"{len(faults)} faults and {len({e.fault for e in found}) - len(faults)} oddities, ", end=""
    )
    print(f"{len(found)} cases\n\n{totals(found)}\n")
    for each in missed:
        print(
            f"MISSED: {each.fault}, {each.encoding}, {each.place}: {each.words or 'nothing said'}"
        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
