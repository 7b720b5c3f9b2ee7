"""The two loops, against a client of known times and against arithmetic."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import cycle
from pathlib import Path
from time import monotonic_ns

import pytest
import uvloop

from embbench.load.client import Done, Exchange
from embbench.load.drive import Requests, closed_loop, open_loop
from embbench.load.request_bodies import BodyFile, BodyFileWriter
from embbench.load.timers import StallRecorder, Timer
from embbench.results.samples import MEASURED, WARMUP

MS = 1_000_000


class TimedClient:
    """Answers each request after a set time; ``serial`` ones wait for those before."""

    done: Done

    def __init__(self, answer_ns: int, *, serial: bool = False) -> None:
        self.answer_ns = answer_ns
        self.serial = serial
        self.sent: list[tuple[Exchange, bytes]] = []
        self.in_flight = 0
        self.in_flight_max = 0
        self._free_ns = 0

    def prepare(self, body: bytes) -> bytes:
        return b"prepared " + body

    def send(self, exchange: Exchange, message: bytes) -> None:
        exchange.start_ns = monotonic_ns()
        self.sent.append((exchange, message))
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        begin_ns = max(exchange.start_ns, self._free_ns) if self.serial else exchange.start_ns
        self._free_ns = end_ns = begin_ns + self.answer_ns

        def answer() -> None:
            timer.close()
            self.in_flight -= 1
            exchange.end_ns = end_ns
            self.done([exchange])

        timer = Timer(answer)
        timer.arm(end_ns)

    async def close(self) -> None:
        pass


class TogetherClient(TimedClient):
    """Answers all that is in flight at once, every 5 ms: many come in one turn of the loop."""

    def __init__(self) -> None:
        super().__init__(5 * MS)
        self.batches: list[int] = []
        self._waiting: list[Exchange] = []

    def send(self, exchange: Exchange, message: bytes) -> None:
        exchange.start_ns = exchange.end_ns = monotonic_ns()
        self.sent.append((exchange, message))
        if not self._waiting:
            asyncio.get_running_loop().call_later(0.005, self._answer)
        self._waiting.append(exchange)

    def _answer(self) -> None:
        answered, self._waiting = self._waiting, []
        self.batches.append(len(answered))
        self.done(answered)


@pytest.fixture
def bodies(tmp_path: Path) -> Callable[[int], BodyFile]:
    def make(count: int) -> BodyFile:
        path = tmp_path / f"{count}.bodies"
        with BodyFileWriter(path) as writer:
            for number in range(count):
                writer.append(b"%d" % number)
        return BodyFile(path)

    return make


def run(main: Awaitable[None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(main, 20)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())


def everything(client: TimedClient, file: BodyFile, phase: int = MEASURED) -> Requests:
    return Requests(client, file, phase, range(len(file)), cycle([True, False]))


def test_an_open_loop_keeps_its_schedule(bodies: Callable[[int], BodyFile]) -> None:
    """Answers take 30 times the interval: a loop that waited for them would be late by seconds."""

    async def main() -> None:
        client, done = TimedClient(60 * MS), list[Exchange]()
        origin_ns = monotonic_ns() + 20 * MS
        due_ns = [origin_ns + 2 * MS * n for n in range(100)]
        await open_loop(client, everything(client, bodies(100)), due_ns, done.append)
        sent = [exchange for exchange, _ in client.sent]
        assert [exchange.seq for exchange in sent] == list(range(100))
        assert [message for _, message in client.sent] == [b"prepared %d" % n for n in range(100)]
        assert [exchange.intended_ns for exchange in sent] == due_ns
        assert all(exchange.start_ns >= exchange.intended_ns for exchange in sent)
        assert [exchange.keep for exchange in sent] == [n % 2 == 0 for n in range(100)]
        assert [exchange.request_bytes for exchange in sent] == [1] * 10 + [2] * 90
        assert len(done) == len({id(exchange) for exchange in done}) == 100
        assert client.in_flight_max >= 25
        assert sent[-1].start_ns - origin_ns < 2 * 198 * MS

    run(main())


def test_a_late_loop_moves_no_intended_start_and_drops_nothing(
    bodies: Callable[[int], BodyFile],
) -> None:
    async def main() -> None:
        client, done = TimedClient(1 * MS), list[Exchange]()
        origin_ns = monotonic_ns() + 20 * MS
        due_ns = [origin_ns + 2 * MS * n for n in range(200)]
        asyncio.get_running_loop().call_later(0.1, time.sleep, 0.2)
        await open_loop(client, everything(client, bodies(200)), due_ns, done.append)
        lag_ms = [(e.start_ns - due) / MS for (e, _), due in zip(client.sent, due_ns, strict=True)]
        assert [exchange.intended_ns for exchange, _ in client.sent] == due_ns
        assert len(done) == 200
        assert 185 <= max(lag_ms) < 1000  # the stall is the client's fault, and shows
        assert sum(lag > 50 for lag in lag_ms) >= 60  # (200 - 50) / 2 by arithmetic, less slack

    run(main())


def test_equal_times_leave_together(bodies: Callable[[int], BodyFile]) -> None:
    async def main() -> None:
        client, done = TimedClient(1 * MS), list[Exchange]()
        due_ns = [monotonic_ns() - 1000 * MS] * 50
        await open_loop(client, everything(client, bodies(50)), due_ns, done.append)
        assert len(done) == 50

    run(main())


def test_the_wait_for_a_place_is_in_the_response_time(bodies: Callable[[int], BodyFile]) -> None:
    """8 requests, every 10 ms, 50 ms each, one at a time: request i ends at 50 (i + 1)."""

    async def main() -> None:
        client, done = TimedClient(50 * MS), list[Exchange]()
        origin_ns = monotonic_ns() + 20 * MS
        due_ns = [origin_ns + 10 * MS * n for n in range(8)]
        await open_loop(client, everything(client, bodies(8)), due_ns, done.append, 1)
        assert client.in_flight_max == 1
        assert [exchange.seq for exchange in done] == list(range(8))
        response_ms = [(e.end_ns - e.intended_ns) / MS for e in done]
        expected_ms = [50 * (n + 1) - 10 * n for n in range(8)]
        for got, expected in zip(response_ms, expected_ms, strict=True):
            assert expected <= got < expected + 60
        assert all(50 <= (e.end_ns - e.start_ns) / MS < 51 for e in done)

    run(main())


@pytest.mark.parametrize("cap", [1, 3, 8])
def test_a_cap_is_never_exceeded_and_always_used(
    cap: int, bodies: Callable[[int], BodyFile]
) -> None:
    """Every ms a request of 20 ms: 20 would be in flight without a cap."""

    async def main() -> None:
        client, done = TimedClient(20 * MS), list[Exchange]()
        due_ns = [monotonic_ns() + MS * n for n in range(60)]
        await open_loop(client, everything(client, bodies(60)), due_ns, done.append, cap)
        assert client.in_flight_max == min(cap, client.in_flight_max) == cap
        assert len(done) == 60

    run(main())


def test_an_open_loop_of_nothing(bodies: Callable[[int], BodyFile]) -> None:
    async def main() -> None:
        client = TimedClient(1)
        await open_loop(client, everything(client, bodies(0)), [], list[Exchange]().append)
        await closed_loop(client, [everything(client, bodies(0))], 3, list[Exchange]().append)
        assert client.sent == []

    run(main())


@pytest.mark.parametrize("concurrency", [1, 4, 100])
def test_a_closed_loop_has_so_many_clients(
    concurrency: int, bodies: Callable[[int], BodyFile]
) -> None:
    async def main() -> None:
        client, done = TimedClient(2 * MS), list[Exchange]()
        await closed_loop(client, [everything(client, bodies(40))], concurrency, done.append)
        assert client.in_flight_max == min(concurrency, 40)
        assert sorted(exchange.seq for exchange in done) == list(range(40))
        assert [exchange.seq for exchange, _ in client.sent] == list(range(40))
        ends = sorted(exchange.end_ns for exchange in done)
        for n, (exchange, _) in enumerate(client.sent[concurrency:]):
            assert exchange.start_ns >= ends[n]  # each waits for an answer

    run(main())


def test_the_burst_flows_into_the_measured_requests(bodies: Callable[[int], BodyFile]) -> None:
    async def main() -> None:
        client, done = TimedClient(5 * MS, serial=True), list[Exchange]()
        burst = everything(client, bodies(4), WARMUP)
        await closed_loop(client, [burst, everything(client, bodies(20))], 4, done.append)
        assert [e.phase for e, _ in client.sent] == [WARMUP] * 4 + [MEASURED] * 20
        assert client.in_flight_max == 4
        measured = [e for e in done if e.phase == MEASURED]
        spread = {round((e.end_ns - e.start_ns) / MS) for e in measured}
        assert min(spread) >= 10  # steady from the first: four in the queue, where one has 5 ms

    run(main())


def test_clients_think_between_requests(bodies: Callable[[int], BodyFile]) -> None:
    async def main() -> None:
        client, done = TimedClient(1 * MS), list[Exchange]()
        await closed_loop(client, [everything(client, bodies(5))], 1, done.append, 0.03)
        starts = [exchange.start_ns for exchange, _ in client.sent]
        ends = [exchange.end_ns for exchange in done]
        for end, start in zip(ends, starts[1:], strict=False):
            assert start - end >= 29 * MS

    run(main())


def test_a_timer_fires_once_at_its_latest_time() -> None:
    async def main() -> None:
        fired = list[int]()
        timer = Timer(lambda: fired.append(monotonic_ns()))
        due_ns = monotonic_ns() + 30 * MS
        timer.arm(due_ns - 20 * MS)
        timer.arm(due_ns)
        await asyncio.sleep(0.1)
        assert len(fired) == 1
        assert fired[0] >= due_ns
        timer.arm(1)  # long past
        await asyncio.sleep(0.02)
        assert len(fired) == 2
        timer.arm(monotonic_ns() + 5 * MS)
        timer.close()
        timer.close()
        await asyncio.sleep(0.02)
        assert len(fired) == 2

    run(main())


def test_a_stall_of_the_loop_is_noted_with_its_time() -> None:
    async def main() -> None:
        recorder = StallRecorder()
        await asyncio.sleep(0.02)
        begin_ns = monotonic_ns()
        time.sleep(0.06)  # noqa: ASYNC251
        end_ns = monotonic_ns()
        await asyncio.sleep(0.02)
        recorder.close()
        at_ns, length_ns = max(recorder.stalls, key=lambda stall: stall[1])
        assert begin_ns - 2 * MS <= at_ns <= begin_ns + 2 * MS
        assert end_ns - 3 * MS <= at_ns + length_ns <= end_ns + 15 * MS

    run(main())


def test_each_of_many_answers_lets_its_client_go_on(bodies: Callable[[int], BodyFile]) -> None:
    async def closed() -> None:
        client, done = TogetherClient(), list[Exchange]()
        await closed_loop(client, [everything(client, bodies(18))], 4, done.append)
        assert client.batches == [4, 4, 4, 4, 2]
        assert [exchange.seq for exchange in done] == list(range(18))

    async def capped() -> None:
        client, done = TogetherClient(), list[Exchange]()
        due_ns = [monotonic_ns()] * 10
        await open_loop(client, everything(client, bodies(10)), due_ns, done.append, 4)
        assert client.batches == [4, 4, 2]
        assert [exchange.seq for exchange in done] == list(range(10))

    run(closed())
    run(capped())
