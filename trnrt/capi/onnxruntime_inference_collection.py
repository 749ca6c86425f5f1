"""Another place from which libraries import onnxruntime's names: all are those of ``onnxruntime_pybind11_state``."""

from trnrt.capi.onnxruntime_pybind11_state import __all__ as __all__
from trnrt.capi.onnxruntime_pybind11_state import __dir__ as __dir__
from trnrt.capi.onnxruntime_pybind11_state import __getattr__ as __getattr__
