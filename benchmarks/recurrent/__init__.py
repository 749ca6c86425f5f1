"""Recurrent layers: the predicted time of a step, beside the least that the machine's latencies and engines allow."""
