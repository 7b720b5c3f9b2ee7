"""What on this machine would be wrong with a run, and what to do about each.

`examine` reads the system once and judges it; every judgement is a function of values alone, so
that machines which nobody has here can be judged in tests.
"""

from embbench.doctor.judge import Check, Status, judge
from embbench.doctor.machine import Machine, read_machine
from embbench.doctor.pinning import Pinning, physical_cores, propose_pinning


def examine(*, server_python: str | None = None) -> list[Check]:
    """This machine's checks. ``server_python``: the interpreter that has vLLM or Dynamo."""
    return judge(read_machine(server_python))


__all__ = [
    "Check",
    "Machine",
    "Pinning",
    "Status",
    "examine",
    "judge",
    "physical_cores",
    "propose_pinning",
    "read_machine",
]
