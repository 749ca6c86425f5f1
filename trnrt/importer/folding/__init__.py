"""Constant folding and shape inference: afterwards every shape and type is known."""
