"""Graph to steps: the walk over the graph, the helpers of lowering functions, and their refusals."""
