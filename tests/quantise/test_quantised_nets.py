"""Small networks of each kind, quantised, run wholly on kernels, as their integers say.

``python tests/shared/quantised_nets.py`` does the same with ten networks, the larger ones too.
"""

from __future__ import annotations

import pytest
from quantised_nets import try_architecture


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
@pytest.mark.parametrize("name", ["conv1d_dynamo", "keras_style", "lenet5_dynamo"])
def test_a_quantised_network_is_its_integers(name: str, form: str) -> None:
    report, parts = try_architecture(name, form)
    assert report.passed and report.integers is not None, report
    assert parts == 1
