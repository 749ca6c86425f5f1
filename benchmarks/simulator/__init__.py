"""The simulator against numpy's and PyTorch's arithmetic, and onnxruntime."""
