"""Ray, imported where what it warns of itself is no error of ours."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import ray
    import ray.serve

__all__ = ["ray"]
