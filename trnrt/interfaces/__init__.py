"""trnrt behind interfaces that others define."""
