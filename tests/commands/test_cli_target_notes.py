"""Every prediction for a target that AWS doesn't state NKI for says so, once, in text and in JSON."""

from __future__ import annotations

from pathlib import Path

import pytest
from commanding import trnrt

from trnrt.nki.machine.targets import get_target

ROOT = Path(__file__).resolve().parents[2]
CNN = str(ROOT / "models" / "digits_cnn.onnx")
NOTE = "running NKI kernels on trn1 is outside AWS's statement (nki/nki_faq of SDK 2.33.1: Trainium2 and Trainium3)"
KERNEL = """
import nki, nki.isa as nisa, nki.language as nl

@nki.jit
def doubled(a):
    tile = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=a)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out
"""
VERBS: dict[str, tuple[str, ...]] = {
    "run": ("run", CNN),
    "validate": ("validate", CNN),
    "inspect": ("inspect", CNN, "--no-tiles"),
    "profile": ("profile", CNN),
    "buckets": ("buckets", CNN, "--expect", "1:0.7,8:0.3"),
    "plan": ("plan", CNN, "--rps", "10", "--p99", "50ms"),
    "nki profile": ("nki", "profile", "doubled.py", "--call", "doubled(f32[128,64])"),
}


def test_the_targets_say_what_aws_states() -> None:
    assert get_target("trn1").note == NOTE
    assert [get_target(name).note for name in ("trn2", "trn3")] == ["", ""]
    assert all(get_target(name).device.nki_supported_source for name in ("trn1", "trn2", "trn3"))


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_every_verb_that_predicts_says_it(
    verb: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("doubled.py").write_text(KERNEL)
    outcome = trnrt(*VERBS[verb], "--target", target, "--json-out", "out.json", "--json")
    assert outcome.code == 0, outcome.err
    document = outcome.document
    found = [*document["notes"], *(note for call in document.get("calls", ()) for note in call["notes"])]
    assert found.count(NOTE) == (target == "trn1")
    plain = trnrt(*VERBS[verb], "--target", target)
    words = " ".join(f"{plain.out} {plain.err}".split())
    assert words.count("outside AWS's statement") == (target == "trn1")
