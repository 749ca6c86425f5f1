"""Fit the timing model's free numbers to kernels with published times.

``measurements.json``  what was published: parameters, single instructions, whole kernels
``kernels``, ``convolutions``, ``products``, ``attention``  those kernels, written from their descriptions
``tiles``      what they have in common
``published``  a case for each whole kernel: its arguments, and the shorter ones that it is timed from
``cases``      the prediction for a case, and its error
``fit``        the search for the values with the smallest errors, with each author left out in turn

They stand outside ``trnrt.nki``: to the simulator all code in there is its own, and no kernel's source line.
"""
