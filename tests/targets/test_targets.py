"""Bring-up, against scripted servers: ready means real answers, from our own processes."""

import asyncio
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiohttp import web
from scripted_faults import FAULTS
from scripted_server import ScriptedServer, scripted_process

from embbench.config.schema import CommandTarget, ExternalTarget, ReferenceTarget
from embbench.errors import ConfigError, TargetError
from embbench.targets import ports as ports_module
from embbench.targets.bring_up import bring_up
from embbench.targets.endpoint import Endpoint, while_alive
from embbench.targets.external import base_url
from embbench.targets.ports import Ports, PortTakenError, ephemeral_range, listeners
from embbench.targets.readiness import Probe, Seen, embedding_problem, wait_ready
from embbench.targets.recipe import Context

SCRIPTED = str(Path(__file__).parents[1] / "support" / "scripted_server.py")


def scripted(*words: str, port: str = "{port}", **config: Any) -> CommandTarget:
    """A command target: a scripted server in a process of its own."""
    argv = ("{python}", SCRIPTED, "--port", port, *words)
    return CommandTarget(**{"argv": argv, "start_timeout_s": 90, "stop_grace_s": 3, **config})


def python(code: str, **config: Any) -> CommandTarget:
    argv = ("{python}", "-c", code, "{port}")
    return CommandTarget(**{"argv": argv, "start_timeout_s": 90, "stop_grace_s": 3, **config})


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(log_dir=tmp_path / "logs", batches=(2, 15))


def alive(endpoint: Endpoint) -> list[int]:
    return [p.pid for p in endpoint.processes if psutil.pid_exists(p.pid)]


async def test_a_target_comes_up_answers_and_is_gone_afterwards(context: Context) -> None:
    async with bring_up("scripted", scripted(env={"API_KEY": "hush", "MODE": "x"}), context) as up:
        assert up.model == "scripted"
        assert up.target == "scripted"
        (process,) = up.processes
        assert process.role == "server"
        assert process.env == {"API_KEY": "***", "MODE": "x"}
        assert "hush" not in repr(up)
        assert "scripted server on" in process.log.read_text()
        assert [each.pid for each in listeners([int(up.base_url.split(":")[2][:-3])])] == [
            process.pid
        ]
        assert up.findings == ()
    assert not alive(up)


async def test_two_targets_are_up_at_once(context: Context) -> None:
    async with (
        bring_up("a", scripted(), context) as first,
        bring_up("b", scripted(), context) as second,
    ):
        assert first.base_url != second.base_url
        assert len(alive(first) + alive(second)) == 2
    assert not alive(first) + alive(second)


async def test_the_largest_batch_is_asked_as_well_as_the_smallest(context: Context) -> None:
    with scripted_process() as server:
        target = ExternalTarget(url=server.url)
        async with bring_up("it", target, context) as up:
            assert up.processes == ()
        assert server.oracle()["counts"]["batch_sizes"] == {"2": 3, "15": 2}
        assert server.oracle()["counts"]["repeated_texts"] == 0
    async with (
        ScriptedServer() as stays_up,
        bring_up("it", ExternalTarget(url=stays_up.url), context),
    ):
        pass


async def test_healthy_before_it_is_ready_is_not_ready(context: Context) -> None:
    """/health and /v1/models say 200 at once; embeddings 404, then 500, then 200."""
    began = time.monotonic()
    async with bring_up("slow", scripted("--set", "ready_after_s=2"), context) as up:
        assert time.monotonic() - began >= 2
        assert up.ready_after_s >= 2
        assert up.findings == ()


async def test_good_answers_count_only_in_a_row() -> None:
    async with ScriptedServer(fault="null", fault_request=2) as server:
        await wait_ready(Probe(server.url, None, (2, 15), timeout_s=30), Seen())
        assert [entry.batch for entry in server.log] == [2, 2, 2, 2, 2, 2, 15, 15]


async def test_a_server_without_a_model_list_is_asked_by_a_default_name() -> None:
    async def answer(request: web.BaseRequest) -> web.Response:
        if not request.path.endswith("/embeddings"):
            return web.Response(status=404)
        asked = await request.json()
        names.add(asked["model"])
        items = [{"index": i, "embedding": [0.6, 0.8]} for i in range(len(asked["input"]))]
        return web.json_response({"data": items})

    names: set[str] = set()
    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        assert (await wait_ready(Probe(url, None, (2,), timeout_s=30), Seen())).model == "default"
        assert (await wait_ready(Probe(url, "mine", (2,), timeout_s=30), Seen())).model == "mine"
    finally:
        await runner.cleanup()
    assert names == {"default", "mine"}


async def test_a_server_that_dies_at_start_shows_its_last_words(context: Context) -> None:
    code = "import sys; print('loading'); print('no such flag', file=sys.stderr); sys.exit(7)"
    began = time.monotonic()
    with pytest.raises(TargetError) as caught:
        async with bring_up("dies", python(code), context):
            pytest.fail("it cannot be up")
    assert time.monotonic() - began < 20
    said = str(caught.value)
    assert said.startswith("target 'dies' (server) exited with code 7 before it was ready")
    assert "loading" in said
    assert "no such flag" in said


async def test_what_was_missing_when_time_was_over_is_named() -> None:
    async with ScriptedServer(error_share=1.0, error_code=500) as server:
        with pytest.raises(TargetError) as caught:
            await wait_ready(Probe(server.url, None, (2,), timeout_s=2), Seen())
        said = str(caught.value)
        assert "was not ready after 2 s" in said
        assert "/v1/models lists scripted" in said
        assert "batch 2 answered 500" in said
    async with ScriptedServer(model="other") as server:
        with pytest.raises(TargetError, match="lists other, not the model asked for, mine"):
            await wait_ready(Probe(server.url, "mine", (2,), timeout_s=2), Seen())
        assert server.answered == 0, "another model was asked for embeddings"


async def test_a_server_that_never_gets_ready_shows_its_port_and_its_log(context: Context) -> None:
    listens = (
        "import socket, sys, time; s = socket.create_server(('127.0.0.1', int(sys.argv[1])));"
        "print('loading shard 3 of 7', flush=True); time.sleep(300)"
    )
    said: list[str] = []
    shown = Context(context.log_dir, context.batches, on_progress=said.append)
    with pytest.raises(TargetError) as caught:
        async with bring_up("deaf", python(listens, start_timeout_s=8), shown):
            pytest.fail("it cannot be up")
    assert re.search(r"port \d+ open \(pid \d+: ", str(caught.value))
    assert str(caught.value).endswith("loading shard 3 of 7")
    assert any("server: loading shard 3 of 7" in line for line in said)

    with pytest.raises(TargetError) as caught:
        async with bring_up("deaf", python("input"), context):
            pytest.fail("it cannot be up")
    assert "exited with code 0" in str(caught.value)

    sleeper = python("import time; time.sleep(300)", start_timeout_s=1)
    with pytest.raises(TargetError, match=r"cannot connect.*nobody listens on port"):
        async with bring_up("deaf", sleeper, context):
            pytest.fail("it cannot be up")


@pytest.mark.parametrize("fault", sorted(FAULTS.keys() - {"gzip-bomb"}))
async def test_wrong_payloads_are_left_to_the_gate_to_diagnose(fault: str) -> None:
    """No fault may hold up the start until the time-out: its name would never be said."""
    async with ScriptedServer(fault=fault) as server:
        probe = Probe(server.url, None, (2, 15), timeout_s=60, settle_s=0.1)
        ready = await wait_ready(probe, Seen())
    assert ready.model == "scripted"


@pytest.mark.parametrize("fault", ["per-token", "per-token-nested", "zero", "not-normalised"])
async def test_finite_vectors_of_any_shape_are_ready_at_once(fault: str) -> None:
    async with ScriptedServer(fault=fault) as server:
        ready = await wait_ready(Probe(server.url, None, (2, 15), timeout_s=30), Seen())
    assert ready.findings == ()


async def test_a_wrong_payload_that_gets_right_in_time_leaves_no_trace() -> None:
    async with ScriptedServer(fault="null-embedding") as server:
        probe = Probe(server.url, None, (2, 15), timeout_s=30, settle_s=20)
        waiting = asyncio.ensure_future(wait_ready(probe, Seen()))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        server.script(fault=None)
        assert (await waiting).findings == ()


async def test_a_lasting_refusal_of_the_largest_batch_is_let_through_with_a_finding() -> None:
    async with ScriptedServer(batch_limit=10) as server:
        probe = Probe(server.url, None, (2, 15), timeout_s=30, settle_s=0.5)
        ready = await wait_ready(probe, Seen())
    (finding,) = ready.findings
    assert finding.check == "readiness"
    assert "batch 15 answered 422" in finding.what


async def test_a_key_that_is_refused_ends_the_wait() -> None:
    async with ScriptedServer(api_key="right") as server:
        probe = Probe(server.url, "scripted", (2,), timeout_s=30, settle_s=0.2)
        with pytest.raises(TargetError, match="answered 401"):
            await wait_ready(probe, Seen())


async def test_the_key_of_an_external_server_comes_from_the_environment(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ScriptedServer(api_key="right") as server:
        target = ExternalTarget(url=server.url, api_key_env="THE_KEY", model="scripted")
        with pytest.raises(ConfigError, match="THE_KEY is not set"):
            async with bring_up("it", target, context):
                pytest.fail("no key")
        monkeypatch.setenv("THE_KEY", "right")
        async with bring_up("it", target, context) as up:
            assert up.headers == {"Authorization": "Bearer right"}
            assert "right" not in repr(up)


async def test_an_external_server_that_only_fails_is_left_to_the_gate() -> None:
    async with ScriptedServer(error_share=1.0, error_code=500) as server:
        probe = Probe(server.url, None, (2,), timeout_s=30, settle_s=0.3, already_up=True)
        ready = await wait_ready(probe, Seen())
    assert "answered 500" in ready.findings[0].what


async def test_a_foreign_listener_on_the_asked_port_refuses_the_start(context: Context) -> None:
    with scripted_process() as other:
        target = scripted(port=f"{{port:{other.port}}}")
        with pytest.raises(PortTakenError, match=rf"port {other.port} is taken.*pid {other.pid}:"):
            async with bring_up("mine", target, context):
                pytest.fail("somebody else answers there")
        assert other.oracle()["counts"]["received"] == 0


async def test_an_answer_from_somebody_elses_process_does_not_count(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our server lives, but somebody else took the port in the moment of the launch."""
    with scripted_process() as other:
        drawn = iter([other.port])
        free = Ports.free
        monkeypatch.setattr(
            Ports, "free", lambda self, count=1: next(drawn, None) or free(self, count)
        )
        said: list[str] = []
        ours = Context(context.log_dir, context.batches, on_progress=said.append)
        stubborn = scripted("--set", "delay_s=0")
        async with bring_up("mine", stubborn, ours) as up:
            assert str(other.port) not in up.base_url
        assert any("starting again on other ports" in line for line in said)

        target = python("import time; time.sleep(300)")
        monkeypatch.setattr(Ports, "free", lambda self, count=1: other.port)
        with pytest.raises(PortTakenError, match="none of its processes"):
            async with bring_up("mine", target, context):
                pytest.fail("somebody else answered")


async def test_the_death_of_a_server_is_noticed_at_once(context: Context) -> None:
    async with bring_up("dies", scripted(), context) as up:
        psutil.Process(up.processes[0].pid).kill()
        began = time.monotonic()
        with pytest.raises(TargetError, match=r"'dies' \(server\) was killed by SIGKILL; last"):
            await while_alive(asyncio.sleep(30), up)
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError, KeyboardInterrupt])
async def test_an_exception_takes_the_target_down(
    context: Context, error: type[BaseException]
) -> None:
    with pytest.raises(error):
        async with bring_up("up", scripted(), context) as up:
            raise error
    assert not alive(up)


async def test_a_start_that_is_cancelled_half_way_leaves_nothing(
    context: Context, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    code = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(300)"

    async def run() -> None:
        async with bring_up("half", python(code), context):
            pytest.fail("it never gets ready")

    task = asyncio.ensure_future(run())
    while not (pid_file.exists() and pid_file.read_text()):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not psutil.pid_exists(int(pid_file.read_text()))


async def test_every_start_has_a_log_of_its_own(context: Context) -> None:
    logs = []
    for _ in range(2):
        async with bring_up("a/b c", scripted(), context) as up:
            logs.append(up.processes[0].log.name)
    assert logs == ["a_b_c-server.log", "a_b_c-server-2.log"]


async def test_a_listener_beyond_loopback_is_a_finding(context: Context) -> None:
    code = (
        "import runpy, socket, sys; s = socket.create_server(('0.0.0.0', 0));"
        "sys.argv = ['x', '--port', sys.argv[1]];"
        f"sys.path.insert(0, {str(Path(SCRIPTED).parent)!r});"
        f"runpy.run_path({SCRIPTED!r}, run_name='__main__')"
    )
    async with bring_up("open", python(code), context) as up:
        (finding,) = up.findings
    assert finding.check == "listener"
    assert "0.0.0.0" in finding.what


@pytest.mark.parametrize(("processes", "hop"), [(1, "json"), (2, "base64-struct"), (2, "shm")])
async def test_reference_servers_come_up(context: Context, processes: int, hop: str) -> None:
    target = ReferenceTarget.model_validate(
        {"processes": processes, "hop": hop, "start_timeout_s": 90}
    )
    async with bring_up("ref", target, context) as up:
        members = psutil.Process(up.processes[0].supervisor_pid).children(recursive=True)
        assert len(members) >= processes
    assert not any(member.is_running() for member in members)
    ours = {str(member.pid) for member in members}
    left = os.listdir("/dev/shm")  # noqa: PTH208
    assert not [name for name in left if ours & set(name.split("-")[2:3])]


def test_an_unknown_engine_argument_is_a_config_error(context: Context) -> None:
    target = ReferenceTarget(engine_args={"warp": 9})

    async def run() -> None:
        async with bring_up("ref", target, context):
            pytest.fail("unknown option")

    with pytest.raises(ConfigError, match=r"targets\.ref\.engine_args\.warp"):
        asyncio.run(run())


async def test_a_command_without_a_port_is_a_config_error(context: Context) -> None:
    with pytest.raises(ConfigError, match=r"targets\.cmd: .*\{port\}"):
        async with bring_up("cmd", CommandTarget(argv=("true",)), context):
            pytest.fail("no port")


async def test_named_ports_and_the_environment_are_filled_in(context: Context) -> None:
    code = "import os, sys; print('ports', sys.argv[1:], os.environ['OTHER'], flush=True);"
    target = CommandTarget(
        argv=("{python}", "-c", code, "{port}", "{port}", "{port.rpc}", '{"port": {}}'),
        env={"OTHER": "{port.rpc}"},
    )
    with pytest.raises(TargetError) as caught:
        async with bring_up("cmd", target, context):
            pytest.fail("it never gets ready")
    line = next(line for line in str(caught.value).splitlines() if line.startswith("ports "))
    first, second, rpc, untouched = eval(line[line.index("[") : line.index("]") + 1])
    assert first == second != rpc
    assert line.endswith(rpc)
    assert untouched == '{"port": {}}'


def test_free_ports_are_held_consecutive_and_not_ephemeral() -> None:
    low, high = ephemeral_range()
    with Ports() as mine, Ports() as others:
        first = mine.free(3)
        taken = {first, first + 1, first + 2}
        assert not taken & set(range(low, high + 1)) or high - low > 40_000
        with pytest.raises(PortTakenError, match="does not listen on it yet"):
            others.fixed(first + 1)
        mine.release([first + 1])
        assert others.fixed(first + 1) == first + 1


def test_a_port_in_time_wait_can_be_asked_for_again(free_port: Callable[[], int]) -> None:
    import socket

    number = free_port()
    with (
        socket.create_server(("127.0.0.1", number)) as server,
        socket.create_connection(("127.0.0.1", number)) as client,
    ):
        server.accept()[0].close()  # the server's side closes first: TIME_WAIT is its own
        assert client.recv(1) == b""
    with Ports() as held:
        assert held.fixed(number) == number


def test_candidates_survive_an_ephemeral_range_that_covers_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ports_module, "ephemeral_range", lambda: (1024, 65535))
    with Ports() as held:
        assert held.free() > 1024


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://h:1", "http://h:1/v1"),
        ("http://h:1/", "http://h:1/v1"),
        ("https://h/v1/", "https://h/v1"),
        ("http://h:1/v1/embeddings", "http://h:1/v1"),
        ("http://h:1/openai/v2", "http://h:1/openai/v2"),
    ],
)
def test_base_urls(url: str, base: str) -> None:
    assert base_url(url) == base


@pytest.mark.parametrize("url", ["h:1", "ftp://h/v1", "http://", "/v1"])
def test_bad_urls(url: str) -> None:
    with pytest.raises(ConfigError, match="is no http"):
        base_url(url)


@pytest.mark.parametrize(
    ("body", "count", "problem"),
    [
        (b'{"data": [{"index": 0, "embedding": [1, 2.5]}]}', 1, ""),
        (b'{"data": [{"index": 1, "embedding": [1]}, {"index": 0, "embedding": [2, 3]}]}', 2, ""),
        (b'{"data": [{"embedding": "AACAPw=="}]}', 1, ""),
        (b'{"data": [{"index": 0, "embedding": [1]}]}', 2, "1 of 2 embeddings"),
        (
            b'{"data": [{"index": 0, "embedding": [1]}, {"index": 0, "embedding": [1]}]}',
            2,
            "2 of 2",
        ),
        (b'{"data": [{"index": 0, "embedding": [null]}]}', 1, "empty or not finite"),
        (b'{"data": [{"index": 0, "embedding": []}]}', 1, "empty or not finite"),
        (b'{"data": [{"index": 0, "embedding": [[1], [2]]}]}', 1, ""),
        (b'{"data": [{"index": 0, "embedding": 0.5}]}', 1, "empty or not finite"),
        (b'{"data": [{"index": 0, "embedding": "AACAfw=="}]}', 1, "empty or not finite"),
        (b'{"data": [{"index": 0, "embedding": "?"}]}', 1, "not an embeddings answer"),
        (b'{"data": [{"index": 0, "embedding": [NaN]}]}', 1, "not an embeddings answer"),
        (b'{"error": {"message": "overloaded"}}', 1, "not an embeddings answer"),
        (b'{"data": [{"index": 0, "embed', 1, "not an embeddings answer"),
        (b"[]", 1, "not an embeddings answer"),
        (b"", 1, "not an embeddings answer"),
    ],
)
def test_what_counts_as_embeddings(body: bytes, count: int, problem: str) -> None:
    found = embedding_problem(body, count)
    assert problem in found
    assert bool(found) == bool(problem)
