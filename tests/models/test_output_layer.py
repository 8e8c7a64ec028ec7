"""The output layer in pieces of rows: equal to the plain formula in float64, with gradients, and small in memory."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from fourierformer.models import output_layer
from fourierformer.models.adaptive import TiedAdaptiveSoftmax
from fourierformer.models.output_layer import nll, total_nll

ROWS, DIM, WORDS = 21, 6, 11


@pytest.fixture(autouse=True)
def four_rows_at_a_time(monkeypatch):
    monkeypatch.setattr(output_layer, "LOGITS", 4 * WORDS)
    monkeypatch.setattr(output_layer, "LEAST_ROWS", 1)


def case(dtype=torch.float64, rows=ROWS, scale=1.0):
    """(hidden, weight, bias), targets."""
    generator = torch.Generator().manual_seed(0)
    shapes = (rows, DIM), (WORDS, DIM), (WORDS,)
    leaves = [(scale * torch.randn(s, generator=generator, dtype=torch.float64)).to(dtype) for s in shapes]
    return [leaf.requires_grad_() for leaf in leaves], torch.randint(0, WORDS, (rows,), generator=generator)


def formula(hidden, weight, bias, targets):
    """Losses by rows, in float64."""
    logits = hidden.double() @ weight.double().T + bias.double()
    return logits.logsumexp(1) - logits.gather(1, targets[:, None])[:, 0]


@pytest.mark.parametrize("rows", [1, 4, 21])
def test_losses_and_gradients_are_those_of_the_formula(rows):
    leaves, targets = case(rows=rows)
    expected = formula(*leaves, targets)
    torch.testing.assert_close(nll(*leaves, targets), expected)
    total = total_nll(*leaves, targets)
    torch.testing.assert_close(total, expected.sum())
    # the gradient of the total is some number: the share of a micro-batch, a loss scale
    gradients = torch.autograd.grad(-3.5 * total, leaves)
    torch.testing.assert_close(gradients, torch.autograd.grad(-3.5 * expected.sum(), leaves))


def test_gradcheck():
    leaves, targets = case(rows=7)
    assert torch.autograd.gradcheck(lambda *leaves: total_nll(*leaves, targets), leaves)


def test_a_second_derivative_is_refused():
    """It was that of a loss whose gradient is constant."""
    leaves, targets = case(rows=7)
    gradients = torch.autograd.grad(total_nll(*leaves, targets), leaves, create_graph=True)
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        torch.autograd.grad(gradients[0].sum(), leaves)


def test_float32_is_as_exact_as_the_plain_product():
    leaves, targets = case(torch.float32)
    exact = formula(*leaves, targets).sum()
    total = total_nll(*leaves, targets)
    assert total.dtype == torch.float32
    torch.testing.assert_close(total.double(), exact, rtol=1e-6, atol=0)
    gradients, truth = torch.autograd.grad(total, leaves), torch.autograd.grad(exact, leaves)
    torch.testing.assert_close(gradients, truth, rtol=1e-5, atol=1e-5)


def test_a_target_whose_probability_underflows():
    leaves, targets = case(torch.float32, scale=20.0)
    expected = formula(*leaves, targets)
    assert expected.max() > 200  # exp(-200) is 0 in float32
    total = total_nll(*leaves, targets)
    torch.testing.assert_close(total.double(), expected.sum(), rtol=1e-5, atol=0)
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(total, leaves))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_no_worse_than_plain_autograd(dtype):
    leaves, targets = case(torch.float32)
    exact = formula(*leaves, targets).sum()
    truth = torch.autograd.grad(exact, leaves)
    with torch.autocast("cpu", dtype):
        ours = total_nll(*leaves, targets)
        plain = F.cross_entropy(F.linear(*leaves).float(), targets, reduction="sum")
    assert ours.dtype == torch.float32
    assert (ours - exact).abs() <= (plain - exact).abs() + 1e-3 * exact
    gradients = (torch.autograd.grad(loss, leaves) for loss in (ours, plain))
    for mine, theirs, true in zip(*gradients, truth, strict=True):
        assert mine.dtype == torch.float32
        assert (mine - true).norm() <= 1.2 * (theirs - true).norm() + 1e-3 * true.norm()


def test_no_gradient_work_without_gradients(monkeypatch):
    leaves, targets = case()
    monkeypatch.setattr(output_layer, "_add_gradients", None)
    with torch.no_grad():
        torch.testing.assert_close(total_nll(*leaves, targets), formula(*leaves, targets).sum())


def test_gradients_only_where_they_are_wanted():
    (hidden, weight, bias), targets = case()
    total = total_nll(hidden, weight.detach(), bias.detach(), targets)
    expected = formula(hidden, weight, bias, targets).sum()
    torch.testing.assert_close(*(torch.autograd.grad(loss, hidden)[0] for loss in (total, expected)))


@pytest.mark.parametrize("cutoffs", [(), (3,), (3, 5, 9)])
def test_the_mean_of_the_adaptive_softmax_and_its_gradients(cutoffs):
    (hidden, weight, _), targets = case()
    output = TiedAdaptiveSoftmax(WORDS, DIM, cutoffs).double()
    for parameter in output.parameters():
        torch.nn.init.normal_(parameter)
    leaves = [hidden, weight, *output.parameters()]
    losses = output.nll(hidden, targets, weight)
    mean = output.mean_nll(hidden, targets, weight)
    torch.testing.assert_close(mean, losses.mean())
    torch.testing.assert_close(torch.autograd.grad(mean, leaves), torch.autograd.grad(losses.mean(), leaves))


class Largest(TorchDispatchMode):
    """The most numbers in a tensor made inside the block."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, list | tuple) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return result


def test_all_logits_are_never_there_together():
    leaves, targets = case(rows=400)
    with Largest() as largest:
        total_nll(*leaves, targets).backward()
    assert largest.numbers == 400 * DIM  # hidden states; the logits are 400 * WORDS
    with Largest() as largest, torch.no_grad():
        nll(*leaves, targets)
    assert largest.numbers < 400 * WORDS
