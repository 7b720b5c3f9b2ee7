"""Ways to wake a loop at a time: how late they are, and how much CPU they take.

    python scripts/bench/client_floor_pacing.py [--rate 1000] [--seconds 5] [--repeats 3]

On uvloop, nothing else running on the loop: the loop's own timer; that until 2 ms before and then
the next turn of the loop again and again; a timerfd; a timerfd set 50 us early and a busy wait
for the rest. embbench uses the timerfd (`embbench.load.timers`).
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable
from time import monotonic_ns

import numpy as np
import uvloop

from embbench.load.timers import Timer

Wake = Callable[[int, Callable[[], None]], None]


def loop_timer() -> Wake:
    loop = asyncio.get_running_loop()

    def wake(at_ns: int, call: Callable[[], None]) -> None:
        loop.call_later(max(0, at_ns - monotonic_ns()) / 1e9, call)

    return wake


def loop_turns() -> Wake:
    loop = asyncio.get_running_loop()

    def wake(at_ns: int, call: Callable[[], None]) -> None:
        def turn() -> None:
            if monotonic_ns() >= at_ns:
                call()
            else:
                loop.call_soon(turn)

        early_ns = at_ns - 2_000_000 - monotonic_ns()
        if early_ns > 0:
            loop.call_later(early_ns / 1e9, turn)
        else:
            loop.call_soon(turn)

    return wake


def timerfd(spin_ns: int) -> Wake:
    due = [0, lambda: None]

    def fire() -> None:
        while monotonic_ns() < due[0]:
            pass
        due[1]()

    timer = Timer(fire)

    def wake(at_ns: int, call: Callable[[], None]) -> None:
        due[:] = at_ns, call
        timer.arm(at_ns - spin_ns)

    return wake


WAYS: dict[str, Callable[[], Wake]] = {
    "loop timer (ms)": loop_timer,
    "loop timer, then turns of the loop": loop_turns,
    "timerfd": lambda: timerfd(0),
    "timerfd 50 us early, then busy": lambda: timerfd(50_000),
}


async def pace(way: Callable[[], Wake], rate: float, count: int) -> tuple[list[float], float]:
    """Lag percentiles in us, and CPU share."""
    wake, lag_ns, over = way(), list[int](), asyncio.Event()
    origin_ns = monotonic_ns() + 10_000_000
    due_ns = [origin_ns + round(n * 1e9 / rate) for n in range(count)]

    def call() -> None:
        lag_ns.append(monotonic_ns() - due_ns[len(lag_ns)])
        if len(lag_ns) == count:
            over.set()
        else:
            wake(due_ns[len(lag_ns)], call)

    cpu_s, begin_s = time.process_time(), time.monotonic()
    wake(due_ns[0], call)
    await over.wait()
    share = (time.process_time() - cpu_s) / (time.monotonic() - begin_s)
    return list(np.percentile(lag_ns, (50, 99, 99.9, 100)) / 1e3), share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    print(f"| way, {args.rate:g}/s | lag p50 us | p99 | p99.9 | max | CPU share |")
    print("|:--|--:|--:|--:|--:|--:|")
    readings: dict[str, list[list[float]]] = {name: [] for name in WAYS}
    for _ in range(args.repeats):
        for name, way in WAYS.items():
            lags, share = uvloop.run(pace(way, args.rate, int(args.rate * args.seconds)))
            readings[name].append([*lags, share])
    for name, found in readings.items():
        *lags, share = map(statistics.median, zip(*found, strict=True))
        print(f"| {name} | {' | '.join(f'{lag:.0f}' for lag in lags)} | {share:.1%} |")


if __name__ == "__main__":
    main()
