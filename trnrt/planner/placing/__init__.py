"""Where each tensor lives, when weights are loaded, and how a batch is divided."""
