"""Fault injection: harms tiny runs as a disk, a scheduler, a neighbour or a typing error would, and judges the result.

A trial harms a run, runs a command and compares its files with an undisturbed run. `python -m faults` (make faults) has
many of them and writes the table of docs/reliability.md; tests/faults has a sample.
"""
