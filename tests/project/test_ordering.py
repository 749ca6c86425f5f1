"""``--order-seed``: every test once, files together, the same order for the same seed."""

from __future__ import annotations

from ordering import shuffled

ITEMS = [(file, f"{file}{number}") for file in "abcdef" for number in range(5)]


def test_every_item_is_there_once() -> None:
    for seed in range(10):
        assert sorted(shuffled(ITEMS, seed)) == [item for _, item in ITEMS]


def test_files_stay_together_and_change_places() -> None:
    orders = set()
    for seed in range(20):
        files = [item[0] for item in shuffled(ITEMS, seed)]
        order = "".join(dict.fromkeys(files))
        assert files == [file for file in order for _ in range(5)]
        orders.add(order)
    assert len(orders) > 10


def test_a_seed_is_an_order() -> None:
    assert shuffled(ITEMS, 3) == shuffled(ITEMS, 3)
    assert shuffled(ITEMS, 3) != shuffled(ITEMS, 4)
