"""trnrt's version, as pyproject.toml states it: for modules that can't wait for ``importlib.metadata`` (20 ms)."""

__version__ = "0.2.0"
