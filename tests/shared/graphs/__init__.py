"""Random ONNX graphs over every operator that the planner lowers, and what trnrt makes of them.

``draft`` holds a graph that is being drawn: each node is run by onnxruntime as soon as it is drawn, and one that it
refuses, or whose result can't be compared, is dropped. The other modules are families of operators, each with its
draws. ``trying`` runs a graph, ``shrinking`` makes one that fails small; ``random_graphs.py`` is the program.
"""
