"""The values to try, and the order in which a search tries them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trnrt.nki.errors import OptionError
from trnrt.nki.tuning.search import search
from trnrt.nki.tuning.space import Point, Space, read_space

# --- the space


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("TILE=128,256,512", (128, 256, 512)),
        ("TILE = 512, 128", (128, 512)),  # ascending, so that neighbours are close
        ("TILE=4", (4,)),
        ("TILE=range(128, 513, 128)", (128, 256, 384, 512)),
        ("TILE=-1,0.5", (-1, 0.5)),
        ("TILE='b','a',None", ("b", "a", None)),
        ("TILE=True,False", (True, False)),
        ("TILE=(1,2),(3,4)", ((1, 2), (3, 4))),
        ("TILE=bf16,f32", ("bfloat16", "float32")),
        ("TILE=2,2,4,2", (2, 4)),
    ],
)
def test_values_as_text(text: str, values: tuple[object, ...]) -> None:
    assert read_space([text]).values == {"TILE": values}


def test_files_of_lists(tmp_path: Path) -> None:
    (tmp_path / "space.toml").write_text('TILE = [512, 128]\nengine = ["vector", "scalar"]\nshape = [[1, 2], [2, 1]]\n')
    (tmp_path / "more.json").write_text(json.dumps({"deep": [None, True]}))
    space = read_space([str(tmp_path / "space.toml"), "K=1,2", str(tmp_path / "more.json")])
    assert space.values == {
        "TILE": (128, 512),
        "engine": ("vector", "scalar"),
        "shape": ((1, 2), (2, 1)),
        "K": (1, 2),
        "deep": (None, True),
    }
    assert space.size == 32 == len(list(space.points()))


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "nothing to try"),
        (["TILE"], "not NAME=value"),
        (["2=3"], "not NAME=value"),
        (["TILE="], "can't read --space"),
        (["TILE=f32[2,2]"], "no plain value"),
        (["TILE=open('x')"], "neither a tensor nor a constant"),
        (["TILE=range(1.5)"], "not a whole number"),
        (["TILE=range(0)"], "no values"),
        (["TILE=1", "TILE=2"], "twice"),
        (["none.toml"], "No such file"),
    ],
)
def test_texts_that_are_no_space(texts: list[str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        read_space(texts)


@pytest.mark.parametrize("text", ["[1, 2]", '{"TILE": 3}', '{"TILE": [{"a": 1}]}', "{"])
def test_files_that_are_no_space(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(OptionError, match="can't read --space"):
        read_space([str(tmp_path / "bad.json")])


def test_neighbours() -> None:
    space = Space({"TILE": (128, 256, 512, 1024), "engine": ("vector", "scalar", "gpsimd")})
    assert set(space.neighbours((1, 2))) == {(0, 2), (2, 2), (3, 2), (1, 0), (1, 1)}
    assert set(space.neighbours((0, 0))) == {(1, 0), (2, 0), (0, 1), (0, 2)}
    assert set(space_of(20).neighbours((3,))) == {(2,), (1,), (4,), (5,), (7,), (11,), (19,)}
    assert space.values_at((2, 1)) == {"TILE": 512, "engine": "scalar"}


# --- the search


class Bowl:
    """A smooth function of a space, with its least at ``best``; every third candidate is refused."""

    def __init__(self, best: Point, *, refuse: bool = False, most: int = 10**9) -> None:
        self.best, self.refuse, self.most = best, refuse, most
        self.asked: list[Point] = []

    def __call__(self, points: Sequence[Point]) -> dict[Point, float | None]:
        found = {}
        for point in points:
            if len(self.asked) == self.most:
                break
            self.asked.append(point)
            refused = self.refuse and sum(point) % 3 == 0 and point != self.best
            found[point] = None if refused else 1.0 + sum((a - b) ** 2 for a, b in zip(point, self.best, strict=True))
        return found


def space_of(*sizes: int) -> Space:
    return Space({f"p{n}": tuple(range(size)) for n, size in enumerate(sizes)})


def test_a_small_space_is_tried_whole_the_default_first() -> None:
    bowl = Bowl((1, 1))
    known = search(space_of(3, 4), (2, 2), bowl, trials=12, seed=0)
    assert bowl.asked[0] == (2, 2) and len(bowl.asked) == len(set(bowl.asked)) == 12 == len(known)


@settings(max_examples=30, deadline=None)
@given(best=st.tuples(*[st.integers(0, 29)] * 3), seed=st.integers(0, 99), refuse=st.booleans())
def test_a_large_space_is_searched(best: Point, seed: int, refuse: bool) -> None:
    bowl = Bowl(best, refuse=refuse)
    known = search(space_of(30, 30, 30), (0, 0, 0), bowl, trials=300, seed=seed)
    assert bowl.asked[0] == (0, 0, 0) and len(bowl.asked) == len(set(bowl.asked)) == 300
    times = {point: time for point, time in known.items() if time is not None}
    # 300 of 27,000 candidates find the best one or a neighbour, over walls of refused ones, too.
    assert min(times.values()) <= 2


def test_the_same_seed_goes_the_same_way_and_another_does_not() -> None:
    ways = []
    for seed in (5, 5, 6):
        bowl = Bowl((3, 17))
        search(space_of(40, 40), (0, 0), bowl, trials=60, seed=seed)
        ways.append(bowl.asked)
    assert ways[0] == ways[1] != ways[2]


def test_a_search_that_is_cut_short_ends_with_what_it_has() -> None:
    bowl = Bowl((3, 17), most=20)
    assert len(search(space_of(40, 40), (0, 0), bowl, trials=60, seed=0)) == 20


def test_where_everything_is_refused_the_search_ends_with_its_trials() -> None:
    def refuse(points: Sequence[Point]) -> dict[Point, float | None]:
        return dict.fromkeys(points)

    assert set(search(space_of(40, 40), (0, 0), refuse, trials=60, seed=0).values()) == {None}


def test_one_trial_is_the_default() -> None:
    bowl = Bowl((3, 17))
    assert list(search(space_of(40, 40), (7, 7), bowl, trials=1, seed=0)) == [(7, 7)]
