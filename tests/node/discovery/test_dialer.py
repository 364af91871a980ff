"""The dialer against a simulated network, on a clock that jumps."""

from ipaddress import ip_interface
from itertools import pairwise

import pytest
import trio
import trio.testing

from node.discovery.dialer import Dialer
from node.interfaces import Interface
from node.routes import Route
from protocols.gossip import InterfaceRecord

ETH = Interface("eth0", "ethernet", (ip_interface("10.0.0.1/24"),))
WIFI = Interface("wlan0", "wifi", (ip_interface("192.168.0.1/24"),))
INTERFACES = (InterfaceRecord("en0", "ethernet", ("10.0.0.2", "192.168.0.2")),)
"""Of the peer, as its own record tells of them."""
WIRED, WIRELESS = "/ip4/10.0.0.2/tcp/1", "/ip4/192.168.0.2/tcp/1"


class SimulatedHost:
    """Knows which addresses answer, and how long each dial takes."""

    def __init__(self, peer_id="a", interfaces=(ETH, WIFI)):
        self.peer_id = peer_id
        self.interfaces = interfaces
        self.answering: set[str] = set()
        self.takes_s: dict[str, float] = {}
        self.links: list[Route] = []
        self.dialled: list[tuple[float, str]] = []

    def open_routes(self, peer_id):
        return tuple(self.links)

    async def dial(self, peer_id, route):
        self.dialled.append((trio.current_time(), route.address))
        await trio.sleep(self.takes_s.get(route.address, 0.01))
        if route.address not in self.answering:
            return False
        self.links.append(route)
        return True

    def linked(self):
        return {route.address for route in self.links}

    def times(self):
        return [time for time, _ in self.dialled]


@pytest.fixture
def clock(autojump_clock):
    return autojump_clock


async def dialling(host, run, restricted=False):
    async with trio.open_nursery() as nursery:
        await run(Dialer(host, nursery, restricted=restricted))
        nursery.cancel_scope.cancel()


async def test_best_route_is_dialled_first_and_each_other_interface_once_as_a_standby(clock):
    host = SimulatedHost()
    host.answering = {WIRED, WIRELESS}

    async def run(dialer):
        dialer.learn("b", (WIRELESS, WIRED), 1)
        await trio.sleep(100)

    await dialling(host, run)
    assert [address for _, address in host.dialled] == [WIRED, WIRELESS]


async def test_dead_route_delays_the_next_but_little(clock):
    host = SimulatedHost()
    host.answering, host.takes_s = {WIRELESS}, {WIRED: 4.0}

    async def run(dialer):
        start = trio.current_time()
        dialer.learn("b", (WIRED, WIRELESS), 1)
        await trio.sleep(1)
        assert host.linked() == {WIRELESS}
        assert host.dialled[1][0] - start < 0.5

    await dialling(host, run)


async def test_higher_peer_id_leaves_the_dialling_to_the_other_for_a_second(clock):
    host = SimulatedHost(peer_id="z")
    host.answering = {WIRED}

    async def run(dialer):
        start = trio.current_time()
        dialer.learn("b", (WIRED,), 1)
        await trio.sleep(5)
        assert host.times()[0] - start >= 1.0

    await dialling(host, run)


async def test_unreachable_peer_is_tried_for_ever_ever_more_rarely(clock):
    host = SimulatedHost()

    async def run(dialer):
        dialer.learn("b", (WIRED,), 1)
        await trio.sleep(600)

    await dialling(host, run)
    times = host.times()
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps[0] < 1.0
    assert all(gap < 20 for gap in gaps)
    assert len(times) > 30
    assert times[-1] > 570


async def test_lost_link_is_dialled_again_at_once(clock):
    host = SimulatedHost()
    host.answering = {WIRED}

    async def run(dialer):
        dialer.learn("b", (WIRED,), 1)
        await trio.sleep(10)
        host.links.clear()
        start = trio.current_time()
        dialer.poke("b")
        await trio.sleep(1)
        assert host.times()[-1] - start < 0.1

    await dialling(host, run)


async def test_better_route_that_appears_is_taken_up_at_once(clock):
    host = SimulatedHost(interfaces=(WIFI,))
    host.answering = {WIRED, WIRELESS}

    async def run(dialer):
        dialer.learn("b", (WIRED, WIRELESS), 1)
        await trio.sleep(5)
        # Wired is reached over the default route, which is no better than Wi-Fi.
        assert host.linked() == {WIRELESS}
        host.interfaces = (ETH, WIFI)
        dialer.poke()
        await trio.sleep(1)
        assert Route(WIRED, "ethernet", "eth0") in host.links

    await dialling(host, run)


def interfaces_of_b(*names):
    known = (
        InterfaceRecord("eth7", "ethernet", ("10.0.0.2",)),
        InterfaceRecord("wlan7", "wifi", ("192.168.0.2",)),
    )
    return tuple(each for each in known if each.name in names)


async def test_interface_that_the_peer_gets_is_dialled_at_once(clock):
    host = SimulatedHost()
    host.answering = {WIRED, WIRELESS}

    async def run(dialer):
        dialer.learn("b", (WIRELESS,), 1, interfaces_of_b("wlan7"))
        await trio.sleep(5)
        assert host.linked() == {WIRELESS}
        dialer.learn("b", (WIRELESS, WIRED), 1, interfaces_of_b("wlan7", "eth7"))
        await trio.sleep(1)
        assert host.linked() == {WIRED, WIRELESS}
        assert {route.remote for route in host.links} == {"eth7", "wlan7"}

    await dialling(host, run)


async def test_lost_standby_is_dialled_for_ever_and_taken_up_when_it_answers(clock):
    host = SimulatedHost()
    host.answering = {WIRED, WIRELESS}

    async def run(dialer):
        dialer.learn("b", (WIRELESS, WIRED), 1)
        await trio.sleep(5)
        host.links = [route for route in host.links if route.address != WIRED]
        host.answering = {WIRELESS}
        host.dialled.clear()
        dialer.poke("b")
        await trio.sleep(600)
        assert {address for _, address in host.dialled} == {WIRED}
        assert host.times()[1] - host.times()[0] < 1.0
        assert all(later - earlier < 20 for earlier, later in pairwise(host.times()))
        assert host.times()[-1] > trio.current_time() - 20
        host.answering = {WIRED, WIRELESS}
        await trio.sleep(20)
        assert host.linked() == {WIRED, WIRELESS}

    await dialling(host, run)


async def test_higher_peer_id_leaves_standbys_to_the_other_but_not_for_ever(clock):
    host = SimulatedHost(peer_id="z")
    host.answering = {WIRED, WIRELESS}

    async def run(dialer):
        dialer.learn("b", (WIRED, WIRELESS), 1)
        await trio.sleep(10)
        assert host.linked() == {WIRED}
        await trio.sleep(30)
        assert host.linked() == {WIRED, WIRELESS}

    await dialling(host, run)


async def test_new_incarnation_replaces_the_addresses_and_an_old_one_does_not(clock):
    host = SimulatedHost()

    async def run(dialer):
        dialer.learn("b", (WIRED,), 5)
        await trio.sleep(1)
        host.answering = {WIRELESS}
        dialer.learn("b", (WIRELESS,), 6)
        await trio.sleep(1)
        assert host.linked() == {WIRELESS}
        host.links.clear()
        host.dialled.clear()
        dialer.learn("b", (WIRED,), 5)
        dialer.poke("b")
        await trio.sleep(0.1)
        assert {address for _, address in host.dialled} == {WIRELESS}

    await dialling(host, run)


async def test_pinned_address_is_kept_whatever_is_announced(clock):
    host = SimulatedHost()
    host.answering = {WIRED}

    async def run(dialer):
        dialer.pin("b", WIRED)
        dialer.learn("b", (WIRELESS,), 9)
        await trio.sleep(1)
        assert WIRED in host.linked()

    await dialling(host, run)


async def test_forgotten_peer_is_not_dialled_and_may_be_learnt_again(clock):
    host = SimulatedHost()

    async def run(dialer):
        dialer.learn("b", (WIRED,), 1)
        await trio.sleep(1)
        dialer.forget("b")
        count = len(host.dialled)
        await trio.sleep(100)
        assert len(host.dialled) == count
        dialer.learn("b", (WIRED,), 2)
        await trio.sleep(1)
        assert len(host.dialled) > count

    await dialling(host, run)


async def test_own_id_is_never_dialled(clock):
    host = SimulatedHost()

    async def run(dialer):
        dialer.learn("a", (WIRED,), 1)
        await trio.sleep(5)

    await dialling(host, run)
    assert host.dialled == []


async def test_nothing_is_dialled_beyond_the_named_interfaces(clock):
    host = SimulatedHost(interfaces=(WIFI,))

    async def run(dialer):
        dialer.learn("b", (WIRED,), 1)
        await trio.sleep(60)

    await dialling(host, run, restricted=True)
    assert host.dialled == []


async def test_announcements_take_nothing_away_from_what_a_peer_says_itself(clock):
    host = SimulatedHost()
    host.answering = {WIRED}

    async def run(dialer):
        dialer.learn("b", (WIRED,), 7, INTERFACES)
        dialer.learn("b", ("/ip4/10.0.0.66/tcp/1",), 1 << 62)
        await trio.sleep(20)
        assert WIRED in host.linked()
        host.answering, host.links, host.dialled = {WIRELESS}, [], []
        # It has restarted elsewhere, and says so; what it said before is out of date.
        dialer.learn("b", (WIRELESS,), 8, INTERFACES)
        await trio.sleep(20)

    await dialling(host, run)
    assert [address for _, address in host.dialled] == [WIRELESS]


async def test_thousands_of_false_announcements_delay_no_true_member(clock):
    host = SimulatedHost()
    at_once = most = 0

    async def dial(peer_id, route):
        nonlocal at_once, most
        if peer_id.startswith("fake"):
            at_once += 1
            most = max(most, at_once)
            try:
                await trio.sleep(4.0)
            finally:
                at_once -= 1
            return False
        host.dialled.append((trio.current_time(), route.address))
        return False

    host.dial = dial

    async def run(dialer):
        dialer.learn("b", (WIRED,), 1, INTERFACES)
        await trio.sleep(1)
        for number in range(2_000):
            dialer.learn(f"fake{number}", (f"/ip4/10.0.0.3/tcp/{number + 1}",), 1)
        started = trio.current_time()
        host.dialled.clear()
        dialer.poke("b")
        await trio.sleep(2)
        assert host.times()
        assert host.times()[0] - started < 0.5
        assert len(dialer._known) <= 512
        assert "b" in dialer._known

    await dialling(host, run)
    assert most <= 16


@pytest.mark.parametrize("pinned", [True, False])
async def test_peer_that_said_goodbye_is_dialled_again_only_where_the_user_named_it(clock, pinned):
    host = SimulatedHost()
    host.answering = {WIRED}

    async def run(dialer):
        dialer.learn("b", (WIRED, WIRELESS), 1, INTERFACES)
        if pinned:
            dialer.pin("b", WIRED)
        await trio.sleep(1)
        host.answering.clear()
        host.links.clear()
        dialer.left("b")
        dialer.poke("b")
        host.dialled.clear()
        await trio.sleep(60)
        assert {address for _, address in host.dialled} == ({WIRED} if pinned else set())
        host.answering.add(WIRED)
        await trio.sleep(30)
        assert host.linked() == ({WIRED} if pinned else set())

    await dialling(host, run)
