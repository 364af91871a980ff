"""The dialer against a simulated network, on a clock that jumps."""

from ipaddress import ip_interface
from itertools import pairwise

import pytest
import trio
import trio.testing

from node.discovery.dialer import Dialer
from node.interfaces import Interface
from node.routes import Route

ETH = Interface("eth0", "ethernet", (ip_interface("10.0.0.1/24"),))
WIFI = Interface("wlan0", "wifi", (ip_interface("192.168.0.1/24"),))
WIRED, WIRELESS = "/ip4/10.0.0.2/tcp/1", "/ip4/192.168.0.2/tcp/1"


class SimulatedHost:
    """Knows which addresses answer, and how long each dial takes."""

    def __init__(self, peer_id="a", interfaces=(ETH, WIFI)):
        self.peer_id = peer_id
        self.interfaces = interfaces
        self.answering: set[str] = set()
        self.takes_s: dict[str, float] = {}
        self.route: Route | None = None
        self.dialled: list[tuple[float, str]] = []

    def best_route(self, peer_id):
        return self.route

    async def dial(self, peer_id, route):
        self.dialled.append((trio.current_time(), route.address))
        await trio.sleep(self.takes_s.get(route.address, 0.01))
        if route.address not in self.answering:
            return False
        if self.route is None or route.rank < self.route.rank:
            self.route = route
        return True

    def times(self):
        return [time for time, _ in self.dialled]


@pytest.fixture
def clock(autojump_clock):
    return autojump_clock


async def dialling(host, run, restricted=False):
    async with trio.open_nursery() as nursery:
        await run(Dialer(host, nursery, restricted=restricted))
        nursery.cancel_scope.cancel()


async def test_best_route_is_dialled_first_and_alone_when_it_answers(clock):
    host = SimulatedHost()
    host.answering = {WIRED, WIRELESS}

    async def run(dialer):
        dialer.learn("b", (WIRELESS, WIRED), 1)
        await trio.sleep(20)

    await dialling(host, run)
    assert [address for _, address in host.dialled] == [WIRED]


async def test_dead_route_delays_the_next_but_little(clock):
    host = SimulatedHost()
    host.answering, host.takes_s = {WIRELESS}, {WIRED: 4.0}

    async def run(dialer):
        start = trio.current_time()
        dialer.learn("b", (WIRED, WIRELESS), 1)
        await trio.sleep(1)
        assert host.route is not None
        assert host.route.address == WIRELESS
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
        host.route = None
        start = trio.current_time()
        dialer.poke("b")
        await trio.sleep(1)
        assert host.times()[-1] - start < 0.1

    await dialling(host, run)


async def test_better_route_that_appears_is_taken_up(clock):
    host = SimulatedHost(interfaces=(WIFI,))
    host.answering = {WIRED, WIRELESS}

    async def run(dialer):
        dialer.learn("b", (WIRED, WIRELESS), 1)
        await trio.sleep(5)
        assert host.route is not None
        # Wired is reached over the default route, which ranks before Wi-Fi but is not upgraded to.
        host.route = Route(WIRELESS, "wifi", "wlan0")
        host.interfaces = (ETH, WIFI)
        dialer.poke()
        await trio.sleep(1)
        assert host.route.address == WIRED
        assert host.route.interface == "eth0"

    await dialling(host, run)


async def test_new_incarnation_replaces_the_addresses_and_an_old_one_does_not(clock):
    host = SimulatedHost()

    async def run(dialer):
        dialer.learn("b", (WIRED,), 5)
        await trio.sleep(1)
        host.answering = {WIRELESS}
        dialer.learn("b", (WIRELESS,), 6)
        await trio.sleep(1)
        assert host.route is not None
        host.route = None
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
        assert host.route is not None
        assert host.route.address == WIRED

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
