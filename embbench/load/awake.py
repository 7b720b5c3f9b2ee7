"""Keeps a core from sleeping while a trial runs: ``python awake.py CPU PARENT``.

A sleeping core takes 0.05 to 0.2 ms to wake (more in a virtual machine), which is added to every
answer that finds it asleep. This process never sleeps and is of the idle class: it runs only when
nothing else wants its core, and whatever wakes there runs at once. Ends with its parent (a pid).
"""

import os
import sys

_TURNS = 1_000_000  # about 20 ms; then it looks whether its parent is still there


def main(cpu: int, parent: int) -> None:
    """Until the parent is gone, or ends this process."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    os.sched_setaffinity(0, {cpu})
    while os.getppid() == parent:
        for _ in range(_TURNS):
            pass


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
