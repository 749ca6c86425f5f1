"""Benchmarks, for developers: how fast trnrt is, and how good its predictions are. They are in no wheel.

``python -m benchmarks`` lists them; each is a folder that ``python -m benchmarks.NAME`` runs, in a checkout.

``command``     what their command lines share
``measuring``   interleaved runs, medians, and how many threads BLAS takes
``documented``  the rates that AWS documents, for physical bounds
``comparing``   which published figures a ratio may be formed with
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The checkout: processes that are started with ``python -m benchmarks...`` run there."""
