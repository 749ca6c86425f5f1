"""The planner's trials: plans that it times before it decides."""
