"""Two real processes on one machine, started by every launcher: torchrun, submitit, and tasks as srun makes them."""

import json
import multiprocessing
import os
import pickle
import socket
import subprocess
import sys
import textwrap
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from fourierformer import processes
from fourierformer.errors import Diverged, SetupError
from fourierformer.processes import Processes, already_reported, find_processes, join_processes

ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "SUBMITIT_"))}
ENVIRONMENT["OMP_NUM_THREADS"] = "1"


HEAD = '''
import json, os, sys, time
import torch
from fourierformer.errors import *
from fourierformer.processes import *

def tell(**result):
    """One line in one write: print writes text and end apart in `python -u`, which torchrun uses, so that the lines of
    two processes can mix."""
    os.write(1, (json.dumps(result) + "\\n").encode())
'''


def write(folder, body):
    path = folder / "program.py"
    path.write_text(HEAD + textwrap.dedent(body))
    return path


def torchrun(program):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(program)]
    process = subprocess.Popen(
        command,
        env=ENVIRONMENT | {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.terminate()  # its workers are in sessions of their own: only torchrun ends them
        process.communicate()
    assert process.returncode == 0, err
    return out


def task_of_two(rank: str, port: int, dies: int, ready) -> None:
    """A task with the environment of `srun --ntasks=2`, in a fork, without a parent that ends it."""
    os.environ |= {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1", "SLURM_PROCID": rank}
    os.environ |= {"SLURM_LOCALID": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    with join_processes("cpu") as processes:
        processes.highest(0)
        ready.send("ready")
        if processes.rank == dies:
            os._exit(9)  # as the kernel does when memory is short
        processes.on_first(lambda: time.sleep(1) or 1)
        for _ in range(10**8):
            processes.highest(0)


def by_rank(output):
    results = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return sorted(results, key=lambda result: result["rank"])


# -- what they do together ------------------------------------------------------------------------------------------

COLLECTIVES = """
def caught(action):
    try:
        processes.on_first(action)
    except BaseException as error:
        return [type(error).__name__, str(error), already_reported(error)]

def fail(error):
    calls.append(error)
    raise error

for round in range(3):  # a sweep in one process joins again for each job
    calls = []
    with join_processes("cpu") as processes:
        rank = processes.rank
        with torch.inference_mode():  # as evaluations count
            counts = processes.sum(torch.tensor([rank, 10], dtype=torch.int64)).tolist()
        tensor = torch.tensor([rank + 1.0, -1.0], dtype=torch.float64)
        total = processes.sum(tensor)
        result = {
            "rank": rank,
            "numbers": [processes.world, processes.local_rank, processes.local_world, processes.first],
            "counts": counts,
            "sum": total.tolist(),
            "in_place": total is tensor,
            "mean": processes.mean(torch.tensor([rank + 1.0])).tolist(),
            "highest": [processes.highest(15 * rank), processes.highest(-rank), processes.highest(2**40 + rank)],
            "value": processes.on_first(lambda: {"from": rank}),
            "setup": caught(lambda: fail(SetupError("no such folder"))),
            "diverged": caught(lambda: fail(Diverged("at step 7"))),
            "interrupted": caught(lambda: fail(Interrupted(15))),
            "crash": caught(lambda: fail(KeyError("lost"))),
            "exit": caught(lambda: sys.exit(3)),
            "after": processes.highest(rank),
            "calls": len(calls),
        }
        if rank == 1:
            time.sleep(0.2)
        arrived = time.time()
        processes.highest(0)
        result |= {"arrived": arrived, "left": time.time()}
    tell(**result, round=round)
"""


@pytest.fixture(scope="module")
def collectives(tmp_path_factory):
    results = by_rank(torchrun(write(tmp_path_factory.mktemp("collectives"), COLLECTIVES)))
    assert [(result["rank"], result["round"]) for result in results] == [
        (rank, round) for rank in (0, 1) for round in range(3)
    ]
    return results


@pytest.mark.full("two processes under torchrun")
def test_process_numbers_under_torchrun(collectives):
    assert [result["numbers"] for result in collectives] == 3 * [[2, 0, 2, True]] + 3 * [[2, 1, 2, False]]


@pytest.mark.full("two processes under torchrun")
def test_sum_mean_highest(collectives):
    for result in collectives:
        assert result["counts"] == [0 + 1, 10 + 10]
        assert result["sum"] == [1 + 2, -2]
        assert result["in_place"]
        assert result["mean"] == [1.5]
        assert result["highest"] == [15, 0, 2**40 + 1]


@pytest.mark.full("two processes under torchrun")
def test_a_common_answer_waits_for_the_last(collectives):
    for round in range(3):
        both = [result for result in collectives if result["round"] == round]
        assert min(result["left"] for result in both) >= max(result["arrived"] for result in both)


@pytest.mark.full("two processes under torchrun")
def test_on_first_is_done_once_and_known_everywhere(collectives):
    for result in collectives:
        assert result["value"] == {"from": 0}
        assert result["calls"] == (4 if result["rank"] == 0 else 0)  # four fail()


@pytest.mark.full("two processes under torchrun")
def test_errors_of_the_first_are_raised_everywhere(collectives):
    for result in collectives:
        echo = result["rank"] > 0
        assert result["setup"] == ["SetupError", "no such folder", echo]
        assert result["diverged"] == ["Diverged", "at step 7", echo]
        assert result["interrupted"] == ["Interrupted", "stopped by SIGTERM", echo]
        if echo:
            assert result["crash"] == ["RuntimeError", "process 0 failed: KeyError: 'lost'", True]
            assert result["exit"] == ["RuntimeError", "process 0 failed: SystemExit: 3", True]
        else:
            assert result["crash"] == ["KeyError", "'lost'", False]
            assert result["exit"] == ["SystemExit", "3", False]
        assert result["after"] == 1  # and they can go on together


@pytest.mark.full("two processes that wait for five seconds")
def test_the_others_wait_for_the_first_as_long_as_it_takes(tmp_path):
    """Preparing ImageNet takes longer than torch's half hour, here shortened to two seconds."""
    body = """
        import datetime, functools
        import torch.distributed as dist
        dist.init_process_group = functools.partial(dist.init_process_group, timeout=datetime.timedelta(seconds=2))
        with join_processes("cpu") as processes:
            value = processes.on_first(lambda: time.sleep(5) or "prepared")
        tell(rank=processes.rank, value=value)
        """
    results = by_rank(torchrun(write(tmp_path, body)))
    assert [result["value"] for result in results] == ["prepared", "prepared"]


def test_already_reported_survives_pickling():
    error = SetupError("x")
    error.already_reported = True
    assert already_reported(pickle.loads(pickle.dumps(error)))
    assert not already_reported(Diverged("x"))


@pytest.mark.parametrize("dies", [pytest.param(0, marks=pytest.mark.full("once more, the other one")), 1])
def test_one_that_dies_does_not_hang_the_other(environment, capfd, dies):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    tasks = [fork.Process(target=task_of_two, args=(rank, port, dies, sender)) for rank in "01"]
    for task in tasks:
        task.start()
    try:
        assert [receiver.recv() for _ in tasks] == ["ready", "ready"]
        tasks[1 - dies].join(60)
        assert tasks[1 - dies].exitcode == 1
        assert "RuntimeError" in capfd.readouterr().err
        tasks[dies].join(5)
        assert tasks[dies].exitcode == 9
    finally:
        for task in tasks:
            task.kill()
            task.join()


# -- who starts them ------------------------------------------------------------------------------------------------


@pytest.fixture
def environment(monkeypatch):
    for key in os.environ:
        if key.startswith(("SLURM_", "SUBMITIT_", "MASTER_", "LOCAL_")) or key in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(key)

    def set_all(**values):
        for key, value in values.items():
            monkeypatch.setenv(key, value)

    return set_all


@pytest.mark.full("two processes that import everything")
def test_submitit_tasks_find_each_other(environment, tmp_path):
    submitit = pytest.importorskip("submitit")
    program = write(
        tmp_path,
        """
    with join_processes("cpu") as processes:
        total = processes.sum(torch.tensor(processes.rank + 1)).item()
        tell(rank=processes.rank, local=processes.local_rank, world=processes.world,
             local_world=processes.local_world, sum=total)
    """,
    )
    executor = submitit.LocalExecutor(tmp_path / "jobs")
    executor.update_parameters(tasks_per_node=2, timeout_min=1)
    job = executor.submit(submitit.helpers.CommandFunction([sys.executable, str(program)]))
    assert by_rank("\n".join(job.results())) == [
        {"rank": rank, "local": rank, "world": 2, "local_world": 2, "sum": 3} for rank in (0, 1)
    ]


# Task 6 of 8 on 2 nodes, as Slurm describes it to a task.
STEP = {
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_PROCID": "6",
    "SLURM_LOCALID": "2",
}


def test_a_process_alone(environment):
    assert find_processes()[0] == Processes(rank=0, world=1, local_rank=0, local_world=1)
    with join_processes("cuda") as alone:  # asks neither a GPU nor a network
        assert not dist.is_initialized()
        tensor = torch.ones(2)
        assert alone.sum(tensor) is tensor
        assert alone.mean(tensor) is tensor
        assert alone.highest(7) == 7
        assert alone.first
        with pytest.raises(KeyError):
            alone.on_first(lambda: {}["missing"])


@pytest.mark.parametrize(
    "facts",
    [
        {"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"},  # in an sbatch script, outside of any srun
        STEP | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NUM_NODES": "1"},  # srun --ntasks=1, interactive steps
        {"WORLD_SIZE": "4"},  # left over from something else
        {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},  # torchrun --nproc-per-node=1
    ],
)
def test_still_alone(environment, facts):
    environment(**facts)
    assert find_processes()[0] == Processes()


def test_srun_with_an_address(environment):
    environment(**STEP, MASTER_ADDR="node17", MASTER_PORT="29500")
    assert find_processes() == (Processes(6, 8, 2, 4), "tcp://node17:29500")


def test_a_submitit_job_on_two_nodes(environment):
    pytest.importorskip("submitit")
    environment(SUBMITIT_EXECUTOR="slurm", SLURM_JOB_ID="4711", SLURM_JOB_NODELIST="node[17-18]", SLURM_NODEID="1")
    environment(**STEP, SLURM_JOB_NUM_NODES="2", MASTER_PORT="29500")
    assert find_processes() == (Processes(6, 8, 2, 4), "tcp://node17:29500")


def test_torchrun_inside_srun(environment):
    torchrun = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    environment(**STEP, **torchrun, MASTER_ADDR="node17", MASTER_PORT="29500")
    assert find_processes() == (Processes(5, 8, 1, 4), "env://")


def test_srun_without_an_address_shows_the_command(environment):
    environment(**STEP)
    with pytest.raises(SetupError) as error, join_processes("cpu"):
        pass
    for piece in ("8 tasks", "MASTER_ADDR", "srun --nodes=2 --ntasks-per-node=1 torchrun", "--nproc-per-node=4"):
        assert piece in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("launcher", "gpus", "chosen"),
    [
        ({"LOCAL_RANK": "2"}, 4, 2),
        (STEP, 4, 2),
        (STEP, 1, 0),  # srun --gpus-per-task=1: the task's own GPU is all it sees
        ({"LOCAL_RANK": "2"}, 2, None),
        ({"LOCAL_RANK": "2"}, 1, None),  # torchrun hides nothing: two processes would share a GPU
        (STEP, 0, None),
    ],
)
def test_one_gpu_per_process(environment, monkeypatch, launcher, gpus, chosen):
    """Replaces what torch reports about GPUs: there may be none here."""
    if "LOCAL_RANK" in launcher:
        launcher = launcher | {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}
    environment(**launcher, MASTER_ADDR="node17", MASTER_PORT="29500")
    asked, joined = [], []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", asked.append)
    monkeypatch.setattr(processes, "_store", lambda *_: None)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **_: joined.append(backend))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: None)
    monkeypatch.setattr(dist, "new_group", lambda **_: None)
    if chosen is None:
        with pytest.raises(SetupError, match=f"4 processes on this machine, but {gpus} GPUs"), join_processes("cuda"):
            pass
        return
    with join_processes("cuda"):
        assert asked == [chosen]
        assert joined == ["cpu:gloo,cuda:nccl"]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_without_the_others_ends_in_one_line(rank, monkeypatch):
    """Torch alone waits for half an hour without a word."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setattr(processes, "START_PATIENCE", timedelta(seconds=1))
    for name, value in {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    with (
        pytest.raises(SetupError, match=rf"process {rank} of 2 did not reach the others within .* minutes.*torchrun"),
        join_processes("cpu"),
    ):
        pass


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR expected, but not set"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "port"}, "invalid literal.*port"),
        ({"RANK": "first", "WORLD_SIZE": "2"}, "expected whole numbers"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 WORLD_SIZE=2: a rank is at least 0 and less than"),
    ],
)
def test_an_impossible_environment_of_processes_is_one_line(environment, message, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SetupError, match=message), join_processes("cpu"):
        pass
