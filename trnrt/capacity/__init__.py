"""How many NeuronCores and instances a rate of requests needs: predicted latencies, and a model of their queue."""
