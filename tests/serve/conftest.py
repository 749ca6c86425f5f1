"""Models of in-process tests compute on their threads: many tests hold a run, and look at the event loop meanwhile."""

from __future__ import annotations

import pytest

from trnrt.serve.hosting import inline


@pytest.fixture(autouse=True)
def on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers in processes of their own choose as always, and ``test_inline`` tests both places."""
    monkeypatch.setattr(inline, "QUICK_S", -1.0)
