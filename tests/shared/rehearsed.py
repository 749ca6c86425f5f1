"""The probes that tests of the calibration use: enough to decide six numbers, and quick to time."""

PROBES = (
    "additions_64",
    "additions_2048",
    "scalings_64",
    "scalings_2048",
    "vector_scalar",
    "bounce_hardware",
    "bytes",
    "bytes_of_an_engine",
    "descriptors_of_4",
    "descriptors_of_256",
    "loads_hardware",
)
