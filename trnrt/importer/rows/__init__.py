"""Find the batch dimension, and prove that its rows are independent."""
