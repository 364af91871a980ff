"""The whole way of a KV cache, engine to node to node to engine: speed, processor time, memory.

Four processes on this machine, over loopback. Both nodes run the code of `baton up` from the
engine's channel to the libp2p stream; the engines hand out and take in without computing.
`python -m bench.engine_path --json` prints one JSON document.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Final, Literal, TypeAlias

import msgspec
import psutil
import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from loguru import logger
from multiaddr import Multiaddr

from bench.kv_engine import BYTES_PER_TOKEN, LAYOUT, command, tokens_for
from node.instances.instance import Instance, InstanceSpec
from node.prefill.remote import OpenStream, prefill_there
from node.prefill.server import PrefillService
from node.prefill.transfer import inject_all
from node.transport.conduct import Lenient
from node.transport.guard import byte_stream_handler
from node.transport.host import new_fast_host
from node.transport.streams import ByteStream
from protocols.chat import Sampling
from protocols.engine import Finished, Generate, GenerateStarted
from protocols.kv_prefill.messages import PROTOCOL_ID, Codec, Request, hash_tokens, pack_tokens

__all__ = ["PROCESSES", "Report", "Row", "Way", "measure"]

Way: TypeAlias = Literal["socket", "shared"]
"""How bytes cross between an engine and its node."""
WAYS: Final[tuple[Way, ...]] = ("socket", "shared")
PROCESSES: Final = ("prefill_engine", "prefill_node", "decode_node", "decode_engine")
_LOOPBACK: Final = Multiaddr("/ip4/127.0.0.1/tcp/0")
_WARM_UP_TOKENS: Final = 1024


class Transfer(msgspec.Struct):
    """One transfer, as the decode node saw it."""

    seconds: float
    """From asking to the engine's word that all is injected."""
    raw_bytes: int
    sent_bytes: int


class Row(msgspec.Struct):
    """Medians over the runs of one way. By process where there is a map."""

    way: Way
    codec: Codec
    mb_per_s: float
    """10^6 raw bytes a second, from asking to the last chunk injected."""
    cpu_s_per_gb: dict[str, float]
    """Processor seconds for 10^9 raw bytes."""
    peak_growth_mb: dict[str, float]
    """Resident memory, shared included, at its peak over what it was before; the most of all runs.
    The cache that the decode engine fills is not in it: it was there before."""
    bytes: int
    runs: int
    rates: list[float]


class Report(msgspec.Struct):
    """What `--json` prints."""

    rows: list[Row]


class _Pair:
    """Two nodes, each with its engine."""

    def __init__(self, decode: trio.Process, processes: dict[str, psutil.Process]) -> None:
        self._decode = decode
        self._processes = processes

    async def move(self, tokens: int, codec: Codec) -> tuple[Transfer, dict[str, float], list[int]]:
        """Return what a transfer was, and each process's CPU seconds and peak growth in bytes."""
        before = {name: _cpu_s(process) for name, process in self._processes.items()}
        resident = [_reset_peak(process) for process in self._processes.values()]
        assert self._decode.stdin is not None
        await self._decode.stdin.send_all(f"{tokens} {codec}\n".encode())
        said = msgspec.json.decode(await _line(self._decode), type=Transfer)
        spent = {name: _cpu_s(each) - before[name] for name, each in self._processes.items()}
        peaks = [_peak(process) for process in self._processes.values()]
        return said, spent, [peak - was for peak, was in zip(peaks, resident, strict=True)]


async def measure(
    *,
    nbytes: int,
    runs: int = 3,
    ways: Sequence[Way] = WAYS,
    codec: Codec = "raw",
    codec_threads: int = 1,
) -> Report:
    """Measure `ways` by turns, so that a busy machine slows all of them alike.

    Args:
        nbytes: of a cache, about.
        runs: transfers of each way.
        ways: which to measure.
        codec: of the chunks.
        codec_threads: of the prefill engine.
    """
    tokens = tokens_for(nbytes)
    samples: dict[Way, list[tuple[Transfer, dict[str, float], list[int]]]] = {}
    for _ in range(runs):
        for way in ways:
            async with _pair(way, tokens, codec_threads) as pair:
                await pair.move(min(tokens, _WARM_UP_TOKENS), codec)
                samples.setdefault(way, []).append(await pair.move(tokens, codec))
    return Report([_row(way, codec, samples[way]) for way in ways])


def _row(
    way: Way, codec: Codec, samples: Sequence[tuple[Transfer, dict[str, float], list[int]]]
) -> Row:
    rates = [each.raw_bytes / each.seconds / 1e6 for each, _, _ in samples]
    size = samples[0][0].raw_bytes
    spent = {name: median(cpu[name] for _, cpu, _ in samples) for name in PROCESSES}
    grown = [max(peaks) for peaks in zip(*(growth for _, _, growth in samples), strict=True)]
    return Row(
        way=way,
        codec=codec,
        mb_per_s=round(median(rates), 1),
        cpu_s_per_gb={name: round(cpu / size * 1e9, 3) for name, cpu in spent.items()},
        peak_growth_mb={
            name: round(most / 1e6, 1) for name, most in zip(PROCESSES, grown, strict=True)
        },
        bytes=size,
        runs=len(samples),
        rates=[round(rate, 1) for rate in rates],
    )


@asynccontextmanager
async def _pair(way: Way, tokens: int, codec_threads: int) -> AsyncIterator[_Pair]:
    options = ["--way", way, "--tokens", str(tokens), "--codec-threads", str(codec_threads)]
    async with _process("serve", *options) as prefill:
        address = (await _line(prefill)).decode().strip()
        async with _process(address, *options) as decode:
            await _line(decode)
            processes: dict[str, psutil.Process] = {}
            for name, process in (("prefill", prefill), ("decode", decode)):
                node = psutil.Process(process.pid)
                processes |= {f"{name}_node": node, f"{name}_engine": node.children()[0]}
            yield _Pair(decode, {name: processes[name] for name in PROCESSES})


@asynccontextmanager
async def _process(*arguments: str) -> AsyncIterator[trio.Process]:
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "bench.engine_path", "--node", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        with trio.CancelScope(shield=True):
            assert process.stdin is not None
            await process.stdin.aclose()
            with trio.move_on_after(10):
                await process.wait()
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _line(process: trio.Process) -> bytes:
    assert process.stdout is not None
    data = b""
    with trio.fail_after(600):
        while not data.endswith(b"\n"):
            more = await process.stdout.receive_some()
            if not more:
                raise EOFError("a node of the measurement has ended")
            data += more
    return data


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _reset_peak(process: psutil.Process) -> int:
    """Forget the process's peak of resident memory where that can be; return what it has now."""
    try:
        Path(f"/proc/{process.pid}/clear_refs").write_text("5")
    except OSError as error:
        logger.debug("the peak of {} stays as it was: {}", process.pid, error)
    return process.memory_info().rss


def _peak(process: psutil.Process) -> int:
    status = Path(f"/proc/{process.pid}/status")
    if not status.exists():
        return process.memory_info().rss
    (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) << 10


# The nodes.


async def _node(peer: str, way: Way, tokens: int, codec_threads: int) -> None:
    """Serve prefills, or with a peer's address make a transfer for each line of the input."""
    model = "prefill" if peer == "serve" else "decode"
    instance = _instance(model, way, command(tokens, codec_threads))
    host = new_fast_host(create_new_key_pair())
    async with trio.open_nursery() as nursery, host.run([_LOOPBACK]):
        nursery.start_soon(instance.run)
        while instance.state != "ready":  # noqa: ASYNC110 (nothing tells)
            await trio.sleep(0.02)
        if model == "prefill":
            service = PrefillService(lambda _: instance, Lenient())
            host.set_stream_handler(TProtocol(PROTOCOL_ID), byte_stream_handler(service.serve))
            print(host.get_addrs()[0], flush=True)
            await trio.to_thread.run_sync(sys.stdin.read)
        else:
            remote = Multiaddr(peer)
            peer_id = ID.from_string(remote.value_for_protocol("p2p") or "")
            await host.connect(PeerInfo(peer_id, [remote]))
            print("ready", flush=True)

            async def open_stream(_: str, protocol: str) -> ByteStream:
                return ByteStream(await host.new_stream(peer_id, [TProtocol(protocol)]))

            while line := await trio.to_thread.run_sync(sys.stdin.readline):
                count, codec = line.split()
                codecs: tuple[Codec, ...] = ("planes", "raw") if codec == "planes" else ("raw",)
                transfer = await _move(open_stream, instance, int(count), codecs)
                print(msgspec.json.encode(transfer).decode(), flush=True)
        nursery.cancel_scope.cancel()


async def _move(
    open_stream: OpenStream, instance: Instance, end: int, codecs: tuple[Codec, ...]
) -> Transfer:
    tokens = pack_tokens(list(range(end + 1)))
    request = Request(
        id=f"bench-{os.getpid()}-{perf_counter()}",
        model="prefill",
        fingerprint=LAYOUT.fingerprint,
        tokens=tokens,
        tokens_hash=hash_tokens(tokens),
        start=0,
        end=end,
        dtypes=("bfloat16",),
        codecs=codecs,
        deadline_ms=600_000,
    )

    async def progress(_: int) -> None: ...

    started = perf_counter()
    async with instance.request("bench") as handle:
        async with prefill_there(open_stream, "", request, LAYOUT, handle) as source:
            moved = await inject_all(source, handle, end, 60, progress)
        if not moved.complete:
            raise RuntimeError(f"the transfer failed: {moved.reason}")
        await handle.send(Generate(handle.id, tokens, Sampling()))
        injected = -1
        while not isinstance(message := (await handle.receive()).message, Finished):
            if isinstance(message, GenerateStarted):
                injected = message.injected
        if injected != end:
            raise RuntimeError(f"{injected} tokens of {end} could be used")
    return Transfer(perf_counter() - started, end * BYTES_PER_TOKEN, moved.sent_bytes)


def _instance(model: str, way: Way, engine: list[str]) -> Instance:
    async def nowhere() -> Path:
        return Path()

    spec = InstanceSpec(model=model, engine="vllm", roles=("prefill", "decode"))
    return Instance(
        spec,
        model,
        nowhere,
        lambda: None,
        lambda *_: None,
        command=lambda _: engine,
        shared_memory=way == "shared",
    )


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--codec", choices=("raw", "planes"), default="raw")
    parser.add_argument("--codec-threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--node", metavar="PEER", help=argparse.SUPPRESS)
    parser.add_argument("--way", choices=WAYS, action="append", help=argparse.SUPPRESS)
    parser.add_argument("--tokens", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    logger.remove()
    if options.node:
        logger.add(sys.stderr, level="WARNING")
        trio.run(_node, options.node, options.way[0], options.tokens, options.codec_threads)
        return

    async def run() -> Report:
        return await measure(
            nbytes=options.megabytes * 1_000_000,
            runs=options.runs,
            ways=options.way or WAYS,
            codec=options.codec,
            codec_threads=options.codec_threads,
        )

    report = trio.run(run)
    if options.json:
        print(msgspec.json.encode(report).decode())
        return
    for row in report.rows:
        print(f"{row.way:8} {row.codec:7} {row.mb_per_s:6.0f} MB/s of {row.bytes / 1e9:.2f} GB")
        for name in PROCESSES:
            print(
                f"    {name:15} {row.cpu_s_per_gb[name]:5.2f} CPU s/GB,"
                f" {row.peak_growth_mb[name]:6.1f} MB more at the peak"
            )


if __name__ == "__main__":
    _main()
