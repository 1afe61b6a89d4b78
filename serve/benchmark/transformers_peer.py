"""Times transformers' plain `generate` on a Hugging Face folder. Runs in its own process; imports nothing of ours.

    python transformers_peer.py JOB.json ANSWER.json

The job: `target` (folder), `prompts` of equal length, `max_new_tokens`, `concurrency` (list), `repeats`. The answer:
`runs`, for each concurrency its `repeats` (for each group of prompts the `times` in seconds at which the scores of new
token 1, 2, ... were there, the last one being the end of the call) and the `tokens` of each prompt; `assisted`, why
DFlash assisted generation was not measured; `threads`; `versions`.
"""

# pyright: reportMissingImports=false

import json
import sys
import time

import torch
import transformers
from transformers import AutoModelForCausalLM, LogitsProcessor, LogitsProcessorList


class Clock(LogitsProcessor):
    """Changes nothing: notes when the scores of each new token are there."""

    def __init__(self):
        self.times = []

    def __call__(self, input_ids, scores):
        self.times.append(time.perf_counter())
        return scores


def generate(model, prompts, new):
    clock = Clock()
    ids = torch.tensor(prompts)
    start = time.perf_counter()
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=new,
        min_new_tokens=new,
        logits_processor=LogitsProcessorList([clock]),
    )
    end = time.perf_counter()
    times = [moment - start for moment in clock.times]
    times[-1] = end - start
    return times, out[:, ids.shape[1] :].tolist()


def assisted(model, prompt):
    """What transformers says about its assisted generation for this target."""
    ids = torch.tensor([prompt])
    try:
        model.generate(ids, do_sample=False, max_new_tokens=4, assistant_model=model, speculation_type="dflash")
    except Exception as error:  # whatever it is, the report quotes it
        return f"it refuses this target: {type(error).__name__}: {error}"
    return "it takes this target, but there is no DFlash drafter for it"


def main(job_path, answer_path):
    with open(job_path, encoding="utf-8") as file:
        job = json.load(file)
    model = AutoModelForCausalLM.from_pretrained(job["target"]).eval()
    # Every request emits max_new_tokens, as in the run beside this one.
    model.generation_config.eos_token_id = None
    prompts, new, runs = job["prompts"], job["max_new_tokens"], []
    with torch.no_grad():
        for size in job["concurrency"]:
            groups = [prompts[first : first + size] for first in range(0, len(prompts), size)]
            generate(model, groups[0], new)
            repeats = []
            for _ in range(job["repeats"]):
                results = [generate(model, group, new) for group in groups]
                repeats.append([{"times": times} for times, _ in results])
            tokens = [row for _, rows in results for row in rows]
            runs.append({"concurrency": size, "repeats": repeats, "tokens": tokens})
    answer = {
        "runs": runs,
        "assisted": assisted(model, prompts[0]),
        "threads": torch.get_num_threads(),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    with open(answer_path, "w", encoding="utf-8") as file:
        json.dump(answer, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
