"""Sorts, multiplies and gathers numpy arrays, and prints their hashes."""

import hashlib

import numpy

draw = numpy.random.default_rng(1)
values = draw.integers(0, 1 << 40, 3_000_000)
order = numpy.argsort(values, kind="stable")
table = (values % 1_000_003)[: 1 << 20].reshape(1024, 1024)
product = table @ table.T % 65_521
for array in (values[order], order, product, values[::-1][order]):
    print(hashlib.sha256(numpy.ascontiguousarray(array)).hexdigest())
