"""The processes that share one run: usually one, or one per GPU, started by torchrun, by submitit or by srun.

All do the same work on different rows of the batch. A method of `Processes` (other than its properties) is collective:
all of them must call it, in the same order. Work for a single process (files, console, the hub) is passed to
`on_first`. With a single process no group is made, and every method returns at once.
"""

import contextlib
import functools
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from fourierformer.errors import Interrupted, SetupError, UserError, first_line
from fourierformer.printing import echo

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import Store

T = TypeVar("T")
# Process 0 may be unpacking ImageNet; torch's default is half an hour. If it dies, its connection closes at once.
PATIENCE = timedelta(days=2)
START_PATIENCE = timedelta(minutes=10)  # for all processes to start: nodes may first fetch an image of a container


def started_again(slurm_job: str | None) -> bool:
    """Whether torchrun has started this command again, or Slurm the job of this number."""
    by_torchrun, by_slurm = (
        os.environ.get(name) not in (None, "", "0") for name in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
    )
    return by_torchrun or (by_slurm and slurm_job is not None and slurm_job == os.environ.get("SLURM_JOB_ID"))


def own_share(what: str, size: int, rank: int, world: int) -> slice:
    """This process's contiguous share of a global batch, named `what`. SetupError unless all shares are equal."""
    if size % world:
        raise SetupError(f"{what} cannot be shared equally by {world} processes: choose a multiple of {world}")
    share = size // world
    return slice(rank * share, (rank + 1) * share)


@dataclass(frozen=True)
class Processes:
    """Number of this process and count of the run's processes; local_rank and local_world are for this machine."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    patient: Any = field(default=None, repr=False, compare=False)  # the group in which `on_first` waits

    @property
    def first(self) -> bool:
        return self.rank == 0

    def share(self, global_batch_size: int, micro_batch_size: int | None) -> tuple[int, int, int]:
        """This process's part of a global batch, and the size and number of its micro-batches. The data's order refuses
        a batch that cannot be shared equally; the last micro-batch may be smaller."""
        own = global_batch_size // self.world
        micro = min(micro_batch_size or own, own)
        return own, micro, -(-own // micro)

    def on_first(self, action: Callable[[], T]) -> T:
        """Run the action in process 0, and return its (picklable) result in all. Its UserError or Interrupted is raised
        in all; another error is a RuntimeError in the others. Errors in the others are marked `already_reported`."""
        if self.world == 1:
            return action()
        if self.first:
            try:
                result = action()
            except BaseException as error:
                known = isinstance(error, UserError | Interrupted)  # they survive pickling; other errors may not
                with contextlib.suppress(Exception):  # the others have ended: this error is the one to report
                    self._broadcast(("error", error) if known else ("crash", f"{type(error).__name__}: {error}"))
                raise
            self._broadcast(("value", result))
            return result
        kind, outcome = self._broadcast(None)
        if kind == "value":
            return outcome
        failure: Any = outcome if kind == "error" else RuntimeError(f"process 0 failed: {outcome}")
        failure.already_reported = True
        raise failure

    def _broadcast(self, message: Any) -> Any:
        import torch
        import torch.distributed as dist

        box = [message]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"), group=self.patient)
        return box[0]

    def sum(self, tensor: "Tensor") -> "Tensor":
        """The sum over all processes, in place and on the tensor's device; the host does not wait for a GPU."""
        if self.world > 1:
            import torch.distributed as dist

            dist.all_reduce(tensor)
        return tensor

    def mean(self, tensor: "Tensor") -> "Tensor":
        """The mean over all processes, computed like `sum`."""
        return self.sum(tensor).div_(self.world) if self.world > 1 else tensor

    def highest(self, number: int) -> int:
        """The largest of the processes' numbers, exchanged between CPUs, without waiting for a GPU."""
        if self.world == 1:
            return number
        import torch
        import torch.distributed as dist

        tensor = torch.tensor(number)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return int(tensor)


def already_reported(error: BaseException) -> bool:
    """Whether the error is process 0's, which reports it."""
    return getattr(error, "already_reported", False)


@contextlib.contextmanager
def join_processes(device_type: str) -> Iterator[Processes]:
    """Connect the processes of a run when all have started, `with join_processes("cuda") as processes: ...`."""
    processes, address = find_processes()
    if processes.world == 1:
        yield processes
        return
    import torch.distributed as dist

    if device_type == "cuda":
        _choose_gpu(processes)
    with _lost_connections():
        backend = "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo"
        store, rank, world = _store(address, processes), processes.rank, processes.world
        dist.init_process_group(backend, store=store, rank=rank, world_size=world)
        try:
            yield replace(processes, patient=dist.new_group(backend="gloo", timeout=PATIENCE))
        finally:
            # closes the connections: a process waiting for this one gets an error
            dist.destroy_process_group()


@contextlib.contextmanager
def _lost_connections() -> Iterator[None]:
    """A context in which the end of another process is a UserError, not a library's traceback."""
    import torch.distributed as dist

    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):  # gloo's errors have no own type
            raise
        lost = UserError(
            f"the connection to another process of this run was lost ({first_line(error)[:200]}). If it was "
            "killed, or ended with an error of its own, the same command resumes at the last checkpoint."
        )
        lost.already_reported = already_reported(error)
        raise lost from error


_joined = itertools.count()


def _store(address: str, processes: Processes) -> "Store":
    """A store in which the processes exchange their addresses. A sweep in one process joins once per job, each time
    with another prefix: otherwise the quicker process would read the other's address of the job before."""
    import torch.distributed as dist

    return dist.PrefixStore(f"run {next(_joined)}", _server(address, processes.rank, processes.world))


@functools.cache
def _server(address: str, rank: int, world: int) -> "Store":
    """The store of process 0. SetupError unless all processes come within START_PATIENCE."""
    import torch.distributed as dist

    minutes = f"{START_PATIENCE.total_seconds() / 60:g} minutes"
    if rank == 0:
        echo(f"waiting for all {world} processes of this run, at most {minutes}", file=sys.stderr, flush=True)
    alone = "Start them with torchrun; to train in one process, unset RANK and WORLD_SIZE"
    try:
        store = next(dist.rendezvous(address, rank, world, timeout=START_PATIENCE))[0]
    except ValueError as error:  # no MASTER_ADDR, no number for a port
        raise SetupError(
            f"process {rank} of {world} has no address of the others: {first_line(error)}. {alone}"
        ) from None
    except dist.DistError as error:
        problem = f"process {rank} of {world} did not reach the others within {minutes} ({first_line(error)[:200]})"
        raise SetupError(f"{problem}. {alone}") from None
    store.set_timeout(dist.default_pg_timeout)
    return store


def find_processes() -> tuple[Processes, str]:
    """This process among those of its run, from the launcher's environment variables, and their common address."""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        # torchrun comes before Slurm and submitit, which may have started torchrun
        local_rank, local_world = os.environ.get("LOCAL_RANK", 0), os.environ.get("LOCAL_WORLD_SIZE", 1)
        numbers = (os.environ["RANK"], os.environ["WORLD_SIZE"], local_rank, local_world)
        try:
            rank, world, local_rank, local_world = map(int, numbers)
        except ValueError:
            names = "RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE"
            raise SetupError(f"{names} are {', '.join(map(str, numbers))}: expected whole numbers") from None
        if not 0 <= rank < world:
            raise SetupError(
                f"RANK={rank} WORLD_SIZE={world}: a rank is at least 0 and less than the number of processes"
            )
        return Processes(rank, world, local_rank, local_world), "env://"
    if "SUBMITIT_EXECUTOR" in os.environ:
        return _submitit_task()
    # The number of tasks of this srun step. SLURM_NTASKS is also set in an sbatch script, outside of any srun.
    if int(os.environ.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
        return _slurm_task()
    return Processes(), ""


def _submitit_task() -> tuple[Processes, str]:
    """A task of hydra's submitit launchers with tasks_per_node > 1, which have the first node and a port per job."""
    from submitit.helpers import TorchDistributedEnvironment

    task = TorchDistributedEnvironment()
    processes = Processes(task.rank, task.world_size, task.local_rank, task.local_world_size)
    # some machines cannot resolve their own name
    address = "127.0.0.1" if processes.world == processes.local_world else task.master_addr
    return processes, f"tcp://{address}:{task.master_port}"


def _slurm_task() -> tuple[Processes, str]:
    """A task of `srun python train_lm.py`: Slurm numbers the tasks, but provides no address."""
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
        way_out = f"one process per GPU (torchrun --nproc-per-node={max(gpus, 1)} ...), or trainer.device=cpu"
        raise SetupError(f"{processes.local_world} processes on this machine, but {gpus} GPUs: {way_out}")
    torch.cuda.set_device(0 if bound else processes.local_rank)
