"""The network that other tests rely on does what it says."""

import socket

import pytest

from tests.support.netns import Network, network

pytestmark = pytest.mark.e2e

SENT = 40


def arrive(cables: Network, source: int, target: int) -> int:
    """Return how many of 40 datagrams arrive."""
    address = (f"10.77.0.{target + 1}", 7000)
    with cables.inside(target):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with cables.inside(source):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    arrived = 0
    with receiver, sender:
        receiver.bind(address)
        receiver.settimeout(0.2)
        for _ in range(SENT):
            sender.sendto(b"x", address)
        while True:
            try:
                receiver.recv(1)
            except TimeoutError:
                return arrived
            arrived += 1


def test_parts_that_hear_nothing_of_each_other():
    with network(3) as cables:
        assert arrive(cables, 0, 1) == SENT
        for groups in (((0,), (1, 2)), ((1, 2),)):
            cables.split(*groups)
            assert arrive(cables, 0, 1) == arrive(cables, 1, 0) == 0
            assert arrive(cables, 1, 2) == SENT
            cables.join()
            assert arrive(cables, 0, 1) == SENT


def test_a_namespace_that_hears_nothing_but_is_heard():
    with network(2) as cables:
        assert arrive(cables, 0, 1) == arrive(cables, 1, 0) == SENT
        cables.set_deaf(1, deaf=True)
        assert arrive(cables, 0, 1) == 0
        assert arrive(cables, 1, 0) == SENT
        cables.set_deaf(1, deaf=False)
        assert arrive(cables, 0, 1) == SENT


def test_loss():
    with network(2) as cables:
        cables.set_loss(1, 50)
        assert 0 < arrive(cables, 0, 1) < SENT
        cables.set_loss(1, 0)
        assert arrive(cables, 0, 1) == SENT
