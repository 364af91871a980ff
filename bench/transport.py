"""How fast bytes cross a libp2p stream, against plain TCP and stock py-libp2p in the same run.

Two processes on this machine, over loopback: the parent sends, a child per case receives into one
buffer, as a KV transfer does. `python -m bench.transport --json` prints one JSON document.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from statistics import median
from time import perf_counter
from typing import Final

import msgspec
import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from loguru import logger
from multiaddr import Multiaddr

from node.transport.guard import byte_stream_handler
from node.transport.host import new_fast_host
from node.transport.streams import BytesLike, ByteStream

__all__ = ["CASES", "Report", "Row", "measure"]

CASES: Final = ("plain_tcp", "fast", "fast_to_stock", "stock_to_fast", "stock_libp2p")
_STOCK_SHARE: Final = 8
"""Stock is given one part in so many of the bytes, for it needs as much longer for each."""
_PROTOCOL: Final = TProtocol("/bench/transport/1")
_LOOPBACK: Final = Multiaddr("/ip4/127.0.0.1/tcp/0")
_PIECE: Final = 4 << 20
"""Bytes per send and per read."""
_NUMBER_SIZE: Final = 8


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Medians of one case. CPU times are of a whole process, in seconds per 10^9 bytes."""

    case: str
    mb_per_s: float
    cpu_s_per_gb_send: float
    cpu_s_per_gb_receive: float
    bytes: int
    runs: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All rows, and the speed of `fast` over each of the others."""

    rows: list[Row]
    ratios: dict[str, float]


class _TcpStream:
    """A TCP stream with the part of `ByteStream` that is measured."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream

    async def send(self, *buffers: BytesLike) -> None:
        for buffer in buffers:
            await self._stream.send_all(buffer)

    async def read_exactly_into(self, buffer: bytearray | memoryview) -> None:
        view = memoryview(buffer)
        while view:
            count = await self._stream.socket.recv_into(view)
            if count == 0:
                raise EOFError("the other process has gone")
            view = view[count:]

    async def read_exactly(self, n: int) -> bytearray:
        buffer = bytearray(n)
        await self.read_exactly_into(buffer)
        return buffer


def measure(*, megabytes: int = 512, runs: int = 3, cases: tuple[str, ...] = CASES) -> Report:
    """Measure `cases`, interleaved so that a busy machine slows all of them alike.

    Args:
        megabytes: 10^6 bytes sent per run, of which stock's cases send an eighth.
        runs: repetitions, of which medians are reported.
        cases: names out of `CASES`.
    """
    samples: dict[str, list[tuple[float, float, float]]] = {case: [] for case in cases}
    for _ in range(runs):
        for case in cases:
            samples[case].append(trio.run(_run_once, case, _size(case, megabytes)))
    rows = []
    for case in cases:
        rate, sending, receiving = (median(values) for values in zip(*samples[case], strict=True))
        rows.append(
            Row(
                case=case,
                mb_per_s=round(rate, 1),
                cpu_s_per_gb_send=round(sending, 3),
                cpu_s_per_gb_receive=round(receiving, 3),
                bytes=_size(case, megabytes),
                runs=runs,
            )
        )
    rates = {row.case: row.mb_per_s for row in rows}
    others = [case for case in rates if case != "fast"]
    ratios = {case: round(rates["fast"] / rates[case], 3) for case in others if "fast" in rates}
    return Report(rows=rows, ratios=ratios)


def _size(case: str, megabytes: int) -> int:
    return megabytes * 1_000_000 // (_STOCK_SHARE if "stock" in case else 1)


async def _run_once(case: str, size: int) -> tuple[float, float, float]:
    """Return MB/s, and CPU s/GB of the sender and of the receiver."""
    command = [sys.executable, "-m", "bench.transport", "--receive", case]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        address = (await process.stdout.receive_some()).decode().strip()
        async with _connect(case, address) as stream:
            await _send(stream, 16 << 20)
            started, cpu = perf_counter(), _cpu_s()
            receiver_cpu = await _send(stream, size)
            elapsed, cpu = perf_counter() - started, _cpu_s() - cpu
            await stream.send(bytes(_NUMBER_SIZE))
            gigabytes = size / 1e9
            return size / elapsed / 1e6, cpu / gigabytes, receiver_cpu / gigabytes
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def _connect(case: str, address: str) -> AsyncIterator[ByteStream | _TcpStream]:
    if case == "plain_tcp":
        async with await trio.open_tcp_stream("127.0.0.1", int(address)) as tcp:
            yield _TcpStream(tcp)
        return
    host = new_fast_host(create_new_key_pair(), fast=case in ("fast", "fast_to_stock"))
    async with host.run([_LOOPBACK]):
        remote = Multiaddr(address)
        peer = ID.from_string(remote.value_for_protocol("p2p") or "")
        await host.connect(PeerInfo(peer, [remote]))
        yield ByteStream(await host.new_stream(peer, [_PROTOCOL]))


async def _send(stream: ByteStream | _TcpStream, size: int) -> float:
    """Send `size` bytes; return the CPU seconds that the receiver spent on them."""
    piece = memoryview(bytearray(_PIECE))
    await stream.send(size.to_bytes(_NUMBER_SIZE, "big"))
    while size:
        part = piece[: min(size, _PIECE)]
        await stream.send(part)
        size -= len(part)
    return int.from_bytes(await stream.read_exactly(_NUMBER_SIZE), "big") / 1e6


async def _receive(stream: ByteStream | _TcpStream) -> None:
    piece = memoryview(bytearray(_PIECE))
    while size := int.from_bytes(await stream.read_exactly(_NUMBER_SIZE), "big"):
        cpu = _cpu_s()
        while size:
            part = piece[: min(size, _PIECE)]
            await stream.read_exactly_into(part)
            size -= len(part)
        spent = int((_cpu_s() - cpu) * 1e6)
        await stream.send(spent.to_bytes(_NUMBER_SIZE, "big"))


async def _serve(case: str) -> None:
    """Receive until the parent kills this process."""
    if case == "plain_tcp":
        handle: Callable[[trio.SocketStream], Awaitable[None]] = _receive_tcp
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        print(listeners[0].socket.getsockname()[1], flush=True)
        await trio.serve_listeners(handle, listeners)
    host = new_fast_host(create_new_key_pair(), fast=case in ("fast", "stock_to_fast"))
    host.set_stream_handler(_PROTOCOL, byte_stream_handler(_receive))
    async with host.run([_LOOPBACK]):
        print(host.get_addrs()[0], flush=True)
        await trio.sleep_forever()


async def _receive_tcp(stream: trio.SocketStream) -> None:
    await _receive(_TcpStream(stream))


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--receive", choices=CASES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    logger.remove()
    if arguments.receive:
        trio.run(_serve, arguments.receive)
        return
    report = measure(megabytes=arguments.megabytes, runs=arguments.runs)
    if arguments.json:
        print(msgspec.json.encode(report).decode())
        return
    for row in report.rows:
        print(
            f"{row.case:14} {row.mb_per_s:8.0f} MB/s   CPU s/GB: send {row.cpu_s_per_gb_send:.2f},"
            f" receive {row.cpu_s_per_gb_receive:.2f}"
        )


if __name__ == "__main__":
    _main()
