"""The choice of NKI_COMPILER_FRONTEND."""

from __future__ import annotations

import pytest

from trnrt.errors import BackendError
from trnrt.neuron.frontend import frontend_for, frontend_values


@pytest.mark.parametrize(
    ("version", "asked", "value", "reads"),
    [
        ("0.6.0", None, "tracer", "traces"),
        ("0.6.0", "", "tracer", "traces"),
        ("0.6.1+1234", "parser", "parser", "parses"),
        ("0.7.0", None, "", "traces"),
        ("0.7.0", "custom", "custom", "parses"),
        ("0.7.1", "tracer", "tracer", "traces"),
        ("0.8.0", None, "", "reads"),
    ],
)
def test_the_frontend_follows_the_version_and_the_environment(
    version: str, asked: str | None, value: str, reads: str
) -> None:
    chosen = frontend_for(version, asked)
    assert (chosen.value, chosen.reads) == (value, reads)
    assert (value or "left unset") in chosen.text and reads in chosen.text


@pytest.mark.parametrize(("version", "asked"), [("0.6.0", "custom"), ("0.7.0", "traser"), ("0.8.0", "tracer")])
def test_a_value_that_no_page_names_is_refused_with_those_that_are(version: str, asked: str) -> None:
    with pytest.raises(BackendError, match=f"NKI_COMPILER_FRONTEND={asked}: for NKI {version}") as caught:
        frontend_for(version, asked)
    assert all(value in str(caught.value) for value in frontend_values(version))
    assert "unset" in str(caught.value.hint)
