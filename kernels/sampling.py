"""Images sampled at places that are known at run time: the device computes each pixel's number, and DMA looks up the
row of its channels."""

from trnrt.kernels.common import COUNTED
from trnrt.kernels.compute_math import round_whole
from trnrt.kernels.gather import CHUNK
from trnrt.kernels.values import fresh
from trnrt.nki import nisa, nl

# Blocks of 128 places whose pixels are found together: tiles of 256 bytes per partition.
BLOCKS = 64
# Places further outside are reflected from there: float32 holds halves of pixels up to 2**22.
FURTHEST = 2097152.0
# The cubic's slope at its second pixel, as ONNX has it.
SLOPE = -0.75


def sample_images(
    dst: nl.NkiTensor,
    table: nl.NkiTensor,
    grid: nl.NkiTensor,
    size: tuple[int, ...],
    mode: str,
    padding: str,
    align_corners: bool,
) -> None:
    """dst = the images' values at the grid's places: of the nearest pixel, or interpolated between those around.

    dst: HBM (N, R, C): R places of each image
    table: HBM (N*H*W, C) or (N*D*H*W, C), the images with channels last
    grid: HBM (N, R, 2) or (N, R, 3): x, y (and z), from -1 to 1 within the image: the centres of the outer pixels if
        align_corners, else the image's edges. NaN counts as outside.
    size: H and W, or D, H and W
    mode: "linear", "cubic" (4 pixels along each axis), or "nearest" (ties to even)
    padding: the pixels outside the image are "zeros", those of its "border", or its "reflection" at the outer places
    limits: N*D*H*W <= COUNTED; all pixels finite, as those that don't count are multiplied by 0; with reflection,
        places up to FURTHEST pixels outside

    numpy: for linear images with zeros, at x = ((grid[n, r, 0] + 1) * W - 1) / 2 and y likewise, with x0 = floor(x),
        fx = x - x0, y0 = floor(y), fy = y - y0, and p[row, column] = a pixel, or zeros outside the image:
        (1 - fy) * ((1 - fx) * p[y0, x0] + fx * p[y0, x0 + 1])
        + fy * ((1 - fx) * p[y0 + 1, x0] + fx * p[y0 + 1, x0 + 1])
    """
    images, places, channels = dst.shape
    pixels = images
    for length in size:
        pixels = pixels * length
    assert len(size) == 2 or len(size) == 3, f"sample_images: size={size}"
    assert table.shape == (pixels, channels), f"sample_images: a table {table.shape} for {size}"
    assert grid.shape == (images, places, len(size)), f"sample_images: a grid {grid.shape} for results {dst.shape}"
    assert pixels <= COUNTED, f"sample_images: {images} images of {size}; the limit is {COUNTED} pixels"
    assert mode == "linear" or mode == "nearest" or mode == "cubic", f"sample_images: mode={mode}"
    known = padding == "zeros" or padding == "border" or padding == "reflection"
    assert known, f"sample_images: padding={padding}"
    pmax = nl.tile_size.pmax
    whole = places // pmax * pmax
    for n in range(images):
        first = n * (pixels // images)
        for r0 in range(0, whole, BLOCKS * pmax):
            blocks = min(BLOCKS, (whole - r0) // pmax)
            part = (n, r0, blocks, pmax)
            _sample_places(dst, table, grid, part, first, size, mode, padding, align_corners)
        if whole < places:
            part = (n, whole, 1, places - whole)
            _sample_places(dst, table, grid, part, first, size, mode, padding, align_corners)


def _sample_places(
    dst: nl.NkiTensor,
    table: nl.NkiTensor,
    grid: nl.NkiTensor,
    part: tuple[int, int, int, int],
    first: int,
    size: tuple[int, ...],
    mode: str,
    padding: str,
    align_corners: bool,
) -> None:
    """``sample_images`` for a part: image, first place, blocks, and places in each block, one for each partition.
    ``first``: the number of the image's first pixel."""
    n, r0, blocks, rows = part
    axes = len(size)
    grid_sb = nl.ndarray((rows, blocks, axes), dtype=grid.dtype, buffer=nl.sbuf)
    for b in range(blocks):
        nisa.dma_copy(dst=grid_sb[0:rows, b, 0:axes], src=grid[n, r0 + b * rows : r0 + (b + 1) * rows, 0:axes])
    numbers, weights = _find_pixels(grid_sb[0:rows, 0:blocks, axes - 1], size[0], mode, padding, align_corners)
    for axis in range(1, axes):
        places = grid_sb[0:rows, 0:blocks, axes - 1 - axis]
        pixels, shares = _find_pixels(places, size[axis], mode, padding, align_corners)
        before, before_weights = numbers, weights
        numbers, weights = [], []
        for i in range(len(before)):
            for j in range(len(pixels)):
                number_sb, weight_sb = fresh((rows, blocks)), fresh((rows, blocks))
                nisa.scalar_tensor_tensor(
                    dst=number_sb,
                    data=before[i],
                    op0=nl.multiply,
                    operand0=float(size[axis]),
                    op1=nl.add,
                    operand1=pixels[j],
                )
                nisa.tensor_tensor(dst=weight_sb, data1=before_weights[i], data2=shares[j], op=nl.multiply)
                numbers.append(number_sb)
                weights.append(weight_sb)
    for k in range(len(numbers)):
        # The reference looks rows up by uint32.
        whole_sb = nl.ndarray((rows, blocks), dtype=nl.uint32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=whole_sb, data=numbers[k], op0=nl.add, operand0=float(first))
        numbers[k] = whole_sb
    for b in range(blocks):
        _add_pixels(dst[n, r0 + b * rows : r0 + (b + 1) * rows], table, numbers, weights, b)


def _find_pixels(
    places: nl.NkiTensor, length: int, mode: str, padding: str, align_corners: bool
) -> tuple[list[nl.NkiTensor], list[nl.NkiTensor]]:
    """The pixels along one axis that count at each place, each from 0 to length - 1, and their weights."""
    shape = places.shape
    place_sb = fresh(shape)
    if align_corners:
        nisa.tensor_scalar(dst=place_sb, data=places, op0=nl.add, operand0=1.0, op1=nl.multiply, operand1=0.5)
        nisa.tensor_scalar(dst=place_sb, data=place_sb, op0=nl.multiply, operand0=length - 1.0)
    else:
        nisa.tensor_scalar(dst=place_sb, data=places, op0=nl.add, operand0=1.0, op1=nl.multiply, operand1=float(length))
        nisa.tensor_scalar(dst=place_sb, data=place_sb, op0=nl.subtract, operand0=1.0, op1=nl.multiply, operand1=0.5)
    # Beyond these, all pixels that count are outside, or the same pixel of the border.
    reach = 2.0 if mode == "cubic" else 1.0
    lowest, highest = -reach, length - 1.0 + reach
    if padding == "reflection":
        lowest, highest = -FURTHEST, FURTHEST
    elif padding == "border" and mode != "cubic":
        lowest, highest = 0.0, length - 1.0
    place_sb = _limit(place_sb, lowest, highest)
    low_sb = fresh(shape)
    round_whole(low_sb, place_sb, "round" if mode == "nearest" else "floor")
    if mode == "nearest":
        pixels, weights = [low_sb], [fresh(shape)]
        nisa.memset(dst=weights[0], value=1.0)
    elif mode == "linear":
        pixels, weights = _weigh_two(place_sb, low_sb)
    else:
        pixels, weights = _weigh_four(place_sb, low_sb)
    for k in range(len(pixels)):
        found_sb = pixels[k]
        if padding == "reflection":
            found_sb = _reflect(found_sb, length, align_corners)
        inside_sb = fresh(shape)
        nisa.tensor_scalar(
            dst=inside_sb, data=found_sb, op0=nl.maximum, operand0=0.0, op1=nl.minimum, operand1=length - 1.0
        )
        if padding == "zeros":
            counts_sb = fresh(shape)
            nisa.tensor_tensor(dst=counts_sb, data1=inside_sb, data2=pixels[k], op=nl.equal)
            nisa.tensor_tensor(dst=weights[k], data1=weights[k], data2=counts_sb, op=nl.multiply)
        pixels[k] = inside_sb
    return pixels, weights


def _weigh_two(place_sb: nl.NkiTensor, low_sb: nl.NkiTensor) -> tuple[list[nl.NkiTensor], list[nl.NkiTensor]]:
    """The pixels below and above a place, and their weights."""
    shape = place_sb.shape
    high_sb, share_sb, rest_sb = fresh(shape), fresh(shape), fresh(shape)
    nisa.tensor_scalar(dst=high_sb, data=low_sb, op0=nl.add, operand0=1.0)
    nisa.tensor_tensor(dst=share_sb, data1=place_sb, data2=low_sb, op=nl.subtract)
    nisa.tensor_tensor(dst=rest_sb, data1=high_sb, data2=place_sb, op=nl.subtract)
    return [low_sb, high_sb], [rest_sb, share_sb]


def _weigh_four(place_sb: nl.NkiTensor, low_sb: nl.NkiTensor) -> tuple[list[nl.NkiTensor], list[nl.NkiTensor]]:
    """The four pixels around a place, and their weights by a cubic: with s = 1 - t, SLOPE * t * s**2 for the first."""
    shape = place_sb.shape
    middle, ends = _weigh_two(place_sb, low_sb)
    rest_sb, share_sb = ends
    first_sb, last_sb, both_sb = fresh(shape), fresh(shape), fresh(shape)
    nisa.tensor_scalar(dst=first_sb, data=low_sb, op0=nl.subtract, operand0=1.0)
    nisa.tensor_scalar(dst=last_sb, data=low_sb, op0=nl.add, operand0=2.0)
    nisa.tensor_tensor(dst=both_sb, data1=share_sb, data2=rest_sb, op=nl.multiply)
    outer = []
    for k in range(2):
        weight_sb = fresh(shape)
        nisa.scalar_tensor_tensor(
            dst=weight_sb,
            data=both_sb,
            op0=nl.multiply,
            operand0=SLOPE,
            op1=nl.multiply,
            operand1=rest_sb if k == 0 else share_sb,
        )
        outer.append(weight_sb)
    inner = [_weigh_near(share_sb), _weigh_near(rest_sb)]
    return [first_sb, middle[0], middle[1], last_sb], [outer[0], inner[0], inner[1], outer[1]]


def _weigh_near(t_sb: nl.NkiTensor) -> nl.NkiTensor:
    """The cubic's weight of a pixel t away: ((SLOPE + 2) * t - (SLOPE + 3)) * t**2 + 1."""
    weight_sb = fresh(t_sb.shape)
    nisa.tensor_scalar(
        dst=weight_sb, data=t_sb, op0=nl.multiply, operand0=SLOPE + 2.0, op1=nl.subtract, operand1=SLOPE + 3.0
    )
    nisa.tensor_tensor(dst=weight_sb, data1=weight_sb, data2=t_sb, op=nl.multiply)
    nisa.tensor_tensor(dst=weight_sb, data1=weight_sb, data2=t_sb, op=nl.multiply)
    nisa.tensor_scalar(dst=weight_sb, data=weight_sb, op0=nl.add, operand0=1.0)
    return weight_sb


def _reflect(pixel_sb: nl.NkiTensor, length: int, align_corners: bool) -> nl.NkiTensor:
    """Whole numbers reflected at the centres of the outer pixels (align_corners), or at the image's edges."""
    shape = pixel_sb.shape
    lowest, period = (0.0, 2.0 * (length - 1.0)) if align_corners else (-0.5, 2.0 * length)
    result_sb, trips_sb, back_sb = fresh(shape), fresh(shape), fresh(shape)
    if period == 0.0:
        nisa.memset(dst=result_sb, value=0.0)
        return result_sb
    nisa.tensor_scalar(dst=result_sb, data=pixel_sb, op0=nl.subtract, operand0=lowest, op1=nl.abs, operand1=0.0)
    # At a multiple of the period, a quotient rounded down by one gives the period itself, which is reflected to 0.
    nisa.tensor_scalar(dst=back_sb, data=result_sb, op0=nl.multiply, operand0=1.0 / period)
    round_whole(trips_sb, back_sb, "floor")
    nisa.scalar_tensor_tensor(
        dst=result_sb, data=trips_sb, op0=nl.multiply, operand0=-period, op1=nl.add, operand1=result_sb
    )
    nisa.tensor_scalar(dst=back_sb, data=result_sb, op0=nl.multiply, operand0=-1.0, op1=nl.add, operand1=period)
    nisa.tensor_tensor(dst=result_sb, data1=result_sb, data2=back_sb, op=nl.minimum)
    nisa.tensor_scalar(dst=result_sb, data=result_sb, op0=nl.add, operand0=lowest)
    return result_sb


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
