"""The timing model's predictions against published measurements, including those left out of its fit."""
