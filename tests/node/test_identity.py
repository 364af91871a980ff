import errno
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from node.errors import AlreadyRunning, CorruptDataDirectory, UnusableDataDirectory
from node.identity import open_identity


def test_identity_is_made_once_and_only_the_owner_may_read_it(tmp_path):
    with open_identity(tmp_path / "data") as first:
        peer_id = first.peer_id
    with open_identity(tmp_path / "data") as second:
        assert second.peer_id == peer_id
    mode = stat.S_IMODE((tmp_path / "data" / "identity.key").stat().st_mode)
    assert mode == 0o600
    assert peer_id.startswith("12D3KooW")


def test_incarnation_grows_with_each_start(tmp_path):
    seen = []
    for _ in range(3):
        with open_identity(tmp_path) as identity:
            seen.append(identity.incarnation)
    assert seen[0] < seen[1] < seen[2]


def test_incarnation_grows_even_when_the_state_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr("time.time", lambda: 1_000.0)
    with open_identity(tmp_path) as identity:
        before = identity.incarnation
    (tmp_path / "state.json").unlink()
    monkeypatch.setattr("time.time", lambda: 1_001.0)
    with open_identity(tmp_path) as identity:
        assert identity.incarnation > before


def test_term_survives_a_restart_and_never_falls(tmp_path):
    with open_identity(tmp_path) as identity:
        identity.save_term(7)
        identity.save_term(3)
        assert identity.term == 7
    with open_identity(tmp_path) as identity:
        assert identity.term == 7


def test_numbers_persisted_from_several_threads_at_once_are_all_kept(tmp_path):
    with open_identity(tmp_path) as identity, ThreadPoolExecutor(8) as threads:
        before = identity.incarnation
        saves = [
            threads.submit(save, number)
            for number in range(1, 41)
            for save in (
                identity.save_term,
                lambda term: identity.raise_incarnation(before + term),
            )
        ]
        for save in saves:
            save.result()
    with open_identity(tmp_path) as identity:
        assert identity.term == 40
        assert identity.incarnation == before + 42


def test_disk_that_takes_no_more_is_told(tmp_path, monkeypatch):
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with open_identity(tmp_path) as identity:
        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(UnusableDataDirectory, match="No space left"):
            identity.save_term(7)
        assert identity.term == 0


def test_second_user_of_a_directory_is_told_what_to_do(tmp_path):
    with (
        open_identity(tmp_path),
        pytest.raises(AlreadyRunning, match="--data-dir"),
        open_identity(tmp_path),
    ):
        pass


def test_lock_is_released(tmp_path):
    with open_identity(tmp_path):
        pass
    with open_identity(tmp_path):
        pass


@pytest.mark.parametrize("junk", [b"", b"not a key", os.urandom(68)])
def test_corrupt_key_is_refused_not_replaced(tmp_path, junk):
    key = tmp_path / "identity.key"
    key.write_bytes(junk)
    with pytest.raises(CorruptDataDirectory), open_identity(tmp_path):
        pass
    assert key.read_bytes() == junk


def test_corrupt_state_is_refused(tmp_path):
    (tmp_path / "state.json").write_bytes(b'{"term": "many"}')
    with pytest.raises(CorruptDataDirectory, match="remove it"), open_identity(tmp_path):
        pass


@pytest.mark.parametrize("obstacle", ["file in the way", "no such place", "key is a directory"])
def test_unusable_directory_is_told_with_a_remedy(tmp_path, obstacle):
    directory = tmp_path / "data"
    if obstacle == "file in the way":
        directory.write_text("not a directory")
    elif obstacle == "no such place":
        directory = Path("/proc/data")
    else:
        (directory / "identity.key").mkdir(parents=True)
    with pytest.raises(UnusableDataDirectory, match="--data-dir"), open_identity(directory):
        pass


def test_incarnation_rises_above_one_that_peers_have_heard_of_and_stays(tmp_path):
    with open_identity(tmp_path) as identity:
        heard = identity.incarnation + 86_400
        assert identity.raise_incarnation(identity.incarnation - 5) == identity.incarnation
        assert identity.raise_incarnation(heard) == heard + 1
    with open_identity(tmp_path) as again:
        assert again.incarnation == heard + 2
