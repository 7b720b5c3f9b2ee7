"""The guardian of one process tree: starts it, watches it, and ends all of it.

Run as a script in a process of its own (`python -I -S supervisor.py`), standard library only, so
that it starts fast and sleeps while a trial is timed. It is the subreaper of what it starts:
children that left the process group or lost their parent come back to it and are found. It ends
the tree when it is told to, and by itself when embbench is gone, however that died.

In, one JSON line on stdin: argv, env, cwd, cpus, grace_s, conductor (pid), scratch (folders
to remove if embbench is gone). Then commands, a line each:
``note`` (remember the shared memory in use now) and ``stop``. End of file means ``stop``.
Out, JSON lines on stdout: started {pid} | failed {what}, exited {code}, and at the very end
gone {killed, left, segments}. The output of the tree goes to the supervisor's own stderr.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import time
from typing import Any

PROGRAM = __file__
"""What starts it: the path of this file."""

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SHM = "/dev/shm/"
POLL_S = 0.05
AFTER_KILL_S = 20.0  # a killed process can linger while the kernel frees its (GPU) memory

_libc = ctypes.CDLL(None, use_errno=True)


def stat_fields(pid: int) -> tuple[str, str, int, int] | None:
    """Name, state, parent and start time (ticks since boot) of a process; None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            text = file.read()
    except OSError:
        return None
    name = text[text.index("(") + 1 : text.rindex(")")]
    rest = text[text.rindex(")") + 2 :].split()
    return name, rest[0], int(rest[1]), int(rest[19])


def descendants(root: int) -> dict[int, tuple[str, int]]:
    """All living descendants of ``root``: pid -> (name, start time). Zombies do not count."""
    found = {}
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - pathlib is not worth its import here
        if entry.isdigit() and (fields := stat_fields(int(entry))):
            name, state, parent, started = fields
            children.setdefault(parent, []).append(int(entry))
            if state not in "ZX":
                found[int(entry)] = (name, started)
    reached: list[int] = []
    queue = [root]
    while queue:
        kids = children.get(queue.pop(), [])
        reached += kids
        queue += kids
    return {pid: found[pid] for pid in reached if pid in found}


def send(pid: int, started: int, number: signal.Signals) -> None:
    """Signal this very process, never another one that got its pid meanwhile."""
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            fields = stat_fields(pid)
            if fields and fields[3] == started:
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def shared_memory_of(pid: int) -> set[str]:
    """Paths under /dev/shm that a process has mapped or open, unlinked ones left out."""
    paths = set()
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps") as maps:  # noqa: PTH123
        paths |= {SHM + line.rstrip("\n").split(SHM, 1)[1] for line in maps if SHM in line}
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
            with contextlib.suppress(OSError):
                paths.add(os.readlink(f"/proc/{pid}/fd/{number}"))  # noqa: PTH115
    return {path for path in paths if path.startswith(SHM) and not path.endswith(" (deleted)")}


def segment_inodes() -> set[int]:
    """Inodes of everything in /dev/shm now."""
    with contextlib.suppress(OSError), os.scandir(SHM) as entries:
        return {entry.inode() for entry in entries}
    return set()


def remove_folders(folders: list[str]) -> None:
    """Remove what embbench made for this launch and can no longer remove itself."""
    import shutil

    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


class Supervisor:
    """One tree, from its start to its end."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.segments: set[str] = set()
        self.seen: set[tuple[int, int]] = set()
        self.told_to_stop = False
        self.orphaned = True  # until embbench itself says stop
        self.root: int | None = None
        self.foreign_segments = segment_inodes()
        self.wake, wake_end = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(wake_end, False)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        # Handlers, not SIG_IGN: a program that is started gets the default actions back.
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "told_to_stop", True))
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def tell(self, event: str, **values: Any) -> None:
        """One event to embbench, if it is still there."""
        line = json.dumps({"event": event, **values}) + "\n"
        with contextlib.suppress(OSError):
            os.write(1, line.encode())

    def start(self) -> bool:
        """Start the program in a session of its own; it dies with the supervisor."""

        def before_exec() -> None:
            _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if self.spec["cpus"] is not None:
                os.sched_setaffinity(0, self.spec["cpus"])

        env = {**os.environ, **self.spec["env"]}
        try:
            child = subprocess.Popen(
                self.spec["argv"],
                env=env,
                cwd=self.spec["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=2,
                start_new_session=True,
                preexec_fn=before_exec,
            )
        except (OSError, ValueError, subprocess.SubprocessError) as exc:
            self.tell("failed", what=str(exc))
            return False
        child.returncode = 0  # `reap` collects it, not Popen
        self.root = child.pid
        self.tell("started", pid=child.pid)
        return True

    def reap(self) -> None:
        """Collect every child that ended: ours, and those that came back to us."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.root:
                self.tell("exited", code=os.waitstatus_to_exitcode(status))

    def note(self) -> None:
        """Remember the processes of the tree and the shared memory that they use now."""
        for pid, (_, started) in descendants(os.getpid()).items():
            self.seen.add((pid, started))
            self.segments |= shared_memory_of(pid)

    def watch(self, pending: bytes) -> None:
        """Sleep until told to stop, or until embbench is gone."""
        sources: list[int] = [0, self.wake]
        with contextlib.suppress(OSError):  # also when someone else inherited our pipe's other end
            sources.append(os.pidfd_open(self.spec["conductor"]))
        while not self.told_to_stop and os.getppid() == self.spec["conductor"]:
            ready, _, _ = select.select(sources, [], [])
            if self.wake in ready:
                os.read(self.wake, 4096)
                self.reap()
            if any(source in ready for source in sources[2:]):
                return
            if 0 in ready:
                got = os.read(0, 4096)
                if not got:
                    return
                pending += got
            while b"\n" in pending:
                command, _, pending = pending.partition(b"\n")
                if command == b"stop":
                    self.orphaned = False
                    return
                if command == b"note":
                    self.note()

    def end(self) -> None:
        """SIGTERM to everything, the grace period, SIGKILL to what is left, until all is gone."""
        self.note()
        kill_at = time.monotonic() + self.spec["grace_s"]
        give_up_at = kill_at + AFTER_KILL_S
        asked: set[tuple[int, int]] = set()
        killed: dict[int, str] = {}
        while True:
            self.reap()
            members = descendants(os.getpid())
            now = time.monotonic()
            if not members or now > give_up_at:
                break
            for pid, (name, started) in members.items():
                if now >= kill_at:
                    self.segments |= shared_memory_of(pid) if pid not in killed else set()
                    killed[pid] = name
                    send(pid, started, signal.SIGKILL)
                elif (pid, started) not in asked:
                    asked.add((pid, started))
                    send(pid, started, signal.SIGTERM)
            select.select([self.wake], [], [], POLL_S)
            with contextlib.suppress(BlockingIOError):
                os.read(self.wake, 4096)
        if self.orphaned:
            remove_folders(self.spec["scratch"])
        self.tell(
            "gone",
            killed=[[pid, name] for pid, name in killed.items()],
            left=[[pid, name] for pid, (name, _) in members.items()],
            segments=self.remove_segments(),
        )

    def remove_segments(self) -> list[str]:
        """Unlink shared memory that the tree left: made in its time, and used by nobody now."""
        mine = set()
        for path in self.segments | self.named_segments():
            with contextlib.suppress(OSError):
                info = os.stat(path)  # noqa: PTH116
                if info.st_uid == os.getuid() and info.st_ino not in self.foreign_segments:
                    mine.add(path)
        if mine:
            for entry in os.listdir("/proc"):  # noqa: PTH208
                if entry.isdigit():
                    mine -= shared_memory_of(int(entry))
        for path in mine:
            with contextlib.suppress(OSError):
                os.unlink(path)  # noqa: PTH108
        return sorted(mine)

    def named_segments(self) -> set[str]:
        """Segments of our reference worker that nobody collected: its pid is in their names."""
        makers = {(str(pid), str(started)) for pid, started in self.seen}
        found = set()
        with contextlib.suppress(OSError):
            for name in os.listdir(SHM):  # noqa: PTH208
                parts = name.split("-")  # embbench-NAMESPACE-PID-STARTED-RANDOM
                if parts[0] == "embbench" and tuple(parts[2:4]) in makers:
                    found.add(SHM + name)
        return found


def main() -> None:
    """Read the order, run it to its end."""
    order = b""
    while b"\n" not in order:
        got = os.read(0, 65536)
        if not got:
            return
        order += got
    line, _, pending = order.partition(b"\n")
    supervisor = Supervisor(json.loads(line))
    if supervisor.start():
        supervisor.watch(pending)
    supervisor.end()


if __name__ == "__main__":
    main()
