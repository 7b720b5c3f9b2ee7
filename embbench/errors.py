"""The exception tree. Each error says what happened, where, and what to do next, in one line.

EmbbenchError        exit 1: embbench could not do it
|- ConfigError       exit 2: usage or configuration is wrong
|- TargetError       exit 1: a server did not start, died, or is not what was asked for
|- LoadError         exit 1: the load generator itself failed (a load process died)
`- RunError          exit 1: a run directory is missing, unreadable, or of another schema
"""

from typing import ClassVar


class EmbbenchError(Exception):
    """Base of all errors that are shown to the user as one line, without a traceback."""

    exit_code: ClassVar[int] = 1


class ConfigError(EmbbenchError):
    """The command line or a config file is wrong; nothing was started."""

    exit_code = 2


class TargetError(EmbbenchError):
    """A target did not start, died, answered wrongly, or is not the server that was asked for."""


class LoadError(EmbbenchError):
    """The load generator could not do its work; the servers are not to blame."""


class RunError(EmbbenchError):
    """A run directory cannot be written or read."""
