"""``benchmarks/baseline``: the kept kernels can be timed, the table is in step, the networks are as published."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest

import trnrt
from benchmarks.baseline import make_kernels, speed
from benchmarks.baseline.building import Builder
from benchmarks.baseline.command import JSON, MARKDOWN, choose, main, time_cases
from benchmarks.baseline.counts import counts_of
from benchmarks.baseline.library import ARCHIVE, COMMIT, PACKAGE, Library, load
from benchmarks.baseline.networks import BY_NAME, NETWORKS, Network, unet
from benchmarks.baseline.tables import Row, document
from benchmarks.baseline.timing import Range, range_of, time_case
from benchmarks.labs.table import CASES
from trnrt.nki import sim
from trnrt.nki.machine.timing import Range as Predicted

AGAIN = "python -m benchmarks.baseline --write"


@pytest.fixture(scope="module")
def library() -> Library:
    return Library.read()


@pytest.fixture(scope="module")
def table() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(JSON.read_text(encoding="utf-8"))
    return found


def key(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["name"], row["dtype"], row["target"]


def test_every_network_and_lab_is_kept_for_both_targets(library: Library) -> None:
    wanted = {(network.name, "bfloat16") for network in NETWORKS} | {(case.name, case.dtype) for case in CASES}
    assert {key(case) for case in library.cases} == {(*one, target) for one in wanted for target in ("trn1", "trn2")}
    assert len({key(case) for case in library.cases}) == len(library.cases)
    labs = {key(case) for case in library.cases if case["kind"] == "lab"}
    assert labs == {(case.name, case.dtype, case.target) for case in CASES}


def test_the_table_has_every_case_with_the_digest_of_its_modules(library: Library, table: dict[str, Any]) -> None:
    assert (table["commit"], table["kernels_sha256"]) == (COMMIT, library.kernels_sha256), AGAIN
    assert [key(row) for row in table["rows"]] == [key(case) for case in library.cases], AGAIN
    for row, case in zip(table["rows"], library.cases, strict=True):
        digests = {part["module"]: library.sha256(part["module"]) for part in case["parts"]}
        assert digests, key(case)
        assert row["modules"] == digests, AGAIN


def test_ranges_of_the_table_are_in_order(table: dict[str, Any]) -> None:
    for row in table["rows"]:
        assert 0 < row["low_us"] <= row["headline_us"] <= row["high_us"], key(row)
        assert row["cause"] or row["low_us"] == row["high_us"], key(row)


def test_the_page_is_that_of_the_table(table: dict[str, Any]) -> None:
    """All but the networks' sizes, for which they would have to be built."""
    page = MARKDOWN.read_text(encoding="utf-8")
    for row in [Row(**row) for row in table["rows"]]:
        assert f"| {row.title} | {' | '.join(row.cells)} |" in page, AGAIN


@pytest.mark.parametrize("name", ["resnet18", "vector addition", "conv 256->256 3x3 32x16, prepared weights"])
def test_kept_kernels_are_timed_as_the_table_says(library: Library, table: dict[str, Any], name: str) -> None:
    """Where the timing model has changed since, the table is to be made anew."""
    cases = choose(library, [name])
    assert {case["target"] for case in cases} == {"trn1", "trn2"}
    kept = {key(row): row for row in table["rows"]}
    for row in document(library, time_cases(library, cases))["rows"]:
        figures = {name: figure for name, figure in row.items() if isinstance(figure, float)}
        assert len(figures) == 5
        assert figures == pytest.approx({name: kept[key(row)][name] for name in figures}), AGAIN
        assert {**row, **figures} == {**kept[key(row)], **figures}, AGAIN


def test_kept_kernels_are_not_those_of_this_tree(library: Library) -> None:
    before = set(sys.modules)
    with library.unpack():
        module = load("modules.resnet18_trn2")
        assert module.conv2d.__module__ == f"{PACKAGE}.kernels.conv.conv2d"
        assert module.nki is sim
    assert {name for name in set(sys.modules) - before if name.startswith(PACKAGE)} == set()
    assert not any(PACKAGE in path for path in sys.path)


def test_only_the_names_of_imports_are_changed(library: Library) -> None:
    with library.unpack():
        for name, content in library.files.items():
            text = Path(sys.path[0], PACKAGE, name).read_text(encoding="utf-8")
            assert text.replace(f"from {PACKAGE}.", "from trnrt.").encode() == content
            assert "from trnrt.kernels" not in text
            assert "from trnrt.bench" not in text


def test_the_archive_is_what_its_files_give(library: Library, tmp_path: Path) -> None:
    library.write(tmp_path / "again.tar.xz")
    again = Library.read(tmp_path / "again.tar.xz")
    assert again.files == library.files
    assert ARCHIVE.stat().st_size < 2_000_000


def test_both_ends_of_a_range_are_read() -> None:
    cause = SimpleNamespace(name="DMA starts")
    found: Any = SimpleNamespace(benchmark=Predicted(18.0, 20.0, 25.0), causes=(cause,))
    assert range_of(found) == Range(18.0, 20.0, 25.0, "DMA starts")
    certain: Any = SimpleNamespace(benchmark=Predicted(20.0, 20.0, 20.0), causes=())
    assert range_of(certain) == Range(20.0, 20.0, 20.0)


def test_parts_and_round_trips_are_added_up(library: Library) -> None:
    (case,) = choose(library, ["transpose"], "trn2")
    with library.unpack():
        once, profiler_us = time_case(case)
        twice, _ = time_case(case | {"parts": case["parts"] * 2, "crossings_us": 100.0})
    assert twice.headline == pytest.approx(2 * once.headline + 100)
    assert twice.low == pytest.approx(2 * once.low + 100)
    assert 0 < profiler_us != once.headline


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.name)
def test_networks_have_the_published_sizes(network: Network) -> None:
    found = counts_of(network.build())
    assert found.parameters + network.folded == network.parameters
    if network.published:
        digits = len(network.published.partition(".")[2])
        assert f"{found.multiplications * network.counted / 1e9:.{digits}f}" == network.published


def test_multiplications_of_the_unet() -> None:
    """54.74 * 10**9 are published for 256x256, normalisation and the zeros between a transposed convolution's pixels
    included: three of four of its multiplications."""
    model = unet(256)
    sizes = [(1024 >> level, 512 >> level, 16 << level) for level in range(4)]
    zeros = sum(3 * 4 * into * out * side**2 for into, out, side in sizes)
    assert (counts_of(model).multiplications + zeros) / 1e9 == pytest.approx(54.74, rel=0.005)


@pytest.mark.parametrize("name", ["unet", "convnext_tiny", "mobilenet_v2", "efficientnet_b0", "yolov8n"])
def test_the_networks_written_here_are_valid(name: str) -> None:
    onnx.checker.check_model(BY_NAME[name].build(), full_check=True)


def test_counts_of_each_product() -> None:
    b = Builder("counted", 8)
    rows = b.transpose(b.conv("image", (3, 6), 3, stride=2), 0, 2, 3, 1)  # 6 * 3 * 9 weights on 4 x 4 pixels
    rows = b.dense(b.layer_norm(rows, 6), 6, 5)
    image = b.normalise(b.transpose(rows, 0, 3, 1, 2), 5)
    image = b.node("ConvTranspose", image, b.parameter(5, 2, 2, 2), strides=[2, 2], kernel_shape=[2, 2])
    model = b.ending(b.linear(b.flatten(b.mean(b.relu6(image))), 2, 7), 7)
    found = counts_of(model)
    assert found.parameters == (162 + 6) + 2 * 6 + (30 + 5) + 2 * 5 + 40 + (14 + 7)
    assert found.multiplications == 162 * 16 + 30 * 16 + 40 * 16 + 14


def test_names_that_mean_nothing_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resnet19"]) == 2
    assert "there is no case 'resnet19'" in capsys.readouterr().err
    assert main(["labs", "--write"]) == 2
    assert "--write writes the whole table" in capsys.readouterr().err


def test_another_trnrt_writes_no_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    before = JSON.read_bytes()
    monkeypatch.setattr(trnrt, "__file__", "/elsewhere/trnrt/__init__.py")
    assert main(["--write"]) == 2
    assert "is that of /elsewhere" in capsys.readouterr().err
    assert JSON.read_bytes() == before


def test_the_command_prints_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["vector addition", "--target", "trn2", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["kind"], row["target"], row["clock"]) == ("lab", "trn2", "benchmark")
    assert main(["vector addition", "--target", "trn1"]) == 0
    assert "lab, on the other target" in capsys.readouterr().out


def test_kernels_are_made_of_the_commit_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work = ["--work", str(tmp_path / "work"), "--out", str(tmp_path / "out.tar.xz")]
    assert make_kernels.main(["--tree", str(tmp_path / "none"), *work]) == 2
    assert "there is no folder" in capsys.readouterr().err
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "another"], check=True)
    assert make_kernels.main(["--tree", str(tmp_path), *work]) == 2
    assert f"not at {COMMIT}" in capsys.readouterr().err
    assert not (tmp_path / "out.tar.xz").exists()


def test_one_prediction_takes_some_time() -> None:
    assert 0 < speed.seconds_of_one() < 60
