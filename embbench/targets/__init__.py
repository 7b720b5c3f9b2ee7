"""Bring-up and tear-down of the servers under test.

In: one target of the config. Out: an `Endpoint` for as long as an ``async with`` lasts; nothing
is left behind, whatever happens. `bring_up` is the door; one file a kind says what to start.
"""

from embbench.targets.endpoint import Endpoint, Process, while_alive

__all__ = ["Endpoint", "Process", "while_alive"]
