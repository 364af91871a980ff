"""Counts what a process holds: memory, tasks, files, objects, and the sizes of what they keep.

Every object of the node's own packages and of libp2p, zeroconf and multiaddr is counted by class,
and every container that is an attribute of one by `Class.attribute`. So whatever grows shows up,
also what nobody thought of.
"""

from __future__ import annotations

import gc
import threading
from collections import Counter, deque
from collections.abc import Mapping, Set
from typing import Any

import msgspec
import psutil
import trio

__all__ = ["Census", "take_census"]

_PACKAGES = ("node", "protocols", "libp2p", "zeroconf", "multiaddr")
_CONTAINERS = (Mapping, Set, list, tuple, deque)


class Census(msgspec.Struct):
    """What a process holds at one moment."""

    rss: int
    """Bytes."""
    files: int
    threads: int
    tasks: dict[str, int]
    """trio's tasks, by name."""
    counts: dict[str, int]
    """Objects by class, and elements of their containers by `Class.attribute`, deep."""


def take_census() -> Census:
    """Count this process. To be called in a trio task."""
    gc.collect()
    process = psutil.Process()
    return Census(
        rss=process.memory_info().rss,
        files=process.num_fds(),
        threads=threading.active_count(),
        tasks=_tasks(),
        counts=_counts(),
    )


def _tasks() -> dict[str, int]:
    found: Counter[str] = Counter()
    waiting = [trio.lowlevel.current_root_task()]
    while waiting:
        task = waiting.pop()
        if task is not None:
            found[task.name] += 1
            waiting += [child for each in task.child_nurseries for child in each.child_tasks]
    return dict(found)


def _counts() -> dict[str, int]:
    found: Counter[str] = Counter()
    for each in gc.get_objects():
        kind = type(each)
        if str(kind.__module__).partition(".")[0] not in _PACKAGES or isinstance(each, type):
            continue
        found[kind.__qualname__] += 1
        for name, value in _attributes(each):
            if isinstance(value, _CONTAINERS):
                found[f"{kind.__qualname__}.{name}"] += _size(value)
    return dict(found)


def _attributes(thing: object) -> list[tuple[str, Any]]:
    own = getattr(thing, "__dict__", None)
    if isinstance(own, dict):
        return list(own.items())
    slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    return [(name, getattr(thing, name)) for name in slots if hasattr(thing, name)]


def _size(value: object, depth: int = 3) -> int:
    if not isinstance(value, _CONTAINERS) or not depth:
        return 0
    inside = list(value.values()) if isinstance(value, Mapping) else list(value)
    return len(inside) + sum(_size(each, depth - 1) for each in inside)
