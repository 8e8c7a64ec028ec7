"""Fault injection: what a disk, a scheduler, a neighbour or a typing error can do to a run, done on purpose.

A trial harms a run, runs a command and compares what it leaves with an undisturbed run. `python -m tests.faults` (make
faults) runs them at length and writes the table of docs/reliability.md; test_faults.py runs a sample of them.
"""
