"""What the planner tries out and times before it decides."""
