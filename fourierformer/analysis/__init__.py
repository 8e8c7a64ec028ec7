"""Measurements of trained models: their heads compared, their maps drawn, their robustness to changed images."""
