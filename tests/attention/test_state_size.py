"""How many numbers decoding keeps: the formulas of the table of attentions, and a count for sparse patterns."""

import re

import pytest

from fourierformer import attention

N, C, H = 40, 32, 4
D = C // H
GEOMETRY = attention.Geometry(dim=C, heads=H, length=N, causal=True)


@pytest.mark.parametrize(
    ("name", "knobs", "expected"),
    [
        ("softmax", {}, 2 * N * C),
        ("lsh", {}, 2 * N * C),  # queries are keys
        ("routing", {}, 2 * N * C),
        ("grouped_query", {"kv_heads": 2}, 2 * N * 2 * D),
        ("synthesizer", {}, N * C),  # no keys
        ("hard_gaussian", {}, N * C),  # values alone
        ("none", {}, 0),
        ("mgk", {}, 3 * N * C),  # two keys
        ("mgk", {"second": "shift"}, 2 * N * C),
        ("mlk", {}, C * D + C + H),
        ("forgetting", {}, 2 * N * C + N * H),
        ("informer", {}, 2 * N * C + N * H),  # how uneven the logits of each earlier query are
        ("sinkhorn", {}, 2 * N * C + C),  # the mean query so far
        ("aft_simple", {}, 3 * C),
        ("aft_simple", {"gate": "none"}, 3 * C),
        ("aft_full", {}, 2 * N * C),
        ("aft_full", {"gate": "none"}, 2 * N * C),
        ("linear_elu", {}, C * D + C + H),
        ("delta_net", {}, C * D + 9 * C),
        ("delta_net", {"conv": 0}, C * D),
        ("gated_delta_net", {}, C * D + 9 * C),
        ("retnet", {}, C * D),
        ("ssd", {}, C * D),
        ("gla", {}, C * D),
        ("bpt", {}, 2 * (40 + 20 + 10 + 5 + 3 + 2 + 1) * C),  # tokens and nodes of the tree
        ("mca", {"ratio": 3}, 2 * (13 + 2) * C),  # 13 blocks, and at most 2 tokens of the next
        # of 8 + 1 near tokens, (12 + 4 - 4) / 2 + 1 windows and 3 tokens of the next
        ("poolingformer", {"near": 8, "far": 12, "kernel": 4, "stride": 2}, 2 * (9 + 7 + 3) * C),
    ],
)
def test_numbers_kept_between_tokens(name, knobs, expected):
    assert attention.build(name, GEOMETRY, **knobs).state_size(N) == expected


@pytest.mark.parametrize(
    ("name", "letters"),
    [
        ("aft_conv", {"s": 11, "aft_heads": 32}),
        ("aft_local", {"s": 32}),
        ("band", {"w": 32}),
        ("block_local", {"b": 32}),
        ("bpt", {}),
        ("dilated", {"w": 16, "step": 2}),
        ("etc", {"w": 32, "s": 8}),
        ("image_1d", {"b": 32, "m": 32}),
        ("longformer", {"w": 32, "dilation": 2, "g": 1}),
        ("luna", {"r": 16}),
        ("mca", {"r": 3}),
        ("sparse_fixed", {"l": 16, "c": 4}),
        ("sparse_strided", {"l": 16}),
        ("taylor", {"M": 153}),
    ],
)
def test_the_table_of_attentions_has_these_numbers_to_a_tenth(name, letters):
    """At the size of lm_small, with the default knobs."""
    facts = {"N": 256, "C": 128, "D": 16, "H": 8, **letters}
    formula = re.sub(r"(?<=[\w)]) (?=[\w(])", " * ", attention.mechanism(name).state)
    layer = attention.build(name, attention.Geometry(dim=128, heads=8, length=256, causal=True))
    assert layer.state_size(256) == pytest.approx(eval(formula, facts), rel=0.1)


def test_a_sparse_pattern_keeps_what_a_later_token_sees():
    layer = attention.build("sparse_strided", GEOMETRY, stride=8)
    visible = layer.shares(N)  # a pattern per head, or one for all
    most = 0
    for now in range(N):
        kept = sum(
            any(pattern[later, key] for later in range(now + 1, N)) for pattern in visible for key in range(now + 1)
        )
        most = max(most, kept * H // len(visible))
    assert 8 < most < H * N
    assert layer.state_size(N) == 2 * D * most
