"""The cases: one file each, listed in ``CASES`` of ``run.py``.

A case has ``NAME``, ``SUMMARY`` (one line) and ``run_case(inputs, rounds, quick)``, which returns
rows.
"""
