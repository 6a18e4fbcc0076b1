"""Readers written in Python survive the fuzzing corpus and 250 mutated inputs each."""

from __future__ import annotations

import itertools
import random

import pytest

import hostile


@pytest.mark.parametrize("name", hostile.READERS)
def test_no_file_breaks_a_reader(name: str) -> None:
    inputs = hostile.corpus(name)
    assert len(inputs) >= 3, "a corpus needs good, bad and cut-off inputs"
    runs = itertools.islice(hostile.attack(name, random.Random(name)), len(inputs) + 250)
    assert [(data[:200], why) for data, why in runs if why is not None] == []


@pytest.mark.parametrize("name", hostile.READERS)
def test_a_corpus_has_a_good_input(name: str, tmp_path: object) -> None:
    """Otherwise, fuzzing reaches nothing after a reader's first check."""
    good = 0
    for data in hostile.corpus(name):
        try:
            good += hostile.READERS[name](tmp_path, data) is not None  # type: ignore[arg-type]
        except hostile.NearfarError:
            continue
    assert good >= 1
