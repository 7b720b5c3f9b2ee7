"""embbench: latency matrices of OpenAI-compatible embedding servers, with every answer checked.

For use by other programs: `load_run`, `compare` and ``__version__``. They are loaded when they are
first used. Everything else in the package is internal and changes without notice.
"""

from typing import TYPE_CHECKING, Any

from embbench.version import __version__

if TYPE_CHECKING:
    from embbench.report.compare_runs import compare
    from embbench.results.rundir import load_run

__all__ = ["__version__", "compare", "load_run"]

_HOMES = {"compare": "embbench.report.compare_runs", "load_run": "embbench.results.rundir"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'embbench' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
