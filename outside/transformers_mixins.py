"""transformers: its tests of a model, of our causal language model."""

import importlib.util
import sys
import types
import unittest
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

from outside.cases import Case, Skipped, skip


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
