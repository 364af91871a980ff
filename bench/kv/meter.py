"""What this process has used: processor time, and memory at its peak."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Final

import msgspec

__all__ = ["Meter", "Usage"]

_STATUS: Final = Path("/proc/self/status")
_CLEAR: Final = Path("/proc/self/clear_refs")


class Usage(msgspec.Struct, frozen=True):
    """Since a mark, and since the meter was made."""

    cpu_s: float
    """Of all threads since the last `mark`."""
    peak_growth: int
    """Bytes by which resident memory at its peak was over what it was when the meter was made."""


class Meter:
    """Measures the process that it is made in, from then on.

    On Linux the peak of before is forgotten. Elsewhere it counts, so that a growth of less than it
    stays unseen.
    """

    def __init__(self) -> None:
        if _CLEAR.exists():
            _CLEAR.write_text("5")  # resets VmHWM, see proc(5)
            self._base = _from_status("VmRSS")
        else:
            self._base = _peak()
        self.mark()

    def mark(self) -> None:
        """Count processor time from now."""
        self._cpu = _cpu_s()

    def usage(self) -> Usage:
        """Return what has been used."""
        return Usage(cpu_s=_cpu_s() - self._cpu, peak_growth=max(0, _peak() - self._base))


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _peak() -> int:
    if _STATUS.exists():
        return _from_status("VmHWM")
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _from_status(key: str) -> int:
    for line in _STATUS.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    raise LookupError(f"no {key} in {_STATUS}")
