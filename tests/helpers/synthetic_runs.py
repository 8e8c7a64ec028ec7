"""Run directories written by hand, for the tests of everything that reads them."""

import json
import math
import zlib
from pathlib import Path


def evaluation(ppl: float, stride: int = 64, tokens: int = 21_000) -> dict:
    return {"nll": math.log(ppl), "ppl": ppl, "tokens": tokens, "context": 64, "stride": stride}


def summary(attention: str, seed: int, ppl: float) -> dict:
    protocols = {"segment": evaluation(ppl), "sliding": evaluation(0.9 * ppl, 1)}
    results = {"valid": protocols, "test": protocols}
    names = {"experiment": "quickstart", "model": "lm_tiny", "attention": attention, "data": "builtin_text"}
    counts = {"parameters": 1_234_567, "steps": 600, "tokens": 4_915_200, "bad_steps": 0, "tokens_per_s": 9000}
    origin = {"seed": seed, "group": f"group-{attention}", "notes": [], "debug": False}
    return {"schema": 1, "primary": "ppl", "results": results, "seconds": 51.2, **names, **counts, **origin}


def classification(top1: float, step: int = 600, images: int = 360) -> dict:
    return {"top1": top1, "top5": (100 + top1) / 2, "nll": 4 - top1 / 25, "images": images, "step": step}


def vision_summary(attention: str, seed: int, top1: float, ema: bool) -> dict:
    """`top1` is the best of any evaluation; the end of training is 0.5 below, averaged weights 0.25 above either."""
    weights = {"best": classification(top1, 540), "last": classification(top1 - 0.5)}
    if ema:
        averaged = {"ema_best": classification(top1 + 0.25, 540), "ema_last": classification(top1 - 0.25)}
        weights |= averaged
    names = {"experiment": "quickstart_vit", "model": "vit_tiny", "attention": attention, "data": "builtin_images"}
    counts = {"parameters": 2_692_426, "steps": 600, "images": 38_400, "bad_steps": 0, "images_per_s": 412.4}
    origin = {"seed": seed, "group": f"group-{attention}", "notes": [], "debug": False, "task": "vision"}
    best = {"best": {"step": 540, "valid_top1": top1}, "data_wait": 0.034, "unit": "images"}
    return {"schema": 1, "primary": "top1", "results": {"valid": weights}, "seconds": 93, **names, **counts} | (
        origin | best
    )


def write_run(
    root: Path, attention="fourier", seed=1, ppl=60.0, state="completed", rows=None, changes=None, **status
) -> Path:
    """A run directory. `changes` go into the summary, `status` into status.json; only a completed run has a summary."""
    rows = metric_rows(ppl, attention) if rows is None else rows
    numbers = summary(attention, seed, ppl) | (changes or {})
    return _write_run(root / "quickstart", "lm_tiny", numbers, attention, state, rows, status)


def write_vision_run(
    root: Path,
    attention="fourier",
    seed=1,
    top1=93.0,
    state="completed",
    *,
    ema=False,
    rows=None,
    changes=None,
    **status,
) -> Path:
    """The same of an image classifier, whose weights are averaged too with `ema`."""
    rows = vision_rows(top1, attention, ema) if rows is None else rows
    numbers = vision_summary(attention, seed, top1, ema) | (changes or {})
    return _write_run(root / "quickstart_vit", "vit_tiny", numbers, attention, state, rows, status)


def write_heads(run: Path, distances: list[float], split: str = "test") -> None:
    """heads.json of a run as scripts/head_redundancy.py writes it: a layer for every distance."""
    layers = [
        {"head_distance": distance, "row_distance": 0.4, "output_distance": 3.0, "rank": 31.0} for distance in distances
    ]
    mean = sum(distances) / len(distances)
    spread = math.sqrt(sum((distance - mean) ** 2 for distance in distances) / (len(distances) - 1))
    measured = {
        "layers": layers,
        "mean": layers[0] | {"head_distance": mean},
        "sd": {"head_distance": spread},
        "sequences": 9,
    }
    _write(run / "heads.json", {"schema": 1, "splits": {split: measured}})


def metric_rows(ppl: float, attention: str, steps: int = 600) -> list[dict]:
    """A loss that falls towards log(ppl), evaluated every 60 steps; Fourier runs also log the radius of two layers."""
    rows = []
    for step in range(10, steps + 1, 10):
        loss = math.log(ppl) + 4 * math.exp(-step / 100)
        rows.append({"step": step, "train_loss": loss, "lr": 1e-3, "grad_norm": 0.5, "tokens_per_s": 9000})
        if step % 60 == 0:
            rows.append({"step": step, "valid_loss": loss, "valid_ppl": math.exp(loss), **_radius(step, attention)})
    return rows


def vision_rows(top1: float, attention: str, ema: bool = False, steps: int = 600) -> list[dict]:
    """An accuracy that rises from 10 % towards `top1`, evaluated every 60 steps."""
    rows = []
    for step in range(10, steps + 1, 10):
        missing = math.exp(-step / 100)
        speed = {"images_per_s": 412.4, "data_wait": 0.034, "bad_steps": 0}
        rows.append({"step": step, "train_loss": 0.8 + 1.5 * missing, "lr": 1e-3, "grad_norm": 0.5, **speed})
        if step % 60 == 0:
            accuracy = top1 - (top1 - 10) * missing
            numbers = {"valid_loss": 0.2 + 2 * missing, "valid_top1": accuracy, "valid_top5": (100 + accuracy) / 2}
            averaged = {f"ema_{key}": value for key, value in numbers.items()} if ema else {}
            rows.append({"step": step, **numbers, **averaged, **_radius(step, attention)})
    return rows


def _radius(step: int, attention: str) -> dict:
    return {"radius/00": 2 - step / 1000, "radius/01": 2 + step / 1000} if "fourier" in attention else {}


def _write_run(
    root: Path, model: str, numbers: dict, attention: str, state: str, rows: list[dict], status: dict
) -> Path:
    seed = numbers["seed"]
    path = root / f"{model}-{attention.replace('/', '_')}-s{seed}-{zlib.crc32(attention.encode()):08x}"
    path.mkdir(parents=True)
    meta = {"commit": "0123abcd", "dirty": False, "python": "3.11.2", "versions": {"torch": "2.11.0"}, "gpus": []}
    script = "train_lm.py" if model.startswith("lm") else "train_vit.py"
    meta |= {"cpu": "a processor", "cpus": 2, "command": f"python {script} attention={attention} seed={seed}"}
    _write(path / "meta.json", meta | {"started": "2026-08-01T12:00:00+00:00"})
    status = {"state": state, "step": 600, "steps": 600, "updated": "2026-08-01T12:10:00", **status}
    _write(path / "status.json", status)
    if state == "completed":
        _write(path / "summary.json", numbers)
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def _write(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
