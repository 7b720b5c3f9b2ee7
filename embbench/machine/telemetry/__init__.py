"""What the machine did while a trial ran: read once a second, kept beside the samples."""

from embbench.machine.telemetry.readings import (
    Reading,
    Usage,
    read_telemetry,
    telemetry_findings,
    usage,
    write_telemetry,
)
from embbench.machine.telemetry.sampler import Sampler

__all__ = [
    "Reading",
    "Sampler",
    "Usage",
    "read_telemetry",
    "telemetry_findings",
    "usage",
    "write_telemetry",
]
