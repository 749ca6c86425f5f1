"""Place tensors, schedule the loads of weights, and divide batches."""
