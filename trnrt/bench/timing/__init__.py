"""``trnrt bench timing``: the timing model's predictions against published measurements, and the fit to them."""
