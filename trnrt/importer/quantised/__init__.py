"""Quantised operators written as plain float operators on tensors of whole numbers.

An 8-bit tensor q with the zero point z becomes the float tensor q - z: whole numbers within -255..255, which bfloat16
holds exactly. Padding with 0 is then padding with z, as ONNX wants. The rest of trnrt knows nothing of quantisation.
"""
