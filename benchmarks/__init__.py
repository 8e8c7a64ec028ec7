"""Every timing of this repository: python -m benchmarks.kernel, .attention, .training, .steps, .gpu, .images,
.evaluation.

Each prints what it measures and writes its rows, with commit, versions and machine, to results/measured/ or where it
is told to. Run them from the repository's root.
"""
