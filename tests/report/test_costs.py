"""The chart of benchmarks/attention.py: each cost is drawn at its name, and what is committed is not stale."""

import pytest

from fourierformer.files import write_csv
from fourierformer.provenance import MEASURED
from fourierformer.report.costs import cost_picture

HEAD = "# machine: an abacus\n# layer: dim 8\n"


def row(attention, tokens, milliseconds, mask="causal", what="forward+backward", status="measured"):
    cells = {"attention": attention, "mask": mask, "tokens": tokens, "what": what, "status": status}
    return cells | {"milliseconds": milliseconds, "mebibytes": 10 * milliseconds}


@pytest.fixture
def draw(tmp_path):
    """draw(rows) -> the picture."""

    def of(rows):
        write_csv(tmp_path / "costs.csv", rows, HEAD)
        return cost_picture(tmp_path / "costs.csv")

    return of


def drawn(axes, picture) -> dict[str, dict[str, float]]:
    """Of each kind the dots, {name: value}."""
    names = [label.get_text() for label in picture.figure.axes[0].get_yticklabels()]
    dots = [{names[int(y)]: x for x, y in line.get_xydata()} for line in axes.lines if line.get_marker() == "o"]
    return dict(zip([key.label for key in picture.keys], dots, strict=True))


def test_dots_and_rules_of_softmax(draw):
    """`quick` reaches the longest input, so it stands first; of `forward`, and of what was refused, there is no dot."""
    rows = [row("softmax", 64, 2.0), row("quick", 64, 3.0), row("softmax", 64, 7.0, mask="full")]
    rows += [row("quick", 128, 6.0), row("softmax", 64, 1.0, what="forward")]
    rows += [row("softmax", 128, "", status="skipped: a call should take 9 s, more than 4 s")]
    picture = draw(rows)
    causal, full, causal_memory, _ = picture.figure.axes
    assert [label.get_text() for label in causal.get_yticklabels()] == ["quick", "softmax"]
    assert drawn(causal, picture) == {"N = 64": {"softmax": 2.0, "quick": 3.0}, "N = 128": {"quick": 6.0}}
    assert drawn(causal_memory, picture) == {"N = 64": {"softmax": 20.0, "quick": 30.0}, "N = 128": {"quick": 60.0}}
    assert drawn(full, picture) == {"N = 64": {"softmax": 7.0}, "N = 128": {}}
    assert [line.get_xdata()[0] for line in causal.lines if line.get_marker() != "o"] == [2.0]
    assert (causal.get_title(), causal.get_xlabel(), causal_memory.get_xlabel()) == ("causal", "ms", "peak MiB")
    assert picture.title == "Forward and backward of one layer: dim 8; an abacus"


def test_of_seven_lengths_every_other_one_is_drawn(draw):
    picture = draw([row("softmax", 2**n, float(n)) for n in range(8, 15)])
    assert [key.label for key in picture.keys] == ["N = 256", "N = 1,024", "N = 4,096", "N = 16,384"]


def test_a_scale_has_at_least_two_numbers_whatever_it_spans(draw):
    for smallest, largest in ((1.1, 1.9), (0.8, 2.5), (3.0, 80.0), (6.0, 4000.0)):
        axes = draw([row("softmax", 64, smallest), row("quick", 64, largest)]).figure.axes[0]
        low, high = axes.get_xlim()
        assert sum(low <= tick <= high for tick in axes.get_xticks()) >= 2, (smallest, largest)


def test_without_a_measurement_there_is_no_picture(draw):
    assert draw([row("softmax", "", 0.0, status="failed: ValueError: Boom")]) is None


def test_the_committed_chart_is_of_its_rows():
    picture = cost_picture(MEASURED / "attention_cpu.csv")
    svg = (MEASURED / "attention_cpu.svg").read_text(encoding="utf-8")
    assert picture.description in svg, "stale: run `make docs`"
