"""The planner's trials, which it times before it decides."""
