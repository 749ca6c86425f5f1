"""The machine: what a NeuronCore is made of, and what a program on it computes.

``targets``       the hardware's parameters, one data file each
``dtypes``        the number formats and how values are rounded to them
``modes``         the modes that instructions take as arguments
``program``       storages, views, instructions: the flat instruction stream
``rules``         what the hardware refuses, as one table
``costs``         the cycles of instructions
``memory``        where tiles live: liveness and addresses
``execute``       a program bound to arrays and replayed
"""
