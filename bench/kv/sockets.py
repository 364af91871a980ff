"""The same chunks over plain sockets: what a program without libp2p would write.

- `plain_tcp` is the framing of the system that Baton is compared with: blocking sockets, a length
  before each message, and a file object that reads exactly so many bytes into new memory. Nothing
  is encrypted or checked.
- `tls` is TLS 1.3 as Python has it, on a blocking socket, read into one buffer. The certificate is
  made for the run, and not verified: that costs no more than once.
"""

from __future__ import annotations

import datetime
import socket
import ssl
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from bench.client import BenchError
from bench.kv.data import BYTES_PER_TOKEN, CHUNK_TOKENS, LAYOUT, CacheData, pieces
from bench.kv.transfer import Arrivals, Fetched

__all__ = ["connect", "serve"]

_ASK: Final = struct.Struct(">Q")
"""How many tokens."""
_HEAD: Final = struct.Struct(">IQQI")
"""Of a chunk: layer, start, end, bytes."""
_BUFFER: Final = CHUNK_TOKENS * BYTES_PER_TOKEN // len(LAYOUT.layers)


def serve(ip: str, *, tls: bool, tell: Callable[[str], None]) -> None:
    """Serve caches for ever, each connection in a thread.

    Args:
        ip: to listen on.
        tls: whether to encrypt.
        tell: told the address that `connect` takes.
    """
    data = CacheData()
    context = _server_context() if tls else None
    with socket.create_server((ip, 0)) as listener:
        tell(f"{ip}:{listener.getsockname()[1]}")
        while True:
            sock, _ = listener.accept()
            threading.Thread(target=_answer, args=(sock, context, data), daemon=True).start()


@contextmanager
def connect(address: str, *, tls: bool) -> Iterator[Callable[[int], Fetched]]:
    """Connect to the server at `address`, and yield what has so many tokens' cache sent."""
    host, _, port = address.rpartition(":")
    sock = socket.create_connection((host, int(port)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        sock = context.wrap_socket(sock)
    read = _fetch_into_buffer if tls else _fetch_exactly
    with sock:
        yield lambda tokens: read(sock, tokens)


def _answer(sock: socket.socket, context: ssl.SSLContext | None, data: CacheData) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if context is not None:
        sock = context.wrap_socket(sock, server_side=True)
    with sock:
        while len(asked := sock.recv(_ASK.size, socket.MSG_WAITALL if context is None else 0)):
            (tokens,) = _ASK.unpack(asked)
            for index, piece in enumerate(pieces(tokens)):
                payload = data.raw(index, piece)
                sock.sendall(_HEAD.pack(*piece, payload.nbytes))
                sock.sendall(payload)


def _fetch_exactly(sock: socket.socket, tokens: int) -> Fetched:
    arrivals = Arrivals()
    sock.sendall(_ASK.pack(tokens))
    with sock.makefile("rb") as file:
        for _ in pieces(tokens):
            *_, size = _HEAD.unpack(file.read(_HEAD.size))
            arrivals.add(len(file.read(size)))
    return _checked(arrivals, tokens)


def _fetch_into_buffer(sock: socket.socket, tokens: int) -> Fetched:
    arrivals = Arrivals()
    sock.sendall(_ASK.pack(tokens))
    head, buffer = bytearray(_HEAD.size), bytearray(_BUFFER)
    for _ in pieces(tokens):
        _fill(sock, memoryview(head))
        *_, size = _HEAD.unpack(head)
        _fill(sock, memoryview(buffer)[:size])
        arrivals.add(size)
    return _checked(arrivals, tokens)


def _fill(sock: socket.socket, view: memoryview) -> None:
    while view:
        count = sock.recv_into(view)
        if count == 0:
            raise BenchError("the server has gone")
        view = view[count:]


def _checked(arrivals: Arrivals, tokens: int) -> Fetched:
    expected = tokens * BYTES_PER_TOKEN
    fetched = arrivals.fetched(expected)
    if fetched.raw_bytes != expected:
        raise BenchError(f"{fetched.raw_bytes} bytes came, of {expected}")
    return fetched


def _server_context() -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "bench")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "bench.pem"
        encoding = serialization.Encoding.PEM
        private = serialization.PrivateFormat.PKCS8
        plain = serialization.NoEncryption()
        file.write_bytes(
            key.private_bytes(encoding, private, plain) + certificate.public_bytes(encoding)
        )
        context.load_cert_chain(file)
    return context
