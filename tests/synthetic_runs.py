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


def write_run(
    root: Path, attention="fourier", seed=1, ppl=60.0, state="completed", rows=None, changes=None, **status
) -> Path:
    """A run directory. `changes` go into the summary, `status` into status.json; only a completed run has a summary."""
    path = root / "quickstart" / f"lm_tiny-{attention.replace('/', '_')}-s{seed}-{zlib.crc32(attention.encode()):08x}"
    path.mkdir(parents=True)
    meta = {"commit": "0123abcd", "dirty": False, "python": "3.11.2", "versions": {"torch": "2.11.0"}, "gpus": []}
    meta |= {"cpu": "a processor", "cpus": 2, "command": f"python train_lm.py attention={attention} seed={seed}"}
    _write(path / "meta.json", meta | {"started": "2026-08-01T12:00:00+00:00"})
    status = {"state": state, "step": 600, "steps": 600, "updated": "2026-08-01T12:10:00", **status}
    _write(path / "status.json", status)
    if state == "completed":
        _write(path / "summary.json", summary(attention, seed, ppl) | (changes or {}))
    rows = metric_rows(ppl, attention) if rows is None else rows
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def metric_rows(ppl: float, attention: str, steps: int = 600) -> list[dict]:
    """A loss that falls towards log(ppl), evaluated every 60 steps; Fourier runs also log the radius of two layers."""
    rows = []
    for step in range(10, steps + 1, 10):
        loss = math.log(ppl) + 4 * math.exp(-step / 100)
        rows.append({"step": step, "train_loss": loss, "lr": 1e-3, "grad_norm": 0.5, "tokens_per_s": 9000})
        if step % 60 == 0:
            radius = {"radius/00": 2 - step / 1000, "radius/01": 2 + step / 1000} if "fourier" in attention else {}
            rows.append({"step": step, "valid_loss": loss, "valid_ppl": math.exp(loss), **radius})
    return rows


def _write(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
