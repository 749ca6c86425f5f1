"""The place of onnxruntime's errors, for scripts that catch them by their full names."""

from trnrt.capi import onnxruntime_pybind11_state as onnxruntime_pybind11_state
