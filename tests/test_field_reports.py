"""Faults that were reported of other programs and that no other file of tests covers: see docs/field-tests.md."""

import dataclasses
import itertools
import json
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from convert.cli import main as convert
from dspine_jax import Stream, generate_plain, load, load_hf, loop
from dspine_jax.generate import collect, prefill
from dspine_jax.request import check_requests, new_state
from serve import generate_cli
from tests.copying import copying_pair
from tests.scripted import TARGET, TOKENS, generate_scripted, pair_of, plain_requests, random_prompts
from tests.text_pair import PROMPT, TextPair, text_pair


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> TextPair:
    return text_pair(tmp_path_factory.getbasetemp())


def edit_json(path, **changes) -> None:
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(content | changes))


def continued(pair, prompt, new, **options) -> tuple[list[int], str]:
    stream = Stream(pair, prompt, max_new_tokens=new, **options)
    tokens = np.concatenate(list(stream)).tolist()
    return tokens, stream.result().finish_reason[0]


def test_stop_ids_of_three_files_end_a_text(folders, tmp_path, capsys):
    """config.json names one id, generation_config.json another as well, the tokenizer a third: the second comes."""
    pair = load_hf(target=folders.target, draft=folders.draft)
    tokenizer = generate_cli.TextModel.read(folders.target).tokenizer
    prompt, new = tokenizer.encode(PROMPT).ids, 40
    unlimited, _ = continued(pair, prompt, new, stop_token_ids=[], speculative=False)
    end = next(i for i in range(8, new) if unlimited[i] not in unlimited[:i])
    first, third = sorted(set(range(256)) - set(unlimited))[:2]
    second = unlimited[end]

    target = shutil.copytree(folders.target, tmp_path / "target")
    edit_json(target / "config.json", eos_token_id=first)
    edit_json(target / "generation_config.json", eos_token_id=[first, second])
    edit_json(target / "tokenizer_config.json", eos_token=tokenizer.id_to_token(third))
    assert convert(["--target", str(target), "--draft", str(folders.draft), "--out", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    raw = load_hf(target=target, draft=folders.draft)
    assert raw.target_config.eos_token_ids == (first, second)
    for pair in (raw, load(tmp_path / "out")):
        assert continued(pair, prompt, new) == (unlimited[: end + 1], "stop")
        # Without the one from generation_config.json the text would have gone on.
        assert continued(pair, prompt, new, stop_token_ids=[first, third]) == (unlimited, "length")
    assert generate_cli.main([str(tmp_path / "out"), PROMPT, "--max-new-tokens", str(new), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["token_ids"], printed["finish_reason"]) == (unlimited[: end + 1], "stop")


def test_rotary_sections_of_a_multimodal_target_change_no_program(folders, tmp_path):
    """Text positions are one number per token for target and drafter alike, whatever the sections say."""
    target = shutil.copytree(folders.target, tmp_path / "target")
    rope = json.loads((target / "config.json").read_text())["rope_parameters"]
    sections = {"mrope_section": [2, 1, 1], "mrope_interleaved": True}
    edit_json(target / "config.json", rope_parameters=rope | sections)
    assert load_hf(target=target, draft=folders.draft).plan == load_hf(target=folders.target, draft=folders.draft).plan


@pytest.mark.parametrize("right", [None, 15, lambda place: place % 7])
def test_every_slot_may_fill_the_context_at_once(right):
    prompts = random_prompts(91, [TARGET.max_position_embeddings - TOKENS] * 8)
    result = generate_scripted(pair_of(), plain_requests(pair_of(), prompts), [right] * 8)
    assert [len(tokens) for tokens in result.tokens] == [TOKENS] * 8


def test_proposals_do_not_depend_on_a_neighbours_limit():
    """Two rows of one batch are cut after different numbers of tokens: each drafts as it does alone."""
    pair, new = copying_pair(), 48
    prompts = random_prompts(92, [20, 45])

    def run(rows, limits):
        batch = check_requests(pair.target_config, [prompts[row] for row in rows], new, [])
        state = new_state(batch, pair.target_config, pair.drafter_config, pair.dtype)
        state = dataclasses.replace(state, limit=jnp.asarray(limits, dtype=jnp.int32))
        state = loop.run(pair.plan, pair.weights, prefill(pair.plan, pair.weights, state, batch))
        return collect(batch, state, pair.drafter_config.block_size)

    together = run([0, 1], [11, 37])
    for row, limit in ((0, 11), (1, 37)):
        alone = run([row], [limit])
        np.testing.assert_array_equal(together.tokens[row], alone.tokens[0])
        np.testing.assert_array_equal(together.stats.accepted[row], alone.stats.accepted[0])
        assert len(alone.tokens[0]) == limit and alone.stats.accepted[0].any()


def test_two_conversations_in_turn():
    """Cycles of both alternate; the second turns, longer than the first, start from the first ones' answers."""
    pair, options = copying_pair(), {"max_new_tokens": 40, "stop_token_ids": []}
    prompts = random_prompts(93, [90, 3])
    for _ in range(2):
        streams = [Stream(pair, prompt, **options) for prompt in prompts]
        for _ in itertools.zip_longest(*streams):
            pass
        answers = []
        for prompt, stream in zip(prompts, streams, strict=True):
            got, alone = stream.result(), Stream(pair, prompt, **options)
            list(alone)
            answers.append(generate_plain(pair, [prompt], **options).tokens[0].tolist())
            assert got.tokens[0].tolist() == answers[-1]
            np.testing.assert_array_equal(got.stats.accepted[0], alone.result().stats.accepted[0])
            assert got.stats.accepted[0].any()
        prompts = [[*prompt, *answer, 7] for prompt, answer in zip(prompts, answers, strict=True)]
