import socket
from ipaddress import ip_interface

import pytest
import trio
from libp2p.crypto.ed25519 import create_new_key_pair

from node.discovery.copies import Copies, Verdict, gives_way
from node.errors import DuplicateIdentity
from node.host import PeerHost
from node.interfaces import Interface
from node.routes import Route

LO = Interface("lo", "loopback", (ip_interface("127.0.0.1/8"),))
HERE, THERE = ("/ip4/127.0.0.1/tcp/1",), ("/ip4/127.0.0.1/tcp/2",)


class Host:
    """Has copies at some addresses."""

    addresses = HERE
    interfaces = (LO,)

    def __init__(self, *copies: str) -> None:
        self.copies = copies

    async def finds_copy(self, route: Route) -> bool:
        await trio.lowlevel.checkpoint()
        return route.address in self.copies


def test_later_start_gives_way_and_never_both():
    assert gives_way((8, HERE), (7, THERE))
    assert not gives_way((7, HERE), (8, THERE))
    # In one second, one of the two.
    assert gives_way((7, HERE), (7, THERE)) != gives_way((7, THERE), (7, HERE))


async def test_copy_that_started_earlier_is_given_way_to_and_a_later_one_is_not():
    copies = Copies(Host(*THERE), restricted=False)
    assert await copies.check(7, 8, THERE) is Verdict.FOUND
    with pytest.raises(DuplicateIdentity, match=r"identity\.key"):
        await copies.check(7, 6, THERE)


async def test_own_addresses_and_those_where_nobody_proves_anything_are_no_copy():
    copies = Copies(Host(), restricted=False)
    assert await copies.check(7, 6, HERE) is Verdict.NONE
    assert await copies.check(7, 6, THERE) is Verdict.NONE


async def test_only_who_proves_to_hold_the_key_is_a_copy():
    """Over real sockets: a copy, another node, another program, nobody, and this node itself."""
    key = create_new_key_pair()
    own, copy, other = (PeerHost(each, [LO]) for each in (key, key, create_new_key_pair()))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        program = f"/ip4/127.0.0.1/tcp/{silent.getsockname()[1]}"
        async with own.running(), copy.running(), other.running():
            expected = {
                copy.addresses[0]: True,
                other.addresses[0]: False,
                own.addresses[0]: False,
                program: False,
                "/ip4/127.0.0.1/tcp/1": False,
            }
            for address, is_copy in expected.items():
                found = await own.finds_copy(Route(address, "loopback", "lo"))
                assert found is is_copy, address
