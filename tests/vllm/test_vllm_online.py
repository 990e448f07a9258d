"""Online mode in the plugin: lengths of draft change from step to step, and nothing that is said."""

import pytest
from serving_prompts import VEGAS, prompts

LIMITS = {"max_model_len": 256, "max_num_seqs": 4}
SIZES = [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]
"""Token counts that vLLM captures graphs of by itself."""


@pytest.fixture(scope="module")
def pair(engines):
    """Stock vLLM, and Vegas in online mode, to whom weights cost nothing."""
    engines.start("plain-cost", "qwen3", **LIMITS)
    engines.cost_of_a_pass(weights=1.0, per_token=1.0)
    engines.stop_the_clock()
    engines.start("online", "qwen3", speculative_config={**VEGAS, "adaptive": True, "fall_back": True}, **LIMITS)
    return engines


def same(pair, tokens, options):
    """Generate with both; assert that they say the same, and return which lengths were drafted how often."""
    before = pair.lengths_seen("online")
    assert pair.generate("online", tokens, options) == pair.generate("plain-cost", tokens, options)
    return {length: count - before.get(length, 0) for length, count in pair.lengths_seen("online").items()}


def test_output_stays_the_same(pair):
    """Through every change among 0, 1, 2 and 3 drafts, also with wrong ones."""
    pair.adapt_by("online", [3, 2, 0, 1, 1, 3, 0, 0, 2])
    tokens = prompts(70, 1, 130, 9, 40, seed=40)
    assert set(same(pair, tokens, {"max_tokens": 16})) == {1, 2, 3}
    pair.corrupt_drafts("online", 0.4)
    same(pair, tokens, {"max_tokens": 16})
    pair.corrupt_drafts("online", 0)
    pair.adapt_by("online", None)


def test_drafts_follow_acceptance(pair):
    """Some while some are accepted, next to none once they are all wrong."""
    tokens = prompts(180, 190, 200, seed=41)
    assert sum(same(pair, tokens, {"max_tokens": 40}).values()) > 10
    pair.corrupt_drafts("online", 1.0)
    same(pair, tokens, {"max_tokens": 40})
    assert sum(same(pair, tokens, {"max_tokens": 40}).values()) < 4
    pair.corrupt_drafts("online", 0)


@pytest.mark.parametrize("lengths", [[0, 6], [0, 2, 4, 6], [6, 11, 16]])
def test_full_graphs(engines, lengths):
    """Every uniform batch finds one, of at most twice as many requests, 8 more from 8 on; by vLLM's rule not every."""
    found, _ = engines.graphs_found(lengths, 40, SIZES, True)
    for (requests, rows), graph in found.items():
        if requests * rows <= SIZES[-1]:
            assert requests <= graph <= requests + min(requests, 8)
        else:
            assert graph is None
    assert None in [
        graph for (n, rows), graph in engines.graphs_found(lengths, 40, SIZES, False)[0].items() if n * rows <= 280
    ]


@pytest.mark.parametrize("most", [1, 3, 12, 100])
def test_full_graphs_of_the_draft_loop(engines, most):
    """Every batch finds one, whatever the most requests are, as long as captured sizes reach so far."""
    assert engines.draft_graphs_found(most, SIZES)[-1] == most
    for requests, graph in enumerate(engines.draft_graphs_found(most, SIZES), 1):
        assert requests <= graph <= requests + min(requests, 8)
    assert engines.draft_graphs_found(12, [1, 2, 4, 8]) == [1, 2, 4, 4, 8, 8, 8, 8, None, None, None, None]
