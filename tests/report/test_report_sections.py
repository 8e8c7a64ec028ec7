"""What the page holds beside the comparison: intervals, the paper's tables, heads, what is missing, and, only where
its files are named, what was measured without runs."""

import json

import pytest
from test_report import Page, two_by_three

from fourierformer.errors import SetupError
from fourierformer.provenance import MEASURED
from fourierformer.report import committed_sections, maps, render, write_report
from fourierformer.report.curves import comparison_chart, layer_curves, metric_curves
from fourierformer.report.page import MANY_RUNS, pictures
from fourierformer.report.picture import Picture
from fourierformer.report.runs import run_sections
from fourierformer.report.section import slugs
from fourierformer.results import collect, comparison, tables
from fourierformer.results.metrics import metric
from tests.helpers.command_line import train_lm
from tests.helpers.synthetic_runs import evaluation, write_heads, write_run

KERNELS = "shape,batch,what,name,dtype,ms,MiB,time x softmax,gpu,torch,commit\n"
PAPER_RUN = {"experiment": "wt103_small", "model": "lm_small", "data": "wikitext103", "tokens": 12_288_000_000}


@pytest.fixture(autouse=True)
def no_charts(monkeypatch):
    """Drawing takes longer than everything around them: test_report.py looks at them."""
    monkeypatch.setattr(Picture, "inline", lambda picture: "")


def words_of(root) -> str:
    return Page(render(collect(root), "today")).words


def test_intervals_stand_under_the_comparison(tmp_path):
    two_by_three(tmp_path)  # softmax 61, 62, 63: t(0.975, 2) = 4.303, so 62 +- 4.303 * 1 / sqrt(3) = 2.48
    words = words_of(tmp_path)
    assert "[59.52, 64.48]" in words
    assert "ours - paper" not in words  # the paper prints nothing at this scale
    assert "The paper's tables" not in words


def test_the_papers_tables_stand_beside_runs_that_belong_to_them(tmp_path):
    results = {split: {"sliding": evaluation(35.0, 1)} for split in ("valid", "test")}
    for seed in (1, 2):
        write_run(tmp_path, "softmax", seed, changes=PAPER_RUN | {"results": results})
    words = words_of(tmp_path)
    assert "The paper's tables beside ours" in words
    assert "Table 1: WikiText-103" in words
    assert "Table 2: ImageNet" not in words
    assert "+0.71" in words  # 35.00 - 34.29
    assert "verified" in words


def test_heads_are_shown_layer_by_layer(tmp_path):
    for seed in (1, 2, 3):
        write_heads(write_run(tmp_path, "softmax", seed), [6.0 + seed, 4.0])
        write_heads(write_run(tmp_path, "fourier", seed), [7.0 + seed, 5.0])
    softmax, fourier = layer_curves(comparison(collect(tmp_path)), "test", "head_distance")
    assert softmax.steps.tolist() == [0, 1]
    assert softmax.middle.tolist() == [8.0, 4.0]
    assert (softmax.low.tolist(), softmax.high.tolist()) == ([7.0, 4.0], [9.0, 4.0])
    assert fourier.middle.tolist() == [9.0, 5.0]
    words = words_of(tmp_path)
    assert "How much the heads of a layer differ" in words
    assert "Distance between heads per layer, test split" in words
    assert "6.00 ± 0.50" in words  # softmax over layers: 5.5, 6, 6.5


@pytest.mark.parametrize(
    "content", ["", "[1]", '{"splits": {"test": {"layers": [1, {"head_distance": null}], "mean": {}}}}']
)
def test_a_damaged_file_of_heads_has_no_chart(tmp_path, content):
    (write_run(tmp_path, "softmax", 1) / "heads.json").write_text(content)
    words = words_of(tmp_path)
    assert "per layer" not in words
    assert ("heads.json" in words.split("All runs")[1].split("Where it ran")[0]) == (not content.startswith("{"))


def test_seeds_that_others_have_are_missed(tmp_path):
    two_by_three(tmp_path)
    write_run(tmp_path, "gaussian", 2)
    write_run(tmp_path, "gaussian", 3, state="failed", error="out of memory")
    words = words_of(tmp_path)
    assert "no run of gaussian with seed 1 " in words
    assert words.count("no run of") == 1


def test_layers_have_their_own_numbers_where_only_some_have_a_radius(tmp_path):
    rows = [{"step": step, "radius/01": 1.0, "radius/03": 2.0} for step in (50, 100)]  # of softmax, fourier, in turn
    write_run(tmp_path, "hybrid", 1, rows=rows)
    (radius,) = [it for it in pictures(run_sections(collect(tmp_path))) if it.name.startswith("radius")]
    assert [key.label for key in radius.keys] == ["layer 1", "layer 3"]
    assert [line.get_color() for line in radius.figure.axes[0].lines] == [key.colour.fixed for key in radius.keys]


def test_of_two_models_each_has_its_panel_and_its_missing_seeds(tmp_path):
    for model in ("lm_tiny", "lm_small"):
        write_run(tmp_path / model, "fourier", 1, changes={"model": model, "group": model})
    write_run(tmp_path, "softmax", 2)
    (section,) = run_sections(collect(tmp_path))
    charts = {picture.name.split("--")[0]: picture for picture in pictures([section])}
    assert [axes.get_title() for axes in charts["radius"].figure.axes] == ["lm_small fourier", "lm_tiny fourier"]
    words = words_of(tmp_path)
    assert "no run of lm_small fourier with seed 2 " in words
    assert "no run of lm_tiny fourier with seed 2 " in words


def test_what_gave_no_result_is_counted_at_the_top_and_named_below(tmp_path):
    two_by_three(tmp_path)
    states = ("failed", "diverged", "interrupted", "running")
    names = [write_run(tmp_path, state, 1, state=state, step=7).name for state in states]
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "config.yaml").write_text("seed: 1\n")
    words = words_of(tmp_path)
    assert "Without a result, and so in no mean: 5 of 11 runs" in words
    assert all(name in words.split("All runs")[-1] for name in [*names, "bare"])


def test_a_run_that_was_set_aside_is_listed_and_neither_missed_nor_repeated(tmp_path):
    two_by_three(tmp_path)
    run = write_run(tmp_path, "gaussian", 1)
    for path in tmp_path.glob("*/*/meta.json"):
        path.write_text(json.dumps({"command": f"python train_lm.py attention={path.parent.name.split('-')[1]}"}))
    run.rename(run.with_name(f"{run.name}.old-1"))
    words = words_of(tmp_path)
    assert "Without a result" not in words
    assert "1 set aside by fresh=true" in words
    assert f"{run.name}.old-1" in words
    assert "attention=gaussian" not in words


def test_a_long_list_of_runs_is_folded_but_never_what_failed(tmp_path):
    for seed in range(MANY_RUNS + 1):
        write_run(tmp_path, "softmax", seed)
    failed = write_run(tmp_path, "fourier", 1, state="failed")
    html = render(collect(tmp_path), "today")
    before, folded = html.split(f"<summary>{MANY_RUNS + 1} completed runs</summary>")
    assert failed.name in before.split('<section id="runs">')[1]
    assert folded.split("</details>")[0].count("<code") == MANY_RUNS + 1


def test_contents_name_every_section_and_lead_there(tmp_path):
    two_by_three(tmp_path)
    write_run(tmp_path / "b", "softmax", 1, changes={"experiment": "other"})
    found = Page(render(collect(tmp_path), "today"))
    links = [value[1:] for name, value in found.attributes if name == "href" and value.startswith("#section-")]
    assert links == [identity for identity in found.ids if identity.startswith("section-")]
    assert len(links) == 2


def test_one_table_alone_needs_no_contents(tmp_path):
    two_by_three(tmp_path)
    assert "nav" not in Page(render(collect(tmp_path), "today")).tags


def test_slugs_are_unique_and_harmless():
    assert slugs(["A b", "a-b", "<&>", "", "a_b 2"]) == ["a-b", "a-b-2", "unnamed", "unnamed-2", "a-b-2-2"]


@pytest.mark.full("draws what was measured")
def test_only_who_asks_gets_what_was_measured_without_runs(tmp_path):
    two_by_three(tmp_path / "runs")
    runs = collect(tmp_path / "runs")
    automatic = write_report(runs, tmp_path / "automatic.html").read_text()
    assert "Time and memory of" not in automatic
    asked = write_report(runs, tmp_path / "asked.html", committed_sections(MEASURED.glob("*.csv"))).read_text()
    found = Page(asked)
    assert len(found.ids) == len(set(found.ids))
    assert "Time and memory of" in found.words


def test_no_files_no_sections():
    assert committed_sections([]) == []
    assert committed_sections([MEASURED / "quickstart.csv"]) == []  # runs


def test_times_of_a_gpu_are_said_to_be_of_it_and_those_of_a_cpu_not(tmp_path):
    row = "lm_small,96,{},softmax,bfloat16,1.5,20,1.0,{},2.15,abc\n"
    path = tmp_path / "kernel_any.csv"
    path.write_text(KERNELS + row.format("forward", "Some GPU") + row.format("forward+backward", "Some GPU"))
    (section,) = committed_sections(tmp_path.glob("*.csv"))
    assert section.headline == "Measured on Some GPU."
    assert [picture.name for picture in pictures([section])] == ["kernel-time-lm-small-batch-96--kernel-any"]
    path.write_text(KERNELS + row.format("forward", ""))
    assert committed_sections(tmp_path.glob("*.csv"))[0].headline == "Measured on a CPU only."
    other = tmp_path / "kernel_other.csv"
    other.write_text(KERNELS + row.format("forward", "Some GPU"))
    (section,) = committed_sections(tmp_path.glob("*.csv"))
    assert section.headline == "Measured on Some GPU and a CPU."
    assert f"from {other}" in section.parts[2].notes


def test_each_time_of_a_kernel_stands_in_the_line_of_its_name(tmp_path):
    """Of the two kernels one alone has a backward pass."""
    times = [("forward", "softmax", 2.0), ("forward", "ours", 3.0), ("backward", "ours", 5.0)]
    lines = [f"a shape,1,{what},{name},fp32,{ms},{10 * ms},1,,2.11,c\n" for what, name, ms in times]
    (tmp_path / "k.csv").write_text(KERNELS + "".join(lines))
    (section,) = committed_sections([tmp_path / "k.csv"])
    table = section.parts[0]
    columns = [table.header.index(name) for name in ("pass", "kernel", "ms")]
    assert [tuple(line[column] for column in columns) for line in table.body] == [
        (what, name, f"{ms:.2f}") for what, name, ms in times
    ]
    (picture,) = pictures([section])
    (axes,) = picture.figure.axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    drawn = [{names[int(y)]: x for x, y in line.get_xydata()} for line in axes.lines]
    assert dict(zip([key.label for key in picture.keys], drawn, strict=True)) == {
        "forward": {"softmax, fp32": 2.0, "ours, fp32": 3.0},
        "backward": {"ours, fp32": 5.0},
    }


def test_a_number_just_below_a_thousand_has_no_exponent(tmp_path):
    (tmp_path / "k.csv").write_text(f'{KERNELS}"a shape",1,forward,ours,fp32,999.7,1,1,,2.11,c\n')
    (section,) = committed_sections([tmp_path / "k.csv"])
    table = section.parts[0]
    assert table.body[0][table.header.index("ms")] == "1,000"


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "kernel.csv").write_text(KERNELS + "lm_small,96,forward,softmax,bfloat16,fast,20,1,,,\n")
    with pytest.raises(SetupError, match=r"kernel\.csv"):
        committed_sections(tmp_path.glob("*.csv"))


def test_a_collected_run_has_means_of_heads_and_no_layers(tmp_path):
    run = write_run(tmp_path, "softmax", 1, changes={"heads": {"test": {"head_distance": 6.0}}})
    assert json.loads((run / "summary.json").read_text())["heads"]
    assert "per layer" not in " ".join(picture.title for picture in pictures(run_sections(collect(run))))


def test_each_line_of_the_table_says_how_far_it_is_from_softmax(tmp_path):
    two_by_three(tmp_path)  # seed by seed 3 apart; sliding, which a paper would quote, nine tenths of that
    (table,) = tables(comparison(collect(tmp_path)))
    shown = table.with_differences()
    place = shown.header.index("against\nsoftmax")
    assert [line[place] for line in shown.body] == ["-", "-2.70"]
    assert all(shown.header[column] == table.header[column] for _, column in table.best)


def test_many_attentions_have_a_panel_each_on_one_scale(tmp_path):
    for name in ("softmax", *(f"mechanism_{i}" for i in range(9))):
        write_run(tmp_path, name, 1)
    (section,) = run_sections(collect(tmp_path))
    (chart,) = (picture for picture in pictures([section]) if picture.title == "Training loss")
    panels = chart.figure.axes
    assert [panel.get_title() for panel in panels] == [f"mechanism_{i}" for i in range(9)]
    assert len({panel.get_ylim() for panel in panels}) == 1


@pytest.mark.parametrize("died", ["", "softmax", "mechanism_3"])  # none, behind every panel, in one of them
def test_panels_say_which_lines_are_of_runs_that_did_not_complete(tmp_path, died):
    for name in ("softmax", *(f"mechanism_{i}" for i in range(9))):
        write_run(tmp_path, name, 1, state="failed" if name == died else "completed")
    curves, _ = metric_curves(comparison(collect(tmp_path)), "train_loss")
    chart = comparison_chart(curves, "n", "t", metric("loss"))
    assert ("run that did not complete" in [key.label for key in chart.keys]) == bool(died)


@pytest.mark.parametrize("attentions", [["fourier"] * 5, ["softmax", *["fourier"] * 5]])
def test_no_two_settings_are_drawn_alike(tmp_path, attentions):
    for i, attention in enumerate(attentions):  # more settings of one attention than there are line styles
        write_run(tmp_path / str(i), attention, 1, 60.0 + i, changes={"group": str(i)})
    curves, _ = metric_curves(comparison(collect(tmp_path)), "valid_ppl")
    keys = comparison_chart(curves, "n", "t", metric("ppl")).keys
    assert len({(key.colour.fixed, key.style) for key in keys}) == len(attentions)


def test_values_that_hardly_differ_get_an_axis_that_can_be_read(tmp_path):
    rows = [{"step": step, "valid_ppl": 9.0, "attended_share/00": 1 - 1e-9 * step} for step in (50, 100)]
    write_run(tmp_path, "fourier", 1, rows=rows)
    (chart,) = (p for p in pictures(run_sections(collect(tmp_path))) if p.title.startswith("Attended share"))
    low, high = chart.figure.axes[0].get_ylim()
    assert high - low > 0.019
    assert chart.figure.axes[0].yaxis.get_major_formatter().get_offset() == ""


def test_no_tick_says_more_than_a_share_can_be(tmp_path):
    rows = [{"step": step, "valid_ppl": 9.0, "attended_share/00": 1.0, "attended_share/01": 0.5} for step in (50, 100)]
    write_run(tmp_path, "fourier", 1, rows=rows)
    (chart,) = (p for p in pictures(run_sections(collect(tmp_path))) if p.title.startswith("Attended share"))
    axes = chart.figure.axes[0]
    assert max(tick for tick in axes.get_yticks() if tick <= axes.get_ylim()[1]) == 1
    assert not chart.wide  # one panel needs no line of the page to itself


def test_lines_that_cover_each_other_show_their_colours_in_turn(tmp_path):
    values = {"attended_share/00": 0.9, "attended_share/01": 0.5, "attended_share/02": 0.9}
    write_run(tmp_path, "fourier", 1, rows=[{"step": step, "valid_ppl": 9.0} | values for step in (50, 100)])
    (chart,) = (p for p in pictures(run_sections(collect(tmp_path))) if p.title.startswith("Attended share"))
    assert [line.is_dashed() for line in chart.figure.axes[0].lines] == [True, False, True]


def test_ticks_of_short_runs_are_numbers_of_their_own(tmp_path):
    """Steps 1 and 2 have no tick between them, a training of 0.6 s has several, a loss of 8.948 has no offset."""
    for name, pace in (("softmax", 0.3), ("fourier", 0.25)):
        rows = [
            {"step": s, "valid_ppl": 7700.0 - s, "train_loss": 8.948 + 1e-4 * s, "seconds": pace * s} for s in (1, 2)
        ]
        write_run(tmp_path, name, 1, rows=rows)
    charts = {p.title: p.figure for p in pictures(run_sections(collect(tmp_path)))}
    loss, time = charts["Training loss"], charts["Validation perplexity against training time"]
    for figure in (loss, time):
        figure.draw_without_rendering()
    seconds = [label.get_text() for label in time.axes[0].get_xticklabels()]
    assert len(set(seconds)) == len(seconds) > 3
    assert {float(tick) % 1 for tick in loss.axes[0].get_xticks()} == {0.0}
    assert loss.axes[0].yaxis.get_major_formatter().get_offset() == ""


@pytest.mark.parametrize(("pace", "unit", "longest"), [(5, "seconds", 300), (20, "minutes", 20), (300, "hours", 5)])
def test_times_of_training_are_in_the_unit_that_the_axis_names(tmp_path, pace, unit, longest):
    """Of 60 steps, which take 5 s, 20 s or 5 minutes each."""
    for name, seconds in (("softmax", pace), ("fourier", pace / 2)):
        rows = [{"step": step, "valid_ppl": 100.0 - step, "seconds": seconds * step} for step in (30, 60)]
        write_run(tmp_path, name, 1, rows=rows)
    (chart,) = (p for p in pictures(run_sections(collect(tmp_path))) if p.title.endswith("against training time"))
    (axes,) = chart.figure.axes
    assert axes.get_xlabel() == f"training time ({unit})"
    assert [line.get_xdata()[-1] for line in axes.lines] == [longest, longest / 2]


def test_a_run_that_diverged_does_not_set_the_scale_of_the_others(tmp_path):
    for name, state, last in (("softmax", "completed", 4.0), ("fourier", "diverged", 400.0)):
        rows = [{"step": step, "train_loss": loss} for step, loss in ((1, 5.0), (50, 4.5), (100, last))]
        write_run(tmp_path, name, 1, state=state, rows=rows)
    (chart,) = (p for p in pictures(run_sections(collect(tmp_path))) if p.title == "Training loss")
    low, high = chart.figure.axes[0].get_ylim()
    assert 3 < low < 4 < 4.5 < high < 5  # of the last nine tenths of the run that completed


def test_debug_runs_are_folded_away(tmp_path):
    write_run(tmp_path / "real", "fourier", 1)
    write_run(tmp_path / "debug", "fourier", 1, changes={"experiment": "smoke", "debug": True})
    folded = {section.title.split(",")[0]: section.folded for section in run_sections(collect(tmp_path))}
    assert folded == {"quickstart": False, "smoke": True}
    assert "debug runs, no measurement" in words_of(tmp_path)


@pytest.mark.parametrize("length", [64, 32])
def test_only_models_of_one_length_look_at_the_same_sequence(tmp_path, monkeypatch, length):
    drawn = []
    monkeypatch.setattr(maps, "_picture", lambda runs, anchor: drawn.append(sorted(runs)))
    for attention, of_model in (("softmax", 64), ("fourier", length)):
        config = {"attention.name": attention, "model.length": of_model}
        run = write_run(tmp_path / attention, attention, changes={"config": config, "group": attention})
        (run / "checkpoints").mkdir()
    maps.map_charts(comparison(collect(tmp_path)), "anchor")
    assert len(drawn) == (length == 64)


@pytest.mark.full("trains two models")
def test_the_heads_of_two_trained_models_look_at_the_same_sequence(tmp_path, capsys):
    assert train_lm("-m", "debug=smoke", "attention=softmax,fourier", f"runs_root={tmp_path}") == 0
    capsys.readouterr()
    (section,) = run_sections(collect(tmp_path), maps=True)
    (chart,) = (picture for picture in pictures([section]) if picture.name.startswith("maps--"))
    sides = [panel.get_ylabel() for panel in chart.figure.axes if panel.get_ylabel()]
    assert [side.split("\n")[0] for side in sides] == ["softmax", "fourier"] * (len(sides) // 2)
    assert capsys.readouterr().out == ""  # the script prints where the page is, and nothing else
