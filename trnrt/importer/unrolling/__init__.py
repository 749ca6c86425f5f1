"""Control flow and sequences, written as plain operators where shapes and trips are known when the model is read."""
