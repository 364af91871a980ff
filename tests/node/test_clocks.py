"""A clock that is wrong by a day: the cluster works, and says so."""

import pytest

from tests.support.nodes import node, wait_for

pytestmark = pytest.mark.e2e

DAY_S = 86_400


async def test_node_that_lost_its_state_while_its_clock_is_a_day_behind_is_heard(tmp_path):
    where = ("--interface", "lo")
    async with node(tmp_path / "a", *where) as a:
        async with node(tmp_path / "b", *where) as b:
            await wait_for(lambda: a.sees(b) and b.sees(a), a, b)
        await wait_for(lambda: a.states()[b.peer_id] == "gone", a)
        (tmp_path / "b" / "state.json").unlink()
        async with node(tmp_path / "b", *where, "--clock-shift", str(-DAY_S)) as b:
            await wait_for(lambda: a.sees(b) and b.sees(a), a, b)
            await wait_for(lambda: "minutes behind ours" in a.log, a)
            assert "peers know of a later start of this node" in b.log
