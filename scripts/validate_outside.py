"""Run other people's test suites and reference formulas on this package: the table of docs/reliability.md.

python scripts/validate_outside.py --suites FOLDER

FOLDER has any of timm, transformers, flash-linear-attention, zoology: checkouts of these repositories, or for
transformers its source archive. A suite that is not there has a row that says so. Nothing of them is copied.
"""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import types
import unittest
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from fourierformer import fourier_attention
from fourierformer.attention import Geometry, build
from fourierformer.attention.engines.delta_rule import delta_rule
from fourierformer.attention.engines.recurrence import Form, decayed_sums, linear_attention
from fourierformer.errors import SetupError, first_line
from fourierformer.files import write_csv
from fourierformer.printing import echo
from fourierformer.provenance import MEASURED, header, machine
from fourierformer.runs.console_io import Parser, exit_on_user_error

Case = tuple[str, Callable[[], object]]  # its name, and a call that raises where it fails


class Skipped(Exception):
    """The reason why a case says nothing about this package."""


@dataclass(frozen=True)
class Suite:
    name: str
    proves: str
    cases: Callable[[Path], Iterator[Case]]
    folder: str = ""  # inside --suites; "": a library that is installed
    library: str = ""  # whose version is stated


def load(path: Path, name: str = "") -> Any:
    """The module in a file, which need not lie in a package."""
    if not path.is_file():
        raise Skipped(f"{path.name} is not in this copy")
    spec = importlib.util.spec_from_file_location(name or f"outside_{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


# ---- timm

TIMM_CASES = (  # functions of tests/test_models.py, with their batch sizes
    *(("test_model_forward", 1), ("test_model_backward", 2), ("test_model_default_cfgs_non_std", 1)),
    *(("test_model_forward_features", 1), ("test_model_forward_intermediates_features", 1)),
    *(("test_model_forward_intermediates", 1), ("test_model_forward_fx", 1), ("test_model_backward_fx", 2)),
    *(("test_model_forward_torchscript", 1), ("test_model_forward_fx_torchscript", 1)),
)


def timm_cases(folder: Path) -> Iterator[Case]:
    from fourierformer.integrations.timm import default_cfgs

    tests = load(folder / "tests/test_models.py")
    for name, batch in TIMM_CASES:
        for model in default_cfgs:
            if "torchscript" in name:
                yield f"{name}[{model}]", partial(skip, "TorchScript, which torch deprecates")
            else:
                yield f"{name}[{model}]", partial(getattr(tests, name), model, batch)


# ---- torch


def sdpa_cases(_: Path) -> Iterator[Case]:
    """The sample inputs of scaled_dot_product_attention: 4 dimensions, a mask of pairs in place of torch's causality,
    which counts from the first query and not from the last."""
    from torch.testing._internal.common_methods_invocations import op_db

    (op,) = (op for op in op_db if op.name == "nn.functional.scaled_dot_product_attention")
    for number, sample in enumerate(op.sample_inputs("cpu", torch.float64)):
        yield f"sample {number}", partial(check_sdpa, sample.input, *sample.args, **sample.kwargs)


def check_sdpa(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False, dropout_p: float = 0.0,
    enable_gqa: bool = False,
) -> None:  # fmt: skip
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask, dropout_p, is_causal)
    if is_causal:
        attn_mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    try:
        y = fourier_attention(q, k, v, 0.7, attn_mask=attn_mask, dropout_p=dropout_p, enable_gqa=enable_gqa)
    except ValueError as error:
        raise Skipped(re.sub(r", got .*", "", first_line(error))) from None
    assert y.shape == expected.shape
    assert y.isfinite().all()
    if dropout_p:
        return
    log_w = 4 * torch.sinc(0.7 * (q[..., :, None, :] - k[..., None, :, :]) / torch.pi).abs().log().sum(-1)
    if attn_mask is not None:
        log_w = log_w + (attn_mask.log() if attn_mask.dtype == torch.bool else attn_mask)
    torch.testing.assert_close(y, log_w.softmax(-1) @ v)


# ---- transformers: its tests of a model, of our class


def mixin_cases(folder: Path) -> Iterator[Case]:
    from fourierformer.integrations.hugging_face import FourierFormerForCausalLM

    tests = sys.modules["tests"] = types.ModuleType("tests")  # theirs, not those of this repository
    tests.__path__ = [str(folder / "tests")]
    sys.meta_path.append(Absent())
    from tests.generation.test_utils import GenerationTesterMixin  # type: ignore[import-not-found]
    from tests.test_modeling_common import ModelTesterMixin  # type: ignore[import-not-found]

    class OurTest(ModelTesterMixin, GenerationTesterMixin, unittest.TestCase):
        all_model_classes = (FourierFormerForCausalLM,)
        all_generative_model_classes = all_model_classes
        test_resize_embeddings = False  # the output layer is adaptive: its clusters have fixed sizes
        has_attentions = False

        def setUp(self) -> None:
            self.model_tester = Tester(self)

        def _prepare_for_class(self, inputs, model_class, return_labels: bool = False):
            return inputs | ({"labels": inputs["input_ids"]} if return_labels else {})

    without = {"hidden_states": "hidden states are not returned"}
    if GenerationTesterMixin.__module__ == __name__:
        without["generation_tester_mixin"] = "GenerationTesterMixin is not in a source archive"
    for name in unittest.TestLoader().getTestCaseNames(OurTest):
        reason = next((reason for part, reason in without.items() if part in name), "")
        yield name, partial(skip, reason) if reason else partial(run_unittest, OurTest(name))


class Absent:
    """Empty stand-ins for the parts of `tests` that a source archive lacks."""

    def find_spec(self, name: str, path=None, target=None):
        return importlib.util.spec_from_loader(name, self) if name.startswith("tests.") else None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__file__ = __file__
        module.__getattr__ = lambda name: type(name, (), {})  # type: ignore[method-assign]
        return module

    def exec_module(self, module) -> None:
        """Nothing: every name in it is an empty class."""


class Tester:
    """Config and inputs of a small model, as the tests of transformers ask for them."""

    is_training, seq_length, batch_size = True, 7, 2
    num_hidden_layers, hidden_size = 2, 32

    def __init__(self, parent: unittest.TestCase):
        self.parent = parent

    def get_config(self):
        from hydra import compose, initialize_config_dir

        from fourierformer.integrations.hugging_face import FourierFormerConfig
        from fourierformer.provenance import SHARE
        from fourierformer.runs.spec import read_spec

        small = ["model.layers=2", "model.dim=32", "model.heads=2", "model.inner=16", "model.length=8"]
        with initialize_config_dir(str(SHARE / "configs"), version_base="1.3"):
            spec = read_spec(compose("train_lm", overrides=[*small, "attention=fourier"]))
        return FourierFormerConfig(run=spec.values, vocab_size=60)

    def prepare_config_and_inputs_for_common(self):
        tokens = torch.randint(60, (self.batch_size, self.seq_length))
        return self.get_config(), {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def run_unittest(case: unittest.TestCase) -> None:
    result = unittest.TestResult()
    case.run(result)
    if result.skipped:
        raise Skipped(result.skipped[0][1])
    for _, trace in [*result.errors, *result.failures]:
        raise AssertionError(trace.strip().splitlines()[-1])


# ---- transformers: its models, with our attention


def model_cases(_: Path) -> Iterator[Case]:
    import transformers as hf

    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    words, tokens = {"vocab_size": 60, "max_position_embeddings": 64}, torch.randint(1, 60, (6, 9))
    text = [{"input_ids": row, "labels": row} for row in tokens]
    images = [{"pixel_values": torch.randn(3, 16, 16), "labels": number % 3} for number in range(6)]
    t5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 60}
    for auto, config, rows in (
        (hf.AutoModelForCausalLM, hf.LlamaConfig(**size, **words, num_key_value_heads=2), text),
        (hf.AutoModelForCausalLM, hf.MistralConfig(**size, **words, num_key_value_heads=2, sliding_window=4), text),
        (hf.AutoModelForCausalLM, hf.GPT2Config(vocab_size=60, n_embd=32, n_layer=2, n_head=4, n_positions=64), text),
        (hf.AutoModelForMaskedLM, hf.BertConfig(**size, **words), text),
        (hf.AutoModelForImageClassification, hf.ViTConfig(**size, image_size=16, patch_size=4, num_labels=3), images),
        (hf.AutoModelForSeq2SeqLM, hf.T5Config(**t5, decoder_start_token_id=0), text),
    ):
        yield f"{config.model_type}: three steps of Trainer", partial(train_three_steps, auto, config, rows)


def train_three_steps(auto, config, rows: list) -> None:
    """Every learned radius moves, the loss is finite, and what is saved is loaded."""
    import transformers as hf

    from fourierformer.integrations import hugging_face

    model = auto.from_config(config, attn_implementation="fourier")
    radii = hugging_face.learn_radius(model)
    before = [radius.item() for radius in radii]
    with tempfile.TemporaryDirectory() as folder:
        arguments = hf.TrainingArguments(
            folder, max_steps=3, learning_rate=0.01, per_device_train_batch_size=2, report_to=[], use_cpu=True,
            save_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        trainer = hf.Trainer(model, arguments, train_dataset=rows)
        assert trainer.train().training_loss < float("inf")
        assert all(radius.item() != start for radius, start in zip(radii, before, strict=True))
        trainer.save_model()
        again = auto.from_pretrained(folder, attn_implementation="fourier")
        loaded = hugging_face.load_radius(again, folder)
        assert [radius.item() for radius in loaded] == [radius.item() for radius in radii]


# ---- flash-linear-attention: the plain formulas


def naive_cases(folder: Path) -> Iterator[Case]:
    torch.manual_seed(0)
    batch, heads, tokens, width = 2, 3, 40, 8
    q, k, v = torch.randn(3, batch, heads, tokens, width)
    k = torch.nn.functional.normalize(k, dim=-1)
    beta, log_gate = torch.rand(batch, heads, tokens), torch.rand(batch, heads, tokens).log()
    log_gates = torch.rand(batch, heads, tokens, width).log()
    scaled = q * width**-0.5
    head = torch.log1p(-(2.0 ** (-5 - torch.arange(heads))))[:, None, None].expand(batch, heads, tokens, 1)

    def naive(name: str, function: str, *inputs: Tensor, swap: bool = True, **options) -> Tensor:
        """Its output, of inputs (B, H, N, ...); `swap` where its layout is (B, N, H, ...)."""
        call = getattr(load(folder / f"fla/ops/{name}/naive.py"), function)
        found = call(*(x.transpose(1, 2) if swap else x for x in inputs), **options)
        found = found[0] if isinstance(found, tuple) else found
        return found.transpose(1, 2) if swap else found

    def same(ours: Callable[[], Tensor], theirs: Callable[[], Tensor]) -> None:
        torch.testing.assert_close(ours(), theirs(), rtol=1e-4, atol=1e-5)

    for form in (form for form in get_args(Form) if form != "auto"):
        decay = partial(decayed_sums, scaled, k, v, form=form)
        for name, ours, theirs in (
            ("delta_rule", partial(delta_rule, scaled, k, v, beta, form=form),
             partial(naive, "delta_rule", "delta_rule_recurrence", q, k, v, beta, swap=False)),
            ("gated_delta_rule", partial(delta_rule, scaled, k, v, beta, log_decay=log_gate, form=form),
             partial(naive, "gated_delta_rule", "naive_recurrent_gated_delta_rule", q, k, v, beta, log_gate)),
            ("retention", partial(decay, head), partial(naive, "retention", "naive_retention", q, k, v, swap=False)),
            ("simple_gla", partial(decay, log_gate[..., None]),
             partial(naive, "simple_gla", "naive_recurrent_simple_gla", q, k, v, log_gate)),
            ("gla", partial(decay, log_gates), partial(naive, "gla", "naive_recurrent_gla", q, k, v, log_gates)),
            ("linear_attn", partial(linear_attention, q.exp(), k.exp(), v, causal=True, form=form),
             partial(naive, "linear_attn", "naive_recurrent_linear_attn", q.exp(), k.exp(), v, normalize=True)),
        ):  # fmt: skip
            yield f"{name}, {form}", partial(same, ours, theirs)
    visible = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    geometry = Geometry(dim=heads * width, heads=heads, length=tokens, causal=True)
    r = torch.randn_like(q)
    for name, ours, theirs in (
        ("forgetting", (q, torch.cat([k, log_gate[..., None]], -1)),
         partial(naive, "forgetting_attn", "naive_forgetting_attn", q, k, v, log_gate)),
        ("parallax", (torch.cat([q, r], -1), k), partial(naive, "parallax", "naive_parallax", q, r, k, v)),
    ):  # fmt: skip
        weigh: Any = build(name, geometry).weights
        yield name, partial(same, lambda weigh=weigh, of=ours: weigh(*of, visible) @ v, theirs)


# ---- zoology: associative recall


def recall_cases(folder: Path) -> Iterator[Case]:
    """Their sequences and ours obey the same law: one checker for both, and the same distribution of gaps."""
    from fourierformer.data.recall.sequences import draw
    from fourierformer.data.recall.spec import RecallData

    sys.path.insert(0, str(folder))
    vocabulary, count, length, pairs = 64, 2000, 48, 6
    options = {"name": "outside", "layout": "stream", "keys": "words", "length": length, "pairs": pairs}
    options |= {"queries": None, "vocabulary": vocabulary, "previous_token": False, "seed": 0, "held_out": 1}

    def both(gap_power: float) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        from zoology.data.multiquery_ar import multiquery_ar  # type: ignore[import-not-found]

        theirs = multiquery_ar(vocabulary, count, length, 0, power_a=gap_power, num_kv_pairs=pairs)
        ours = draw(RecallData(**options, gap_power=gap_power), count, 0)  # type: ignore[arg-type]
        labels = torch.full_like(ours.tokens, -100).scatter(1, ours.places, ours.answers)
        return (theirs.inputs, theirs.labels), (ours.tokens, labels)

    def obeyed(gap_power: float) -> None:
        for tokens, labels in both(gap_power):
            keys, values = tokens[:, 0 : 2 * pairs : 2], tokens[:, 1 : 2 * pairs : 2]
            assert bool((keys >= 1).all() and (keys < vocabulary // 2).all() and (values >= vocabulary // 2).all())
            assert all(len(set(row)) == pairs for part in (keys, values) for row in part.tolist())
            row, place = (labels != -100).nonzero(as_tuple=True)
            assert len(row) == count * pairs
            assert bool((place >= 2 * pairs).all() and (place % 2 == 0).all())
            asked = (keys[row] == tokens[row, place][:, None]).int().argmax(1)
            assert torch.equal(values[row, asked], labels[row, place])

    def alike(gap_power: float) -> None:
        from scipy.stats import chi2_contingency

        slots = (length - 2 * pairs) // 2
        table = [
            torch.bincount(((labels != -100).nonzero()[:, 1] - 2 * pairs) // 2, minlength=slots).tolist()
            for _, labels in both(gap_power)
        ]
        assert chi2_contingency(table).pvalue > 0.001

    for power in (0.01, 0.5, 1.0):
        yield f"layout, values and answers, gap power {power}", partial(obeyed, power)
        yield f"distribution of gaps, gap power {power}", partial(alike, power)


SUITES = (
    Suite("timm tests/test_models.py", "our models do what timm's do", timm_cases, "timm"),
    Suite("transformers ModelTesterMixin", "our causal language model is one of theirs", mixin_cases, "transformers"),
    Suite("models of transformers, Trainer", "`attn_implementation=\"fourier\"`", model_cases, library="transformers"),
    Suite("torch, sample inputs of scaled_dot_product_attention", "`fourier_attention`", sdpa_cases, library="torch"),
    Suite("flash-linear-attention naive.py", "our formulas are theirs", naive_cases, "flash-linear-attention"),
    Suite("zoology multiquery_ar", "our recall data is the task of the literature", recall_cases, "zoology"),
)  # fmt: skip


def skip(reason: str) -> None:
    raise Skipped(reason)


def outcome(call: Callable[[], object]) -> tuple[str, str]:
    """("passed", ""), or "skipped" or "failed" with the reason."""
    try:
        call()
    except (Skipped, unittest.SkipTest) as error:
        return "skipped", first_line(error)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        if type(error).__name__ == "Skipped":  # of pytest
            return "skipped", first_line(error)
        return "failed", f"{type(error).__name__}: {first_line(error)}"
    return "passed", ""


def version_of(suite: Suite, folder: Path) -> str:
    """The version of a library or of a source archive; the commit of a checkout."""
    if suite.library:
        return version(suite.library)
    archive = folder / "PKG-INFO"
    if archive.is_file():
        return re.findall(r"^Version: (.*)$", archive.read_text(encoding="utf-8"), flags=re.M)[0]
    command = ["git", "-C", str(folder), "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def row(suite: Suite, root: Path | None, verbose: bool) -> dict[str, str]:
    folder = (root or Path()) / suite.folder
    facts = {"suite": suite.name, "shows": suite.proves, "version": "", "run": "0", "passed": "0", "failed": "0"}
    if suite.folder and (root is None or not folder.is_dir()):
        return facts | {"skipped": "0", "reasons": f"no folder {suite.folder} in --suites"}
    counts, reasons = Counter[str](), Counter[str]()
    try:
        for name, call in suite.cases(folder):
            result, reason = outcome(call)
            counts[result] += 1
            if result == "skipped":
                reasons[reason] += 1
            if result == "failed" or verbose:
                echo(f"{suite.name}: {name}: {result} {reason}")
    except (ImportError, Skipped) as error:
        reasons[f"cannot run: {first_line(error)}"] += 1
    texts = [f"{reason} ({count})" for reason, count in reasons.most_common(8)]
    if len(reasons) > 8:
        texts.append(f"{len(reasons) - 8} other reasons ({sum(count for _, count in reasons.most_common()[8:])})")
    numbers = {name: str(counts[name]) for name in ("passed", "failed", "skipped")}
    run = str(counts["passed"] + counts["failed"])
    return facts | {"version": version_of(suite, folder), "run": run} | numbers | {"reasons": "; ".join(texts)}


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--suites", type=Path, help="a folder of checkouts")
    parser.add_argument("--only", default="", help="only suites with this in their name; writes no file")
    parser.add_argument("--verbose", action="store_true", help="a line for every case, not only for failures")
    arguments = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.manual_seed(0)
    root = arguments.suites.absolute() if arguments.suites else None
    chosen = [suite for suite in SUITES if arguments.only in suite.name]
    with exit_on_user_error():
        if root and not root.is_dir():
            raise SetupError(f"--suites {arguments.suites}: no such folder. Name one with checkouts, or leave it out")
        if not chosen:
            names = ", ".join(suite.name for suite in SUITES)
            raise SetupError(f"--only {arguments.only}: no suite has this in its name. Choose from {names}")
    rows = [row(suite, root, arguments.verbose) for suite in chosen]
    for line in rows:
        echo("  ".join(f"{key} {value}" for key, value in line.items() if key != "shows"))
    if not arguments.only:
        libraries = ("torch", "timm", "transformers")
        write_csv(MEASURED / "outside.csv", rows, header("scripts/validate_outside.py", libraries, machine=machine()))
    if any(int(line["failed"]) for line in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
