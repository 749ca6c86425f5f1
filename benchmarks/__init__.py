"""Benchmarks, for developers: trnrt's speed, and the quality of its predictions. No wheel includes them.

``python -m benchmarks`` lists them; each is a folder that ``python -m benchmarks.NAME`` runs, in a checkout.

``command``     the shared parts of their command lines
``measuring``   interleaved runs, medians, and BLAS's threads
``documented``  the rates that AWS documents, for physical bounds
``comparing``   which published figures allow a ratio
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The checkout, in which processes started with ``python -m benchmarks...`` run."""
