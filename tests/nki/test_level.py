"""The language level: how it is chosen, and what 0.7 takes, refuses and warns of."""

from __future__ import annotations

import importlib
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trnrt.nki
from trnrt.errors import KernelError, OptionError
from trnrt.nki import nisa, nki, nl, simulate, trace
from trnrt.nki.checking import check, static_findings
from trnrt.nki.installing import install_briefly
from trnrt.nki.level import LEVEL_VARIABLE, Level, as_level, default_level, set_default_level, use_level
from trnrt.nki.sim.launching import LNC_VARIABLE
from trnrt.nki.sim.subset_api import check_api, load_api
from trnrt.nki.sim.subset_rules import RULES

ROWS = np.arange(40, dtype=np.float32).reshape(8, 5)
KERNEL = """\
import nki
import nki.isa as nisa
import nki.language as nl
from dataclasses import dataclass

{above}

@nki.jit
def kernel(a):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=a)
{body}
    nisa.dma_copy(dst=out, src=tile)
    return out
"""


@pytest.fixture(autouse=True)
def _no_level(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No level is chosen before or after a test."""
    monkeypatch.delenv(LEVEL_VARIABLE, raising=False)
    yield
    set_default_level(None)


def file_of(body: str, above: str = "") -> str:
    return KERNEL.format(above=textwrap.dedent(above), body=textwrap.indent(textwrap.dedent(body), "    "))


def looped(a: Any) -> Any:
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    for _ in nl.dynamic_range(1):
        nisa.dma_copy(dst=out, src=a)
    return out


# How a level is chosen


def test_what_is_nearest_to_the_call_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_level() is Level.nki_0_7
    monkeypatch.setenv(LEVEL_VARIABLE, "0.6")
    assert default_level() is Level.nki_0_6
    set_default_level("0.7")
    assert default_level() is Level.nki_0_7
    with use_level("0.6"), use_level(None):
        assert default_level() is Level.nki_0_6
    assert default_level() is Level.nki_0_7
    assert simulate(looped, nki="0.6")(ROWS).shape == ROWS.shape
    assert len(trace(looped, ROWS, nki=Level.nki_0_6).instructions) == 3
    with pytest.raises(KernelError, match=r"nl\.dynamic_range is not in NKI 0\.7"):
        simulate(looped)(ROWS)


@pytest.mark.parametrize("value", ["0.5", "", "0.6.0", "7"])
def test_other_levels_are_refused(value: str) -> None:
    for refused in (lambda: as_level(value), lambda: simulate(looped, nki=value), lambda: trnrt.nki.install(value)):
        with pytest.raises(OptionError, match=r"there is no language level '.*'") as caught:
            refused()
        assert caught.value.hint == "levels are 0.6, 0.7" and caught.value.exit_code == 2


def test_a_bad_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LEVEL_VARIABLE, "0.8")
    with pytest.raises(OptionError, match=r"^TRNRT_NKI_VERSION: there is no language level '0\.8'"):
        simulate(looped)


@pytest.mark.parametrize("level", Level)
def test_an_installation_has_the_names_of_its_level(level: Level) -> None:
    with install_briefly(level) as ours:
        language, isa = (importlib.import_module(name) for name in ("nki.language", "nki.isa"))
        assert ours and default_level() is level
        assert hasattr(language, "dynamic_range") == (level is Level.nki_0_6)
        for module, names in ((language, ("alloc_tiles", "NkiGrid", "int64")), (isa, ("scalar_load", "NkiScalar"))):
            assert {hasattr(module, name) for name in names} == {level is Level.nki_0_7}
        if level is Level.nki_0_7:
            with pytest.raises(
                AttributeError, match=r"dynamic_range does not exist in NKI 0\.7\.0\. Call nl\.fori_loop"
            ):
                assert language.dynamic_range
            assert importlib.import_module("nki.compiler").CompileConfig is nki.compiler.CompileConfig
        else:
            with pytest.raises(ImportError, match="the compiler's own functions are left out"):
                importlib.import_module("nki.compiler")
    assert default_level() is Level.nki_0_7


def test_a_second_installation_may_change_the_level() -> None:
    try:
        assert trnrt.nki.install("0.6")
        first = importlib.import_module("nki.language")
        assert trnrt.nki.install() and importlib.import_module("nki.language") is first
        with install_briefly("0.7"):
            assert not hasattr(importlib.import_module("nki.language"), "dynamic_range")
        assert hasattr(importlib.import_module("nki.language"), "dynamic_range") and default_level() is Level.nki_0_6
        assert trnrt.nki.install("0.7") and default_level() is Level.nki_0_7
    finally:
        trnrt.nki.uninstall()
    assert default_level() is Level.nki_0_7


# What 0.7 takes

PYTHON = {
    "a generator": ("for i in halves(a):\n    nisa.tensor_scalar(tile[:, i], tile[:, i], nl.multiply, 2.0)", """
        def halves(a):
            yield slice(0, 2)
            yield slice(2, a.shape[1])
        """),
    "a comprehension": ("nisa.tensor_scalar(tile, tile, nl.multiply, sum([i for i in range(2)], 1.0))", ""),
    "inheritance": ("Twice().apply(tile)", """
        class Base:
            def apply(self, tile):
                nisa.tensor_scalar(tile, tile, nl.multiply, self.factor)

        class Twice(Base):
            factor = 2.0
        """),
    "a closure": ("def scale(by=2.0):\n    nisa.tensor_scalar(tile, tile, nl.multiply, by)\nscale()", ""),
    "try": (
        "try:\n    by = {}['by']\nexcept KeyError:\n    by = 2.0\n"
        "nisa.tensor_scalar(tile, tile, nl.multiply, by)", ""
    ),
    "with": ("with ExitStack() as stack:\n    nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)", """
        from contextlib import ExitStack
        """),
    "match": ("match a.shape:\n    case (8, _):\n        nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)", ""),
    "what calls may hold": (
        "options = {'op0': nl.multiply, 'operand0': 2.0}\nnisa.tensor_scalar(*[tile, tile], **options)", ""
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", PYTHON)
def test_python_is_the_language_of_0_7(what: str, tmp_path: Path) -> None:
    """It passes the check, and doubles the kernel's argument; at 0.6 the check refuses it."""
    path = tmp_path / "kernels.py"
    path.write_text(file_of(*PYTHON[what]), encoding="utf-8")
    report = check(path, ["kernel(f32[8,5])"], nki="0.7")
    assert (report.findings, report.warnings, report.level) == ([], [], "0.7")
    namespace: dict[str, Any] = {}
    with install_briefly("0.7"):
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), namespace)
        np.testing.assert_array_equal(namespace["kernel"](ROWS), ROWS * 2)
    assert static_findings(path.read_text(encoding="utf-8"), str(path), level="0.6") != []


# What 0.7 refuses, and warns of


def test_most_rules_are_those_of_0_6() -> None:
    """NKI 0.7 traces with Python: what is left are loops, and what nki.jit and imports say."""
    of_0_7 = {rule.id for rule in RULES if Level.nki_0_7 in rule.levels}
    loops = {"dynamic-in-order", "fori-return", "while-return", "while-register"}
    assert of_0_7 == {*loops, "platform-target", "old-namespace"}


@pytest.mark.parametrize(
    ("rule", "body", "instead"),
    [
        ("api-name", "for i in nl.dynamic_range(4):\n    nisa.memset(tile, 0)", "Call nl.fori_loop"),
        ("while-register", "r = nisa.register_alloc(2)\nwhile r:\n    nisa.register_move(r, 0)", "Call nl.while_loop"),
        ("fori-return", "def body(i):\n    return i\nnl.fori_loop(0, 4, body)", "Keep what the loop computes"),
        ("dynamic-in-order", "with nl.no_reorder():\n    nl.fori_loop(0, 4, print)", "Put the no_reorder block inside"),
    ],
)
def test_the_check_names_what_is_gone(rule: str, body: str, instead: str, tmp_path: Path) -> None:
    path = tmp_path / "kernels.py"
    path.write_text(file_of(body), encoding="utf-8")
    found = static_findings(path.read_text(encoding="utf-8"), str(path), level="0.7")
    assert [finding.rule for finding in found] == [rule]
    assert found[0].instead.startswith(instead)
    assert rule in [finding.rule for finding in check(path, ["kernel(f32[8,5])"], nki="0.7").findings]


@pytest.mark.parametrize("name", ["affine_range", "sequential_range", "static_range"])
def test_ranges_are_deprecated_and_work(name: str, tmp_path: Path) -> None:
    path = tmp_path / "kernels.py"
    path.write_text(file_of(f"for i in nl.{name}(2):\n    nisa.memset(tile, i)"), encoding="utf-8")
    report = check(path, ["kernel(f32[8,5])"], nki="0.7")
    (warning,) = report.warnings
    assert (report.clean, warning.rule, warning.instead) == (True, "api-deprecated", "Write range")
    assert check(path, ["kernel(f32[8,5])"], nki="0.6").warnings == []
    assert list(getattr(nl, name)(1, 7, 2)) == [1, 3, 5]


def test_the_parsers_risks_are_those_of_0_6() -> None:
    source = file_of("tiles = []\ntiles.insert(0, tile)")
    assert [finding.rule for finding in static_findings(source, "k.py", level="0.6")] == ["container-method"]
    assert static_findings(source, "k.py", level="0.7") == []


def test_a_register_is_no_condition_of_while_at_0_7() -> None:
    def kernel(a: Any) -> Any:
        register = nisa.register_alloc(2)
        while register:
            nisa.register_move(register, 0)
        return a

    with pytest.raises(KernelError, match=r"NKI 0\.7 has no `while register:`: call nl\.while_loop"):
        trace(kernel, ROWS)


# The table of 0.7


def test_the_table_says_what_0_7_changed() -> None:
    before, after = load_api("0.6"), load_api("0.7")
    assert (after.nki_version, after.neuron_sdk) == ("0.7.0", "2.33.0")
    assert set(after.modules) - set(before.modules) == {"nki.compiler"}
    for path in before.modules:
        gone = before.modules[path].names() - after.modules[path].names()
        assert gone == ({"dynamic_range"} if path == "nki.language" else set())
    assert [p.name for p in after.signature("nki.jit") or ()] == [
        "fn", "compile_config", "specialization_config", "**kwargs",
    ]  # fmt: skip
    found = static_findings("import nki\nnki.jit(print, 1)\nnki.compiler.CompileConfig(rotate=1)", "k.py", level="0.7")
    assert [finding.rule for finding in found] == ["api-positional", "api-argument"]


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda a: nl.alloc_tiles(tile_shape=(8, 5), element_shape=(8, 5), buffer=nl.sbuf, dtype=nl.float32), "grids"),
        (lambda a: nl.alloc_blocks(tile_shape=1, block_shape=1, element_shape=1, buffer=nl.sbuf, dtype=1), "grids"),
        (lambda a: nl.tiles(a, tile_shape=(8, 5)), "grids of tiles are not modelled"),
        (lambda a: nl.blocks(a, block_shape=(1, 1)), "grids of tiles are not modelled"),
        (lambda a: nl.NkiTileGrid(a), "nl.NkiTileGrid"),
        (lambda a: nl.ndarray((8, 5), dtype=nl.int64), "the NeuronCore has no dtype 'int64'"),
        (lambda a: nl.ndarray((8, 5), dtype=nl.uint64), "the NeuronCore has no dtype 'uint64'"),
        (lambda a: nisa.NkiScalar(1, nl.float32), "scalars of nl.int32 only"),
    ],
)
def test_what_is_left_out_of_0_7_is_named(call: Callable[[Any], Any], why: str) -> None:
    with pytest.raises(KernelError, match=why):
        trace(call, ROWS)


# nki.jit's configurations, and the degree of LNC


def copy_out(a: Any) -> Any:
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=a)
    return out


def test_configurations_are_checked() -> None:
    rotation, config = nki.compiler.AddressRotation, nki.compiler.CompileConfig
    kernel = nki.jit(compile_config=config(address_rotation=rotation.DISABLE, dead_code_elim=True))(copy_out)
    np.testing.assert_array_equal(kernel(ROWS), ROWS)
    assert nki.jit(nki.jit(copy_out), compile_config=config()).options.compile_config == config()
    with pytest.raises(KernelError, match=r"no compile_config and no specialization_config in NKI 0\.6"):
        trace(kernel, ROWS, nki="0.6")
    bad: list[tuple[Callable[[], Any], str]] = [
        (lambda: nki.jit(copy_out, compile_config="fast"), "it must be an nki.compiler.CompileConfig"),  # type: ignore[arg-type]
        (lambda: nki.jit(copy_out, specialization_config=config()), "SpecializationConfig"),  # type: ignore[arg-type]
        (lambda: config(address_rotation="auto"), "it must be AddressRotation.AUTO"),  # type: ignore[arg-type]
        (lambda: config(dead_code_elim=1), "dead_code_elim is 1; it must be True or False"),  # type: ignore[arg-type]
    ]
    for call, message in bad:
        with pytest.raises(KernelError, match=message):
            call()


def test_a_nested_kernel_agrees_with_the_outer_one() -> None:
    config, special = nki.compiler.CompileConfig(dead_code_elim=True), nki.compiler.SpecializationConfig
    inner = nki.jit(copy_out, compile_config=config)

    def outer(a: Any) -> Any:
        return inner(a)

    np.testing.assert_array_equal(nki.jit(outer, compile_config=config)(ROWS), ROWS)
    with pytest.raises(KernelError, match="kernel copy_out has a compile_config of its own"):
        nki.jit(outer)(ROWS)
    allowed = nki.jit(outer, specialization_config=special(allow_nested_config_override=True))
    with pytest.warns(UserWarning, match="kernel copy_out has a compile_config of its own"):
        np.testing.assert_array_equal(allowed(ROWS), ROWS)


def test_the_degree_of_lnc_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def kernel(a: Any) -> Any:
        seen.append(nl.num_programs())
        return copy_out(a)

    made = nki.jit(kernel)
    monkeypatch.delenv(LNC_VARIABLE, raising=False)
    made(ROWS), made[2](ROWS)
    assert seen == [1, 2, 2]
    monkeypatch.setenv(LNC_VARIABLE, "2")
    made(ROWS), made[2](ROWS)
    assert seen == [1, 2, 2, 2, 2, 2, 2]
    simulate(kernel, nki="0.6")(ROWS)
    assert seen[7:] == [1]
    with pytest.raises(KernelError, match=r"launched with LNC=1, but NEURON_LOGICAL_NC_CONFIG is 2: .* NCC_EVRF066"):
        made[1](ROWS)
    with pytest.raises(KernelError, match="can't be launched on 2 cores on trn1"):
        simulate(kernel, target="trn1")
    monkeypatch.setenv(LNC_VARIABLE, "two")
    with pytest.raises(KernelError, match="NEURON_LOGICAL_NC_CONFIG is 'two'; it must be 1 or 2"):
        made(ROWS)


def test_a_name_of_a_later_release_says_so() -> None:
    (finding,) = check_api("import nki.isa as nisa\nnisa.scalar_load(1)\n", "k.py", load_api("0.6"))
    assert finding.instead == "It came with NKI 0.7.0 (--nki 0.7)"
    (finding,) = check_api("import nki.language as nl\nnl.dynamic_range(1)\n", "k.py", load_api("0.7"))
    assert "fori_loop" in finding.instead
