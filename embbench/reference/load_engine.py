"""Which engine computes: in the options, out a loaded `Engine` that can compute at once."""

import logging
import sys
import time
from typing import assert_never

from embbench.errors import EmbbenchError
from embbench.reference.engine import Engine, ThreadedEngine
from embbench.reference.options import ServeOptions

log = logging.getLogger("embbench.engine")


def load_engine(options: ServeOptions) -> Engine:
    """Load the engine that the options name; blocks until it can compute. Raises EmbbenchError."""
    start_ns = time.perf_counter_ns()
    try:
        engine = _load(options)
    except ModuleNotFoundError as error:
        raise EmbbenchError(
            f"the {options.engine} engine needs '{error.name}', which {sys.executable} does not "
            f"have; install embbench[{options.engine}] there"
        ) from None
    seconds = (time.perf_counter_ns() - start_ns) / 1e9
    log.info("%s engine in %.1f s: %s", options.engine, seconds, engine.facts)
    return engine


def _load(options: ServeOptions) -> Engine:
    match options.engine:
        case "numpy":
            from embbench.reference.engine_numpy import NumpyModel

            return ThreadedEngine(NumpyModel(options), options)
        case "torch":
            from embbench.reference.engine_torch import TorchModel

            return ThreadedEngine(TorchModel(options), options)
        case "vllm":
            from embbench.reference.engine_vllm import VllmEngine

            return VllmEngine(options)
        case _:
            assert_never(options.engine)
