"""The timing model's predictions against published measurements, with those that it is fitted to left out, too."""
