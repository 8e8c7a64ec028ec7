"""The paper's order of tokens, by its published arithmetic and against a literal loop."""

import numpy as np
import pytest
import torch

from fourierformer.data.text.streams import OrderedStreams, windows
from fourierformer.errors import SetupError

TRAIN = np.broadcast_to(np.uint32(7), (103_227_021,))  # as long as WikiText-103, without its memory


@pytest.mark.parametrize(
    ("batch_size", "length", "steps", "last"),
    [(96, 256, 4_201, 80), (56, 384, 4_801, 138)],
    ids=["small", "medium"],
)
def test_the_papers_epochs(batch_size, length, steps, last):
    streams = OrderedStreams(TRAIN, batch_size, length)
    assert streams.steps_per_epoch == steps
    assert streams.batch(0)[0].shape == (batch_size, length)
    assert streams.batch(steps - 1)[0].shape == streams.batch(steps - 1)[1].shape == (batch_size, last)
    assert streams.batch(steps)[0].shape == (batch_size, length)


def literal_epoch(tokens, batch_size, length):
    """The order written out: cut into streams, walk along them, the target is the next token."""
    per_stream = len(tokens) // batch_size
    rows = [tokens[b * per_stream : (b + 1) * per_stream] for b in range(batch_size)]
    for start in range(0, per_stream - 1, length):
        stop = min(start + length, per_stream - 1)
        yield [row[start:stop] for row in rows], [row[start + 1 : stop + 1] for row in rows]


@pytest.mark.parametrize("count", [100, 101, 106, 113, 120])
def test_every_epoch_is_the_literal_order(count):
    tokens = np.arange(count, dtype=np.uint16)
    streams = OrderedStreams(tokens, 4, 6)
    expected = list(literal_epoch(list(range(count)), 4, 6))
    assert streams.steps_per_epoch == len(expected)
    for step in range(2 * len(expected)):
        inputs, targets = streams.batch(step)
        assert inputs.dtype == targets.dtype == torch.int64
        assert inputs.tolist() == expected[step % len(expected)][0]
        assert targets.tolist() == expected[step % len(expected)][1]


def test_processes_share_the_streams_without_overlap():
    streams = OrderedStreams(np.arange(1000, dtype=np.uint16), 8, 10)
    for step in (0, 5, streams.steps_per_epoch - 1):
        whole = streams.batch(step)
        parts = [streams.batch(step, rank, 4) for rank in range(4)]
        assert all(torch.equal(torch.cat([part[i] for part in parts]), whole[i]) for i in range(2))


def test_a_batch_that_cannot_be_shared_or_filled_is_named():
    streams = OrderedStreams(np.arange(1000, dtype=np.uint16), 8, 10)
    with pytest.raises(SetupError, match="8 streams cannot be shared equally by 3"):
        streams.batch(0, 0, 3)
    with pytest.raises(SetupError, match=r"1,000 tokens are too few for 8 streams of 125 \+ 1"):
        OrderedStreams(np.arange(1000, dtype=np.uint16), 8, 125)
    assert OrderedStreams(np.arange(1000, dtype=np.uint16), 8, 124).steps_per_epoch == 1


def test_batches_do_not_alias_the_tokens():
    tokens = np.arange(100, dtype=np.uint16)
    streams = OrderedStreams(tokens, 2, 10)
    inputs, targets = streams.batch(0)
    inputs.zero_()
    assert targets[0, 0] == 1
    assert streams.batch(0)[0][0, 5] == 5


@pytest.mark.parametrize(
    ("count", "length", "number"),
    [(217_646, 256, 217_390), (245_569, 256, 245_313), (217_646, 384, 217_262), (245_569, 384, 245_185)],
)
def test_windows_of_the_sliding_evaluation(count, length, number):
    inputs, targets = windows(np.arange(count, dtype=np.uint32), length)
    assert inputs.shape == targets.shape == (number, length)
    assert inputs[0, 0] == 0
    assert targets[-1, -1] == count - 1  # the last token is scored
    assert (targets[5] == inputs[5] + 1).all()


def test_windows_need_one_token_more_than_their_length():
    assert windows(np.arange(11), 10)[0].shape == (1, 10)
    with pytest.raises(SetupError, match="too few for a window of 11"):
        windows(np.arange(11), 11)
