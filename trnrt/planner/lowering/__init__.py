"""Graph to steps: the walk over the graph, what lowering functions use, and what they refuse."""
