"""Kernel calls of a file: named ones, those of its script, and their arguments."""

from __future__ import annotations

import sys
from inspect import Parameter
from pathlib import Path

import numpy as np
import pytest
from kernel_files import ADDITIONS, CALL

from trnrt.nki import Spec
from trnrt.nki.errors import OptionError
from trnrt.nki.loading import find_launches, loading, source_files, without_data


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "my_kernels.py"
    path.write_text(ADDITIONS, encoding="utf-8")
    return path


def test_a_named_call(script: Path) -> None:
    with loading(script, "trn2"):
        (launch,) = find_launches(script, [CALL])
        assert (launch.name, launch.text) == ("add", CALL)
        assert launch.arrays == [Spec((128, 1024), "float32")] * 2
        assert len(launch.trace()[0].inputs) == 2


def test_values_by_name_and_by_place(script: Path) -> None:
    with loading(script, "trn2"):
        by_name, by_place = find_launches(script, [CALL, CALL[:-1] + ", 128)"])
        assert (by_name.value_of("TILE"), by_place.value_of("TILE"), by_place.value_of("scale")) == (256, 128, 1.0)
        assert by_name.value_of("a") == Spec((128, 1024), "float32")
        assert by_name.with_values({"TILE": 512}).text == CALL[:-1] + ", TILE=512)"
        assert by_place.with_values({"TILE": 512, "scale": 2.0}).text == CALL[:-1] + ", 512, scale=2.0)"
        for call in (by_name, by_place):
            with pytest.raises(OptionError, match="no argument 'TILES'") as caught:
                call.with_values({"TILES": 512})
            assert "TILE, scale" in str(caught.value.hint)


def test_keywords_without_a_name_of_their_own(script: Path) -> None:
    script.write_text(ADDITIONS + "\n\n@nki.jit\ndef free(a, /, b, **options):\n    return a\n")
    with loading(script, "trn2"):
        (launch,) = find_launches(script, ["free(f32[1,1], f32[1,1], tile=4)"])
        assert launch.value_of("tile") == 4 and launch.value_of("other") is Parameter.empty
        assert dict(launch.with_values({"other": 3}).kwargs) == {"tile": 4, "other": 3}


def test_the_script_s_calls_each_different_one_once_with_their_data(script: Path) -> None:
    script.write_text(
        ADDITIONS
        + "\na = np.arange(128 * 256, dtype=np.float32).reshape(128, 256)\n"
        + "b = add(a, a)\nadd(a, b)\nadd(a, b, TILE=128)\nassert b[1, 1] == 2 * a[1, 1] and b[0, 0] == 0\n"
    )
    with loading(script, "trn2"):
        first, second = find_launches(script)
        assert second.text == "add(f32[128,256], f32[128,256], TILE=128)"
        np.testing.assert_array_equal(first.arrays[0], np.arange(128 * 256).reshape(128, 256))
        # The second call's input is the first one's result: the kernels of the script do run.
        np.testing.assert_array_equal(second.arrays[1], 2 * first.arrays[0])
        assert without_data(second).args == (Spec((128, 256), "float32"),) * 2


def test_an_argument_that_the_kernel_writes_is_kept_as_it_was_given(script: Path) -> None:
    script.write_text(
        ADDITIONS
        + "\n\n@nki.jit\ndef fill(a, b):\n    nisa.dma_copy(dst=a, src=b)\n\n\n"
        + "a, b = np.zeros((128, 4), np.float32), np.ones((128, 4), np.float32)\nfill(a, b)\nassert a.sum() == 512\n"
    )
    with loading(script, "trn2"):
        (launch,) = find_launches(script)
        assert launch.arrays[0].sum() == 0


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        (["sub(f32[1,1])"], "has no kernel 'sub'"),
        (["add(f32[1,1]"], "can't read --call"),
        ([], "calls no kernel"),
    ],
)
def test_calls_that_are_not_there(script: Path, calls: list[str], message: str) -> None:
    with loading(script, "trn2"), pytest.raises(OptionError, match=message):
        find_launches(script, calls)


def test_a_file_that_stops_before_its_kernel(script: Path) -> None:
    script.write_text("raise ValueError('no data here')\n" + ADDITIONS)
    with loading(script, "trn2"), pytest.raises(OptionError, match="stopped before it defined 'add': ValueError: no"):
        find_launches(script, [CALL])
    with loading(script, "trn2"), pytest.raises(OptionError, match=r"calls no kernel .it stopped: ValueError"):
        find_launches(script)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no file"), loading(tmp_path / "none.py", "trn2"):
        pass


def test_modules_beside_a_file_are_its_own(tmp_path: Path) -> None:
    """Two versions of a kernel may import a helper of one name, each from its own folder."""
    tiles = []
    for folder, tile in (("old", 128), ("new", 512)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "our_sizes.py").write_text(f"TILE = {tile}\n")
        script = tmp_path / folder / "kernels.py"
        script.write_text(
            ADDITIONS.replace("import nki\n", "import nki\nimport our_sizes\n", 1).replace(
                "TILE=256", "TILE=our_sizes.TILE"
            )
        )
        before = set(sys.modules)
        with loading(script, "trn2"):
            (launch,) = find_launches(script, [CALL])
            tiles.append(launch.value_of("TILE"))
            assert source_files(script, before) == [script, tmp_path / folder / "our_sizes.py"]
        assert "our_sizes" not in sys.modules
    assert tiles == [128, 512]
