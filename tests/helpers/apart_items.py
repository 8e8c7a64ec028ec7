"""What processes of tests/benchmarks/test_apart.py send: without imports that take seconds in every one of them."""

import os
import time


def numbers(count: int, then: str = ""):
    yield from range(count)
    if then == "dies":
        os._exit(7)
    if then == "raises":
        raise RuntimeError("an illegal memory access was encountered")
    if then == "hangs":
        time.sleep(600)


def forked_after_cuda():
    import torch

    yield torch.cuda._is_in_bad_fork()
