"""What no correct node says, though the types would allow it, and text that is safe to show.

Applies to whatever fields a message has, so a new field is under its rules from the start.
"""

from __future__ import annotations

import re
from typing import Final, TypeVar

import msgspec

from protocols.errors import Malformed

__all__ = ["MAX_INT", "MAX_ITEMS", "MAX_TEXT", "cleaned_text", "sane"]

MAX_INT: Final = (1 << 53) - 1
"""What readers of JSON keep exact; a sequence that grows every second gets nowhere near."""
MAX_TEXT: Final = 4096
"""Characters."""
MAX_ITEMS: Final = 1024

# Control characters (ANSI escapes begin with one), line and paragraph separators, and those that
# turn the direction of what follows, with which a name can pass for another.
_UNSAFE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_REPLACEMENT: Final = "\ufffd"

S = TypeVar("S", bound=msgspec.Struct)


def cleaned_text(text: str) -> str:
    """Return text that does to a terminal or a log no more than be shown."""
    return _UNSAFE.sub(_REPLACEMENT, text) if not text.isprintable() else text


def sane(message: S) -> S:
    """Return a message with its text cleaned. Numbers count or measure something: none is negative.

    Raises:
        Malformed: a number is negative, not finite or over `MAX_INT`; a text or a list too long.
    """
    changes = {
        name: value
        for name in message.__struct_fields__
        if (value := _sane(was := getattr(message, name), name)) is not was
    }
    return msgspec.structs.replace(message, **changes) if changes else message


def _sane(value: object, name: str) -> object:
    match value:
        case str():
            if len(value) > MAX_TEXT:
                raise Malformed(f"{name} has {len(value)} characters, over {MAX_TEXT}")
            return cleaned_text(value)
        case int() | float():
            # Not a number compares as false.
            if not 0 <= value <= MAX_INT:
                raise Malformed(f"{name} is {value}")
            return value
        case tuple():
            return _sane_items(value, name)
        case msgspec.Struct():
            return sane(value)
        case _:
            return value


def _sane_items(items: tuple[object, ...], name: str) -> tuple[object, ...]:
    if len(items) > MAX_ITEMS:
        raise Malformed(f"{name} has {len(items)} items, over {MAX_ITEMS}")
    checked = tuple(_sane(item, name) for item in items)
    same = all(new is old for new, old in zip(checked, items, strict=True))
    return items if same else checked
