"""Secret files, good and bad, and what is made of a secret."""

import os

import pytest
from loguru import logger

from node.secret import ClusterSecret, SecretUnusable, read_secret, stretch

SECRET = b"correct horse battery staple"


@pytest.fixture
def warnings():
    lines = []
    sink = logger.add(lines.append, level="WARNING", format="{message}")
    yield lines
    logger.remove(sink)


def write(path, content, mode=0o600):
    path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    "content",
    [SECRET, SECRET + b"\n", SECRET + b"\r\n", SECRET + b"\n\n", b"\xef\xbb\xbf" + SECRET],
)
def test_editors_do_not_change_a_secret(tmp_path, content, warnings):
    assert read_secret(write(tmp_path / "secret", content)) == SECRET
    assert not warnings


def test_spaces_belong_to_the_secret(tmp_path):
    assert read_secret(write(tmp_path / "secret", b" " + SECRET + b" ")) == b" " + SECRET + b" "


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty"),
        (b"\n\r\n", "is empty"),
        (b"0123456789abcde", "has 15 characters, fewer than 16"),
        (b"x" * 70_000, "more than 65536 bytes"),
    ],
)
def test_what_is_no_secret_is_refused_with_how_to_make_one(tmp_path, content, problem):
    with pytest.raises(SecretUnusable, match=problem) as caught:
        read_secret(write(tmp_path / "secret", content))
    assert "openssl rand -base64 32" in caught.value.remedy


def test_file_that_is_not_there_or_a_directory_is_told(tmp_path):
    with pytest.raises(SecretUnusable, match=r"there is no secret file .*: .*openssl rand"):
        read_secret(tmp_path / "none")
    with pytest.raises(SecretUnusable, match="is a directory"):
        read_secret(tmp_path)
    with pytest.raises(SecretUnusable, match="cannot be read"):
        read_secret(write(tmp_path / "file", SECRET) / "below")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file_is_told(tmp_path):
    with pytest.raises(SecretUnusable, match="cannot be read"):
        read_secret(write(tmp_path / "secret", SECRET, mode=0))


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_file_that_others_can_read_is_warned_of(tmp_path, mode, warnings):
    assert read_secret(write(tmp_path / "secret", SECRET, mode)) == SECRET
    assert len(warnings) == 1
    assert "chmod 600" in warnings[0]


def test_stretched_secret_depends_on_secret_and_name_and_tells_nothing():
    one, again = stretch(SECRET, "home"), stretch(SECRET, "home")
    assert (one.key, one.tag) == (again.key, again.tag)
    assert len(one.key) == 32
    others = [stretch(SECRET, "work"), stretch(SECRET + b"!", "home")]
    assert len({each.key for each in (one, *others)}) == 3
    assert len({each.tag for each in (one, *others)}) == 3
    assert ClusterSecret.is_tag(one.tag)
    assert not ClusterSecret.is_tag("home")
    assert "home" not in one.tag
    assert one.tag[1:] not in repr(one)
    assert one.key.hex() not in repr(one)
