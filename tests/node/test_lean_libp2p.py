"""What a node's process does not load. In processes of their own: this one has loaded more."""

import subprocess
import sys

LOADED = """
import sys
import node.app
print(*{name.split(".")[0] for name in sys.modules})
"""
KEY_OF_ANOTHER_KIND = """
from node.transport.host import new_fast_host
from libp2p.crypto.pb.crypto_pb2 import KeyType, PublicKey
from libp2p.crypto.serialization import deserialize_public_key
try:
    deserialize_public_key(PublicKey(key_type=KeyType.RSA, data=b"1234").SerializeToString())
except ValueError as error:
    print(error)
"""
HEAVY = {"Crypto", "aioquic", "dns", "prometheus_client", "requests", "websockets"}
"""What `import libp2p` would load."""


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_node_loads_nothing_heavy_that_it_does_not_use():
    loaded = set(run(LOADED).split())
    assert {"libp2p", "nacl"} <= loaded
    assert not loaded & HEAVY


def test_a_key_that_cannot_be_read_is_an_error_as_before():
    assert "RSAPublicKey is left out" in run(KEY_OF_ANOTHER_KIND)
