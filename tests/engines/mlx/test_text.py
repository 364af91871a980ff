from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from engines.mlx.text import Detokenizer, StopStrings


def from_bytes(tokens: Sequence[int]) -> str:
    """Decode as a byte-level tokenizer does."""
    return bytes(tokens).decode("utf-8", "replace")


@given(st.text())
def test_pieces_concatenate_to_the_whole(text: str):
    detokenizer = Detokenizer(from_bytes)
    pieces = [detokenizer.add(byte) for byte in text.encode()]
    assert "".join(pieces) + detokenizer.finish() == text


def test_an_incomplete_character_waits():
    detokenizer = Detokenizer(from_bytes)
    pieces = [detokenizer.add(byte) for byte in "a€".encode()]
    assert pieces == ["a", "", "", "€"]


def test_what_is_never_completed_comes_at_the_end():
    detokenizer = Detokenizer(from_bytes)
    assert [detokenizer.add(byte) for byte in "€".encode()[:2]] == ["", ""]
    assert detokenizer.finish() == "\ufffd"
    assert detokenizer.finish() == ""


def test_what_is_no_text_does_not_wait_for_ever():
    detokenizer = Detokenizer(from_bytes)
    assert "\ufffd" in "".join(detokenizer.add(0xFF) for _ in range(20))


def test_a_token_that_decodes_differently_after_another():
    words = {1: "Hello", 2: "world"}
    detokenizer = Detokenizer(lambda tokens: " ".join(words[token] for token in tokens))
    assert [detokenizer.add(1), detokenizer.add(2)] == ["Hello", " world"]


def shown(pieces: Sequence[str], stops: Sequence[str]) -> tuple[str, bool]:
    watch = StopStrings(stops)
    text = ""
    for piece in pieces:
        text += watch.add(piece)
        assert not any(stop in text for stop in stops if stop)
    return text + watch.finish(), watch.stopped


@given(
    st.lists(st.text("ab", max_size=3), max_size=12),
    st.lists(st.text("ab", max_size=4), max_size=3),
)
def test_the_text_is_cut_at_the_stop_string_that_completes_first(
    pieces: list[str], stops: list[str]
):
    text, stopped = shown(pieces, stops)
    whole = "".join(pieces)
    starts = [whole.find(stop) for stop in stops if stop and stop in whole]
    assert stopped == bool(starts)
    if not stopped:
        assert text == whole
    else:
        assert whole.startswith(text)
        assert any(whole.startswith(stop, len(text)) for stop in stops if stop)


def test_the_start_of_a_stop_string_is_never_shown():
    watch = StopStrings(["</answer>"])
    assert [watch.add(piece) for piece in ("yes<", "/answ", "er> no")] == ["yes", "", ""]
    assert watch.stopped
    assert watch.finish() == ""
    assert watch.add("more") == ""


def test_what_turns_out_otherwise_is_shown():
    watch = StopStrings(["aab"])
    assert [watch.add(piece) for piece in "aaac"] == ["", "", "a", "aac"]
    assert [watch.add("a"), watch.finish()] == ["", "a"]
