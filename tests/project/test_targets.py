"""A target is one data file: a user's own is all that a verb needs, its errors are clear, and no code knows a name."""

from __future__ import annotations

import ast
import json
import os
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from commanding import Outcome, trnrt
from hypothesis import given
from hypothesis import strategies as st
from serving import fetch, server_process

import trnrt as package
from trnrt.cache.entries import Entries
from trnrt.errors import OptionError
from trnrt.neuron.cores import device_cores
from trnrt.neuron.device import target_of
from trnrt.nki.machine import targets
from trnrt.nki.machine.targets import cache_name, get_target, known_targets, portable_name, target_names

ROOT = Path(__file__).resolve().parents[2]
CNN = str(ROOT / "models" / "digits_cnn.onnx")
FFNN = str(ROOT / "models" / "digits_ffnn.onnx")
TRN2 = ROOT / "trnrt/nki/machine/trn2.toml"
CHANGES = (
    (r'^name = "trn2"', 'name = "trn4"'),
    (r"^aliases = .*", 'aliases = ["gen5"]'),
    (r"^generation = 3", "generation = 5"),
    (r"^sbuf_bytes = \d+", "sbuf_bytes = 327680"),
    (r'"trn2"\]', '"trn4"]'),
    (r"^cores = 8", "cores = 12"),
    (r'instances\."trn2', 'instances."trn4'),
    (r"^compared = true", "compared = false"),
    (r"^total_gbps = \d+", "total_gbps = 900"),
    (r"^engine_gbps = [\d.]+", "engine_gbps = 60"),
    (r"^start_hardware_ns = \d+", "start_hardware_ns = 700"),
    (r'"dma.start_hardware_ns" = \d+', '"dma.start_hardware_ns" = 700'),
)
KERNEL = """
import nki, nki.isa as nisa, nki.language as nl
import numpy as np

@nki.jit
def doubled(a):
    assert nisa.get_nc_version() == nisa.nc_version.gen5 > nisa.nc_version.gen4
    assert nl.tile_size.sbuf_size_bytes == 128 * 327680
    tile = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=a)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out

print(doubled(np.full((2, 2), 3.0, np.float32))[0, 0])
"""


@pytest.fixture(autouse=True)
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file of a target was read by this process before."""
    monkeypatch.setattr(targets, "_given", {})


def copied(*changes: tuple[str, str]) -> str:
    """The file of trn2 with lines that say something else."""
    text = TRN2.read_text(encoding="utf-8")
    for pattern, line in changes:
        text, count = re.subn(pattern, line, text, flags=re.MULTILINE)
        assert count, pattern
    return text


@pytest.fixture
def trn4(tmp_path: Path) -> Path:
    path = tmp_path / "trn4.toml"
    path.write_text(copied(*CHANGES), encoding="utf-8")
    return path


def answer(outcome: Outcome) -> Outcome:
    assert outcome.code == 0, outcome.err
    return outcome


# ---- every verb


def test_run_and_a_session_take_the_file(trn4: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    document = answer(trnrt("run", CNN, "--target", "./trn4.toml", "--json")).document
    assert document["target"] == "trn4"
    image = np.full((3, 1, 8, 8), 0.5, np.float32)
    session = package.InferenceSession(CNN, target=trn4)
    ours, theirs = (s.run(None, {"image": image})[0] for s in (session, package.InferenceSession(CNN, target="trn2")))
    np.testing.assert_array_equal(ours, theirs)
    assert session.target == "trn4" and session.last_run.predicted_us is not None


def test_profile_goes_by_the_numbers_of_the_file(trn4: Path) -> None:
    ours, theirs = (answer(trnrt("profile", CNN, "--target", t, "--json")).document for t in (str(trn4), "trn2"))
    assert (ours["target"], theirs["target"]) == ("trn4", "trn2")
    sooner = theirs["predicted_us"]["benchmark"] - ours["predicted_us"]["benchmark"]
    assert sooner > 0.5  # transfers start 0.55 us earlier


def test_plan_counts_the_instances_of_the_file(trn4: Path) -> None:
    asked = ("plan", CNN, "--rps", "5000", "--p99", "20ms", "--max-batch", "2", "--target", trn4)
    document = answer(trnrt(*asked, "--json")).document
    found = {one["name"]: (one["target"], one["cores"]) for one in document["instances"]}
    assert found["trn4.48xlarge"] == ("trn4", 192) and len(found) == 3
    assert {target for target, _ in found.values()} == {"trn4"}
    assert "trn4.toml" in trnrt(*asked).out
    wrong = trnrt(*asked, "--instance", "trn2.48xlarge")
    assert wrong.code == 2 and "trn2.48xlarge has trn2" in wrong.err and "trn4.3xlarge" in wrong.err


def test_doctor_knows_the_machine_and_tests_itself(trn4: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = tmp_path / "sys/devices/virtual/dmi/id/product_name"
    names.parent.mkdir(parents=True)
    names.write_text("trn4.48xlarge\n", encoding="utf-8")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/neuron0").touch()
    monkeypatch.setattr("trnrt.neuron.device.ROOT", tmp_path)
    before = trnrt("doctor", "--json").document
    assert before["machine"]["target"] is None and "is unknown" in json.dumps(before)
    after = trnrt("doctor", "--json", "--target", trn4).document
    assert after["machine"]["target"] == target_of("trn4.48xlarge") == "trn4"
    assert "trn4.48xlarge, target trn4" in json.dumps(after)
    assert device_cores() == list(range(12))
    report = tmp_path / "report.json"
    tested = ("doctor", "--self-test", "--backend", "simulator", "--case", "transpose_by_dma", "--case", "linear")
    suite = answer(trnrt(*tested, "--target", trn4, "--json-out", report, "--json")).document
    assert suite["target"] == "trn4" and {case["state"] for case in suite["cases"]} == {"passed"}


def test_serve_answers_with_the_file(trn4: Path, tmp_path: Path) -> None:
    rows = np.full((1, 1, 8, 8), 0.5, np.float32)
    (expected,) = package.InferenceSession(CNN, target="trn2").run(None, {"image": rows})
    with server_process(tmp_path, CNN, "--target", str(trn4), "--max-batch", "1") as server:
        server.wait_ready()
        tensor = {"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": rows.ravel().tolist()}
        response = fetch("POST", f"{server.url}/v2/models/digits_cnn/infer", json={"inputs": [tensor]})
        assert response.status_code == 200, response.text
        np.testing.assert_allclose(response.json()["outputs"][0]["data"], expected.ravel(), rtol=1e-6)
        assert server.stop() == 0


def test_the_servers_settings_take_the_file(trn4: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trnrt.serve.settings import read_settings

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRNRT_TARGET", "./trn4.toml")
    assert read_settings({}).target == str(trn4)
    assert read_settings({"target": "trn1"}).target == "trn1"
    monkeypatch.setenv("TRNRT_TARGET", "trn9")
    with pytest.raises(OptionError, match=r"--target \(TRNRT_TARGET\): unknown target 'trn9'; targets are trn1, trn2"):
        read_settings({})


def test_the_other_verbs_take_the_file(trn4: Path, tmp_path: Path) -> None:
    """Prediction in rows writes its target down, and goes on by it."""
    told = ("--target", trn4)
    assert answer(trnrt("inspect", FFNN, *told, "--json")).document["target"] == "trn4"
    assert answer(trnrt("compile", FFNN, *told, "-o", tmp_path / "out", "--json")).document["target"] == "trn4"
    assert answer(trnrt("validate", FFNN, *told, "--rows", "2", "--json")).document["target"] == "trn4"
    assert answer(trnrt("inspect", CNN, *told, "--save-plan", tmp_path / "plan.json")).out
    assert "trn4" in answer(trnrt("run", CNN, *told, "--plan", tmp_path / "plan.json")).out
    data = tmp_path / "rows.npz"
    np.savez(data, image=np.zeros((5, 1, 8, 8), np.float32))
    rows = ("predict", CNN, *told, "--input", data, "-o", tmp_path / "made", "--format", "npz")
    assert "trn4" in answer(trnrt(*rows)).out + answer(trnrt(*rows)).out


def test_a_bundle_of_a_failing_step_has_the_file_with_it(trn4: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    asked = ("validate", FFNN, "--target", trn4, "--layers", "--bundle", bundle, "--bundle-step", "node_linear")
    assert trnrt(*asked).code in (0, 1)
    assert (bundle / "target.toml").read_bytes() == trn4.read_bytes()
    trn4.unlink()
    space: dict[str, Callable[[], None]] = {"__file__": str(bundle / "test_step.py")}  # type: ignore[dict-item]
    exec((bundle / "test_step.py").read_text(encoding="utf-8"), space)
    targets._given.clear()
    space["test_step"]()


@pytest.mark.parametrize("verb", ["run", "check", "profile"])
def test_kernels_see_what_the_file_names(trn4: Path, tmp_path: Path, verb: str) -> None:
    script = tmp_path / "kernels.py"
    script.write_text(KERNEL, encoding="utf-8")
    outcome = trnrt("nki", verb, "--target", trn4, script)
    assert outcome.code == 0, outcome.out + outcome.err
    assert {"run": "6.0", "check": "trn4", "profile": "trn4"}[verb] in outcome.out
    assert trnrt("nki", verb, "--target", "trn3", script).code == 1


def test_the_environment_of_kernels_may_name_the_file(trn4: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trnrt.nki.sim.kernel import default_target

    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", str(trn4))
    assert get_target(default_target()).name == "trn4" == get_target("gen5").name


# ---- names, files and the cache


def test_a_changed_file_is_another_entry_of_the_cache(trn4: Path, tmp_path: Path) -> None:
    session = package.InferenceSession(CNN, target=trn4, cache_dir=tmp_path / "cache")
    session.partition(1, cached=True)
    first = cache_name("trn4")
    trn4.write_text(trn4.read_text(encoding="utf-8") + "# a comment is no change\n", encoding="utf-8")
    targets._given.clear()
    package.InferenceSession(CNN, target=trn4)
    assert cache_name("trn4") == first != "trn4"
    trn4.write_text(trn4.read_text(encoding="utf-8").replace("sbuf_bytes = 327680", "sbuf_bytes = 300000"))
    targets._given.clear()
    other = package.InferenceSession(CNN, target=trn4, cache_dir=tmp_path / "cache")
    other.partition(1, cached=True)
    entries = Entries(tmp_path / "cache", 1 << 30).entries()
    assert len({entry.request["target"] for entry in entries}) == 2 == len(entries)
    assert cache_name("trn2") == "trn2"


def test_a_name_means_one_target_in_a_process(trn4: Path, tmp_path: Path) -> None:
    assert get_target(trn4) is get_target(str(trn4)) is get_target("trn4")
    assert portable_name(os.path.relpath(trn4)) == str(trn4) and portable_name("gen3") == "gen3"
    assert [target.name for target in known_targets()] == [*target_names(), "trn4"]
    other = tmp_path / "other.toml"
    other.write_bytes(trn4.read_bytes())
    assert get_target(other) == get_target("trn4")
    other.write_text(trn4.read_text(encoding="utf-8").replace("327680", "300000"), encoding="utf-8")
    with pytest.raises(OptionError, match=r"other\.toml: name = 'trn4', and trn4 was read from .*trn4\.toml"):
        get_target(other)
    assert get_target(TRN2) is get_target("trn2")
    other.write_text(copied((r"^compared = true", "compared = false")), encoding="utf-8")
    with pytest.raises(OptionError, match="name = 'trn2', and trn2 is part of trnrt"):
        get_target(other)


def test_a_file_may_say_what_differs_from_another_target(tmp_path: Path) -> None:
    path = tmp_path / "wide.toml"
    path.write_text('like = "trn3"\nname = "wide"\nsbuf_bytes = 300000\n[timing.dma]\ntotal_gbps = 600\n')
    wide, trn3 = get_target(path), get_target("trn3")
    assert (wide.sbuf_bytes, wide.timing.dma.total_gbps) == (300000, 600)
    assert wide.timing.vector == trn3.timing.vector and wide.instances == trn3.instances
    like = path.with_name("like2.toml")
    small = '[instances.small]\nchips = 1\nvcpus = 4\nmemory_gib = 8\nsource = "measured"\n'
    like.write_text(f'like = "trn2"\nname = "like2"\n{small}', encoding="utf-8")
    assert [one.name for one in get_target(like).instances] == ["small"]
    assert get_target("trn2").timing.compared and not get_target("like2").timing.compared


# ---- errors


WRONG = [
    ((r"^sbuf_bytes = \d+", "sbuf_byte = 1"), "sbuf_byte is no key of a target", "did you mean sbuf_bytes?"),
    ((r"^packet_ns = .*", ""), "timing.dma.packet_ns is missing", "like ="),
    ((r"^packet_ns = .*", "packet_ns = -1"), "timing.dma.packet_ns = '-1'", "a number from 0"),
    ((r"^packet_ns = .*", "packet_ns = nan"), "timing.dma.packet_ns = 'nan'", "a number from 0"),
    ((r"^packet_ns = .*", 'packet_ns = "8"'), "timing.dma.packet_ns = '8'", "a number from 0"),
    ((r"^total_gbps = .*", "total_gbps = 0"), "timing.dma.total_gbps = '0'", "no transfer ends"),
    ((r"^partitions = 128", "partitions = 256"), "partitions = '256'", "a whole number, 128 (kernels"),
    ((r"^generation = 3", "generation = 3.5"), "generation = '3.5'", "a whole number from 2"),
    ((r"^generation = 3", "generation = 1"), "generation = '1'", "begins with NeuronCore-v2"),
    ((r"^hardware_dge = true", "hardware_dge = 1"), "hardware_dge = '1'", "true or false"),
    ((r'^name = "trn2"', 'name = "../x"'), "name = '../x'", "letters, digits"),
    ((r'^order = "free"', 'order = "best"'), "timing.order = 'best'", "one of program, free"),
    ((r'^psum_matmul_dtypes = \["float32"\]', 'psum_matmul_dtypes = ["fp32"]'), "has 'fp32'", "float32"),
    ((r"^aliases = .*", 'aliases = "gen3"'), "aliases = 'gen3'", "a list"),
    ((r"^sbuf_reserved_bytes = \d+", "sbuf_reserved_bytes = 999999"), "sbuf_reserved_bytes = 999999", "229376"),
    ((r"^chips = 1$", "chips = 0"), "instances.\"trn2.3xlarge\".chips = '0'", "from 1"),
    (
        (r'"dma.total_gbps" = 368', '"dma.total" = 368'),
        "uncertain[3].least.dma.total is no key",
        "dma.packet_ns",
    ),
    ((r'"dma.total_gbps" = 368', '"dma.total_gbps" = "x"'), "timing.uncertain[3].least.dma.total_gbps = 'x'", "number"),
    ((r', "other" = 79.0', ""), "timing.tensor.peak_tflops.other is missing", "other dtypes"),
    ((r"^default_lnc = 2", "default_lnc = 3"), "device.default_lnc = 3", "at most device.most_lnc, 2"),
    ((r"^\[host_link\]", "[link]"), "link is no key of a target", "host_link"),
    ((r'^name = "trn2"', 'like = "trn9"\nname = "x"'), "like = 'trn9'", "trn1, trn2, trn3"),
    ((r'^name = "trn2"', 'like = "trn1"'), "name is missing", "not trn1 any more"),
    ((r"^engines = 16", "engines = 17"), "timing.dma.engines = 17", "128 partitions"),
    ((r"^partitions = 128", "partitions 128"), "it is not TOML", "one key a line"),
]


@pytest.mark.parametrize(("change", "what", "hint"), WRONG, ids=[what for _, what, _ in WRONG])
def test_what_is_wrong_in_a_file_is_named(change: tuple[str, str], what: str, hint: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(copied(change), encoding="utf-8")
    outcome = trnrt("run", CNN, "--target", path)
    assert (outcome.code, outcome.out) == (2, "")
    error, _, advice = outcome.err.partition("\nhint: ")
    assert error.startswith(f"error: {path}: ") and what in error and hint in advice


STRANGE = [b"\xff\xfe", b"[" * 100_000, b"a = " + b"[" * 5000, b"n = 1" + b"0" * 9999, b"a\0b"]


@pytest.mark.parametrize("content", STRANGE)
def test_what_is_no_file_of_a_target_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "strange.toml"
    path.write_bytes(content)
    with pytest.raises(OptionError, match=r"strange\.toml"):
        get_target(path)
    for missing in (tmp_path / "none.toml", tmp_path, Path("/dev/zero"), "x\0.toml"):
        with pytest.raises(OptionError, match="target"):
            get_target(missing if str(missing).endswith(".toml") else f"{missing}/")


LEAVES = list(re.finditer(r"(?m)(?<== )[^\n#]+?(?= *(#|$))", TRN2.read_text(encoding="utf-8")))
VALUES = ("-1", "0", "1e300", "inf", "true", '""', "[]", "{}", "[[1]]", '"trn2"', "99999999999999999999")


@given(st.sampled_from(LEAVES), st.sampled_from(VALUES))
def test_any_value_is_read_or_refused(leaf: re.Match[str], value: str) -> None:
    text = TRN2.read_text(encoding="utf-8")
    try:
        targets._parse("drawn.toml", (text[: leaf.start()] + value + text[leaf.end() :]).encode())
    except OptionError as error:
        assert str(error).startswith("drawn.toml: ") and error.hint


def test_the_page_says_what_each_key_means() -> None:
    section = (
        (ROOT / "docs/simulator.md").read_text(encoding="utf-8").partition("## Another target")[2].partition("\n## ")[0]
    )
    kinds = (targets.Target, targets.Device, targets.Link, targets.InstanceType)
    keys = {field.name for kind in kinds for field in fields(kind)} - {"device", "host_link", "instances", "timing"}
    assert [key for key in sorted(keys) if f"`{key}`" not in section] == []
    assert [
        table for table in ("device", "host_link", 'instances."NAME"', "timing") if f"`[{table}]" not in section
    ] == []
    example = textwrap.dedent(section.partition("\n\n    ")[2].partition("\n\nWith")[0].join(("    ", "\n")))
    assert targets._parse("example.toml", example.encode()).sbuf_bytes == 327680


# ---- no code knows a target's name

NAMES = re.compile(rf"({'|'.join((*target_names(), *(a for t in known_targets() for a in t.aliases)))})")
LISTED = re.compile(rf"{NAMES.pattern}([\s,|]+(or )?{NAMES.pattern})*")
DEFAULTS = {
    "trnrt/nki/machine/targets.py": {"trn2"},  # DEFAULT_TARGET
    "trnrt/nki/machine/modes.py": {"gen2", "gen3", "gen4"},  # NKI's own names of generations
}


def names_in(path: Path) -> Iterator[str]:
    """Each target that code of a file names: as a text (not in the midst of a sentence), a variable or an attribute."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and LISTED.fullmatch(node.value):
            yield node.value
        elif isinstance(node, ast.Name) and NAMES.fullmatch(node.id):
            yield node.id
        elif isinstance(node, ast.Attribute) and re.fullmatch(r"(trn|inf)\d", node.attr):
            yield node.attr
        elif isinstance(node, ast.keyword) and NAMES.fullmatch(node.arg or ""):
            yield str(node.arg)


def test_no_code_decides_by_a_targets_name() -> None:
    """The fit of the timing model names the targets that were measured; it is no part of this."""
    files = [path for room in ("trnrt", "kernels", "serve") for path in (ROOT / room).rglob("*.py")]
    found = {
        str(path.relative_to(ROOT)): names
        for path in files
        if "calibration" not in path.relative_to(ROOT).parts and (names := set(names_in(path)))
    }
    assert len(files) > 200 and found == DEFAULTS
