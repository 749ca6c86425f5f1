"""``examples/nki_linear``: the kernel is right, and docs/cli.md shows what its profile says."""

from __future__ import annotations

from pathlib import Path

from commanding import trnrt

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "nki_linear" / "linear.py"


def test_the_kernel_agrees_with_numpy() -> None:
    outcome = trnrt("nki", "run", SCRIPT)
    assert (outcome.code, outcome.out) == (0, "linear agrees with numpy\n")


def test_no_release_of_nki_refuses_it() -> None:
    for release in ("0.6", "0.7"):
        assert trnrt("nki", "check", SCRIPT, "--nki", release).code == 0


def test_the_docs_show_what_pins_its_critical_path() -> None:
    (call,) = trnrt("nki", "profile", SCRIPT, "--json").document["calls"]
    shown = " ".join((ROOT / "docs" / "cli.md").read_text(encoding="utf-8").split())
    assert f"{call['bottleneck']['sentence']} {call['bottleneck']['advice']}" in shown
