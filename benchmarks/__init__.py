"""Every timing of this repository; run a program from the repository's root.

    python -m benchmarks.kernel      the Fourier kernel's backends beside softmax and the printed formula
    python -m benchmarks.attention   every attention against the number of tokens
    python -m benchmarks.training    training steps of any configurations, in turns
    python -m benchmarks.paper       training steps of the paper's models, with the hours of a whole run
    python -m benchmarks.first_contact   every kernel's first launch on a GPU: errors, registers, compile time
    python -m benchmarks.launches    the kernel's launches, the host's share, and tiles, on a GPU
    python -m benchmarks.gpu         first contact, kernel, paper's models and kernel tests on one GPU, in nine minutes

Each prints its rows and writes them, with commit, versions and machine, to results/measured/ or to --out. clocks.py
measures time and memory, apart.py runs a measurement in its own process. contestants.py (kernels, accuracy rule) and
floors.py (lower bounds of the time on a GPU) belong to kernel, layers.py to attention, random_data.py to training and
paper.
"""
