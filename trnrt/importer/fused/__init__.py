"""onnxruntime's own operators, which its optimizers write, rewritten as the ONNX operators that they stand for.

It is done when a file is read, before any shape is known: ``rewriting.py`` has the table of operators and the walk.
"""
