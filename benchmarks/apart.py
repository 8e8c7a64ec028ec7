"""Runs a measurement in a process of its own, so that an error which poisons a GPU's context ends with that process.

After an illegal access every later call of the same process fails, of other kernels too.
"""

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection

APART = ("cuda",)  # devices where an error stays with the process
PATIENCE = 120  # seconds that one item may take, compiling included
# imported once, by the process that the others fork from; none of them may touch the GPU
PRELOADED = [
    *("benchmarks.contestants", "benchmarks.clocks", "hydra", "fourierformer.runs.train", "fourierformer.models.lm"),
    *("fourierformer.tasks.language_objective", "fourierformer.tasks.classification_objective", "torch._dynamo"),
]


class Ended(Exception):
    """The process was killed, crashed or hung; the text says which."""


def apart(function: Callable[..., Iterable], *arguments: object, patience: float = PATIENCE) -> Iterator:
    """Yields the items of `function(*arguments)`, each as soon as the other process has it. Raises Ended if that
    process does not live to its last item."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(theirs, function, arguments))
    process.start()
    theirs.close()
    try:
        while ours.poll(patience):
            more, item = ours.recv()
            if not more:
                return
            yield item
        raise Ended(f"gives nothing for {patience:g} s")
    except EOFError:
        process.join()
        raise Ended(f"ends its process with exit code {process.exitcode}") from None
    finally:
        process.kill()
        process.join()


def _send(connection: Connection, function: Callable[..., Iterable], arguments: tuple) -> None:
    for item in function(*arguments):
        connection.send((True, item))
    connection.send((False, None))
