"""The outcome of looking at one thing."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

__all__ = ["Check", "Status"]

Status: TypeAlias = Literal["ok", "warn", "fail"]


class Check(msgspec.Struct, frozen=True):
    """What was looked at, how it is, and what to do if it is not well."""

    name: str
    status: Status
    """`warn`: Baton runs, but not as well as it could. `fail`: something will not work."""
    detail: str
    remedy: str = ""
