"""Room for connections that have not shown who they are."""

import trio
import trio.testing

from node.transport.half_open import HalfOpen


async def hold(half_open, address, dropped, task_status=trio.TASK_STATUS_IGNORED):
    with half_open.entered(address):
        task_status.started()
        await trio.sleep_forever()
    dropped.append(address)


async def settle():
    await trio.testing.wait_all_tasks_blocked()


async def test_newcomer_takes_the_place_of_the_oldest_of_its_address():
    half_open, dropped = HalfOpen(per_address=2, total=10), []
    async with trio.open_nursery() as nursery:
        for address in ("a", "b", "a", "a", "a"):
            await nursery.start(hold, half_open, address, dropped)
        await settle()
        assert dropped == ["a", "a"]
        assert len(half_open) == 3
        nursery.cancel_scope.cancel()
    assert len(half_open) == 0


async def test_newcomer_takes_a_place_of_whoever_has_most():
    half_open, dropped = HalfOpen(per_address=8, total=6), []
    async with trio.open_nursery() as nursery:
        for address in ("b", *"aaaaa", "c", "d"):
            await nursery.start(hold, half_open, address, dropped)
        await settle()
        assert dropped == ["a", "a"]
        assert len(half_open) == 6
        nursery.cancel_scope.cancel()


async def test_those_who_are_done_make_room():
    half_open = HalfOpen(per_address=1, total=1)
    for address in "abc" * 10:
        with half_open.entered(address):
            assert len(half_open) == 1
    assert len(half_open) == 0
