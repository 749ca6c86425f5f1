"""The NeuronCores and instances for a request rate, from predicted latencies and a model of their queue."""
