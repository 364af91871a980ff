"""Everything that the node raises on purpose, in one tree; each says what to do about it."""

from __future__ import annotations

from protocols.engine import FailureCode

__all__ = [
    "AlreadyRunning",
    "BatonError",
    "CorruptDataDirectory",
    "DuplicateIdentity",
    "EngineDied",
    "EngineRequestFailed",
    "InstanceNotReady",
    "ModelNotHere",
    "NoUsableInterface",
    "NothingToRun",
    "PeerUnreachable",
    "PortInUse",
    "UnknownInterface",
    "UnusableDataDirectory",
]


class BatonError(Exception):
    """Something that the user can be told, with a remedy.

    Args:
        problem: what went wrong, in one sentence without a full stop.
        remedy: what to do about it, likewise; empty where there is nothing to do.
    """

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(f"{problem}: {remedy}" if remedy else problem)
        self.problem = problem
        self.remedy = remedy


class AlreadyRunning(BatonError):
    """Another process uses the data directory."""


class CorruptDataDirectory(BatonError):
    """A file in the data directory is not what this program wrote."""


class UnusableDataDirectory(BatonError):
    """The data directory cannot be made, read or written."""


class DuplicateIdentity(BatonError):
    """Another running node has this node's peer id: its data directory was copied."""


class UnknownInterface(BatonError):
    """A network interface that was asked for does not exist or has no address."""


class NoUsableInterface(BatonError):
    """No interface of this machine has an address that a peer could dial."""


class PortInUse(BatonError):
    """The port that was asked for is taken."""


class PeerUnreachable(BatonError):
    """There is no open connection to the peer, or it does not answer on one."""


class EngineDied(BatonError):
    """The engine process is gone, and with it what it was working on; it is being restarted."""


class InstanceNotReady(BatonError):
    """The model is not loaded: not yet, not any more, or it cannot be."""


class EngineRequestFailed(BatonError):
    """An engine could not do a request; `code` says in one word why."""

    def __init__(self, code: FailureCode, reason: str) -> None:
        super().__init__(reason)
        self.code: FailureCode = code


class ModelNotHere(BatonError):
    """A model that was asked for is not on this machine."""


class NothingToRun(BatonError):
    """No engine of this machine can do what was asked for."""
