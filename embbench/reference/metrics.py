"""Counters of a server in Prometheus' text form.

In: named additions, from the event loop and the threads beside it. Out: the page of /metrics.
"""

from collections import Counter
from collections.abc import Mapping
from threading import Lock

_HELP: Mapping[str, str] = {
    "embbench_requests_total": "Answers to /v1/embeddings by HTTP status",
    "embbench_inputs_total": "Inputs embedded",
    "embbench_prompt_tokens_total": "Tokens embedded, special tokens included",
    "embbench_errors_total": "Requests answered with an error",
    "embbench_seconds_total": "Seconds spent by stage of a request",
    "embbench_hop_bytes_total": "Bytes of frames between frontend and worker",
    "embbench_shm_collected_total": "Shared-memory segments read and removed by the frontend",
    "embbench_shm_reaped_total": "Shared-memory segments removed because nobody collected them",
    "embbench_shm_fallbacks_total": "Requests that took base64-numpy instead of shm, by reason",
    "embbench_shm_segments": "Shared-memory segments of the worker that are there now",
    "embbench_in_flight": "Requests being answered now",
    "embbench_info": "What this server is",
}

_GAUGES = ("embbench_shm_segments", "embbench_in_flight", "embbench_info")


class Metrics:
    """Values by name and labels; the labels are given as keywords."""

    def __init__(self) -> None:
        self._values: Counter[tuple[str, tuple[tuple[str, str], ...]]] = Counter()
        self._lock = Lock()
        for name in ("inputs", "prompt_tokens", "errors"):
            self.add(f"embbench_{name}_total", 0)

    def add(self, name: str, value: float, **labels: str) -> None:
        """Add to a counter."""
        with self._lock:
            self._values[name, tuple(sorted(labels.items()))] += value  # type: ignore[assignment]

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a value that can fall, or one that is counted elsewhere."""
        with self._lock:
            self._values[name, tuple(sorted(labels.items()))] = value  # type: ignore[assignment]

    def page(self) -> str:
        """All values, grouped by name with their help."""
        with self._lock:
            values = sorted(self._values.items())
        lines: list[str] = []
        last = None
        for (name, labels), value in values:
            if name != last:
                kind = "gauge" if name in _GAUGES else "counter"
                lines += [f"# HELP {name} {_HELP[name]}", f"# TYPE {name} {kind}"]
                last = name
            inside = ",".join(f'{key}="{_escape(text)}"' for key, text in labels)
            lines.append(f"{name}{{{inside}}} {value:.15g}" if inside else f"{name} {value:.15g}")
        return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
