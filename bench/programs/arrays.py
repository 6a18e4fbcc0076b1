"""Sorting, gathering and a matrix product in numpy: arrays.py COUNT."""

import sys

import numpy as np

count = int(sys.argv[1])
draw = np.random.default_rng(1)
values = draw.random(count)
order = np.argsort(values)
chosen = values[order][draw.integers(0, count, count)]
side = int(count**0.5) // 2
square = chosen[: side * side].reshape(side, side)
print(float(np.cumsum(chosen)[-1] + (square @ square).sum()))
