from ipaddress import ip_interface

import pytest
import trio

from node.discovery.announcement import Announcement, decode_txt, encode_txt, foremost
from node.discovery.mdns import mdns
from node.interfaces import Interface
from node.routes import tcp_address

LO = Interface("lo", "loopback", (ip_interface("127.0.0.1/8"),))
ANNOUNCEMENT = Announcement(
    "12D3KooWabc", "home", 77, ("/ip4/10.0.0.2/tcp/4001", "/ip6/fd00::2/tcp/4002"), "0.1.0"
)


def wire(announcement):
    return {key.encode(): value.encode() for key, value in encode_txt(announcement).items()}


def test_announcement_survives_the_wire():
    assert decode_txt(wire(ANNOUNCEMENT)) == ANNOUNCEMENT


def test_order_of_many_addresses_is_kept_and_their_number_bounded():
    addresses = tuple(f"/ip4/10.0.0.{n}/tcp/1" for n in range(40))
    read = decode_txt(wire(Announcement("p", "c", 1, addresses)))
    assert read.addresses == addresses[:24]


def test_interface_with_many_addresses_keeps_those_of_others_out_of_no_announcement():
    many = Interface("eth0", "ethernet", tuple(ip_interface(f"fd00::{n}/64") for n in range(1, 40)))
    few = Interface("wlan0", "wifi", (ip_interface("10.0.0.2/24"), ip_interface("fe80::2/64")))
    ips = [*many.ips, *few.ips]
    addresses = [tcp_address(ip, 1) for ip in ips]
    said = foremost(addresses, [many, few])
    assert len(said) == 24
    assert said == (*addresses[:22], *addresses[-2:])
    assert foremost(addresses[:5], [many, few]) == tuple(addresses[:5])


@pytest.mark.parametrize("missing", ["peer", "cluster", "inc"])
def test_incomplete_announcement_is_refused(missing):
    txt = wire(ANNOUNCEMENT)
    del txt[missing.encode()]
    with pytest.raises(ValueError, match=missing):
        decode_txt(txt)


@pytest.mark.parametrize("inc", [b"", b"many", None])
def test_bad_incarnation_is_refused(inc):
    with pytest.raises(ValueError):
        decode_txt({**wire(ANNOUNCEMENT), b"inc": inc})


def test_bytes_that_are_no_text_are_refused():
    with pytest.raises(ValueError):
        decode_txt({**wire(ANNOUNCEMENT), b"peer": b"\xff\xfe"})


def test_name_too_long_for_mdns_is_refused():
    with pytest.raises(ValueError, match="cluster"):
        encode_txt(Announcement("p", "c" * 300, 1, ()))


async def test_two_announcers_on_loopback_see_each_other_and_the_loop_runs_on():
    send, receive = trio.open_memory_channel(100)
    lags = []

    async def measure_lag():
        while True:
            before = trio.current_time()
            await trio.sleep(0.01)
            lags.append(trio.current_time() - before - 0.01)

    one = Announcement("one", "home", 1, ("/ip4/127.0.0.1/tcp/1",))
    two = Announcement("two", "home", 1, ("/ip4/127.0.0.1/tcp/2",))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(measure_lag)
        async with mdns(send) as first, mdns(send.clone()) as second:
            assert await trio.to_thread.run_sync(first.apply, one, [LO]) == {}
            assert await trio.to_thread.run_sync(second.apply, two, [LO]) == {}
            seen = []
            with trio.fail_after(20):
                while not (seen.count("one") >= 2 and seen.count("two") >= 2):
                    event = await receive.receive()
                    if event.announcement in (one, two):
                        seen.append(event.announcement.peer_id)
        nursery.cancel_scope.cancel()
    # A blocking start, as others have it, takes more than a second of the loop.
    assert sorted(lags)[len(lags) // 2] < 0.1
