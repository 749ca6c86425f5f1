"""The functions of our ``nki.isa``, one file a family; ``trnrt.nki.sim.isa`` re-exports them."""
