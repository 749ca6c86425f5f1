"""The list of mistakes in the backend is about the code as it is now."""

from __future__ import annotations

import pytest
from neuron_mutations import MUTATIONS, ROOT, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.what)
def test_what_a_mutation_replaces_occurs_once(mutation: Mutation) -> None:
    assert (ROOT / mutation.file).read_text(encoding="utf-8").count(mutation.before) == 1
    assert all((ROOT / test).exists() for test in mutation.tests)


def test_there_are_enough_mutations() -> None:
    assert len(MUTATIONS) >= 13 and len({mutation.what for mutation in MUTATIONS}) == len(MUTATIONS)
