"""W @ x and the bias of a recurrent layer's steps: in SBUF for the next few steps. Where W has no room there beside the
recurrent weights, they are first computed for all steps and stored in HBM: then W is loaded once for 512 rows."""

from dataclasses import dataclass
from typing import Any

from trnrt.kernels.common import ceil_div, is_hbm_tensor, load, transfer
from trnrt.kernels.linear import OUTPUTS, linear_features
from trnrt.kernels.recurrent_steps import RecurrentCell, RecurrentWeights
from trnrt.nki import nl

# Bytes per partition of one load of input weights that aren't kept: small, as R takes most of SBUF beside them.
INPUT_LOAD_BYTES = 4 * 1024
# Rows whose W @ x is computed with one load of W that isn't kept: a full product.
FAR_ROWS = 512


@dataclass
class RecurrentPart(nl.NKIObject):
    """Rows n0 to n1 of the batch, in the directions from number d0 on that ``weights`` has; W @ x is computed for
    ``ahead`` steps at once."""

    dst: nl.NkiTensor
    src: nl.NkiTensor
    weights: list[RecurrentWeights]
    backwards: tuple[bool, ...]
    cell: RecurrentCell
    d0: int
    n0: int
    n1: int
    ahead: int


def project_far(part: RecurrentPart, places: list[Any], steps: int) -> list[Any]:
    """For each direction None, or W @ x + bias of its ``steps`` steps in HBM (128, columns, steps*rows)."""
    found = []
    for k in range(len(part.weights)):
        weights, x_far = part.weights[k], None
        if is_hbm_tensor(weights.w) and steps > part.ahead:
            x_far = _project_to_hbm(weights, _take_steps(part, places[k], 0, steps))
        found.append(x_far)
    return found


def _project_to_hbm(weights: RecurrentWeights, src: nl.NkiTensor) -> nl.NkiTensor:
    """W @ x + bias (128, columns, R) of src (R, I), HBM. The columns that share a load of W follow one another."""
    rows, features = src.shape
    pmax, columns = nl.tile_size.pmax, weights.bias_sb.shape[1]
    x_far = nl.ndarray((pmax, columns, rows), dtype=weights.identity_sb.dtype, buffer=nl.private_hbm)
    every, together = ceil_div(features, pmax) * pmax, OUTPUTS // pmax
    for n0 in range(0, rows, FAR_ROWS):
        n1 = min(rows, n0 + FAR_ROWS)
        for o0 in range(0, columns, together):
            o1 = min(columns, o0 + together)
            x_sb = nl.ndarray((pmax, o1 - o0, n1 - n0), dtype=x_far.dtype, buffer=nl.sbuf)
            w, bias_sb = weights.w[:, o0 * every : o1 * every], weights.bias_sb[:, o0:o1]
            linear_features(x_sb, src[n0:n1], w, bias_sb, features, (o1 - o0) * pmax, "none", INPUT_LOAD_BYTES)
            transfer(x_far[:, o0:o1, n0:n1], x_sb)
    return x_far


def project_steps(part: RecurrentPart, x_far: list[Any], places: list[Any], steps: int, first: int) -> list[Any]:
    """W @ x + bias of each direction, of its steps from number ``first`` of ``steps`` on, as it takes them: tiles (128,
    B, inputs, count, rows)."""
    count, rows, found = min(part.ahead, steps - first), part.n1 - part.n0, []
    for k in range(len(part.weights) if count > 0 else 0):
        start = steps - first - count if part.backwards[k] else first
        weights = part.weights[k]
        columns = weights.bias_sb.shape[1]
        if x_far[k] is not None:
            x_sb = load(x_far[k][:, :, start * rows : (start + count) * rows])
        else:
            taken, shape = _take_steps(part, places[k], start, count), (nl.tile_size.pmax, columns, count * rows)
            x_sb = nl.ndarray(shape, dtype=weights.identity_sb.dtype, buffer=nl.sbuf)
            outputs, features = columns * nl.tile_size.pmax, taken.shape[1]
            linear_features(x_sb, taken, weights.w, weights.bias_sb, features, outputs, "none", INPUT_LOAD_BYTES)
        blocks = ceil_div(part.dst.shape[3], nl.tile_size.pmax)
        found.append(x_sb.reshape((nl.tile_size.pmax, blocks, columns // blocks, count, rows)))
    return found


def _take_steps(part: RecurrentPart, place: Any, start: int, count: int) -> nl.NkiTensor:
    """The part's rows (count*rows, I) of ``count`` steps of src, from ``start`` behind ``place`` on: a copy in HBM if
    they don't lie together there, or if only the device knows where."""
    _, every, features = part.src.shape
    rows = part.n1 - part.n0
    if isinstance(place, int) and rows == every:
        taken = part.src[place + start : place + start + count]
    else:
        taken = nl.ndarray((count, rows, features), dtype=part.src.dtype, buffer=nl.private_hbm)
        pattern = [[every * features, count], [features, rows], [1, features]]
        transfer(taken, find_steps(part.src, pattern, place, (start * every + part.n0) * features, 0))
    return taken.reshape((count * rows, features))


def find_steps(tensor: nl.NkiTensor, pattern: list[Any], place: Any, offset: int, dim: int) -> nl.NkiTensor:
    """The access pattern on a tensor in HBM, ``offset`` elements behind its steps from ``place`` on, dimension
    ``dim``."""
    if isinstance(place, int):
        return tensor.ap(pattern, offset=offset + place * pattern[0][0])
    return tensor.ap(pattern, offset=offset, scalar_offset=place, indirect_dim=dim)
