"""benchmarks/attention.py: exponents, turns, limits, what the CSV says about what was refused or left out."""

import csv
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from benchmarks import attention, layers
from benchmarks.clocks import take_turns
from benchmarks.layers import Layer, Limits, Row, claims_linear, expected, exponent, exponents, measure
from fourierformer.attention import available, mechanism
from fourierformer.attention.mechanisms.softmax import Softmax
from tests.helpers.command_line import REPOSITORY

COLUMNS = (
    "attention,mask,tokens,what,status,milliseconds,softmax_milliseconds,time_ratio,mebibytes,memory_ratio,repeats"
)


def power_law(growth: float, lengths=(256, 2048, 4096, 8192)) -> list[tuple[int, float]]:
    return [(tokens, 3e-4 * tokens**growth) for tokens in lengths]


@pytest.fixture
def bench(monkeypatch, tmp_path):
    """bench(arguments) -> (whether all was well, comment lines, rows of the CSV)."""
    threads = torch.get_num_threads()

    def run(*arguments: str) -> tuple[bool, list[str], list[dict]]:
        table = tmp_path / "deeper" / "attention.csv"
        command = ["attention.py", "--device", "cpu", "--out", str(table), *arguments]
        monkeypatch.setattr(sys, "argv", command)
        good = attention.main()
        lines = table.read_text().splitlines()
        comments = [line for line in lines if line.startswith("#")]
        return good, comments, list(csv.DictReader(lines[len(comments) :]))

    yield run
    torch.set_num_threads(threads)


@pytest.fixture
def clockwork(monkeypatch):
    """Layers that take as long as `cost(name, tokens)` says, in ms, and 1 MiB; the calls that were made."""
    calls = []

    def install(cost):
        class Clockwork:
            def __init__(self, name, causal, tokens, dim, heads, device):
                self.name, self.tokens = name, tokens

            def milliseconds(self, what):
                calls.append((self.name, self.tokens))
                return cost(self.name, self.tokens)

            def mebibytes(self, what):
                return 1.0

        monkeypatch.setattr(layers, "Layer", Clockwork)
        return calls

    return install


def test_the_exponent_is_the_slope_of_a_power_law_from_2048_tokens_on():
    assert exponent(power_law(1.5)) == pytest.approx(1.5, abs=1e-12)
    flat_before = [(256, 1e3), (1024, 1e3), *power_law(2.0)[1:]]
    assert exponent(flat_before) == pytest.approx(2.0, abs=1e-12)
    # least squares by hand: logs (0, 1, 2) ln 2, values (0, 0, 3) ln 2: slope 3 / 2
    assert exponent([(2048, 1.0), (4096, 1.0), (8192, 8.0)]) == pytest.approx(1.5, abs=1e-12)
    assert exponent(power_law(1.0, (512, 1024, 2048))) is None


def test_more_tokens_are_expected_to_go_on_as_the_last_two_points_did():
    assert expected([], 512) == 0
    assert expected([(256, 3.0)], 512) == pytest.approx(12)  # nothing known of its growth: N^2
    assert expected([(128, 1.0), (256, 2.0)], 1024) == pytest.approx(8)
    assert expected([(128, 1.0), (256, 1.0)], 512) == pytest.approx(2)  # never less than in proportion


@pytest.mark.parametrize(
    ("cost", "linear"),
    [("N C", True), ("min(N, M) N C", True), ("N s C; N² C up to N = 1,024", True), ("N √N C", False), ("N² C", False)],
)
def test_a_stated_cost_is_linear_or_not(cost, linear):
    assert claims_linear(cost) is linear


def test_the_registry_says_which_are_linear():
    linear = {name for name in available() if claims_linear(mechanism(name).cost)}
    assert {"aft_simple", "aft_local", "linear_elu", "performer", "taylor", "fast_weight", "fourier_linear"} <= linear
    assert not {"softmax", "gaussian", "aft_full", "fourier", "fourier_head"} & linear


def test_turns_alternate_and_end_with_the_time():
    order = []

    def player(name):
        return lambda: order.append(name) or 1.0

    mine, peers = take_turns([player("a"), player("b")], turns=3, seconds=60)
    assert order == [*"ab", *"ba", *"ab"]
    assert len(mine) == len(peers) == 3
    mine, peers = take_turns([player("a"), player("b")], turns=3, seconds=0)
    assert len(mine) == len(peers) == 1


def test_a_ratio_is_the_median_over_turns_that_shared_a_moment():
    mine, theirs = iter([0, 10, 200, 30]), iter([5, 100, 10])  # the first of mine is the warm-up
    layer = SimpleNamespace(milliseconds=lambda what: next(mine), mebibytes=lambda what: 12.0)
    peer = SimpleNamespace(milliseconds=lambda what: next(theirs))
    row = Row("mine", "full", 64, "forward")
    measure(row, layer, peer, Row("softmax", "full", 64, "forward", mebibytes=4.0), 60, 3)
    assert (row.milliseconds, row.softmax_milliseconds, row.repeats) == (30, 10, 3)
    assert (row.time_ratio, row.memory_ratio) == (2, 3)  # of 2, 2 and 3


def test_memory_of_softmax_is_what_a_layer_must_keep_and_no_map():
    tokens, dim = 1024, 32
    layer = Layer("softmax", False, tokens, dim, 2, "cpu")
    each = tokens * dim * 4 / 2**20  # MiB of q, of k, ...
    assert 4 * each <= layer.mebibytes("forward") < 5 * each  # q, k, v, output; with a map 2 N^2 numbers more
    maps = Layer("aft_full", False, tokens, dim, 2, "cpu").mebibytes("forward")
    assert maps > tokens**2 * 4 / 2**20  # its biases


def test_what_became_too_slow_is_not_tried_at_more_tokens(bench, clockwork):
    calls = clockwork(lambda name, tokens: tokens**2 / 4 if name == "gaussian" else 1.0)
    good, _, rows = bench("--only", "gaussian,linear_elu", "--lengths", "16,32,64,128", "--full", "--seconds", "0.5")
    assert good
    # 64 ms at 16, 256 ms at 32; 1.024 s at 64 would be more than half a second
    assert {tokens for name, tokens in calls if name == "gaussian"} == {16, 32}
    assert {tokens for name, tokens in calls if name == "linear_elu"} == {16, 32, 64, 128}
    left_out = [row for row in rows if row["status"] != "measured"]
    assert {(row["attention"], row["tokens"]) for row in left_out} == {("gaussian", "64"), ("gaussian", "128")}
    assert {row["status"] for row in left_out if row["tokens"] == "64"} == {
        "skipped: a call should take 1.02 s, more than 0.5 s"
    }
    assert all(row["milliseconds"] == row["time_ratio"] == "" for row in left_out)


def test_what_would_need_too_much_memory_is_not_tried():
    limits = Limits(seconds=60, minutes=60, memory=1000)
    for tokens, size in ((1024, 100), (2048, 400)):
        limits.note(Row("gaussian", "full", tokens, "forward", milliseconds=1, mebibytes=size))
    assert (
        limits.reason(Row("gaussian", "full", 4096, "forward")) == "a call should need 1,600 MiB, more than 1,000 MiB"
    )
    assert limits.reason(Row("gaussian", "causal", 4096, "forward")) is None


def test_no_point_is_started_when_the_time_is_up(bench, clockwork):
    calls = clockwork(lambda name, tokens: 1.0)
    good, _, rows = bench("--quick", "--only", "linear_elu", "--minutes", "0")
    assert good
    assert not calls
    assert {row["status"] for row in rows} == {"skipped: the 0 minutes for all points are used up"}
    assert len(rows) == 2 * 2 * 2 * 2  # mechanisms, masks, lengths, directions


@pytest.mark.parametrize(
    ("words", "status", "good"),
    [
        ("DefaultCPUAllocator: can't allocate memory", "skipped: out of memory at N = 64", True),
        ("sizes differ", "failed: RuntimeError: sizes differ", False),
    ],
)
def test_one_that_fails_leaves_the_others(bench, clockwork, words, status, good):
    def cost(name, tokens):
        if name == "linear_elu":
            raise RuntimeError(words)
        return 1.0

    clockwork(cost)
    well, _, rows = bench("--quick", "--only", "linear_*", "--causal")
    assert well is good
    assert {row["status"] for row in rows if row["attention"] == "linear_elu"} == {status}
    assert {row["status"] for row in rows if row["attention"] == "linear_relu"} == {"measured"}


def test_an_error_that_poisons_a_gpu_is_a_row_too(monkeypatch):
    """After an illegal access every call of the process raises, emptying the cache as well."""

    def poisoned(*arguments):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "empty_cache", poisoned)
    row = Row("fourier", "full", 64, "forward")
    args = SimpleNamespace(device="cuda", seconds=1, repeats=1)
    layers.attempt(row, SimpleNamespace(milliseconds=poisoned), None, None, Limits(60, 60, 1000), args)
    assert row.status == "failed: RuntimeError: CUDA error: an illegal memory access was encountered"


def test_images_have_a_grid_and_a_refused_size_or_an_error_leaves_the_others_measured(bench, monkeypatch):
    mix = Softmax.mix

    def broken(self, q, *arguments, **options):
        if q.shape[-2] == 128 and not self.geometry.causal:
            raise ValueError("Boom")
        return mix(self, q, *arguments, **options)

    monkeypatch.setattr(Softmax, "mix", broken)
    good, _, rows = bench("--quick", "--full", "--dim", "48", "--heads", "2", "--only", "axial,aft_conv")
    assert not good
    states = {(row["attention"], row["tokens"]): row["status"] for row in rows}
    assert states["softmax", "128"] == "failed: ValueError: Boom"
    assert states["aft_conv", ""].startswith("refused: attention.aft_heads must divide")
    assert all(row["status"] == "measured" for row in rows if row["attention"] == "axial")
    assert sum(row["attention"] == "axial" for row in rows) >= 4


def test_a_real_run_writes_columns_origin_refusals_and_plots(bench, tmp_path, capsys):
    good, comments, rows = bench("--quick", "--only", "fast_weight,linear_elu")
    assert good
    assert [line.split(":")[0] for line in comments[:4]] == ["# command", "# commit", "# versions", "# machine"]
    assert str(tmp_path) not in comments[0]
    assert ",".join(rows[0]) == COLUMNS
    (refused,) = [row for row in rows if row["status"].startswith("refused")]
    assert (refused["attention"], refused["mask"], refused["tokens"]) == ("fast_weight", "full", "")
    assert refused["status"] == f"refused: cannot be bidirectional: {mechanism('fast_weight').full_ok}"
    assert mechanism("fast_weight").full_ok in capsys.readouterr().out
    measured = [row for row in rows if row is not refused]
    assert len(measured) == 2 * 2 * (3 + 2)  # lengths, directions, causal and full
    assert all(float(row["milliseconds"]) > 0 and float(row["mebibytes"]) > 0 for row in measured)
    assert all((row["time_ratio"] == "") is (row["attention"] == "softmax") for row in measured)
    assert {path.name for path in (tmp_path / "deeper").iterdir()} == {f"attention.{k}" for k in ("csv", "png", "svg")}


def test_a_linear_cost_that_is_not_is_flagged():
    growth = {"softmax": 2.0, "linear_elu": 1.3, "performer": 1.1}
    rows = [
        Row(name, "causal", tokens, "forward", milliseconds=value, mebibytes=tokens / 100)
        for name, slope in growth.items()
        for tokens, value in power_law(slope)
    ]
    lines = list(exponents(rows, SimpleNamespace(names=list(growth), masks=["causal"])))
    flags = [line for line in lines if line.startswith("ABOVE")]
    assert flags == ["ABOVE 1.15: linear_elu, causal, forward: milliseconds as N^1.30, stated is linear"]
    (line,) = [line for line in lines if line.startswith("performer")]
    assert "1.10 / 1.00" in line


def test_an_unknown_name_is_refused_with_the_nearest(bench, capsys):
    with pytest.raises(SystemExit) as end:
        bench("--only", "linear_elf")
    assert end.value.code == 2
    assert "did you mean 'linear_elu'" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.full("times every attention")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu_all_can_be_timed(tmp_path):
    command = [sys.executable, "-m", "benchmarks.attention", "--quick", "--out", str(tmp_path / "attention.csv")]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
