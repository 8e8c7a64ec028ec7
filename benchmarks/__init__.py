"""Every timing of this repository: python -m benchmarks.kernel, .attention, .training, .steps, .gpu, .images,
.evaluation.

Each prints what it measures and writes its rows, with commit, versions and machine, to results/measured/ or to --out.
measure.py has the clocks, accuracy.py the check before them, floors.py what a GPU could do at best. Run them from the
repository's root.
"""
