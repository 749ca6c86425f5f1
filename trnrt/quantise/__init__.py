"""Quantised models from float models, by onnxruntime's quantiser, and what they lose.

``preparing``    the model as the quantiser takes it, and its layers
``data``         calibration data: rows, and their labels if there are any
``calibrating``  the range of every tensor on these rows
``making``       the quantised model, with some layers in float
``comparing``    how far one run of a model is from another: for any two runs, not only quantised ones
``trials``       what each layer costs, and which ones to keep in float
"""
