from collections import Counter
from typing import Any

import pytest

from engines.base import EngineError
from protocols.chat import Sampling

mx = pytest.importorskip("mlx.core")

from engines.mlx.sampling import Sampler  # noqa: E402

LOGITS = [1.0, 3.0, 2.5, -1.0, 2.9]
"""In descending order: 1, 4, 2, 0, 3; probabilities .37, .33, .22, .05, .01 (rounded)."""


def draw(sampler: Sampler) -> int:
    token = sampler.choose(mx.array(LOGITS)).item()
    assert isinstance(token, int)
    return token


def drawn(count: int, **settings: Any) -> list[int]:
    sampler = Sampler(Sampling(**{"seed": 1, **settings}))
    return [draw(sampler) for _ in range(count)]


@pytest.mark.parametrize(
    "settings", [{"temperature": 0.0}, {"top_k": 1}, {"top_p": 0.01}, {"temperature": 1e-4}]
)
def test_only_the_most_likely(settings: dict[str, float]):
    assert set(drawn(20, **settings)) == {1}


def test_top_k_keeps_k():
    assert set(drawn(200, top_k=3, temperature=5.0)) == {1, 4, 2}
    assert set(drawn(500, top_k=99, temperature=9.0)) == {0, 1, 2, 3, 4}


def test_top_p_keeps_the_fewest_that_reach_p():
    assert set(drawn(200, top_p=0.5)) == {1, 4}
    assert set(drawn(200, top_p=0.72)) == {1, 4, 2}


def test_temperature_comes_before_top_p():
    # At temperature 9 the five are nearly equal, so that more of them are needed for one half.
    assert len(set(drawn(300, top_p=0.5, temperature=9.0))) == 3


def test_it_draws_with_the_right_frequencies():
    counts = Counter(drawn(2000))
    expected = mx.softmax(mx.array(LOGITS)).tolist()
    for token, probability in enumerate(expected):
        assert abs(counts[token] / 2000 - probability) < 0.05


def test_a_seed_draws_the_same_again_whatever_others_draw():
    sampler, other = Sampler(Sampling(seed=3)), Sampler(Sampling(seed=4))
    interleaved = []
    for _ in range(30):
        interleaved.append(draw(sampler))
        draw(other)
    assert interleaved == drawn(30, seed=3)
    assert interleaved != drawn(30, seed=4)


def test_without_a_seed_they_differ():
    assert drawn(40, seed=None) != drawn(40, seed=None)


@pytest.mark.parametrize("seed", [-1, 1 << 70])
def test_any_integer_is_a_seed(seed: int):
    assert drawn(5, seed=seed) == drawn(5, seed=seed)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_k": -1},
        {"max_tokens": -1},
    ],
)
def test_what_is_out_of_range_is_refused(settings: dict[str, float]):
    with pytest.raises(EngineError) as refused:
        drawn(1, **settings)
    assert refused.value.code == "bad_request"
