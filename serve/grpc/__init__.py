"""The Open Inference Protocol over gRPC, beside HTTP in the same process."""
