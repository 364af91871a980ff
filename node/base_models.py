"""Which checkpoints are the same model in another form."""

from __future__ import annotations

__all__ = ["base_model"]


def base_model(model: str) -> str:
    """Return the name that the forms of one model share: for now, what follows the owner."""
    return model.rstrip("/").rpartition("/")[2]
