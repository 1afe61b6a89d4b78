"""`dspine train`: the two steps of a recipe, each started from the folder that the step before it wrote."""

import argparse
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer

from dspine_jax.errors import WeightsError
from dspine_jax.hf.folder import open_folder
from dspine_jax.hf.plan import report
from dspine_jax.hf.source import Source, target_model
from dspine_jax.training.corpus import encode_files, source_files, standard_library, train_tokenizer
from dspine_jax.training.drafter import drafter_config, train_drafter
from dspine_jax.training.export import write_drafter, write_target
from dspine_jax.training.on_policy import continue_prompts, sample_prompts
from dspine_jax.training.recipe import BUNDLED, read_recipe
from dspine_jax.training.target import target_config, train_target
from dspine_jax.weights import define_target, leaves_of

STEPS = {
    "target": "train the tokenizer and the target on the Python standard library",
    "draft": "distil a drafter from a target in the Hugging Face layout",
}


def build_parser() -> argparse.ArgumentParser:
    """Arguments of `dspine train`."""
    parser = argparse.ArgumentParser(prog="dspine train", description=__doc__)
    steps = parser.add_subparsers(dest="step", required=True)
    for step, text in STEPS.items():
        sub = steps.add_parser(step, help=text, description=text)
        sub.add_argument("--out", type=Path, required=True, help=f"folder that will hold {step}/ and its log")
        sub.add_argument("--recipe", type=Path, default=BUNDLED, help="TOML recipe (default: the bundled pair's)")
        if step == "draft":
            sub.add_argument("--target", type=Path, required=True, help="folder of the target, with tokenizer.json")
    return parser


def main(argv: list[str]) -> int:
    """Runs one step."""
    arguments = build_parser().parse_args(argv)
    recipe = read_recipe(arguments.recipe)
    if arguments.step == "target":
        run_target(arguments.out, recipe)
    else:
        run_draft(arguments.target, arguments.out, recipe)
    return 0


def run_target(out: Path, recipe: Mapping[str, Any]) -> None:
    """Writes out/target and out/target.jsonl."""
    files, held = source_files(standard_library(), recipe["corpus"]["held_out"])
    tokenizer = train_tokenizer(files, recipe["corpus"]["vocab_size"])
    folder = out / "target"
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = target_config(recipe)
    tokens = np.concatenate(encode_files(tokenizer, files))
    held_tokens = np.concatenate(encode_files(tokenizer, held))
    train_target(config, recipe, tokens, held_tokens, out / "target.jsonl", partial(write_target, folder, config))


def run_draft(target: Path, out: Path, recipe: Mapping[str, Any]) -> None:
    """Writes out/draft and out/draft.jsonl."""
    training, seed = recipe["drafter_training"], recipe["seed"]
    files, _ = source_files(standard_library(), recipe["corpus"]["held_out"])
    tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
    model = target_model(open_folder(target), "float32")
    plan = model.resolve({})
    if plan.faults:
        raise WeightsError(report(plan.model, str(target), plan.faults))
    weights = {entry.parameter: array for entry, array in Source(model=model, plan=plan).read()}
    definition, abstract = define_target(model.config, jnp.dtype("float32"), "xla")
    leaves = leaves_of(abstract, weights)

    shortest, longest = training["prompt_tokens"]
    prompts = sample_prompts(
        encode_files(tokenizer, files),
        seed=seed,
        count=training["sequences"],
        shortest=shortest,
        longest=longest,
    )
    sequences = continue_prompts(definition, leaves, model.config, prompts, length=training["sequence"])
    config = drafter_config(recipe, model.config)
    save = partial(write_drafter, out / "draft", config)
    train_drafter(config, recipe, model.config, definition, leaves, sequences, out / "draft.jsonl", save)
