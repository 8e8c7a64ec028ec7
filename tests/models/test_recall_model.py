"""The model of associative recall: its forward pass written out, and a solution that is known to be right."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from fourierformer import attention
from fourierformer.data.recall.sequences import NOTHING, draw
from fourierformer.models.config import RecallConfig
from fourierformer.models.recall import RecallModel
from tests.data.test_recall_sequences import data

VOCABULARY = 64


def model(name="softmax", length=40, key_dimension=None, same_ids=False, **shape) -> RecallModel:
    torch.manual_seed(0)
    config = RecallConfig(**({"name": "t", "layers": 1, "dim": 32, "heads": 1, "inner": 0} | shape))
    build = partial(attention.build, name)
    return RecallModel(config, VOCABULARY, length, build, key_dimension=key_dimension, same_ids=same_ids)


@pytest.mark.parametrize("same_ids", [True, False])
def test_the_forward_pass_written_out(same_ids):
    net, batch = model(layers=2, inner=16, same_ids=same_ids).double(), draw(data(), 3, seed=1)
    table = net.embedding.weight
    carried = torch.where((batch.companions == NOTHING)[..., None], 0.0, table[batch.companions])
    h = table[batch.tokens] + net.companion_scale * carried
    for layer in net.layers:
        h = h + layer.attention(F.layer_norm(h, (32,), layer.attention_norm.weight, layer.attention_norm.bias))
        h = h + layer.feed_forward(h)
    logits = F.layer_norm(h, (32,), net.norm.weight, net.norm.bias) @ table.T
    expected = torch.stack([rows[places] for rows, places in zip(logits, batch.places, strict=True)])
    torch.testing.assert_close(net(batch), expected)
    assert (net.companion_scale == 1).all() == (not same_ids)


def test_softmax_with_orthogonal_embeddings_recalls_everything():
    """Weights by hand: with one-hot embeddings a query compares the ids of keys and reads the ids of values."""
    net, batch = model(dim=VOCABULARY), draw(data(), 20, seed=2)
    is_key = torch.arange(VOCABULARY) < VOCABULARY // 2
    with torch.no_grad():
        net.embedding.weight.copy_(torch.eye(VOCABULARY))
        of_keys, of_values = torch.diag(is_key.float()), torch.diag((~is_key).float())
        has_value = 2 * torch.outer(is_key.float(), (~is_key).float())  # or a query would see itself
        net.layers[0].attention.qkv.weight.copy_(torch.cat([30 * of_keys, of_keys + has_value, of_values]))
        net.layers[0].attention.proj.weight.copy_(50 * torch.eye(VOCABULARY))
    assert torch.equal(net(batch).argmax(-1), batch.answers)


def test_keys_that_are_vectors_are_projected_and_have_no_word():
    config = data(keys="vectors", dimension=5)
    net, batch = model(key_dimension=5), draw(config, 3, seed=1)
    before = net(batch)
    with torch.no_grad():
        net.embedding.weight[NOTHING] += 1.0  # the word of tokens that have none
    after = net(batch)
    torch.testing.assert_close(before[..., 1:], after[..., 1:])


def test_embeddings_begin_with_norm_1():
    """On average."""
    assert model(dim=1024).embedding.weight.square().sum(1).mean().item() == pytest.approx(1, rel=0.02)
