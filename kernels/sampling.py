"""Images sampled at places that are known at run time: the device computes each pixel's number, and DMA looks up the
row of its channels."""

from trnrt.kernels.common import COUNTED
from trnrt.kernels.compute_math import round_whole
from trnrt.kernels.gather import CHUNK
from trnrt.kernels.values import fresh
from trnrt.nki import nisa, nl

# Blocks of 128 places whose pixels are found together: tiles of 256 bytes per partition.
BLOCKS = 64


def sample_images(
    dst: nl.NkiTensor,
    table: nl.NkiTensor,
    grid: nl.NkiTensor,
    size: tuple[int, int],
    mode: str,
    border: bool,
    align_corners: bool,
) -> None:
    """dst = the images' values at the grid's places: of the nearest pixel, or interpolated between the four around.

    dst: HBM (N, R, C): R places of each image
    table: HBM (N*H*W, C), the images with channels last
    grid: HBM (N, R, 2): x and y, from -1 to 1 within the image: the centres of the outer pixels if align_corners, else
        the image's edges. NaN counts as outside.
    size: H and W
    mode: "linear", or "nearest" (ties to even)
    border: outside the image are the pixels of its border; else zeros
    limits: N*H*W <= COUNTED; all pixels finite, as those that don't count are multiplied by 0

    numpy: for linear without border, at x = ((grid[n, r, 0] + 1) * W - 1) / 2 and y likewise, with x0 = floor(x),
        fx = x - x0, y0 = floor(y), fy = y - y0, and p[row, column] = a pixel, or zeros outside the image:
        (1 - fy) * ((1 - fx) * p[y0, x0] + fx * p[y0, x0 + 1])
        + fy * ((1 - fx) * p[y0 + 1, x0] + fx * p[y0 + 1, x0 + 1])
    """
    images, places, channels = dst.shape
    height, width = size
    assert table.shape == (images * height * width, channels), f"sample_images: a table {table.shape} for {size}"
    assert grid.shape == (images, places, 2), f"sample_images: a grid {grid.shape} for results {dst.shape}"
    assert images * height * width <= COUNTED, (
        f"sample_images: {images} images of {size}; the limit is {COUNTED} pixels"
    )
    assert mode == "linear" or mode == "nearest", f"sample_images: mode={mode}"
    pmax = nl.tile_size.pmax
    whole = places // pmax * pmax
    for n in range(images):
        for r0 in range(0, whole, BLOCKS * pmax):
            blocks = min(BLOCKS, (whole - r0) // pmax)
            part = (n, r0, blocks, pmax)
            _sample_places(dst, table, grid, part, size, mode, border, align_corners)
        if whole < places:
            _sample_places(dst, table, grid, (n, whole, 1, places - whole), size, mode, border, align_corners)


def _sample_places(
    dst: nl.NkiTensor,
    table: nl.NkiTensor,
    grid: nl.NkiTensor,
    part: tuple[int, int, int, int],
    size: tuple[int, int],
    mode: str,
    border: bool,
    align_corners: bool,
) -> None:
    """``sample_images`` for a part: image, first place, blocks, and places in each block, one for each partition."""
    n, r0, blocks, rows = part
    height, width = size
    grid_sb = nl.ndarray((rows, blocks, 2), dtype=grid.dtype, buffer=nl.sbuf)
    for b in range(blocks):
        nisa.dma_copy(dst=grid_sb[0:rows, b, 0:2], src=grid[n, r0 + b * rows : r0 + (b + 1) * rows, 0:2])
    xs, x_weights = _find_pixels(grid_sb[0:rows, 0:blocks, 0], width, mode, border, align_corners)
    ys, y_weights = _find_pixels(grid_sb[0:rows, 0:blocks, 1], height, mode, border, align_corners)
    numbers, weights = [], []
    for i in range(len(ys)):
        for j in range(len(xs)):
            number_sb, weight_sb = fresh((rows, blocks)), fresh((rows, blocks))
            nisa.scalar_tensor_tensor(
                dst=number_sb, data=ys[i], op0=nl.multiply, operand0=float(width), op1=nl.add, operand1=xs[j]
            )
            # The reference looks rows up by uint32.
            whole_sb = nl.ndarray((rows, blocks), dtype=nl.uint32, buffer=nl.sbuf)
            nisa.tensor_scalar(dst=whole_sb, data=number_sb, op0=nl.add, operand0=float(n * height * width))
            nisa.tensor_tensor(dst=weight_sb, data1=y_weights[i], data2=x_weights[j], op=nl.multiply)
            numbers.append(whole_sb)
            weights.append(weight_sb)
    for b in range(blocks):
        _add_pixels(dst[n, r0 + b * rows : r0 + (b + 1) * rows], table, numbers, weights, b)


def _find_pixels(
    places: nl.NkiTensor, length: int, mode: str, border: bool, align_corners: bool
) -> tuple[list[nl.NkiTensor], list[nl.NkiTensor]]:
    """The pixels along one axis that count at each place, each from 0 to length - 1, and their weights."""
    shape = places.shape
    lowest, highest = (0.0, length - 1.0) if border else (-1.0, float(length))
    place_sb = fresh(shape)
    if align_corners:
        nisa.tensor_scalar(dst=place_sb, data=places, op0=nl.add, operand0=1.0, op1=nl.multiply, operand1=0.5)
        nisa.tensor_scalar(dst=place_sb, data=place_sb, op0=nl.multiply, operand0=length - 1.0)
    else:
        nisa.tensor_scalar(dst=place_sb, data=places, op0=nl.add, operand0=1.0, op1=nl.multiply, operand1=float(length))
        nisa.tensor_scalar(dst=place_sb, data=place_sb, op0=nl.subtract, operand0=1.0, op1=nl.multiply, operand1=0.5)
    place_sb = _limit(place_sb, lowest, highest)
    low_sb = fresh(shape)
    round_whole(low_sb, place_sb, "round" if mode == "nearest" else "floor")
    pixels, weights = [low_sb], [fresh(shape)]
    if mode == "nearest":
        nisa.memset(dst=weights[0], value=1.0)
    else:
        high_sb, share_sb = fresh(shape), fresh(shape)
        nisa.tensor_scalar(dst=high_sb, data=low_sb, op0=nl.add, operand0=1.0)
        nisa.tensor_tensor(dst=share_sb, data1=place_sb, data2=low_sb, op=nl.subtract)
        nisa.tensor_tensor(dst=weights[0], data1=high_sb, data2=place_sb, op=nl.subtract)
        pixels.append(high_sb)
        weights.append(share_sb)
    for k in range(len(pixels)):
        inside_sb = fresh(shape)
        nisa.tensor_scalar(
            dst=inside_sb, data=pixels[k], op0=nl.maximum, operand0=0.0, op1=nl.minimum, operand1=length - 1.0
        )
        if not border:
            counts_sb = fresh(shape)
            nisa.tensor_tensor(dst=counts_sb, data1=inside_sb, data2=pixels[k], op=nl.equal)
            nisa.tensor_tensor(dst=weights[k], data1=weights[k], data2=counts_sb, op=nl.multiply)
        pixels[k] = inside_sb
    return pixels, weights


def _limit(x_sb: nl.NkiTensor, lowest: float, highest: float) -> nl.NkiTensor:
    """x from lowest to highest; lowest where x is NaN."""
    known_sb, limited_sb = nl.ndarray(x_sb.shape, dtype=nl.uint8, buffer=nl.sbuf), fresh(x_sb.shape)
    nisa.tensor_tensor(dst=known_sb, data1=x_sb, data2=x_sb, op=nl.equal)
    nisa.memset(dst=limited_sb, value=lowest)
    nisa.tensor_copy_predicated(dst=limited_sb, src=x_sb, predicate=known_sb)
    result_sb = fresh(x_sb.shape)
    nisa.tensor_scalar(
        dst=result_sb, data=limited_sb, op0=nl.maximum, operand0=lowest, op1=nl.minimum, operand1=highest
    )
    return result_sb


def _add_pixels(
    dst: nl.NkiTensor, table: nl.NkiTensor, numbers: list[nl.NkiTensor], weights: list[nl.NkiTensor], block: int
) -> None:
    """dst (P, C) = the sum of rows of the table, by a block's numbers and weights (P, blocks)."""
    rows, columns = dst.shape
    for c0 in range(0, columns, CHUNK):
        c1 = min(columns, c0 + CHUNK)
        sum_sb = fresh((rows, c1 - c0))
        for k in range(len(numbers)):
            row_sb = nl.ndarray((rows, c1 - c0), dtype=table.dtype, buffer=nl.sbuf)
            number_sb = nl.ndarray((rows, 1), dtype=nl.uint32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=number_sb, src=numbers[k][0:rows, block : block + 1])
            chosen = table.ap([[columns, rows], [1, c1 - c0]], offset=c0, vector_offset=number_sb, indirect_dim=0)
            nisa.dma_copy(dst=row_sb, src=chosen)
            weight_sb = weights[k][0:rows, block : block + 1]
            if k == 0:
                nisa.tensor_scalar(dst=sum_sb, data=row_sb, op0=nl.multiply, operand0=weight_sb)
            else:
                nisa.scalar_tensor_tensor(
                    dst=sum_sb, data=row_sb, op0=nl.multiply, operand0=weight_sb, op1=nl.add, operand1=sum_sb
                )
        result_sb = sum_sb
        if dst.dtype != nl.float32:
            result_sb = nl.ndarray((rows, c1 - c0), dtype=dst.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=result_sb, src=sum_sb)
        nisa.dma_copy(dst=dst[0:rows, c0:c1], src=result_sb)
