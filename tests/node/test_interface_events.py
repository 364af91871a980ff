"""The kernel's word on interfaces, in a network namespace of its own."""

import trio

from node.interface_events import InterfaceEvents, interface_events
from tests.support.netns import network


async def test_added_interface_and_address_wake_who_waits():
    with network(1, bridges=0) as net, net.inside(0):
        async with interface_events() as events:
            assert events.prompt
            for command in ("link add v0 type veth peer name v1", "address add 10.9.9.9/24 dev v0"):
                net.run(0, "ip", *command.split())
                with trio.fail_after(10):
                    await events.wait()
                # One command may be told of in several messages.
                with trio.move_on_after(0.2):
                    while True:
                        await events.wait()


async def test_change_before_the_wait_is_not_lost():
    events = InterfaceEvents(prompt=True)
    events.tell()
    with trio.fail_after(1):
        await events.wait()
    with trio.move_on_after(0.05) as scope:
        await events.wait()
    assert scope.cancelled_caught
