"""docs/cluster-status.md has every key of the document, with its type."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from node.status import ClusterStatus

PAGE = Path(__file__).parents[2] / "docs" / "cluster-status.md"
SCHEMA = msgspec.json.schema(ClusterStatus)["$defs"]
STRUCTS = {
    "The document": "ClusterStatus",
    "master": "MasterStatus",
    "node": "NodeStatus",
    "memory": "MemoryStatus",
    "interface": "InterfaceStatus",
    "instance": "InstanceStatus",
    "link": "LinkStatus",
}
NAMES = {f"#/$defs/{struct}": name for name, struct in STRUCTS.items()}


def documented() -> Iterator[tuple[str, dict[str, str]]]:
    """Go through the page's tables: heading, and the types by key."""
    for section in PAGE.read_text().split("\n## ")[1:]:
        rows = re.findall(r"^\| `(\w+)` \| (.+?) \| .+ \|$", section, re.MULTILINE)
        yield section.partition("\n")[0], dict(rows)


def type_of(schema: dict) -> str:
    """Write a JSON schema as the page does."""
    if "$ref" in schema:
        return NAMES[schema["$ref"]]
    if "anyOf" in schema:
        inner = [type_of(each) for each in schema["anyOf"] if each != {"type": "null"}]
        return ", ".join(inner) + "?" * (len(inner) < len(schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(json.dumps(each) for each in schema["enum"])
    if schema["type"] == "array":
        return f"[{type_of(schema['items'])}]"
    return schema["type"]


def test_every_struct_has_its_table():
    assert [heading for heading, _ in documented()] == list(STRUCTS)
    assert set(STRUCTS.values()) == set(SCHEMA)


def parts(type_: str) -> tuple[bool, list[str]]:
    """Return whether a type is a list, and what may be in it, in any order."""
    return type_.startswith("["), sorted(type_.strip("[]").split(", "))


@pytest.mark.parametrize(("heading", "table"), list(documented()))
def test_keys_and_types(heading: str, table: dict[str, str]):
    properties = SCHEMA[STRUCTS[heading]]["properties"]
    assert list(table) == list(properties)
    for key, schema in properties.items():
        assert parts(table[key]) == parts(type_of(schema)), key
