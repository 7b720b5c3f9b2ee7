"""The story replayed on the reference servers: a win that was a bug, then what there really is.

1. The first benchmark as it was done: a worker that returns one vector per token, one run of each
   configuration, latencies taken and nothing looked at. The new serialisation wins.
2. The same servers under `embbench sweep`: refused before any load, with the reason.
3. The second benchmark: the worker pools, trials are repeated in a balanced order, and there is a
   verdict.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from embbench.config.plan import ClosedLoop
from embbench.config.schema import ReferenceTarget
from embbench.inputs import encode_body
from embbench.load.job import TrialJob
from embbench.load.processes import LoadProcesses
from embbench.load.request_bodies import BodyFile, BodyFileWriter
from embbench.targets.bring_up import bring_up
from embbench.targets.recipe import Context

HOPS = {"baseline": "base64-struct", "opt-2": "base64-numpy"}
WORDS = [
    "river",
    "stone",
    "cloud",
    "forest",
    "engine",
    "signal",
    "matrix",
    "harbor",
    "winter",
    "copper",
]


def main() -> None:
    """Print the three parts as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", default="15,64")
    parser.add_argument("--requests", type=int, default=20, help="a configuration, in part 1")
    parser.add_argument("--trials", type=int, default=8, help="rounds of part 3")
    options = parser.parse_args()
    batches = [int(batch) for batch in options.batches.split(",")]
    print("## 1. The first benchmark, as it was done\n")
    print(asyncio.run(naive(batches, options.requests)))
    print("## 2. The same servers under embbench\n", flush=True)
    both = [f"--set=targets.{name}.pooling=token" for name in HOPS]
    sweep(["--targets", "baseline,opt-2", "--batches", options.batches, "--trials", "1", *both])
    print("\n## 3. The worker pools, and the comparison is repeated\n", flush=True)
    trials = ["--trials", str(options.trials), "--concurrency", "1", "--requests", "50"]
    sweep(["--targets", "bare,baseline,opt-2", "--batches", options.batches, *trials])


def sweep(arguments: list[str]) -> None:
    """Run `embbench sweep` and say how it ended; its report goes to our stdout."""
    with tempfile.TemporaryDirectory(prefix="embbench-story-") as output:
        argv = [sys.executable, "-m", "embbench", "sweep", "--config", "quick", *arguments]
        code = subprocess.run([*argv, "--output", output], check=False).returncode
    print(f"\nexit code {code}", flush=True)


async def naive(batches: list[int], requests: int) -> str:
    """One run of each configuration, percentiles side by side: common practice."""
    found: dict[tuple[str, int], tuple[float, int]] = {}
    async with LoadProcesses() as load:
        for name, hop in HOPS.items():
            target = ReferenceTarget.model_validate({"hop": hop, "pooling": "token"})
            with tempfile.TemporaryDirectory(prefix="embbench-story-") as folder:
                context = Context(log_dir=Path(folder), batches=(1,))
                async with bring_up(name, target, context) as endpoint:
                    for batch in batches:
                        url = f"{endpoint.base_url}/embeddings"
                        job = make_job(Path(folder), url, endpoint.model, batch, requests)
                        result = await load.drive(job)
                        result.kept.close()
                        ok = result.samples.measured.ok
                        found[name, batch] = (
                            float(np.median(ok.service_time_ns)) / 1e6,
                            int(ok.rows["response_bytes"].mean()),
                        )
    lines = ["| batch | baseline p50 ms | opt-2 p50 ms | change | bytes an answer |"]
    lines.append("| --: | --: | --: | --: | --: |")
    for batch in batches:
        (old, size), (new, _) = found["baseline", batch], found["opt-2", batch]
        lines.append(f"| {batch} | {old:.1f} | {new:.1f} | {new / old - 1:+.0%} | {size:,} |")
    return "\n".join(
        [*lines, "", "HTTP status 200 throughout; nothing here says that anything is wrong.\n"]
    )


def make_job(folder: Path, url: str, model: str, batch: int, requests: int) -> TrialJob:
    """A closed loop of one client with texts of about 80 words, none sent twice."""
    random = np.random.default_rng(batch)
    files = []
    for phase, count in (("warmup", 3), ("measured", requests)):
        with BodyFileWriter(folder / f"{batch}-{phase}.bodies") as writer:
            for _ in range(count):
                texts = [" ".join(random.choice(WORDS, 79)) for _ in range(batch)]
                writer.append(encode_body(model, texts, "float"))
        files.append(BodyFile(folder / f"{batch}-{phase}.bodies"))
    return TrialJob(url, files[1], ClosedLoop(1), folder, files[0])


if __name__ == "__main__":
    main()
