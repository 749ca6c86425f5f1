"""The device: AWS's packages, cores, compiled artefacts, captured profiles, and checks of a machine."""
