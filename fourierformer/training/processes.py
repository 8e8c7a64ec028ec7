"""The processes that share one run: usually one, or one per GPU, started by torchrun, by submitit or by srun.

They all do the same work on different rows of the batch and meet in collectives: a method of `Processes` (other than
its properties) must be called by all of them, in the same order. What only one may do (files, console, the hub) goes
through `on_first`. One process alone pays nothing: no group is made, and every method returns at once.
"""

import contextlib
import functools
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from fourierformer.errors import Interrupted, SetupError, UserError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import Store

T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    """This process among those of its run; `local` counts those of this machine."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def on_first(self, action: Callable[[], T]) -> T:
        """Process 0 does it, everybody gets the (picklable) result. Its UserError or Interrupted is raised everywhere;
        another failure ends the others as a RuntimeError. `already_reported` tells the echo from the error itself."""
        if self.world == 1:
            return action()
        if self.first:
            return self._do_and_tell(action)
        kind, outcome = _broadcast(None)
        if kind == "value":
            return outcome
        error: Any = outcome if kind == "error" else RuntimeError(f"process 0 failed: {outcome}")
        error.already_reported = True
        raise error

    def _do_and_tell(self, action: Callable[[], T]) -> T:
        try:
            result = action()
        except BaseException as error:
            known = isinstance(error, UserError | Interrupted)  # they survive pickling; other errors may not
            with contextlib.suppress(Exception):  # the others are gone: the error at hand says more
                _broadcast(("error", error) if known else ("crash", f"{type(error).__name__}: {error}"))
            raise
        _broadcast(("value", result))
        return result

    def sum(self, tensor: "Tensor") -> "Tensor":
        """The sum over all processes, in place and on the tensor's device; the host does not wait for a GPU."""
        if self.world > 1:
            import torch.distributed as dist

            dist.all_reduce(tensor)
        return tensor

    def mean(self, tensor: "Tensor") -> "Tensor":
        """As `sum`, for the mean."""
        return self.sum(tensor).div_(self.world) if self.world > 1 else tensor

    def highest(self, number: int) -> int:
        """The largest of the processes' numbers. Over the CPUs' network, so that no GPU is waited for."""
        if self.world == 1:
            return number
        import torch
        import torch.distributed as dist

        tensor = torch.tensor(number)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return int(tensor)

    def barrier(self) -> None:
        """Nobody goes on before everybody is here. Says nothing about work queued on a GPU."""
        self.highest(0)


def already_reported(error: BaseException) -> bool:
    """Whether this is the echo of an error of process 0, which reports it: the others stay silent."""
    return getattr(error, "already_reported", False)


def _broadcast(message: Any) -> Any:
    import torch
    import torch.distributed as dist

    box = [message]
    dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
    return box[0]


@contextlib.contextmanager
def join_processes(device_type: str) -> Iterator[Processes]:
    """`with join_processes("cuda") as processes: ...`: waits until all processes of this run are here."""
    processes, meeting_point = find_processes()
    if processes.world == 1:
        yield processes
        return
    import torch.distributed as dist

    if device_type == "cuda":
        _choose_gpu(processes)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo",
        store=_store(meeting_point, processes),
        rank=processes.rank,
        world_size=processes.world,
    )
    try:
        yield processes
    finally:
        dist.destroy_process_group()  # closes the connections: who still waits for this process gets an error


_joined = itertools.count()


def _store(meeting_point: str, processes: Processes) -> "Store":
    """Where the processes leave each other their addresses. A sweep in one process joins once per job: each time under
    another name, or the quicker process would find the address that the other had before."""
    import torch.distributed as dist

    return dist.PrefixStore(f"run {next(_joined)}", _server(meeting_point, processes.rank, processes.world))


@functools.cache
def _server(meeting_point: str, rank: int, world: int) -> "Store":
    import torch.distributed as dist

    return next(dist.rendezvous(meeting_point, rank, world))[0]


def find_processes() -> tuple[Processes, str]:
    """This process's place, from what its launcher put into the environment, and the address where all meet."""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        # torchrun, also when Slurm or submitit started it: it is nearest
        local_rank, local_world = os.environ.get("LOCAL_RANK", 0), os.environ.get("LOCAL_WORLD_SIZE", 1)
        places = (os.environ["RANK"], os.environ["WORLD_SIZE"], local_rank, local_world)
        return Processes(*map(int, places)), "env://"
    if "SUBMITIT_EXECUTOR" in os.environ:
        return _submitit_task()
    # The number of tasks of this srun step. SLURM_NTASKS is also set in an sbatch script, outside of any srun.
    if int(os.environ.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
        return _slurm_task()
    return Processes(), ""


def _submitit_task() -> tuple[Processes, str]:
    """hydra's submitit launchers with tasks_per_node > 1: submitit knows the first node and draws a port per job."""
    from submitit.helpers import TorchDistributedEnvironment

    task = TorchDistributedEnvironment()
    processes = Processes(task.rank, task.world_size, task.local_rank, task.local_world_size)
    # a machine need not be able to resolve its own name
    address = "127.0.0.1" if processes.world == processes.local_world else task.master_addr
    return processes, f"tcp://{address}:{task.master_port}"


def _slurm_task() -> tuple[Processes, str]:
    """`srun python train_lm.py`: Slurm numbers the tasks but names no meeting point."""
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    tasks, nodes = (int(os.environ[f"SLURM_STEP_NUM_{key}"]) for key in ("TASKS", "NODES"))
    if not (address and port):
        raise SetupError(
            f"srun started {tasks} tasks, but MASTER_ADDR and MASTER_PORT are not set. Set them (the first node, a "
            f"free port), or let one task per node start the others: srun --nodes={nodes} --ntasks-per-node=1 torchrun "
            f"--nnodes={nodes} --nproc-per-node={tasks // nodes} --rdzv-backend=c10d --rdzv-endpoint=FIRST_NODE:29500 "
            "--rdzv-id=$SLURM_JOB_ID train_vit.py ..."
        )
    rank, local_rank = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_LOCALID"])
    return Processes(rank, tasks, local_rank, tasks // nodes), f"tcp://{address}:{port}"


def _choose_gpu(processes: Processes) -> None:
    import torch

    gpus = torch.cuda.device_count()
    bound = gpus == 1 and "LOCAL_RANK" not in os.environ  # Slurm may show each task its own GPU only
    if processes.local_rank >= gpus and not bound:
        raise SetupError(
            f"{processes.local_world} processes on this machine, but {gpus} GPUs: one process per GPU "
            f"(torchrun --nproc-per-node={max(gpus, 1)} ...), or trainer.device=cpu"
        )
    torch.cuda.set_device(0 if bound else processes.local_rank)
