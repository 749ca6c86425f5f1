"""Kernels that repeat one thing, so that the difference of two calls is the device's time for it, without the host's.

Each takes ``repeats``; nothing else of a call depends on that: arguments, results and the loads and stores around are
the same. Repeated instructions depend on each other where a latency is sought, and on nothing where a rate is. All are
written in what NKI 0.6 and 0.7 both take.
"""

from trnrt.nki import nisa, nki, nl

WAYS = ("hardware", "software", "static")
"""Where a transfer's descriptors come from."""
TILES_BYTES = 131072
"""The bytes of a partition for tiles that loads go to in turn."""


@nki.jit
def repeat_products(a: nl.NkiTensor, b: nl.NkiTensor, repeats: int, columns: int) -> nl.NkiTensor:
    """The sum of ``repeats`` equal products, in PSUM.

    a: HBM (128, 128); b: HBM (128, 512); columns: of b, at most 512

    numpy: repeats * a.T @ b[:, :columns], the other columns b's
    """
    dst = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    a_sb = nl.ndarray((128, 128), dtype=a.dtype, buffer=nl.sbuf)
    b_sb = nl.ndarray((128, 512), dtype=b.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=a_sb, src=a)
    nisa.dma_copy(dst=b_sb, src=b)
    sum_psum = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
    for i in range(repeats):
        nisa.nc_matmul(dst=sum_psum[:, 0:columns], stationary=a_sb, moving=b_sb[:, 0:columns], accumulate=i > 0)
    sum_sb = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=sum_sb, op=nl.copy, data=b_sb)
    nisa.tensor_copy(dst=sum_sb[:, 0:columns], src=sum_psum[:, 0:columns])
    nisa.dma_copy(dst=dst, src=sum_sb)
    return dst


@nki.jit
def turn_in_turn(x: nl.NkiTensor, repeats: int) -> nl.NkiTensor:
    """Transposes by the tensor engine, each of the one before, doubled and halved in turn by the vector engine.

    x: HBM (128, 128); repeats: even

    numpy: x
    """
    dst = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.shared_hbm)
    x_sb = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=x_sb, src=x)
    turned_psum = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.psum)
    for i in range(repeats):
        nisa.nc_transpose(dst=turned_psum, data=x_sb)
        nisa.tensor_scalar(dst=x_sb, data=turned_psum, op0=nl.multiply, operand0=0.5 if i % 2 == 0 else 2.0)
    nisa.dma_copy(dst=dst, src=x_sb)
    return dst


@nki.jit
def repeat_additions(x: nl.NkiTensor, repeats: int, columns: int, on_gpsimd: bool = False) -> nl.NkiTensor:
    """Additions to the first columns, each of the sum before, by the vector or the gpsimd engine.

    x: HBM (128, N); columns: at most N

    numpy: x, with x[:, :columns] * (repeats + 1)
    """
    dst = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    x_sb = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    sum_sb = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    engine = nisa.engine.gpsimd if on_gpsimd else nisa.engine.vector
    nisa.dma_copy(dst=x_sb, src=x)
    nisa.dma_copy(dst=sum_sb, src=x)
    for _ in range(repeats):
        nisa.tensor_tensor(
            dst=sum_sb[:, 0:columns], data1=sum_sb[:, 0:columns], data2=x_sb[:, 0:columns], op=nl.add, engine=engine
        )
    nisa.dma_copy(dst=dst, src=sum_sb)
    return dst


@nki.jit
def repeat_activations(x: nl.NkiTensor, repeats: int, columns: int, functions: int = 0) -> nl.NkiTensor:
    """Activations of the first columns, each of the one before, by the scalar engine: scalings by 1/2 and 2 in turn
    (``functions`` 0), exponentials of the negative (1), or those and sigmoids in turn, which need two tables (2).

    x: HBM (128, N); columns: at most N; repeats: even

    numpy: x; or its first columns after these functions
    """
    dst = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    x_sb = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=x_sb, src=x)
    first_sb = x_sb[:, 0:columns]
    for i in range(repeats):
        if functions == 0:
            nisa.activation(dst=first_sb, op=nl.copy, data=first_sb, scale=0.5 if i % 2 == 0 else 2.0)
        elif functions == 1 or i % 2 == 0:
            nisa.activation(dst=first_sb, op=nl.exp, data=first_sb, scale=-1.0)
        else:
            nisa.activation(dst=first_sb, op=nl.sigmoid, data=first_sb)
    nisa.dma_copy(dst=dst, src=x_sb)
    return dst


@nki.jit
def take_turns(x: nl.NkiTensor, repeats: int, on_gpsimd: bool = False) -> nl.NkiTensor:
    """Doublings by the vector (or the gpsimd) engine and halvings by the scalar engine, each of the one before.

    x: HBM (128, N)

    numpy: x
    """
    dst = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    x_sb = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=x_sb, src=x)
    engine = nisa.engine.gpsimd if on_gpsimd else nisa.engine.vector
    for _ in range(repeats):
        nisa.tensor_tensor(dst=x_sb, data1=x_sb, data2=x_sb, op=nl.add, engine=engine)
        nisa.activation(dst=x_sb, op=nl.copy, data=x_sb, scale=0.5)
    nisa.dma_copy(dst=dst, src=x_sb)
    return dst


@nki.jit
def bounce(x: nl.NkiTensor, repeats: int, way: str) -> nl.NkiTensor:
    """Stores to HBM and loads from it in turn, each of the one before: the latency of transfers.

    x: HBM (128, N); way: one of WAYS

    numpy: x
    """
    dst = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    x_sb = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=x_sb, src=x)
    mode = nisa.dge_mode.none
    if way == "hardware":
        mode = nisa.dge_mode.hwdge
    elif way == "software":
        mode = nisa.dge_mode.swdge
    for _ in range(repeats):
        nisa.dma_copy(dst=dst, src=x_sb, dge_mode=mode)
        nisa.dma_copy(dst=x_sb, src=dst, dge_mode=mode)
    nisa.dma_copy(dst=dst, src=x_sb)
    return dst


@nki.jit
def repeat_loads(x: nl.NkiTensor, repeats: int, way: str, rows: int, step: int = 1) -> nl.NkiTensor:
    """Loads of the same part of x into as many tiles as fit, in turn: the rate of transfers.

    x: HBM (128, N) float32; rows: of x; way: one of WAYS; step: only every step-th element, each with a descriptor

    numpy: x[:, ::step] with zeros from row ``rows`` on
    """
    columns = x.shape[1] // step
    tiles = min(repeats, TILES_BYTES // (4 * columns))
    dst = nl.ndarray((128, columns), dtype=x.dtype, buffer=nl.shared_hbm)
    x_sb = nl.ndarray((128, tiles, columns), dtype=x.dtype, buffer=nl.sbuf)
    mode = nisa.dge_mode.none
    if way == "hardware":
        mode = nisa.dge_mode.hwdge
    elif way == "software":
        mode = nisa.dge_mode.swdge
    part = x[0:rows, :]
    if step > 1:
        part = x.reshape((128, columns, step))[0:rows, :, 0]
    last = (repeats - 1) % tiles
    if rows < 128:
        nisa.memset(dst=x_sb[:, last, :], value=0.0)
    for i in range(repeats):
        nisa.dma_copy(dst=x_sb[0:rows, i % tiles, :], src=part, dge_mode=mode)
    nisa.dma_copy(dst=dst, src=x_sb[:, last, :])
    return dst
