"""benchmarks/kernel.py: nothing wrong gets a time, one failure does not take the others, the numbers add up."""

import csv
import functools
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from benchmarks import clocks, contestants, floors, kernel
from fourierformer.errors import SetupError
from fourierformer.kernels.sinc import sinc_attention
from tests.helpers.command_line import REPOSITORY

PEERS = """
import os

import torch

def right(q, k, v, radius, *, causal, eps):
    z = radius[:, None, None] * (q.float()[:, :, :, None] - k.float()[:, :, None])
    weights = torch.sinc(z / torch.pi).pow(4).prod(-1)
    if causal:
        weights = weights.tril()
    return (weights @ v.float() / (eps + weights.sum(-1, keepdim=True))).to(q.dtype)

def shifted(q, k, v, radius, causal, eps):
    return right(q, k, v, radius, causal=causal, eps=eps) * 1.001

def careless(q, k, v, radius, eps):  # does not know about causal
    return right(q, k, v, radius, causal=False, eps=eps)

def broken(q, k, v, radius):
    raise KeyError("tile")

def fatal(q, k, v, radius, causal, eps):  # as an illegal access on a GPU: nothing else runs in this process
    if len(q) > 1 and torch.is_grad_enabled():
        os._exit(9)
    return right(q, k, v, radius, causal=causal, eps=eps)

def greedy(q, k, v, radius, causal, eps):  # in the slice of the parity check there is one sequence
    if len(q) > 1 and torch.is_grad_enabled():
        raise torch.OutOfMemoryError("no")
    return right(q, k, v, radius, causal=causal, eps=eps)
"""


@pytest.fixture
def bench(monkeypatch, tmp_path):
    """bench(arguments) -> (whether all was well, rows of the CSV), at a tiny causal shape."""
    (tmp_path / "some_peers.py").write_text(PEERS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(kernel.SHAPES, "default", (2, 2, 24, 8, True))

    def run(*arguments: str) -> tuple[bool, list[dict]]:
        table = tmp_path / "kernel.csv"
        command = ["kernel.py", "--device", "cpu", "--repeats", "2", "--csv", str(table), *arguments]
        command += [] if "--shape" in arguments else ["--shape", "default"]
        for name in ("compiled", "portable", "reference"):  # not what torch.compile makes of it: minutes
            command += ["--contestant", name]
        monkeypatch.setattr(sys, "argv", command)
        good = kernel.main()
        return good, list(csv.DictReader(table.open())) if table.exists() else []

    yield run
    sys.modules.pop("some_peers", None)


def names(rows: list[dict]) -> list[str]:
    return [row["name"] for row in rows if row["what"] == "forward+backward"]


def test_on_a_cpu_against_the_reference_and_softmax(bench, capsys):
    good, rows = bench()
    assert good
    assert names(rows) == ["softmax", "compiled", "portable", "reference"]
    assert [row["what"] for row in rows[:2]] == ["forward", "forward+backward"]
    assert all(float(row["ms"]) > 0 and float(row["MiB"]) > 0 for row in rows)
    assert "fused: left out: " in capsys.readouterr().out


def test_the_rows_say_where_they_come_from(bench):
    _, rows = bench("--shape", "default", "--batch", "1")
    row = rows[-1]
    assert {"shape", "batch", "what", "name", "dtype", "ms", "MiB", "repeats", "sm MHz", "floor ms", "of floor"} < set(
        row
    )
    assert {"radius", "scale", "eps", "threads", "torch", "triton", "machine", "gpu", "commit"} < set(row)
    assert (row["batch"], row["dtype"], row["torch"]) == ("1", "float32", torch.__version__)
    assert float(row["time x reference"]) == float(row["memory x reference"]) == 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_right_peer_is_timed_in_every_dtype(bench, dtype):
    good, rows = bench("--peer", "some_peers:right", "--dtype", dtype)
    assert good
    assert "some_peers:right" in names(rows)
    assert {row["dtype"] for row in rows} == {dtype}


@pytest.mark.parametrize("name", ["shifted", "careless"])
def test_a_wrong_peer_gets_no_time(bench, capsys, name):
    good, rows = bench("--peer", f"some_peers:{name}")
    assert not good
    assert f"some_peers:{name}: WRONG at default" in capsys.readouterr().out
    assert names(rows) == ["softmax", "compiled", "portable", "reference"]


def test_a_failure_does_not_take_the_others_with_it(bench, capsys):
    good, rows = bench("--peer", "some_peers:broken", "--peer", "some_peers:right")
    assert not good
    assert "some_peers:broken: FAILS at default: KeyError" in capsys.readouterr().out
    assert names(rows) == ["softmax", "some_peers:right", "compiled", "portable", "reference"]


@pytest.mark.full("imports all that a process of a measurement imports")
def test_a_contestant_that_ends_its_process_leaves_the_others_and_its_own_rows(bench, capsys, monkeypatch):
    monkeypatch.setattr(kernel, "APART", ("cpu",))
    monkeypatch.setattr("benchmarks.apart.PRELOADED", ["benchmarks.contestants"])  # the others take seconds
    good, rows = bench("--peer", "some_peers:fatal", "--peer", "some_peers:broken", "--peer", "some_peers:right")
    assert not good
    printed = capsys.readouterr().out
    assert "some_peers:fatal: FAILS at default: it ends its process with exit code 9" in printed
    assert "some_peers:broken: FAILS at default: KeyError" in printed
    assert [row["what"] for row in rows if row["name"] == "some_peers:fatal"] == ["forward"]
    assert names(rows) == ["softmax", "some_peers:right", "compiled", "portable", "reference"]


def test_rows_are_written_one_by_one(bench, monkeypatch):
    written = []
    monkeypatch.setattr(kernel, "write_csv", lambda path, rows: written.append([dict(row) for row in rows]))
    bench()
    assert [len(rows) for rows in written] == list(range(1, 9))
    assert written[0][0]["time x reference"] is None  # which is not measured yet
    assert all(row["time x reference"] is not None for row in written[-1])
    assert len({tuple(row) for rows in written for row in rows}) == 1  # the same columns all along


def test_out_of_memory_keeps_what_was_measured(bench, capsys):
    good, rows = bench("--peer", "some_peers:greedy")
    assert good
    assert "some_peers:greedy: out of memory at default" in capsys.readouterr().out
    assert [row["what"] for row in rows if row["name"] == "some_peers:greedy"] == ["forward"]
    assert "reference" in names(rows)


def test_nothing_starts_after_the_budget(bench, capsys):
    good, rows = bench("--budget-seconds", "-1")
    assert good
    assert not rows
    assert capsys.readouterr().out.count("left out at default: the time of -1 s is used up") == 8


@pytest.mark.parametrize("peer", ["some_peers", "some_peers:nothing", "no_such_module:f", "torch:float32"])
def test_a_peer_that_is_no_function_is_a_usage_error(bench, capsys, peer):
    with pytest.raises(SystemExit) as end:
        bench("--peer", peer)
    assert end.value.code == 2
    assert "is not module:function" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_what_cannot_be_measured_or_written_is_said_before_measuring(bench, tmp_path):
    with pytest.raises(SetupError, match="no contestant 'compilde' here \\(did you mean 'compiled'\\?\\): choose from"):
        bench("--contestant", "compilde")
    with pytest.raises(SetupError, match="no folder that can be written"):
        bench("--csv", f"{tmp_path}/nowhere/rows.csv")


def test_without_a_gpu_cuda_is_a_usage_error(bench):
    with pytest.raises(SystemExit) as end:
        bench("--device", "cuda")
    assert end.value.code == 2


def excess(contestant: contestants.Contestant) -> float:
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(1, 2, 40, 8, generator=generator) for _ in range(4)] + [torch.full((2, 8), 2.0)]
    direct = functools.partial(sinc_attention, eps=1e-6, backend="reference")
    return contestants.worst_excess(contestant, tensors, direct)


def off_by(factor: float):
    return lambda *tensors: sinc_attention(*tensors, eps=1e-6, backend="reference") * factor


@pytest.mark.parametrize("width", [16, 64])
@pytest.mark.parametrize("scale", [0.5, 1.0])
def test_at_the_usual_radius_no_weight_is_lost_beside_eps(width, scale):
    """With R = 2 at width 64 all weights vanish, every output is 0, and a wrong kernel would pass the parity check."""
    args = SimpleNamespace(seed=0, scale=scale, radius=None, device="cpu")
    q, k, v, _, radius = contestants.random_inputs((1, 2, 64, width, False), args, 0)
    output = sinc_attention(q, k, v, radius, eps=1e-6)
    without = sinc_attention(q, k, v, radius, eps=0.0)
    assert (output - without).norm() < 0.01 * without.norm()
    assert not sinc_attention(q, k, v, 0 * radius + 8, eps=1e-6).norm() > 0.01 * without.norm()


def test_half_precision_may_lose_what_bfloat16_inputs_lose():
    assert 5 < excess(contestants.Contestant(off_by(1.001), torch.float32)) < 20  # 1e-3 of an allowed 1e-4
    assert excess(contestants.Contestant(off_by(1.001), torch.float32, "half")) < 1
    assert excess(contestants.Contestant(off_by(1.0), torch.bfloat16)) < 1
    assert excess(contestants.Contestant(off_by(1.3), torch.bfloat16)) > 1


def test_missing_and_not_finite_results_are_infinitely_wrong():
    truth = [torch.ones(3, dtype=torch.float64)] * 3
    found = [torch.ones(3), torch.tensor([1.0, float("nan"), 1.0]), None]
    assert contestants.errors(found, truth) == [0, float("inf"), float("inf")]


def test_the_slice_is_what_the_float64_reference_can_hold():
    tensors = [torch.arange(16384.0)[:, None].expand(1, 8, 16384, 64)] * 4 + [torch.ones(8, 64)]
    q, *_, radius = contestants.parity_slice(tensors)
    assert q.shape == (1, 2, 512, 64)
    assert q[0, 0, -1, 0] == 16383
    assert radius.shape == (2, 64)


@pytest.mark.parametrize(("counts", "inside"), [("half", "high"), ("precise", "highest"), (None, "highest")])
def test_the_matmul_precision_is_given_back(counts, inside):
    before = torch.get_float32_matmul_precision()
    contestant = contestants.Contestant(sinc_attention, torch.float32, counts)
    with contestant.precision():
        assert torch.get_float32_matmul_precision() == inside
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize("name", ["reference", "direct, compiled"])  # on a CPU both hold every intermediate
def test_the_formula_is_left_out_where_it_does_not_fit(name):
    args = SimpleNamespace(deadline=float("inf"), device="cpu")
    reason = contestants.why_skipped(name, "forward", kernel.SHAPES["long"], args)
    assert reason.startswith("4 x B H N N D numbers take 2.05e+03 GiB")
    assert contestants.why_skipped("portable", "forward", kernel.SHAPES["long"], args) is None


def test_the_floor_is_the_slowest_of_instructions_products_and_memory(monkeypatch):
    counts = {("forward", "half"): {16: 10}, ("one pass", "half"): {16: 20}}
    monkeypatch.setattr(floors, "INSTRUCTIONS_PER_PAIR", counts)
    monkeypatch.setattr(floors, "INSTRUCTIONS_PER_FEATURES", {"half": 3})
    half = contestants.Contestant(sinc_attention, torch.bfloat16, "half")
    precise = contestants.Contestant(sinc_attention, torch.float32, "precise")
    causal, full = (1, 2, 4, 16, True), (1, 2, 4, 16, False)  # 20 and 32 pairs, 128 numbers in each of q, k, v
    every = ("issue", "matrix", "bandwidth", "cache rate", "cache")

    def floor(dims, what, contestant=half, **limit):
        return floors.floor_ms(dims, what, contestant, dict.fromkeys(every) | {"issue": 1e3} | limit)

    features, stored = 256 * 3, 256 * 32  # instructions and bytes for q and k: 16 features of 2 bytes per number
    assert floor(causal, "forward") == pytest.approx(features + 200)
    assert floor(full, "forward+backward") == pytest.approx(2 * features + 960)
    assert floor(causal, "forward", bandwidth=1e9) == pytest.approx(features + 200)
    tensors = 128 * 2
    assert floor(causal, "forward", bandwidth=1e3) == pytest.approx(stored + stored + 4 * tensors)
    both = (stored + stored + 4 * tensors) + (stored + stored + 8 * tensors)
    assert floor(causal, "forward+backward", bandwidth=1e3) == pytest.approx(both)
    assert floor(causal, "forward", bandwidth=1e3, cache=stored) == pytest.approx(features + 4 * tensors)
    # 16 multiply-adds per pair and coordinate, and one with its value, in TF32 two times as long
    assert floor(causal, "forward", matrix=1e3) == pytest.approx(features + 20 * (16 + 2) * 16)
    assert floor(causal, "forward", precise) is None
    assert floor(causal, "forward", issue=None) is None


def test_tiles_read_the_features_of_rows_and_columns_each_time():
    """From a table of tiles on a causal mask, counted one by one: 64 x 128 in the forward, 64 x 64 in the backward."""
    tile = pytest.importorskip("fourierformer.kernels.sinc.tiles").tile
    sizes = [(t.rows, t.columns) for t in (tile(name, 16, 16, False, False, 9) for name in ("forward", "keys"))]
    assert sizes == [(64, 128), (64, 64)]
    read = 0
    for first in range(0, 200, 64):
        for start in range(0, 200, 128):
            if start <= min(first + 63, 199):
                read += (64 + 128) * 16 * 32  # coordinates, bytes of 16 features
    assert floors.bytes_of_tiles("forward", 200, 16, True, "half") == read
    in_backward = 16 * (3 * 64 + 2.5 * 64) * 16 * 32
    assert floors.bytes_of_tiles("one pass", 256, 16, False, "half") == in_backward
    assert floors.bytes_of_tiles("two passes", 256, 16, False, "half") == 2 * in_backward
    assert floors.bytes_of_tiles("two passes", 256, 16, False, "precise") == 4 * in_backward
    half, limit = contestants.Contestant(sinc_attention, torch.bfloat16, "half"), floors.limits("cpu")
    limit |= {"issue": 1e30, "cache rate": 1e3}
    assert floors.floor_ms((2, 3, 200, 16, True), "forward", half, limit) == pytest.approx(6 * read)


def test_limits_come_from_the_device(monkeypatch):
    h100 = SimpleNamespace(
        major=9, minor=0, multi_processor_count=132, clock_rate=1_980_000, memory_clock_rate=2_619_000,
        memory_bus_width=5120, L2_cache_size=50 * 2**20, uuid="0",
    )  # fmt: skip
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: h100)
    found = floors.limits("cuda")
    assert found["issue"] == pytest.approx(66.9e12 / 2, rel=1e-3)  # its data sheet counts two operations each
    assert found["bandwidth"] == pytest.approx(3.35e12, rel=1e-3)
    assert found["cache rate"] == pytest.approx(5120 * 1.98e9)
    assert found["cache"] == 50 * 2**20
    a100 = SimpleNamespace(major=8, minor=0, multi_processor_count=108, clock_rate=1_410_000, uuid="0")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: a100)
    found = floors.limits("cuda")
    assert found["issue"] == pytest.approx(19.5e12 / 2, rel=1e-2)
    assert found["matrix"] == pytest.approx(312e12 / 2, rel=1e-2)
    monkeypatch.setenv("PATH", "")  # no nvidia-smi
    bare = SimpleNamespace(multi_processor_count=132, uuid="0")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: bare)
    assert set(floors.limits("cuda").values()) == {None}


def test_gpu_times_are_those_between_events(monkeypatch):
    clock = [0.0]

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = clock[0]

        def elapsed_time(self, end):
            return end.at - self.at

    def call(milliseconds):
        clock[0] += milliseconds

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert clocks.times_cuda(call, [(1.0,), (2.0,), (4.0,)], 5) == [1, 2, 4, 1, 2]


@pytest.mark.full("compiles: other tests compile the layer")
def test_the_printed_formula_compiles_without_a_break():
    function = functools.partial(sinc_attention, eps=1e-6, causal=True, backend="reference")
    compiled = torch.compile(lambda *t: function(*t), dynamic=False, fullgraph=True, backend="aot_eager")
    tensors = [torch.randn(1, 2, 9, 4) for _ in range(4)] + [torch.full((2, 4), 2.0)]
    leaves, doutput = contestants.as_call(tensors, torch.float32)
    for ours, theirs in zip(*(contestants.gradients(f, leaves, doutput) for f in (compiled, function)), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.full("times every backend")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu_the_fused_kernel_is_timed_in_both_precisions(tmp_path):
    table = tmp_path / "kernel.csv"
    command = [sys.executable, "-m", "benchmarks.kernel", "--shape", "lm_small", "--batch", "2", "--repeats", "2"]
    done = subprocess.run([*command, "--csv", table], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = list(csv.DictReader(table.open()))
    assert {"fused, half", "fused, float32 class", "softmax", "direct, compiled", "reference"} <= set(names(rows))
    assert {row["dtype"] for row in rows if row["name"] == "fused, float32 class"} == {"float32"}
    assert all(float(row["ms"]) > 0 and float(row["MiB"]) > 0 for row in rows)


def test_on_a_gpu_each_kernel_of_softmax_is_a_contestant_of_its_own():
    args = SimpleNamespace(device="cuda", dtype=torch.bfloat16, eps=0.0, peer={}, contestant=None, without_fused="no")
    assert {"softmax", "softmax, flash", "softmax, cudnn"} < contestants.contestants(args, causal=True).keys()
    args.dtype = torch.float32  # which both of them refuse
    assert "softmax, flash" not in contestants.contestants(args, causal=True)
