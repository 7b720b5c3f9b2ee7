"""Keeps a core from sleeping while a trial runs: ``python awake.py CPU PARENT``.

A sleeping core takes 0.05 to 0.2 ms to wake (more in a virtual machine), which is added to every
answer that finds it asleep. This process never sleeps and is of the idle class: it runs only when
nothing else wants its core, and whatever wakes there runs at once. That holds within a session
(the kernel shares cores out between sessions first), so a load process starts its own, as a child.
Ends with its parent (a pid), or on a system that has no idle class.
"""

import os
import signal
import sys

_TURNS = 1_000_000  # about 20 ms; then it looks whether its parent is still there


class CoreKeptAwake:
    """``with CoreKeptAwake(3): ...``; with None, nothing is done."""

    def __init__(self, cpu: int | None) -> None:
        self._cpu = cpu
        self._pid = 0

    def __enter__(self) -> None:
        if self._cpu is not None:
            argv = [sys.executable, "-I", "-S", __file__, str(self._cpu), str(os.getpid())]
            self._pid = os.posix_spawn(sys.executable, argv, os.environ)

    def __exit__(self, *_: object) -> None:
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0


def main(cpu: int, parent: int) -> None:
    """Until the parent is gone, or ends this process."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    os.sched_setaffinity(0, {cpu})
    while os.getppid() == parent:
        for _ in range(_TURNS):
            pass


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
