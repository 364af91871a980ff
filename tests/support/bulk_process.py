"""A host as a process that serves bytes, or fetches them and watches its heartbeats meanwhile.

    python -m tests.support.bulk_process serve
    python -m tests.support.bulk_process fetch PEER_ID ADDRESS BYTES [--over-link]

The first prints its peer id and address, and serves until its standard input closes. The second
prints `{"bytes", "seconds", "round_trips"}` as JSON; of the heartbeats it has those that were
answered while the bytes came.
"""

from __future__ import annotations

import json
import os
import sys

import trio
from libp2p.crypto.ed25519 import create_new_key_pair

from node.host import PeerHost
from node.interfaces import list_interfaces
from node.links import Link
from node.routes import rank_routes
from node.transport.streams import ByteStream

PROTOCOL = "/test/bytes/1"
_PIECE = bytes(1 << 20)


def new_host() -> PeerHost:
    interfaces = [each for each in list_interfaces() if each.name.startswith("net")]
    return PeerHost(create_new_key_pair(), interfaces, named=True)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def send(stream: ByteStream) -> None:
    left = int.from_bytes(await stream.read_exactly(8), "big")
    while left:
        piece = _PIECE[:left]
        await stream.send(piece)
        left -= len(piece)


async def serve() -> None:
    host = new_host()
    host.set_handler(PROTOCOL, send, bulk=True)
    async with host.running():
        say(f"{host.peer_id} {host.addresses[0]}")
        stdin = trio.lowlevel.FdStream(os.dup(sys.stdin.fileno()))
        while await stdin.receive_some():
            pass


async def fetch(peer_id: str, address: str, size: int, *, over_link: bool) -> None:
    host = new_host()
    round_trips: list[float] = []

    def beat(link: Link) -> None:
        round_trips.append(link.rtt_s or 0.0)

    async with host.running():
        route = rank_routes([address], host.interfaces, restricted=True)[0]
        assert await host.dial(peer_id, route)
        if over_link:
            stream = await host.open_stream(peer_id, PROTOCOL)
        else:
            stream = await host.bulk.open_stream(peer_id, [route], PROTOCOL)
        host.on_link(beat=beat)
        started = trio.current_time()
        await stream.send(size.to_bytes(8, "big"))
        buffer, left = bytearray(1 << 20), size
        while left:
            part = memoryview(buffer)[:left]
            await stream.read_exactly_into(part)
            left -= len(part)
        seconds = trio.current_time() - started
        say(json.dumps({"bytes": size, "seconds": seconds, "round_trips": round_trips}))
        await stream.close()


def main() -> None:
    match sys.argv[1:]:
        case ["serve"]:
            trio.run(serve)
        case ["fetch", peer_id, address, size, *rest]:

            async def run() -> None:
                await fetch(peer_id, address, int(size), over_link=rest == ["--over-link"])

            trio.run(run)
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
