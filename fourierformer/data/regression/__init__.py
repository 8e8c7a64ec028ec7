"""Sequences of points and values of a random function, drawn from a seed, and estimators to compare with."""
