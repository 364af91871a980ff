"""The processes of a transfer: a server, and clients of it."""

from __future__ import annotations

import selectors
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from typing import IO, Final, TypeVar

import msgspec

from bench.client import BenchError
from bench.kv.data import ENCODERS
from bench.kv.meter import Usage
from bench.kv.talk import Address, Connected, Done, worker_command
from bench.kv.transfer import CASES, Case, Fetched
from protocols.kv_prefill.messages import Codec

__all__ = ["Client", "Server", "Transfer", "move", "start_clients", "start_pairs", "start_server"]

START_TIMEOUT_S: Final = 60.0
FETCH_TIMEOUT_S: Final = 600.0
STOP_TIMEOUT_S: Final = 5.0

S = TypeVar("S", bound=msgspec.Struct)


class _Worker:
    """A `bench.kv.worker` and what it says."""

    def __init__(self, process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
        if process.stdin is None or process.stdout is None:
            raise ValueError("a worker is talked to over pipes")
        self._process = process
        self._stdin, self._stdout = process.stdin, process.stdout
        self._errors = errors

    def say(self, *words: object) -> None:
        """Tell it something.

        Raises:
            BenchError: it has ended.
        """
        try:
            self._stdin.write((" ".join(map(str, words)) + "\n").encode())
            self._stdin.flush()
        except BrokenPipeError as error:
            raise BenchError(f"a worker has ended: {self._last_words()}") from error

    def hear(self, kind: type[S], timeout_s: float) -> S:
        """Return the next thing that it says.

        Raises:
            BenchError: it has ended, or says nothing for so long.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                raise BenchError(f"a worker said nothing for {timeout_s:.0f} s")
        line = self._stdout.readline()
        if not line:
            raise BenchError(f"a worker has ended: {self._last_words()}")
        return msgspec.json.decode(line, type=kind)

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def end(self) -> None:
        """Have it end, if it has not."""
        with suppress(BrokenPipeError):
            self._stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stdout.close()

    def _last_words(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-2000:].strip()


class Server:
    """Serves caches in one of the ways."""

    def __init__(self, worker: _Worker, case: Case) -> None:
        self._worker = worker
        self.case: Case = case

    @cached_property
    def address(self) -> str:
        """Where it listens; waited for when it is first wanted, since a server takes its time.

        Raises:
            BenchError: it did not start.
        """
        return self._worker.hear(Address, START_TIMEOUT_S).address

    def mark(self) -> None:
        """Have it count its processor time from now."""
        self._ask("mark")

    def usage(self) -> Usage:
        """Return what it has used since."""
        return self._ask("usage")

    def signal(self, number: int) -> None:
        """Send its process a signal."""
        self._worker.signal(number)

    def _ask(self, word: str) -> Usage:
        self._worker.say(word)
        return self._worker.hear(Usage, START_TIMEOUT_S)


class Client:
    """Connected to a server."""

    def __init__(self, worker: _Worker) -> None:
        self._worker = worker
        self._connected = False

    def signal(self, number: int) -> None:
        """Send its process a signal."""
        self._worker.signal(number)

    def begin(self, tokens: int, codec: Codec) -> None:
        """Have it fetch a cache, once it is connected.

        Raises:
            BenchError: it did not connect, or has ended.
        """
        if not self._connected:
            self._worker.hear(Connected, START_TIMEOUT_S)
            self._connected = True
        self._worker.say("fetch", tokens, codec)

    def end(self) -> Done:
        """Wait until it has.

        Raises:
            BenchError: it could not.
        """
        return self._worker.hear(Done, FETCH_TIMEOUT_S)


class Transfer(msgspec.Struct):
    """One cache from one process to another."""

    fetched: Fetched
    sender: Usage
    receiver: Usage


def move(server: Server, client: Client, tokens: int, codec: Codec | None = None) -> Transfer:
    """Move a cache, in the codec of the server's case if none is named.

    Raises:
        BenchError: it did not arrive whole.
    """
    server.mark()
    client.begin(tokens, codec or CASES[server.case])
    done = client.end()
    return Transfer(fetched=done.fetched, sender=server.usage(), receiver=done.usage)


@contextmanager
def start_server(
    case: Case, *, ip: str = "127.0.0.1", threads: int = ENCODERS, prefix: Sequence[str] = ()
) -> Iterator[Server]:
    """Run a server while open.

    Args:
        case: how it moves caches.
        ip: to listen on.
        threads: that encode.
        prefix: words before its command, as that of a namespace.
    """
    with _start([*prefix, *worker_command(case, ip=ip, threads=threads)]) as worker:
        yield Server(worker, case)


@contextmanager
def start_clients(
    server: Server, count: int = 1, *, prefixes: Sequence[Sequence[str]] = ()
) -> Iterator[list[Client]]:
    """Run clients of a server while open, each in the namespace that its prefix names."""
    with ExitStack() as stack:
        command = worker_command(server.case, address=server.address)
        workers = [
            stack.enter_context(_start([*(prefixes[index] if prefixes else ()), *command]))
            for index in range(count)
        ]
        yield [Client(worker) for worker in workers]


def start_pairs(
    stack: ExitStack,
    cases: Iterable[Case],
    *,
    ip: str = "127.0.0.1",
    threads: int = ENCODERS,
    server_prefix: Sequence[str] = (),
    client_prefix: Sequence[str] = (),
) -> dict[Case, tuple[Server, Client]]:
    """Run a server and a client for each case until `stack` is closed.

    Args:
        stack: ends them.
        cases: how each pair moves caches.
        ip: for the servers to listen on.
        threads: that encode.
        server_prefix: words before the servers' commands, as those of a namespace.
        client_prefix: words before the clients'.
    """
    servers = [
        stack.enter_context(start_server(case, ip=ip, threads=threads, prefix=server_prefix))
        for case in cases
    ]
    pairs: dict[Case, tuple[Server, Client]] = {}
    for server in servers:
        (client,) = stack.enter_context(start_clients(server, prefixes=[client_prefix]))
        pairs[server.case] = server, client
    return pairs


@contextmanager
def _start(command: list[str]) -> Iterator[_Worker]:
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        worker = _Worker(process, errors)
        try:
            yield worker
        finally:
            worker.end()
