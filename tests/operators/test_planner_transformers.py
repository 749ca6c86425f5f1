"""Small encoders as PyTorch exports BERT, DistilBERT and RoBERTa: integer ids and masks, all of it on kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from planning import compare, drawn, modelled

from trnrt import InferenceSession
from trnrt.errors import InputError
from trnrt.importer import import_model

Array = NDArray[Any]
WORDS, WIDTH, HEADS, LENGTH = 30, 16, 2, 7

# Each makes `bias` (N, 1, L, L) of the attention from `mask` (N, L).
MASKS = {
    # TorchScript: the mask as a truth, broadcast, and a large negative number elsewhere.
    "truth": """t = Cast<to=9>(mask)  u = Unsqueeze(t, one_two)  e = Expand(u, square)  n = Not(e)
        z = Cast<to=1>(n)  bias = Mul(z, least)""",
    # Older transformers: (1 - mask) times a large negative number.
    "one minus": "u = Unsqueeze(mask, one_two)  f = Cast<to=1>(u)  i = Sub(float_one, f)  bias = Mul(i, least)",
    # DistilBERT: masked_fill where the mask equals 0.
    "equal": """u = Unsqueeze(mask, one_two)  eq = Equal(u, nought)  e = Expand(eq, square)
        bias = Where(e, least, zero)""",
    # dynamo: the mask indexed by all rows and all positions.
    "indexed": """t = Cast<to=9>(mask)  s = Shape(ids)  rows = Gather(s, nought)  long = Gather(s, int_one)
        r = Range(nought, rows, int_one)  r4 = Unsqueeze(r, one_two_three)  c = Range(nought, long, int_one)
        c4 = Unsqueeze(c, zero_one_two)  both = Max(r4, c4)  b = Shape(both)  re = Expand(r4, b)  ce = Expand(c4, b)
        ri = Unsqueeze(re, last)  ci = Unsqueeze(ce, last)  at = Concat<axis=-1>(ri, ci)  g = GatherND(t, at)
        bias = Where(g, zero, least)""",
}
POSITIONS = {
    "sliced": "p = Slice(positions, zero1, long1, axis1)  pe = Gather(where, p)",
    # RoBERTa: counted from the tokens that are not padding.
    "counted": """d = Equal(ids, int_one)  w = Not(d)  m = Cast<to=6>(w)  k = CumSum(m, int_one)  km = Mul(k, m)
        kl = Cast<to=7>(km)  p = Add(kl, int_one)  pe = Gather(where, p)""",
}


def constants() -> dict[str, Array]:
    found: dict[str, Array] = {
        "words": drawn(WORDS, WIDTH),
        "where": drawn(LENGTH + 2, WIDTH, seed=1),
        "kinds": drawn(2, WIDTH, seed=2),
        "positions": np.arange(LENGTH + 2)[None],
        "scale": 1 + 0.2 * drawn(WIDTH, seed=3),
        "shift": 0.2 * drawn(WIDTH, seed=4),
        **{name: 0.4 * drawn(WIDTH, WIDTH, seed=k) for k, name in enumerate(("wq", "wk", "wv", "wo"), 5)},
        "heads": np.array([0, LENGTH, HEADS, WIDTH // HEADS]),
        "joined": np.array([0, LENGTH, WIDTH]),
        "rate": np.array((WIDTH // HEADS) ** -0.5, np.float32),
        "least": np.array(-1e9, np.float32),
        "zero": np.array(0, np.float32),
        "float_one": np.array(1, np.float32),
        "nought": np.array(0),
        "int_one": np.array(1),
        "square": np.array([1, 1, LENGTH, 1]),
    }
    for name, axes in (("one_two", [1, 2]), ("one_two_three", [1, 2, 3]), ("zero_one_two", [0, 1, 2]), ("last", [-1])):
        found[name] = np.array(axes)
    return found | {"zero1": np.array([0]), "long1": np.array([LENGTH]), "axis1": np.array([1])}


def encoder(mask: str, positions: str) -> str:
    return f"""(int64[N, {LENGTH}] ids, int64[N, {LENGTH}] mask, int64[N, {LENGTH}] types)
        => (float[N, {LENGTH}, {WIDTH}] y) {{
        we = Gather(words, ids)  ke = Gather(kinds, types)  {POSITIONS[positions]}  a1 = Add(we, ke)  a2 = Add(a1, pe)
        x = LayerNormalization<axis=-1>(a2, scale, shift)
        {MASKS[mask]}
        q0 = MatMul(x, wq)  q1 = Reshape(q0, heads)  q = Transpose<perm=[0, 2, 1, 3]>(q1)
        k0 = MatMul(x, wk)  k1 = Reshape(k0, heads)  kt = Transpose<perm=[0, 2, 3, 1]>(k1)
        v0 = MatMul(x, wv)  v1 = Reshape(v0, heads)  v = Transpose<perm=[0, 2, 1, 3]>(v1)
        raw = MatMul(q, kt)  scaled = Mul(raw, rate)  biased = Add(scaled, bias)  share = Softmax<axis=-1>(biased)
        mixed = MatMul(share, v)  back = Transpose<perm=[0, 2, 1, 3]>(mixed)  flat = Reshape(back, joined)
        o = MatMul(flat, wo)  sum = Add(o, x)  y = LayerNormalization<axis=-1>(sum, scale, shift) }}"""


def feeds(rows: int) -> dict[str, Array]:
    rng = np.random.default_rng(rows)
    ids = rng.integers(2, WORDS, (rows, LENGTH))
    mask = (np.arange(LENGTH) < rng.integers(2, LENGTH + 1, (rows, 1))).astype(np.int64)
    ids[mask == 0] = 1
    return {"ids": ids, "mask": mask, "types": rng.integers(0, 2, (rows, LENGTH))}


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("mask", MASKS)
def test_encoders(mask: str, positions: str) -> None:
    """Padded tokens get no attention, so that the answers tell a wrong mask."""
    graph = encoder(mask, positions)
    used = {name: a for name, a in constants().items() if any(f"{name}{end}" in graph for end in ",)")}
    model = modelled(graph, used)
    assert import_model(model.SerializeToString()).batch == "N"
    plan = compare(model, feeds(3))
    assert not plan.host


def test_ids_beyond_the_words_and_the_range() -> None:
    graph = encoder("one minus", "counted")
    used = {name: a for name, a in constants().items() if any(f"{name}{end}" in graph for end in ",)")}
    session = InferenceSession(modelled(graph, used).SerializeToString(), cache=False)
    given = feeds(2)
    for wrong, message in ((WORDS, "looks up one of 30 rows"), (2**25, "input 'ids' holds 33554432")):
        ids = given["ids"].copy()
        ids[0, 0] = wrong
        with pytest.raises(InputError, match=message):
            session.run(None, given | {"ids": ids})
