"""The configuration of a run: its schema, and the one home of every default.

In: YAML text and overrides from the command line. Out: a frozen `RunConfig`, whose resolved copy
is saved with the results. `embbench.config.files` reads the files and words the errors.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from embbench.config.plan import Arrival, ClosedLoop, Encoding, OpenLoop

Placement = Literal["exclusive", "co-resident"]
Hop = Literal["json", "base64-struct", "base64-numpy", "shm"]
Engine = Literal["numpy", "torch", "vllm"]
Pooling = Literal["embed", "token"]
ClientName = Literal["buffered", "aiohttp"]


def _as_list(value: Any) -> Any:
    """One value stands for a list of one."""
    return value if isinstance(value, list) else [value]


Listed = BeforeValidator(_as_list)
PositiveInt = Annotated[int, Field(gt=0, strict=True)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Schema(BaseModel):
    """Frozen, and strict about keys: an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Load(Schema):
    """How requests are offered: open loop (`rate_rps` or a trace) or closed loop (`concurrency`).

    It holds for the batches from `min_batch` to `max_batch`, both included.
    """

    rate_rps: PositiveFloat | None = None
    """Open loop: requests a second."""
    arrival: Arrival = "constant"
    """How intended starts are spaced: evenly, at random (Poisson, seeded), or from `trace`."""
    trace: str | None = None
    """A file of offsets in seconds, one a line; `rate_rps` is then only its name."""
    max_in_flight: PositiveInt | None = None
    """Open loop: most requests at once; the wait for a place is part of the response time."""
    concurrency: PositiveInt | None = None
    """Closed loop: clients, each of which waits for its answer."""
    think_time_s: Annotated[float, Field(ge=0)] = 0.0
    """Closed loop: pause of a client between answer and next request."""
    requests: PositiveInt = 20
    """Measured requests a trial."""
    warmup: Annotated[int, Field(ge=0, strict=True)] = 5
    """Warm-up requests before each trial, of the same shape; at least `concurrency` + 1."""
    min_batch: PositiveInt = 1
    """The smallest batch for which this load holds."""
    max_batch: PositiveInt | None = None
    """The largest; none: no limit."""

    @model_validator(mode="after")
    def _one_loop(self) -> "Load":
        if (self.rate_rps is None) == (self.concurrency is None):
            raise ValueError("give either rate_rps (open loop) or concurrency (closed loop)")
        if self.concurrency is not None:
            for key in ("trace", "max_in_flight"):
                if getattr(self, key) is not None:
                    raise ValueError(f"{key} belongs to the open loop (rate_rps)")
        elif self.think_time_s:
            raise ValueError("think_time_s belongs to the closed loop (concurrency)")
        if (self.arrival == "trace") != (self.trace is not None):
            raise ValueError("arrival: trace and trace: FILE go together")
        return self

    def covers(self, batch: int) -> bool:
        """Whether this load is offered at this batch."""
        return self.min_batch <= batch and (self.max_batch is None or batch <= self.max_batch)

    @property
    def loop(self) -> OpenLoop | ClosedLoop:
        """The load as the planner's value."""
        if self.concurrency is not None:
            return ClosedLoop(self.concurrency, self.think_time_s)
        assert self.rate_rps is not None
        return OpenLoop(self.rate_rps, self.arrival, self.trace, self.max_in_flight)


class Launch(Schema):
    """How one process of a target is started, beyond what its kind says."""

    python: str | None = None
    """The interpreter of the environment that holds the server."""
    env: dict[str, str] = {}
    """Added to the inherited environment; names that look like secrets are masked in results."""
    cwd: str | None = None
    """Working directory."""
    pythonpath: str | None = None
    """Put in front of PYTHONPATH: another checkout of the server."""
    args: tuple[str, ...] = ()
    """Further arguments, as they are."""


class TargetBase(Launch):
    """What all kinds of target have in common.

    `normalised: false` declares that the server is meant to return un-normalised vectors.
    `same_as` declares that this target is another one under a second name (an A/A pair).
    """

    model: str | None = None
    """Deviates from the run's model."""
    normalised: bool = True
    """False: the server is meant to return other norms than 1."""
    same_as: str | None = None
    """Another target of which this is a second name: an A/A pair."""
    start_timeout_s: PositiveFloat = 600.0
    """Longest start, until real embeddings have come back."""
    stop_grace_s: PositiveFloat = 30.0
    """Time between SIGTERM and SIGKILL."""


class ReferenceTarget(TargetBase):
    """Our own servers (`embbench serve`): one process, or frontend and worker with a hop."""

    kind: Literal["reference"] = "reference"
    processes: Literal[1, 2] = 2
    """1: HTTP and engine together; 2: frontend and worker."""
    hop: Hop = "base64-numpy"
    """How vectors cross from worker to frontend."""
    engine: Engine = "numpy"
    """What computes the vectors."""
    pooling: Pooling = "embed"
    """`token` returns the whole per-token matrix: a negative control."""
    engine_args: dict[str, Any] = {}
    """Deviate from the run's."""


class CommandTarget(TargetBase):
    """Any command. ``{port}`` in its arguments or environment becomes a free loopback port."""

    kind: Literal["command"] = "command"
    argv: Annotated[tuple[str, ...], Field(min_length=1)]
    """`{port}` becomes a free loopback port, `{python}` the interpreter."""
    base_path: str = "/v1"
    """Where the API lies."""


class ExternalTarget(TargetBase):
    """A server that is already up. `api_key_env` names the environment variable with its key."""

    kind: Literal["external"] = "external"
    url: str
    """Up to and including the `/v1`."""
    api_key_env: str | None = None
    """The environment variable that holds the key."""
    start_timeout_s: PositiveFloat = 60.0
    """How long to wait until it answers."""


class VllmTarget(TargetBase):
    """A bare `vllm serve`. `engine_args` deviate from the run's."""

    kind: Literal["vllm"] = "vllm"
    engine_args: dict[str, Any] = {}
    """Deviate from the run's."""
    api_server_count: PositiveInt = 1
    """API server processes."""


class DynamoTarget(TargetBase):
    """Dynamo: an HTTP frontend and an embedding worker, each with launch settings of its own."""

    kind: Literal["dynamo"] = "dynamo"
    engine_args: dict[str, Any] = {}
    """Deviate from the run's."""
    frontend: Launch = Launch()
    """Launch settings of the frontend alone."""
    worker: Launch = Launch()
    """Launch settings of the worker alone."""
    embedding_worker_processes: PositiveInt | None = None
    """Worker processes."""
    embedding_frontend_tokenization: bool = False
    """Tokenise in the frontend."""


TargetConfig = Annotated[
    ReferenceTarget | CommandTarget | ExternalTarget | VllmTarget | DynamoTarget,
    Field(discriminator="kind"),
]


class Checks(Schema):
    """What is asked of the answers. Bodies beyond the budget are verified as a seeded share."""

    norm_tolerance: PositiveFloat = 1e-3
    """How far an L2 norm may be from 1."""
    cosine_min: Annotated[float, Field(gt=0, le=1)] = 0.999
    """Least cosine of two vectors that are to be the same."""
    dimensions: PositiveInt | None = None
    """Sent as `dimensions` in every request."""
    content_texts: Annotated[int, Field(ge=0)] = 8
    """Texts of each trial that are embedded again, alone, when its clock has stopped."""
    failed_share_max: Annotated[float, Field(ge=0, lt=1)] = 0.001
    """A cell with a larger share of failed requests is INVALID."""
    budget_mib: PositiveInt = 1024
    """Memory for response bodies; what does not fit is verified as a seeded share."""
    processes: PositiveInt = 1
    """Verifying processes."""


class Generator(Schema):
    """The load generator: which client, how many load processes, and where they run."""

    client: ClientName = "buffered"
    """`buffered` is embbench's own exchange; `aiohttp` the library's."""
    processes: PositiveInt = 1
    """Load processes over which connections and schedule are spread."""
    pin: Literal["none", "auto"] | tuple[int, ...] = "none"
    """Cores for the load processes; servers are then kept off them. `auto` chooses."""
    keep_awake: bool = True
    """Pinned cores do not sleep in a trial: waking up would be part of every latency."""
    timeout_s: PositiveFloat = 120.0
    """A request without a complete answer by then has failed."""
    send_lag_p99_limit_ms: PositiveFloat | None = None
    """Requests that leave later make a trial INVALID; none: 1 ms, or 5 % of the p50 if more."""
    calibrate: bool = True
    """Measure the client itself before the run."""

    @model_validator(mode="after")
    def _a_core_for_each_process(self) -> "Generator":
        if not isinstance(self.pin, str) and len(self.pin) != self.processes:
            raise ValueError(f"pin names {len(self.pin)} cores for {self.processes} processes")
        return self


class RunConfig(Schema):
    """One run, called by the name of its file unless `name` says otherwise.

    `floor` and `baseline` name the targets that the others are measured against.
    """

    name: str = ""
    """Part of the name of the run directory."""
    description: str = ""
    """Title of the report."""
    seed: int = 1
    """Of texts, schedules and order."""
    model: str | None = None
    """A directory, a hub name, `generated` or `minilm`."""
    tokenizer: str | None = None
    """The model's tokenizer, named as `model`; without it texts are calibrated on the server."""
    server_python: str | None = None
    """The interpreter of the environment that has vLLM or Dynamo."""
    isl: Annotated[list[PositiveInt], Listed, Field(min_length=1)] = [80]
    """Tokens an input as the server counts them, special tokens included."""
    batches: Annotated[list[PositiveInt], Listed, Field(min_length=1)] = [15, 64, 1024]
    """Inputs a request."""
    encoding: Annotated[list[Encoding], Listed, Field(min_length=1)] = ["float"]
    """`encoding_format` of the requests."""
    loads: Annotated[list[Load], Field(min_length=1)] = [
        Load(rate_rps=10, max_batch=64),
        Load(concurrency=1, min_batch=65, requests=5, warmup=2),
    ]
    """How requests are offered, by batch."""
    trials: PositiveInt | None = None
    """Rounds; each starts every server anew. None: as many as fit into `time_budget_min`."""
    time_budget_min: PositiveFloat = 30.0
    """What a run may take when `trials` is chosen by the estimate of its time."""
    placement: Placement = "exclusive"
    """`exclusive`: one target up at a time; `co-resident`: all, one driven at a time."""
    aa: bool = False
    """Launch the floor once more under another name."""
    targets: Annotated[dict[str, TargetConfig], Field(min_length=1)] = {
        "bare": ReferenceTarget(processes=1),
        "baseline": ReferenceTarget(hop="base64-struct"),
        "opt-2": ReferenceTarget(hop="base64-numpy"),
        "shm": ReferenceTarget(hop="shm"),
    }
    """The systems under test, by name."""
    floor: str | None = None
    """The target that the ratios refer to; none: the first."""
    baseline: str | None = None
    """The target that the others were meant to improve on; none: the first besides the floor."""
    engine_args: dict[str, Any] = {}
    """For all targets, translated to each: `dtype`, `max_model_len`, `enable_prefix_caching` ..."""
    checks: Checks = Checks()
    """What is asked of the answers."""
    generator: Generator = Generator()
    """The load generator."""
    output: str = "results"
    """Folder under which run directories are made."""

    @model_validator(mode="after")
    def _names_exist(self) -> "RunConfig":
        named = {"floor": self.floor, "baseline": self.baseline}
        named |= {f"targets.{name}.same_as": t.same_as for name, t in self.targets.items()}
        for where, name in named.items():
            if name is not None and name not in self.targets:
                known = ", ".join(self.targets)
                raise ValueError(f"{where} names no target '{name}'; targets are: {known}")
        return self

    @model_validator(mode="after")
    def _every_batch_has_a_load(self) -> "RunConfig":
        for batch in self.batches:
            if not any(load.covers(batch) for load in self.loads):
                raise ValueError(
                    f"no load covers batch {batch}; widen min_batch or max_batch of one of them"
                )
        return self

    @property
    def all_targets(self) -> "dict[str, TargetConfig]":
        """The targets that are launched: those configured and, with ``aa``, the floor once more."""
        if not self.aa:
            return self.targets
        floor = self.targets[self.floor_name]
        second = floor.model_copy(update={"same_as": self.floor_name})
        return {**self.targets, f"{self.floor_name}-aa": second}

    @property
    def rounds(self) -> int:
        """How many rounds are planned: one, as long as nobody has chosen."""
        return self.trials or 1

    @property
    def floor_name(self) -> str:
        """The floor: as given, else the first target."""
        return self.floor or next(iter(self.targets))

    @property
    def baseline_name(self) -> str | None:
        """The baseline: as given, else the first target that is not the floor, if there is one."""
        others = [name for name in self.targets if name != self.floor_name]
        return self.baseline or (others[0] if others else None)
