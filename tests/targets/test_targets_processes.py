"""Nothing that was started survives: not a detached child, not a deaf server, not a kill -9."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from embbench.errors import TargetError
from embbench.machine.supervisor import AFTER_KILL_S
from embbench.targets.endpoint import unless_dead
from embbench.targets.processes import ProcessSpec, ProcessTree, log_tail, to_the_end

SHM = Path("/dev/shm")
LONG_S = 20.0
SLEEPER = "import time; print('up', flush=True); time.sleep(300)"


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", textwrap.dedent(code))


async def start(tmp_path: Path, code: str, *, grace_s: float = 5.0, **spec: object) -> ProcessTree:
    log = tmp_path / f"{uuid.uuid4().hex}.log"
    given = ProcessSpec("server", python(code), stop_grace_s=grace_s, **spec)  # type: ignore[arg-type]
    return await ProcessTree.start(given, log)


async def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {LONG_S:g} s: {what}"
        await asyncio.sleep(0.02)


def pids_in(path: Path) -> list[int]:
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def segments(prefix: str) -> list[Path]:
    return list(SHM.glob(f"*{prefix}*"))


def run_conductor(code: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        (sys.executable, "-c", code), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


async def test_a_process_runs_in_a_group_and_session_of_its_own_with_its_output_in_the_log(
    tmp_path: Path,
) -> None:
    tree = await start(
        tmp_path,
        "import os, sys; print('to stdout', flush=True); os.write(2, b'to stderr'); input()",
    )
    await asyncio.wait_for(tree.death, LONG_S)  # stdin is empty: it ends by EOFError
    await tree.stop()
    assert "to stdout" in log_tail(tree.log, 50)
    assert "to stderr" in log_tail(tree.log, 50)
    assert tree.death.result() == "exited with code 1"

    tree = await start(tmp_path, SLEEPER)
    assert os.getpgid(tree.pid) == os.getsid(tree.pid) == tree.pid != os.getpgid(0)
    await tree.stop()
    assert not psutil.pid_exists(tree.pid)
    assert not psutil.pid_exists(tree.supervisor_pid)


async def test_a_detached_child_that_holds_a_lock_is_ended(tmp_path: Path) -> None:
    """Double fork and setsid: neither the group nor the parent leads to it any more."""
    held = tmp_path / "lock"
    pids = tmp_path / "pids"
    tree = await start(
        tmp_path,
        f"""
        import fcntl, os, time
        if os.fork() == 0:
            os.setsid()
            if os.fork():
                os._exit(0)
            lock = open({str(held)!r}, "w")
            fcntl.flock(lock, fcntl.LOCK_EX)
            open({str(pids)!r}, "w").write(str(os.getpid()))
            time.sleep(300)
        time.sleep(300)
        """,
    )
    await until(lambda: pids_in(pids), "the child detached")
    (child,) = pids_in(pids)
    assert os.getsid(child) != tree.pid
    await until(lambda: child in tree.members(), "it came back to the supervisor")
    await tree.stop()
    assert not psutil.pid_exists(child)
    with held.open("w") as lock:
        import fcntl

        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


async def test_children_of_a_server_that_was_killed_are_ended(tmp_path: Path) -> None:
    """EngineCore outlives a killed API server; its name says nothing."""
    pids = tmp_path / "pids"
    tree = await start(
        tmp_path,
        f"""
        import subprocess, time
        child = subprocess.Popen(["sleep", "300"], start_new_session=True)
        open({str(pids)!r}, "w").write(str(child.pid))
        time.sleep(300)
        """,
    )
    await until(lambda: pids_in(pids), "the child started")
    os.kill(tree.pid, signal.SIGKILL)
    assert await asyncio.wait_for(tree.death, LONG_S) == "was killed by SIGKILL"
    (child,) = pids_in(pids)
    assert psutil.pid_exists(child)
    await tree.stop()
    assert not psutil.pid_exists(child)


async def test_a_server_that_ignores_sigterm_is_killed_after_the_grace_period(
    tmp_path: Path,
) -> None:
    tree = await start(
        tmp_path,
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True);"
        "time.sleep(300)",
        grace_s=0.7,
    )
    await until(lambda: "up" in log_tail(tree.log), "the handler is in place")
    began = time.monotonic()
    stopped = await tree.stop()
    assert 0.7 <= time.monotonic() - began < AFTER_KILL_S / 2  # killed, and not given up on
    assert [pid for pid, _ in stopped.killed] == [tree.pid]
    assert not psutil.pid_exists(tree.pid)


async def test_a_server_gets_its_grace_period(tmp_path: Path) -> None:
    tree = await start(
        tmp_path,
        """
        import signal, sys, time
        def bye(*_):
            time.sleep(0.5); print("tidied up", flush=True); sys.exit(0)
        signal.signal(signal.SIGTERM, bye)
        print("up", flush=True)
        time.sleep(300)
        """,
        grace_s=LONG_S,
    )
    await until(lambda: "up" in log_tail(tree.log), "the handler is in place")
    stopped = await tree.stop()
    assert not stopped.killed
    assert "tidied up" in log_tail(tree.log)


async def test_signals_reach_what_is_started_with_their_default_actions(tmp_path: Path) -> None:
    tree = await start(
        tmp_path,
        "import signal; print(*(signal.getsignal(s) is not signal.SIG_IGN for s in (1, 2, 15)))",
    )
    await asyncio.wait_for(tree.death, LONG_S)
    await tree.stop()
    assert log_tail(tree.log) == "True True True"


async def test_a_tree_is_held_to_its_cpus(tmp_path: Path) -> None:
    cpu = max(os.sched_getaffinity(0))
    code = "import os; print(os.sched_getaffinity(0))"
    spec = ProcessSpec("server", python(code))
    tree = await ProcessTree.start(spec, tmp_path / "log", cpus=[cpu])
    await asyncio.wait_for(tree.death, LONG_S)
    await tree.stop()
    assert log_tail(tree.log) == str({cpu})
    with pytest.raises(TargetError, match="cannot be started"):
        await ProcessTree.start(spec, tmp_path / "log2", cpus=[100_000])


async def test_what_cannot_be_started_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"cannot be started: .*no/such/program"):
        await ProcessTree.start(ProcessSpec("server", ("/no/such/program",)), tmp_path / "a.log")
    with pytest.raises(TargetError, match=r"cannot be started: .*no-such-folder"):
        await ProcessTree.start(
            ProcessSpec("server", python("pass"), cwd="/no-such-folder"), tmp_path / "b.log"
        )


async def test_shared_memory_of_a_killed_process_is_removed_and_no_other(tmp_path: Path) -> None:
    name = f"test-{uuid.uuid4().hex}"
    foreign = SHM / f"{name}-foreign"
    foreign.write_bytes(b"not ours")
    try:
        tree = await start(
            tmp_path,
            f"""
            import mmap, os, time
            for name in ({name!r}, {name!r} + "-foreign"):
                file = open("/dev/shm/" + name, "a+b")
                file.truncate(4096)
                if not name.endswith("foreign"):
                    memory = mmap.mmap(file.fileno(), 4096); file.close()
                else:
                    kept = file
            # collected by nobody: closed and unmapped, but it carries its maker's name
            from embbench.reference.segments import prefix_of
            open("/dev/shm/" + prefix_of(os.getpid()) + {name!r}, "w").close()
            print("up", flush=True)
            time.sleep(300)
            """,
            grace_s=0.1,
        )
        await until(lambda: "up" in log_tail(tree.log), "segments made")
        assert len(segments(name)) == 3
        tree.note()
        await asyncio.sleep(0.3)
        os.kill(tree.pid, signal.SIGKILL)
        await asyncio.wait_for(tree.death, LONG_S)
        stopped = await tree.stop()
        assert len(stopped.segments) == 2
        assert segments(name) == [foreign]
    finally:
        foreign.unlink()


async def test_a_killed_supervisor_leaves_nothing(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    tree = await start(
        tmp_path,
        f"""
        import subprocess, time
        child = subprocess.Popen(["sleep", "300"], start_new_session=True)
        open({str(pids)!r}, "w").write(str(child.pid))
        time.sleep(300)
        """,
    )
    await until(lambda: pids_in(pids), "the child started")
    (child,) = pids_in(pids)
    os.kill(tree.supervisor_pid, signal.SIGKILL)
    await asyncio.wait_for(tree.death, LONG_S)
    await tree.stop()
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie"
    assert not psutil.pid_exists(tree.pid) or psutil.Process(tree.pid).status() == "zombie"


CONDUCTOR = """
import asyncio, sys
from pathlib import Path
from embbench.targets.processes import ProcessSpec, ProcessTree

async def main():
    code = '''
import subprocess, time
child = subprocess.Popen(["sleep", "300"], start_new_session=True)
memory = open("/dev/shm/" + %r, "w+b")
print(child.pid, flush=True)
time.sleep(300)
'''
    spec = ProcessSpec("server", (sys.executable, "-c", code), stop_grace_s=2)
    tree = await ProcessTree.start(spec, Path(%r), [Path(%r)])
    {extra}
    print(heir, tree.supervisor_pid, tree.pid, flush=True)
    await asyncio.sleep(300)

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("inherited", [False, True])
async def test_embbench_itself_killed_leaves_nothing(
    tmp_path: Path, number: signal.Signals, inherited: bool
) -> None:
    """``inherited``: a forked child of embbench lives on and holds our pipe to the supervisor."""
    log = tmp_path / "server.log"
    segment = f"test-{uuid.uuid4().hex}"
    scratch = tmp_path / "scratch"
    (scratch / "deep").mkdir(parents=True)
    fork = "import os, time\n    if (heir := os.fork()) == 0: time.sleep(300); os._exit(0)"
    extra = fork if inherited else "heir = 0"
    code = CONDUCTOR.replace("{extra}", extra) % (segment, str(log), str(scratch))
    conductor = run_conductor(code)
    assert conductor.stdout is not None
    heir, *pids = (int(word) for word in conductor.stdout.readline().split())
    await until(lambda: log.exists() and pids_in(log), "the server is up")
    pids += pids_in(log)
    assert all(psutil.pid_exists(pid) for pid in pids)
    assert (SHM / segment).exists()
    conductor.send_signal(number)
    conductor.wait(LONG_S)
    conductor.stdout.close()
    try:
        await until(lambda: not any(psutil.pid_exists(pid) for pid in pids), "all are gone")
    finally:
        if heir:
            os.kill(heir, signal.SIGKILL)
    assert not (SHM / segment).exists()
    assert not scratch.exists()


async def test_a_server_ends_even_if_embbench_and_its_supervisor_are_killed_at_once(
    tmp_path: Path,
) -> None:
    code = f"""
import asyncio, sys
from pathlib import Path
from embbench.targets.processes import ProcessSpec, ProcessTree

async def main():
    spec = ProcessSpec("server", (sys.executable, "-c", {SLEEPER!r}))
    tree = await ProcessTree.start(spec, Path({str(tmp_path / "log")!r}))
    print(tree.supervisor_pid, tree.pid, flush=True)
    await asyncio.sleep(300)

asyncio.run(main())
"""
    conductor = run_conductor(code)
    assert conductor.stdout is not None
    supervisor, server = (int(word) for word in conductor.stdout.readline().split())
    os.kill(supervisor, signal.SIGSTOP)  # it must not get the chance to tidy up
    conductor.kill()
    conductor.wait(LONG_S)
    conductor.stdout.close()
    os.kill(supervisor, signal.SIGKILL)
    await until(lambda: not psutil.pid_exists(server), "the server is gone")


async def test_stop_is_finished_even_when_it_is_cancelled_twice(tmp_path: Path) -> None:
    tree = await start(
        tmp_path,
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True);"
        "time.sleep(300)",
        grace_s=1.0,
    )
    await until(lambda: "up" in log_tail(tree.log), "the handler is in place")
    task = asyncio.ensure_future(to_the_end(tree.stop()))
    for _ in range(2):
        await asyncio.sleep(0.1)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not psutil.pid_exists(tree.pid)


async def test_unless_dead_ends_the_work_when_a_server_dies() -> None:
    death: asyncio.Future[TargetError] = asyncio.get_running_loop().create_future()
    ended = []

    async def work() -> str:
        try:
            await asyncio.sleep(0.05)
            death.set_result(TargetError("it died"))
            await asyncio.sleep(300)
        finally:
            ended.append(True)
        return "done"

    with pytest.raises(TargetError, match="it died"):
        await unless_dead(work(), death)
    assert ended == [True]

    async def quick() -> str:
        return "done"

    alive: asyncio.Future[TargetError] = asyncio.get_running_loop().create_future()
    assert await unless_dead(quick(), alive) == "done"
    with contextlib.suppress(asyncio.CancelledError):
        alive.cancel()
