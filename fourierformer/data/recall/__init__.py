"""Sequences of key-value pairs and queries, drawn from a seed: no download, and a batch is a function of the step."""
