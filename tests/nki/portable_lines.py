"""Lines of kernels of the old namespace: those that the port leaves and marks, and what it makes of others."""

from __future__ import annotations

from textwrap import dedent, indent

from portable_kernels import HEAD

from trnrt.nki.porting import Mark, port_source

KERNEL = (
    HEAD
    + """
@nki.jit
def kernel(a, b):
    out = nl.ndarray((128, 64), dtype=a.dtype, buffer=nl.shared_hbm)
    i_p, i_f = nl.mgrid[0:128, 0:64]
    x = nl.load(a[i_p, i_f])
    {line}
    nl.store(out[i_p, i_f], value=x)
    return out
"""
)

# A line of a kernel -> a part of the reason, and of what to write.
LEFT = {
    "x = nl.load(a[i_p, i_f], mask=(i_p != 3))": ("not a rectangle", "nisa.affine_select"),
    "x = nl.load(a[i_p, i_f], mask=(i_p + i_f < 3))": ("several indexes", "nisa.affine_select"),
    "x = nl.load(a[i_p, i_f // 2])": ("sum of multiples", "sums and products"),
    "x = nl.load(a[i_p, max(i_f, 2)])": ("outside of a tensor's brackets", "sums and products"),
    "x = nl.load(a[i_p, i_f * i_p])": ("sum of multiples", "sums and products"),
    "x = nl.load(a[i_p, i_p])": ("two dimensions", ".ap()"),
    "x = nl.load(a[x, i_f])": ("run-time numbers", "vector_offset"),
    "x = nl.loop_reduce(x, op=np.add, loop_indices=[0])": ("loop_reduce", "nisa.tensor_tensor"),
    "x = nl.shared_constant(np.tri(128), dtype=nl.float32)": ("shared_constant", "as an argument"),
    "x = nl.atomic_rmw(out, value=x, op=np.add)": ("atomic_rmw", "dma_compute"),
    "tiles = [nl.load(a[i_p, i_f]) for _ in range(2)]": ("a comprehension", "a loop"),
    'print(f"{i_p}")': ("an f-string", "statements before"),
    "x = x // 3": ("no instruction", "nl.floor"),
    "x = x % 3": ("no instruction", "nl.floor"),
    "x = nl.mod(x, 3)": ("fails on hardware", "nl.floor"),
    "x = x ** 3": ("fails on hardware", "nl.exp"),
    "x = nl.sum(x, axis=0)": ("partitions", "ones on the tensor engine"),
    "x[...] = np.cumsum(x)": ("no numpy", "host"),
    "x = nisa.tensor_copy_dynamic_src(x)": ("tensor_copy_dynamic_src", "scalar_offset"),
    "x = nl.ndarray((128, 64), dtype=a.dtype, buffer=somewhere)": ("somewhere is not a buffer", "nl.sbuf"),
    "x = nisa.iota(i_f, nl.int32, mask=(i_f < 3))": ("no mask today", "leave the mask out"),
    "nisa.dma_copy(dst=out, src=x, dst_rmw_op=np.add)": ("dst_rmw_op", "reduce_op=nl.add"),
}


def port_line(line: str) -> tuple[str, tuple[Mark, ...]]:
    """The ported lines of a kernel with tiles ``x``, ``y`` and ``column``, and their marks."""
    body = f"# begin\n{line}\n# end"
    ported = port_source(TILES.replace("    {line}", indent(body, "    ")), "old.py")
    made = ported.text.split("# begin\n")[1].split("    # end")[0]
    return dedent(made).rstrip("\n"), ported.marks


TILES = (
    HEAD
    + """
import neuronxcc.nki.compiler as ncc

@nki.jit
def kernel(a, b, rows=100):
    out = nl.ndarray((128, 64), dtype=a.dtype, buffer=nl.shared_hbm)
    i_p, i_f = nl.mgrid[0:128, 0:64]
    x = nl.load(a[i_p, i_f])
    y = nl.load(b[i_p, i_f])
    column = nl.sum(x, axis=1, keepdims=True)
    {line}
    nl.store(out[i_p, i_f], value=x)
    return out
"""
)
