"""Draw the pattern of a sparse attention, or the mean attention maps of trained runs, as PNG and SVG.

python scripts/show_attention.py band window=6                     the pattern, bidirectional and causal
python scripts/show_attention.py axial --grid 8x8                  on an image too
python scripts/show_attention.py runs/builtin_vit/vit_tiny-...     mean maps of each head; of images also by offset
python scripts/show_attention.py runs/builtin/lm_tiny-... RUN ...  several runs beside each other
python scripts/show_attention.py runs/builtin/lm_tiny-... --text "the function returns"
                                                                   its tokens and maps as numpy arrays, text_maps.npz
"""

import argparse
from pathlib import Path

import yaml

from fourierformer.config import from_yaml
from fourierformer.errors import SetupError, check_range
from fourierformer.files import own_folder, replacing
from fourierformer.printing import echo
from fourierformer.results.runs import read_run
from fourierformer.runs.console_io import Parser, exit_on_user_error


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("what", help="the name of an attention, or a run directory")
    parser.add_argument("more", nargs="*", help="KNOB=VALUE of the attention, as in its yaml; or more run directories")
    parser.add_argument("--tokens", type=int, metavar="N", help="in a pattern (default: 64)")
    parser.add_argument("--grid", metavar="ROWSxCOLUMNS", help="an image of so many patches in place of --tokens")
    layers = "layers of a run, from 0 on; default: first, middle, last"
    parser.add_argument("--layers", type=int, nargs="+", metavar="N", help=layers)
    parser.add_argument("--split", choices=["train", "valid", "test"], help="default: test for text, valid for images")
    parser.add_argument("--sequences", type=int, metavar="N", help="most sequences of a run (default: 100)")
    parser.add_argument("--text", help="of one language model: write the maps of this text as arrays, draw nothing")
    parser.add_argument("--out", type=Path, help="folder; default: runs/pictures, or pictures/ in the run directory")
    arguments = parser.parse_args()
    with exit_on_user_error():
        is_run = any((Path(arguments.what) / name).is_file() for name in ("config.yaml", "model.safetensors"))
        if arguments.text is not None:
            refuse(arguments, ("tokens", "grid", "layers", "split", "sequences"), "not read with --text")
            if arguments.more:
                raise SetupError(f"--text shows one model: {arguments.what}, without {' '.join(arguments.more)}")
            echo(write_text_maps(Path(arguments.what), arguments.text, arguments.out))
            return
        if not is_run and ("/" in arguments.what or Path(arguments.what).is_dir()):
            from_yaml(Path(arguments.what) / "config.yaml")  # says what the folder is
        if is_run:
            refuse(arguments, ("tokens", "grid"), f"of a pattern, and {arguments.what} is a run")
        else:
            refuse(arguments, ("layers", "split", "sequences"), f"of runs, and {arguments.what} is an attention")
        show = (show_runs if arguments.more else show_run) if is_run else show_pattern
        pictures, folder = show(arguments)
        for picture in pictures:
            echo("\n".join(map(str, picture.save(own_folder(folder)))))


def refuse(arguments: argparse.Namespace, options: tuple[str, ...], reason: str) -> None:
    """SetupError for options that would not be read."""
    if given := [option for option in options if getattr(arguments, option) is not None]:
        raise SetupError(f"--{given[0]} is {reason}: leave it out")


def show_pattern(arguments: argparse.Namespace):
    from fourierformer.attention import mechanism
    from fourierformer.report.patterns import pattern_picture

    needs_grid = mechanism(arguments.what).needs_grid
    if needs_grid or arguments.grid:
        refuse(arguments, ("tokens",), "rows * columns of --grid here")
    grid = grid_of(arguments.grid) if arguments.grid else (8, 8) if needs_grid else None
    tokens = grid[0] * grid[1] if grid else 64 if arguments.tokens is None else arguments.tokens
    check_range("rows * columns of --grid" if grid else "--tokens", tokens, 1, 2049)
    picture = pattern_picture(arguments.what, tokens, grid, knobs_of(arguments.more))
    return [picture], arguments.out or Path("runs/pictures")


def grid_of(text: str) -> tuple[int, int]:
    rows, _, columns = text.partition("x")
    # Python reads at most 4,300 digits
    if len(text) > 20 or not (rows.isdecimal() and columns.isdecimal() and int(rows) and int(columns)):
        raise SetupError(f"--grid {text[:40]}: write rows and columns, as in 8x8")
    return int(rows), int(columns)


def knobs_of(words: list[str]) -> dict[str, object]:
    """Knobs of an attention, parsed as the command line of training does: 6 is a number, null is None."""
    wrong = [word for word in words if "=" not in word]
    if wrong:
        raise SetupError(f"'{wrong[0]}' is no knob of an attention: write knob=value, as in window=6")
    try:
        return {key: yaml.safe_load(value) for key, value in (word.split("=", 1) for word in words)}
    except yaml.YAMLError:
        raise SetupError(f"cannot read '{' '.join(words)}': write knob=value, as in window=6") from None


def write_text_maps(run: Path, text: str, out: Path | None) -> Path:
    """Write `tokens` and `maps` (layers, heads, queries, keys) of a text, to be read with numpy.load."""
    import numpy as np

    from fourierformer.analysis.maps import text_maps
    from fourierformer.runs.trained import load_run_or_export

    tokens, maps = text_maps(load_run_or_export(run), text)
    path = own_folder(out or run / "pictures") / "text_maps.npz"
    with replacing(path) as file:
        np.savez(file, tokens=np.array(tokens), maps=maps.numpy())
    return path


def show_run(arguments: argparse.Namespace):
    from fourierformer.report.patterns import map_pictures

    run = Path(arguments.what)
    mean, layers = maps_of([run], arguments)
    return map_pictures(mean[0], layers, run.name), arguments.out or run / "pictures"


def show_runs(arguments: argparse.Namespace):
    from fourierformer.report.patterns import compared_maps_picture

    runs = [Path(arguments.what), *map(Path, arguments.more)]
    means, layers = maps_of(runs, arguments)
    check_comparable(runs, means)
    names = [str(read_run(run).field("attention")) for run in runs]
    maps = dict(zip(labels_of(runs, names), means, strict=True))
    picture = compared_maps_picture(maps, layers, "attention_compared", "What each head attends to")
    echo(picture.caption)
    return [picture], arguments.out or Path("runs/pictures")


def labels_of(runs: list[Path], names: list[str]) -> list[str]:
    """Names of the attentions if all differ, else names of the directories, else their paths."""
    for labels in (names, [run.name for run in runs], [str(run) for run in runs]):
        if len(set(labels)) == len(runs):
            return labels
    raise SetupError(f"{' '.join(map(str, runs))}: one run is named twice. Name each once.")


def check_comparable(runs: list[Path], means: list) -> None:
    """SetupError unless the maps are of the same sequences."""
    seen = [
        (f"data {read_run(run).field('data')}, split {mean.split}, {mean.sequences} sequences", mean.maps.shape[-1])
        for run, mean in zip(runs, means, strict=True)
    ]
    for run, (what, tokens) in zip(runs, seen, strict=True):
        if (what, tokens) != seen[0]:
            way_out = "compare runs of the same data and length, with --split and --sequences where they differ."
            raise SetupError(
                f"{runs[0]} shows {seen[0][0]} of {seen[0][1]} tokens, {run} {what} of {tokens}: {way_out}"
            )


def maps_of(runs: list[Path], arguments: argparse.Namespace):
    """The maps of each run, and the layers to show."""
    from fourierformer.analysis.maps import mean_maps

    sequences = 100 if arguments.sequences is None else arguments.sequences
    check_range("--sequences", sequences, 1)
    means = [mean_maps(run, arguments.split, sequences) for run in runs]
    run, count = min(zip(runs, (len(mean.maps) for mean in means), strict=True), key=lambda pair: pair[1])
    layers = arguments.layers or sorted({0, (count - 1) // 2, count - 1})
    if not all(0 <= layer < count for layer in layers):
        raise SetupError(f"--layers {' '.join(map(str, layers))}: {run} has layers 0 to {count - 1}")
    return means, layers


if __name__ == "__main__":
    main()
