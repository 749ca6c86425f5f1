"""The planner's search beside an exhaustive one, on layers small enough for it."""
