"""Measurements in their own processes: after an illegal access on a GPU every later call of a process fails, of other
kernels too."""

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection

APART = ("cuda",)  # devices whose errors stay with the process
PATIENCE = 120  # seconds that one item may take, compiling included
# imported once, by the process from which the others fork; none of them may touch the GPU
PRELOADED = [
    *("benchmarks.contestants", "benchmarks.clocks", "hydra", "fourierformer.runs.train", "fourierformer.models.lm"),
    *("fourierformer.tasks.language_objective", "fourierformer.tasks.classification_objective", "torch._dynamo"),
]


class Ended(Exception):
    """The process was killed, crashed or hung, as the text states."""


def apart(function: Callable[..., Iterable], *arguments: object, patience: float = PATIENCE) -> Iterator:
    """Yield the items of `function(*arguments)`, each as soon as the other process has it. Raise Ended if that process
    ends or hangs before its last item."""
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
