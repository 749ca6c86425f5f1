"""What the hardware refuses: every row of the table is broken once, and kept by a neighbour that differs little."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from rule_cases import CASES, case
from simulating import Tensor, give, load, tile, traced, zeros

from trnrt.errors import KernelError, KernelWarning
from trnrt.nki import nisa, nl, simulate
from trnrt.nki.machine.program import Engine, Rule
from trnrt.nki.machine.rules.table import RULES, rule
from trnrt.nki.sim.instructions import OPERATIONS

for path in sorted(Path(__file__).parent.glob("rule_cases_*.py")):  # the families' own rules
    import_module(path.stem)


@case("tile-dimensions", "shape (8,) has 1 dimension", "the least is 2")
def _(broken: bool) -> None:
    nl.ndarray((8,) if broken else (8, 1), nl.float32, nl.sbuf)  # here


@case("tile-partitions", "spans 129 partitions", "the limit is 128")
def _(broken: bool) -> None:
    nl.ndarray((129 if broken else 128, 4), nl.float32)  # here


@case("tile-bytes", "takes 212996 bytes", "SBUF of trn2 has 212992")
def _(broken: bool) -> None:
    nl.ndarray((128, 53249 if broken else 53248), nl.float32)  # here


@case("tile-address", "64 partitions from partition 96", "there are 128")
def _(broken: bool) -> None:
    nl.ndarray((64 if broken else 32, 4), nl.float32, address=(96, 0))  # here


@case("psum-address", "byte 1024", "multiple of 2048")
def _(broken: bool) -> None:
    nl.ndarray((128, 4), nl.float32, nl.psum, address=(0, 1024 if broken else 2048))  # here


@case("on-chip", "src is in shared_hbm", "SBUF and PSUM")
def _(broken: bool) -> None:
    x = tile(8, 4, buffer=nl.shared_hbm if broken else nl.sbuf)
    nisa.tensor_copy(dst=tile(8, 4), src=x)  # here


@case("partition-stride", "src steps over 2 partitions", "limit is 1")
def _(broken: bool) -> None:
    x = zeros(64, 4)
    nisa.tensor_copy(dst=tile(32, 4), src=x[::2] if broken else x[:32])  # here


@case("start-partition", "dst starts at partition 16", "0, 32, 64 or 96")
def _(broken: bool) -> None:
    x, y = zeros(32, 4), tile(64, 4)
    start = 16 if broken else 32
    nisa.tensor_copy(dst=y[start : start + 32], src=x)  # here


@case("dimensions", "dst has 6 dimensions", "at most 5")
def _(broken: bool) -> None:
    nisa.memset(dst=tile(*((2,) * (6 if broken else 5))), value=0.0)  # here


@case("pattern-range", "stride of 32768", "32767")
def _(broken: bool) -> None:
    x = tile(2, 2, 32768 if broken else 32767, dtype=nl.uint8)
    nisa.memset(dst=x, value=0)  # here


@case("gpsimd-no-psum", "src is in PSUM", "use the vector or scalar engine")
def _(broken: bool) -> None:
    x = zeros(8, 4, buffer=nl.psum if broken else nl.sbuf)
    nisa.tensor_copy(dst=tile(8, 4), src=x, engine=nisa.engine.gpsimd)  # here


@case("dma-no-psum", "dst is in PSUM", "move it to SBUF first")
def _(broken: bool) -> None:
    nisa.dma_copy(dst=tile(8, 4, buffer=nl.psum if broken else nl.sbuf), src=zeros(8, 4))  # here


@case("dma-size", "src has 32 elements (8, 4)", "dst 28 (7, 4)")
def _(broken: bool) -> None:
    nisa.dma_copy(dst=tile(7 if broken else 4, 4 if broken else 8), src=zeros(8, 4))  # here


@case("dma-hardware-descriptors", "dge_mode.hwdge", "trn1 has swdge and none", target="trn1")
def _(broken: bool) -> None:
    mode = nisa.dge_mode.hwdge if broken else nisa.dge_mode.swdge
    nisa.dma_copy(dst=tile(8, 4), src=zeros(8, 4), dge_mode=mode)  # here


@case("dma-hardware-dtype", "src is float32, dst bfloat16", "must be equal")
def _(broken: bool) -> None:
    dst = tile(8, 4, dtype=nl.bfloat16 if broken else nl.float32)
    nisa.dma_copy(dst=dst, src=zeros(8, 4), dge_mode=nisa.dge_mode.hwdge)  # here


@case("dma-engine", "engine=vector", "must be sync or scalar")
def _(broken: bool) -> None:
    engine = nisa.engine.vector if broken else nisa.engine.sync
    nisa.dma_copy(dst=tile(8, 4), src=zeros(8, 4), dge_mode=nisa.dge_mode.hwdge, engine=engine)  # here


@case("dma-priority", "priority=4", "must be 0, 1, 2 or 3", target="trn3")
def _(broken: bool) -> None:
    nisa.dma_copy(dst=tile(8, 4), src=zeros(8, 4), priority=4 if broken else 3)  # here


@case("same-partitions", "src spans 8 partitions", "dst 4", "must be equal")
def _(broken: bool) -> None:
    nisa.tensor_copy(dst=tile(4 if broken else 8, 4), src=zeros(8, 4))  # here


@case("same-free-size", "data2 holds 5 elements", "dst 4", "must be equal")
def _(broken: bool) -> None:
    other = zeros(8, 5) if broken else zeros(8, 2, 2)
    nisa.tensor_tensor(dst=tile(8, 4), data1=zeros(8, 4), data2=other, op=nl.add)  # here


@case("column-operands", "operand0 holds 4 elements", "must hold 1")
def _(broken: bool) -> None:
    column = zeros(8, 4 if broken else 1)
    nisa.tensor_scalar(dst=tile(8, 4), data=zeros(8, 4), op0=nl.add, operand0=column)  # here


@case("float32-operands", "scale is bfloat16", "must be float32")
def _(broken: bool) -> None:
    column = zeros(8, 1, dtype=nl.bfloat16 if broken else nl.float32)
    nisa.activation(dst=tile(8, 4), op=nl.copy, data=zeros(8, 4), scale=column)  # here


@case("one-psum-input", "data1 and data2 are both in psum", "copy one to sbuf")
def _(broken: bool) -> None:
    x, y = zeros(8, 4, buffer=nl.psum), zeros(8, 4, buffer=nl.psum if broken else nl.sbuf)
    nisa.tensor_tensor(dst=tile(8, 4), data1=x, data2=y, op=nl.add)  # here


@case("vector-operator", "op0=nl.exp", "not an operator of the vector engine")
def _(broken: bool) -> None:
    op = nl.exp if broken else nl.add
    nisa.tensor_scalar(dst=tile(8, 4), data=zeros(8, 4), op0=op, operand0=0.0)  # here


@case("two-input-operator", "op=nl.relu", "two inputs")
def _(broken: bool) -> None:
    op = nl.relu if broken else nl.maximum
    nisa.tensor_tensor(dst=tile(8, 4), data1=zeros(8, 4), data2=zeros(8, 4), op=op)  # here


@case("operand-given", "operand0 is 1.0", "must be None or 0", "nl.abs")
def _(broken: bool) -> None:
    operand = 1.0 if broken else 0.0
    nisa.tensor_scalar(dst=tile(8, 4), data=zeros(8, 4), op0=nl.abs, operand0=operand)  # here


@case("tensor-scalar-engine", "op0=nl.maximum", "scalar engine of trn2 multiplies, adds")
def _(broken: bool) -> None:
    op = nl.maximum if broken else nl.multiply
    engine = nisa.engine.scalar
    nisa.tensor_scalar(dst=tile(8, 4), data=zeros(8, 4), op0=op, operand0=1.0, engine=engine)  # here


@case("scalar-tensor-copy", "engine=scalar", "nisa.activation", target="trn1")
def _(broken: bool) -> None:
    engine = nisa.engine.scalar if broken else nisa.engine.vector
    nisa.tensor_copy(dst=tile(8, 4), src=zeros(8, 4), engine=engine)  # here


@case("predicate-dtype", "predicate is int32", "uint8, uint16 or uint32")
def _(broken: bool) -> None:
    predicate = zeros(8, 4, dtype=nl.int32 if broken else nl.uint16)
    nisa.tensor_copy_predicated(dst=zeros(8, 4), src=1.0, predicate=predicate)  # here


@case("activation-function", "op=nl.add", "not an activation function")
def _(broken: bool) -> None:
    nisa.activation(dst=tile(8, 4), op=nl.add if broken else nl.abs, data=zeros(8, 4))  # here


@case("activation-bias-tile", "bias is the number 1.0", "[P, 1] tile", target="trn1")
def _(broken: bool) -> None:
    bias = 1.0 if broken else zeros(8, 1)
    nisa.activation(dst=tile(8, 4), op=nl.copy, data=zeros(8, 4), bias=bias)  # here


@case("activation-bias-dtype", "bias is tfloat32")
def _(broken: bool) -> None:
    bias = zeros(8, 1, dtype=nl.tfloat32 if broken else nl.int8)
    nisa.activation(dst=tile(8, 4), op=nl.copy, data=zeros(8, 4), bias=bias)  # here


@case("activation-reduce", "reduce_op=nl.maximum", "must be nl.add")
def _(broken: bool) -> None:
    op, command = nl.maximum if broken else nl.add, nisa.reduce_cmd.reset_reduce
    nisa.activation(dst=tile(8, 4), op=nl.copy, data=zeros(8, 4), reduce_op=op, reduce_cmd=command)  # here


@case("reduce-operator", "op=nl.equal is not a reduction", "nl.add, nl.subtract, nl.multiply, nl.maximum, nl.minimum")
def _(broken: bool) -> None:
    op = nl.equal if broken else nl.subtract
    nisa.tensor_reduce(dst=tile(8, 1), op=op, data=zeros(8, 4), axis=1)  # here


@case("trailing-axes", "axis=(1,)", "3 dimensions", "last free axes")
def _(broken: bool) -> None:
    nisa.tensor_reduce(dst=tile(8, 4), op=nl.add, data=zeros(8, 4, 4), axis=1 if broken else 2)  # here


@case("reduced-size", "dst holds 3 elements", "leaves 4")
def _(broken: bool) -> None:
    nisa.tensor_reduce(dst=tile(8, 3 if broken else 4), op=nl.add, data=zeros(8, 4, 2), axis=2)  # here


@case("search-size", "src holds 7 elements", "must hold 8 to 16384")
def _(broken: bool) -> None:
    nisa.max8(dst=tile(4, 8), src=zeros(4, 7 if broken else 8))  # here


@case("search-eight", "vals holds 9 elements", "must hold 8")
def _(broken: bool) -> None:
    vals = zeros(4, 9 if broken else 8)
    nisa.nc_find_index8(dst=tile(4, 8, dtype=nl.uint32), data=zeros(4, 16), vals=vals)  # here


@case("search-dimensions", "src has 4 dimensions", "limit is 3")
def _(broken: bool) -> None:
    nisa.max8(dst=tile(4, 8), src=zeros(4, 2, 4, 2) if broken else zeros(4, 2, 8))  # here


@case("index-dtype", "dst is int32", "uint16 or uint32")
def _(broken: bool) -> None:
    dst = tile(4, 8, dtype=nl.int32 if broken else nl.uint16)
    nisa.nc_find_index8(dst=dst, data=zeros(4, 16), vals=zeros(4, 8))  # here


def matmul(
    k: int = 8, m: int = 4, n: int = 6, dtypes: tuple[object, object] = (nl.float32, nl.float32)
) -> tuple[Tensor, Tensor]:
    return zeros(k, m, dtype=dtypes[0]), zeros(k, n, dtype=dtypes[1])


@case("matmul-memory", "dst is in sbuf", "must be in psum")
def _(broken: bool) -> None:
    w, x = matmul()
    nisa.nc_matmul(dst=tile(4, 6, buffer=nl.sbuf if broken else nl.psum), stationary=w, moving=x)  # here


@case("matmul-contraction", "stationary has 8 partitions, moving 7")
def _(broken: bool) -> None:
    w, x = matmul()
    nisa.nc_matmul(dst=tile(4, 6, buffer=nl.psum), stationary=w, moving=x[0:7] if broken else x)  # here


@case("matmul-stationary", "stationary has 129 columns", "limit on trn2 is 128")
def _(broken: bool) -> None:
    w, x = matmul(m=129 if broken else 128)
    nisa.nc_matmul(dst=tile(128, 6, buffer=nl.psum), stationary=w, moving=x)  # here


@case("matmul-moving", "moving has 513 columns", "limit on trn2 is 512")
def _(broken: bool) -> None:
    columns = 513 if broken else 512
    w, x = matmul(n=columns)
    nisa.nc_matmul(dst=tile(4, columns, buffer=nl.psum), stationary=w, moving=x)  # here


@case("matmul-result", "dst is 4 x 5", "give 4 x 6")
def _(broken: bool) -> None:
    w, x = matmul()
    nisa.nc_matmul(dst=tile(4, 5 if broken else 6, buffer=nl.psum), stationary=w, moving=x)  # here


@case("matmul-dtypes", "moving is int8", "float8_e4m3, float8_e5m2, bfloat16")
def _(broken: bool) -> None:
    w, x = matmul(dtypes=(nl.float16, nl.int8 if broken else nl.float8_e5m2))
    nisa.nc_matmul(dst=tile(4, 6, buffer=nl.psum), stationary=w, moving=x)  # here


@case("matmul-mixed-dtypes", "stationary is float32, moving bfloat16", "with each other only")
def _(broken: bool) -> None:
    w, x = matmul(dtypes=(nl.float32, nl.bfloat16 if broken else nl.tfloat32))
    nisa.nc_matmul(dst=tile(4, 6, buffer=nl.psum), stationary=w, moving=x)  # here


@case("matmul-result-dtype", "dst is bfloat16", "must be float32")
def _(broken: bool) -> None:
    w, x = matmul(dtypes=(nl.bfloat16, nl.bfloat16))
    dst = tile(4, 6, dtype=nl.bfloat16 if broken else nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=dst, stationary=w, moving=x)  # here


@case("psum-bank", "dst covers bytes 1024 to 3071", "one bank of 2048")
def _(broken: bool) -> None:
    w, x = matmul(n=512)
    start = 256 if broken else 512
    nisa.nc_matmul(dst=tile(4, 1024, buffer=nl.psum)[:, start : start + 512], stationary=w, moving=x)  # here


@case("psum-accumulate", "accumulate=True on a dst that nothing has written", "accumulate=False")
def _(broken: bool) -> None:
    w, x = matmul()
    nisa.nc_matmul(dst=tile(4, 6, buffer=nl.psum), stationary=w, moving=x, accumulate=broken)  # here


@case("transpose-memory", "dst is in sbuf", "must be in psum")
def _(broken: bool) -> None:
    dst = tile(4, 8, buffer=nl.sbuf if broken else nl.psum)
    nisa.nc_transpose(dst=dst, data=zeros(8, 4), engine=nisa.engine.tensor)  # here


@case("transpose-size", "data is 33 x 4", "limit of the vector engine is 32 x 32")
def _(broken: bool) -> None:
    rows = 33 if broken else 32
    nisa.nc_transpose(dst=tile(4, rows), data=zeros(rows, 4), engine=nisa.engine.vector)  # here


@case("transpose-shape", "data is 8 x 4, dst 8 x 4", "must be 4 x 8")
def _(broken: bool) -> None:
    dst = tile(*((8, 4) if broken else (4, 8)), buffer=nl.psum)
    nisa.nc_transpose(dst=dst, data=zeros(8, 4))  # here


@case("same-start-partition", "data1 starts at partition 0, data2 at 32, both in SBUF", "must be equal", "copy one")
def _(broken: bool) -> None:
    x, y = zeros(64, 4), zeros(64, 4, buffer=nl.sbuf if broken else nl.psum)
    nisa.tensor_tensor(dst=tile(32, 4), data1=x[:32], data2=y[32:], op=nl.add)  # here


@case("other-start-partition", "data starts at partition 64, bias at 0, both in SBUF", "AWS's own kernels copy one")
def _(broken: bool) -> None:
    x, bias = zeros(128, 4), zeros(128, 1)
    nisa.activation(dst=tile(32, 4), op=nl.exp, data=x[64:96], bias=bias[:32] if broken else bias[64:96])  # here


def test_every_rule_has_a_case() -> None:
    assert set(CASES) == set(RULES)


@pytest.mark.parametrize("name", CASES)
def test_breaking_a_rule_names_everything(name: str) -> None:
    broken, row = CASES[name], RULES[name]
    if row.refuses:
        with pytest.raises(KernelError) as refused:
            traced(lambda: broken.body(True), target=broken.target)
        message = str(refused.value)
    else:
        with pytest.warns(KernelWarning) as doubted:
            traced(lambda: broken.body(True), target=broken.target)
        (message,) = [str(warning.message) for warning in doubted]
    for part in (*broken.says, f"rule {name}: {row.says} ({row.source})", f"at {broken.place} in _"):
        assert part in message


@pytest.mark.parametrize("name", CASES)
def test_the_neighbour_is_legal(name: str) -> None:
    kept = CASES[name]
    assert kept.place
    traced(lambda: kept.body(False), target=kept.target)


def test_inputs_of_every_engine_instruction_start_together() -> None:
    """Of two inputs in SBUF: one instruction is known to be refused, every other one is warned of."""
    rows = {name: {row.name for row in operation.rules} for name, operation in OPERATIONS.items()}
    two = {
        name
        for name, operation in OPERATIONS.items()
        if len(set(operation.reads) - set(operation.writes)) > 1 and Engine.dma not in operation.engines
    }
    refused = {name for name, names in rows.items() if "same-start-partition" in names}
    doubted = {name for name, names in rows.items() if "other-start-partition" in names}
    assert refused == {"tensor_tensor"}
    assert doubted == two - refused
    assert {"nc_matmul", "select_reduce", "tensor_tensor_scan", "tensor_scalar", "activation"} <= doubted


@pytest.mark.parametrize("starts", [(0, 32), (32, 0), (64, 96)])
def test_where_an_address_puts_a_tile_counts(starts: tuple[int, int]) -> None:
    def body(address: int) -> None:
        one, other = zeros(32, 4, address=(starts[0], 0)), zeros(32, 4, address=(address, 1024))
        nisa.tensor_tensor(dst=tile(32, 4, address=(0, 4096)), data1=one, data2=other, op=nl.add)

    traced(lambda: body(starts[0]))
    with pytest.raises(KernelError, match=f"data1 starts at partition {starts[0]}, data2 at {starts[1]}, both in SBUF"):
        traced(lambda: body(starts[1]))


def test_a_doubtful_line_is_warned_of_once() -> None:
    def kernel(x: Tensor) -> Tensor:
        a, out = load(x), tile(32, 4)
        for _ in range(3):
            nisa.scalar_tensor_tensor(out, a[:32], nl.multiply, 2.0, nl.add, a[32:])
        return give(out)

    x = np.arange(256, dtype=np.float32).reshape(64, 4)
    with pytest.warns(KernelWarning, match="data starts at partition 0, operand1 at 32") as doubted:
        got = simulate(kernel)(x)
    assert len(doubted) == 1
    assert doubted[0].filename == __file__
    np.testing.assert_array_equal(got, 2 * x[:32] + x[32:])  # it runs


def test_a_name_is_taken_once() -> None:
    with pytest.raises(ValueError, match="'on-chip' is declared twice"):
        rule("on-chip", "", "")(lambda instruction, target: None)


def test_rows_say_what_and_why() -> None:
    for name, row in RULES.items():
        assert isinstance(row, Rule)
        assert row.name == name
        assert row.says
        assert row.source
