"""One side of a transfer, in a process of its own: `python -m bench.kv.worker`.

It is told what to do on its standard input, a word a line, and answers with one JSON document a
line. A server says first where it is, a client that it is connected.

    to a server             mark, usage
    to a client             fetch TOKENS CODEC

It ends when its standard input does.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final, cast

import msgspec
import trio
from loguru import logger

from bench.kv import nodes, sockets
from bench.kv.data import ENCODERS
from bench.kv.meter import Meter
from bench.kv.talk import Address, Connected, Done
from bench.kv.transfer import CASES, Case, Fetch, Fetched
from protocols.kv_prefill.messages import Codec

_SOCKETS: Final = ("tls", "plain_tcp")


def _say(document: msgspec.Struct) -> None:
    print(msgspec.json.encode(document).decode(), flush=True)


def _serve(case: Case, ip: str, threads: int) -> None:
    def started(address: str) -> None:
        meter = Meter()
        threading.Thread(target=_report, args=(meter,), daemon=True).start()
        _say(Address(address))

    if case in _SOCKETS:
        sockets.serve(ip, tls=case == "tls", tell=started)
        return

    async def main() -> None:
        await nodes.serve(ip, stock=case == "stock_libp2p", threads=threads, tell=started)

    trio.run(main)


def _report(meter: Meter) -> None:
    for line in sys.stdin:
        if line.strip() == "mark":
            meter.mark()
        _say(meter.usage())
    os._exit(0)


async def _fetch(case: Case, address: str) -> None:
    async with _connect(case, address) as fetch:
        meter = Meter()
        _say(Connected())
        while words := (await trio.to_thread.run_sync(sys.stdin.readline)).split():
            _, tokens, codec = words
            meter.mark()
            fetched = await fetch(int(tokens), cast("Codec", codec))
            _say(Done(fetched, meter.usage()))


@asynccontextmanager
async def _connect(case: Case, address: str) -> AsyncGenerator[Fetch]:
    if case not in _SOCKETS:
        async with nodes.connect(address, stock=case == "stock_libp2p") as fetch:
            yield fetch
        return
    with sockets.connect(address, tls=case == "tls") as blocking:

        async def in_thread(tokens: int, codec: Codec) -> Fetched:
            return await trio.to_thread.run_sync(blocking, tokens)

        yield in_thread


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--ip", default="127.0.0.1")
    parser.add_argument("--threads", type=int, default=ENCODERS)
    parser.add_argument("--address")
    arguments = parser.parse_args()
    logger.remove()
    logger.add(sys.stderr, level="WARNING")
    if arguments.address:
        trio.run(_fetch, arguments.case, arguments.address)
    else:
        _serve(arguments.case, arguments.ip, arguments.threads)


if __name__ == "__main__":
    _main()
