import json
import subprocess
import sys

import pytest

from bench.cluster import measure


def test_traffic_grows_no_worse_than_linearly_and_times_do_not_grow():
    rows = {row.nodes: row for row in measure((10, 25), rounds=1).rows}
    assert rows[25].messages_per_s_and_member < 1.2 * rows[10].messages_per_s_and_member
    assert all(row.whole_s < 5.0 for row in rows.values())
    assert all(row.replaced_s < 3.0 for row in rows.values())


@pytest.mark.soak
def test_a_hundred_nodes():
    (row,) = measure((100,), rounds=1).rows
    assert row.whole_s < 5.0
    assert row.replaced_s < 3.0
    assert row.messages_per_s_and_member < 1.5


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "bench.cluster", *arguments], capture_output=True, text=True
    )


def test_prints_one_json_document():
    process = run("--json", "--nodes", "2", "--rounds", "1")
    (row,) = json.loads(process.stdout)["rows"]
    assert row["nodes"] == 2
    assert row["messages_per_s"] > 0


def test_prints_a_table():
    assert "Simulated clusters" in run("--nodes", "2", "--rounds", "1").stdout


@pytest.mark.parametrize("arguments", [("--nodes", "1"), ("--rounds", "0")])
def test_sizes_that_make_no_sense_are_refused(arguments):
    process = run(*arguments)
    assert process.returncode == 2
    assert "2 nodes or more" in process.stderr
