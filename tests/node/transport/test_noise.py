import pytest
import trio
from libp2p.io.exceptions import ConnectionClosedError, DecryptionFailedException
from msgspec.structs import replace
from noise.connection import NoiseConnection
from noise.state import CipherState

from node.transport.noise_records import MAX_PLAINTEXT, TAG_SIZE, MessageCipher, Sealer
from node.transport.noise_suites import AES_GCM, CHACHA_POLY
from tests.support.transport import fast_session, session_pair

SIZES = [0, 1, 4095, 4096, MAX_PLAINTEXT - 1, MAX_PLAINTEXT, MAX_PLAINTEXT + 1, 3_000_000]


def pattern(size, seed=0):
    return bytes((i + seed) % 251 for i in range(251)) * (size // 251 + 1)


def seal(*sizes):
    """Return the sealed bytes of parts of these sizes, and the parts as one."""
    parts = [memoryview(pattern(size, seed)[:size]) for seed, size in enumerate(sizes)]
    sealer = Sealer(MessageCipher(bytes(32), 0))
    return b"".join(bytes(batch) for batch in sealer.seal(parts)), b"".join(parts)


def open_all(sealed):
    """Return the plaintext and the sizes of the messages."""
    cipher = MessageCipher(bytes(32), 0)
    sizes, plaintext = [], bytearray()
    while sealed:
        size = int.from_bytes(sealed[:2], "big")
        opened = bytearray(size - TAG_SIZE)
        cipher.open_into(memoryview(sealed)[2 : 2 + size], memoryview(opened))
        plaintext += opened
        sizes.append(size - TAG_SIZE)
        sealed = sealed[2 + size :]
    return bytes(plaintext), sizes


@pytest.mark.parametrize(
    "sizes",
    [(0,), (12, 100), (12, 1 << 20), (4095, 4095, 70_000, 1), (MAX_PLAINTEXT, 12), (30,) * 5000],
)
def test_what_is_sealed_opens_in_order(sizes):
    sealed, plaintext = seal(*sizes)
    assert open_all(sealed)[0] == plaintext


def test_small_parts_share_a_message_and_large_ones_are_not_copied_into_it():
    assert open_all(seal(12, 100, 200)[0])[1] == [312]
    assert open_all(seal(12, 2 * MAX_PLAINTEXT, 12)[0])[1] == [12, MAX_PLAINTEXT, MAX_PLAINTEXT, 12]


def test_every_message_has_the_next_nonce_and_no_other_opens_it():
    sealed, _ = seal(MAX_PLAINTEXT, MAX_PLAINTEXT)
    second = sealed[len(sealed) // 2 :]
    with pytest.raises(DecryptionFailedException):
        open_all(second)


def test_nonces_end_before_the_reserved_one():
    cipher = MessageCipher(bytes(32), 2**64 - 2)
    ciphertext = memoryview(bytearray(1 + TAG_SIZE))
    cipher.seal_into(memoryview(b"x"), ciphertext)
    with pytest.raises(ConnectionClosedError, match="nonces"):
        cipher.seal_into(memoryview(b"x"), ciphertext)


@pytest.mark.parametrize("fast", [(True, True), (True, False), (False, True)])
async def test_bytes_cross_whoever_sends(fast):
    a, b = await session_pair(fast)
    for sender, receiver in ((a, b), (b, a)):
        for size in SIZES[1:]:
            await check_crossing(sender, receiver, pattern(size)[:size])
    await a.close()
    await b.close()


async def check_crossing(sender, receiver, data):
    received = bytearray()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sender.write, data)
        while len(received) < len(data):
            received += await receiver.read(len(data) - len(received))
    assert received == data


@pytest.mark.parametrize("suite", [AES_GCM, replace(AES_GCM, rekey_every=3)])
async def test_bytes_cross_with_another_cipher(suite):
    a, b = await session_pair(suite=suite)
    assert fast_session(a).suite == fast_session(b).suite == suite
    for sender, receiver in ((a, b), (b, a)):
        await check_crossing(sender, receiver, pattern(1_000_000))
    await a.close()
    await b.close()


@pytest.mark.parametrize("suite", [CHACHA_POLY, AES_GCM])
def test_messages_and_new_keys_are_those_of_the_noise_specification(suite):
    reference = NoiseConnection.from_name(suite.noise_name).noise_protocol
    state = CipherState(reference)
    state.initialize_key(bytes(32))
    cipher = MessageCipher(bytes(32), 0, replace(suite, rekey_every=2))
    for number in range(7):
        if number in (2, 4, 6):
            state.rekey()
        ciphertext = memoryview(bytearray(5 + TAG_SIZE))
        cipher.seal_into(memoryview(b"hello"), ciphertext)
        assert ciphertext == state.encrypt_with_ad(b"", b"hello")


def test_a_message_sealed_with_the_key_before_does_not_open():
    suite = replace(AES_GCM, rekey_every=1)
    ciphertext, plaintext = (memoryview(bytearray(size)) for size in (1 + TAG_SIZE, 1))
    MessageCipher(bytes(32), 1, AES_GCM).seal_into(memoryview(b"x"), ciphertext)
    with pytest.raises(DecryptionFailedException):
        MessageCipher(bytes(32), 1, suite).open_into(ciphertext, plaintext)


async def test_a_cancelled_wait_loses_nothing():
    a, b = map(fast_session, await session_pair())
    with trio.move_on_after(0.01) as scope:
        await b.next_message()
    assert scope.cancelled_caught
    await a.write(b"still here")
    assert await b.read() == b"still here"
    await a.close()
    await b.close()


async def test_a_connection_that_ends_says_whether_it_was_inside_a_message():
    a, b = map(fast_session, await session_pair())
    await a.close()
    with pytest.raises(ConnectionClosedError, match="closed by the peer"):
        await b.read()
    a, b = map(fast_session, await session_pair())
    await raw(a).send_all(b"\x10\x00half")
    await a.close()
    with pytest.raises(ConnectionClosedError, match="inside a noise message"):
        await b.read()
    await b.close()
    with pytest.raises(ConnectionClosedError):
        await b.write(b"x")


def raw(session):
    return session._stream


@pytest.mark.parametrize("record", [b"\x00\x0f" + bytes(15), b"\x00\x20" + bytes(32)])
async def test_forged_messages_are_refused(record):
    a, b = map(fast_session, await session_pair())
    await raw(a).send_all(record)
    with pytest.raises(DecryptionFailedException):
        await b.read()
    await a.close()
    await b.close()


@pytest.mark.parametrize("fast", [(True, True), (True, False), (False, False)])
async def test_peers_with_the_same_secret_meet_and_others_do_not(fast):
    a, b = await session_pair(fast, (b"secret", b"secret"))
    await a.write(b"hi")
    assert await b.read(2) == b"hi"
    await a.close()
    await b.close()
    for secrets in ((b"secret", b"other"), (b"secret", None), (None, b"secret")):
        with pytest.raises(ExceptionGroup), trio.fail_after(10):
            await session_pair(fast, secrets)
