"""Runs transformers' `qwen3_5` and `qwen3` on the cases of a job file. Needs torch; no other file imports this one.

    python torch_target.py JOB.npz OUT.npz

The job holds `cases`, a JSON list of {name, config, prefixes}, and for each name `NAME/ids` [B, T] and
`NAME/weights/PARAMETER`. The answer holds, all in float32: `NAME/logits` [B, T, V], `NAME/layer/N` [B, T, H]
(what decoder layer N returned), and after each prefix length P `NAME/P/state/N` [B, Nv, K, V] and
`NAME/P/conv/N` [B, channels, kernel] of each gated delta layer N. `versions` tells what computed it.
"""

# pyright: reportMissingImports=false

import json
import sys

import numpy as np
import torch
import transformers
from transformers import DynamicCache
from transformers.models.qwen3 import Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5TextConfig

MODELS = {"qwen3": (Qwen3Config, Qwen3ForCausalLM), "qwen3_5_text": (Qwen3_5TextConfig, Qwen3_5ForCausalLM)}

# Kept in float32 whatever the model's dtype, as in published checkpoints.
FLOAT32 = ("linear_attn.A_log", "linear_attn.dt_bias", "linear_attn.norm.weight")


def build(config: dict, weights: dict[str, np.ndarray]) -> torch.nn.Module:
    make_config, make_model = MODELS[config["model_type"]]
    hf_config = make_config(**config)
    hf_config._attn_implementation = "eager"
    model = make_model(hf_config).eval()
    state = {}
    for name, value in weights.items():
        tensor = torch.from_numpy(value)
        if name.endswith("conv1d.weight"):
            tensor = tensor[:, None]
        state[name if name == "lm_head.weight" else f"model.{name}"] = tensor
    if config["tie_word_embeddings"]:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True)
    model.to(getattr(torch, config["dtype"]))
    for name, parameter in model.named_parameters():
        if name.endswith(FLOAT32):
            parameter.data = state[name].float()
    return model


def run_case(case: dict, ids: torch.Tensor, weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    model = build(case["config"], weights)
    out = {}
    hooks = [
        layer.register_forward_hook(
            lambda _module, _args, result, index=index: out.__setitem__(
                f"layer/{index}", result[0] if isinstance(result, tuple) else result
            )
        )
        for index, layer in enumerate(model.model.layers)
    ]
    out["logits"] = model(ids, use_cache=False).logits
    for hook in hooks:
        hook.remove()
    for length in case["prefixes"]:
        cache = DynamicCache(config=model.config)
        model(ids[:, :length], past_key_values=cache, use_cache=True)
        for index, kind in enumerate(model.config.layer_types):
            if kind == "linear_attention":
                out[f"{length}/state/{index}"] = cache.get_recurrent_state(index, state_idx=0).clone()
                out[f"{length}/conv/{index}"] = cache.get_conv_state(index, state_idx=0).clone()
    return {key: value.float().numpy() for key, value in out.items()}


def main(job_path: str, out_path: str) -> None:
    torch.set_num_threads(1)
    with np.load(job_path) as job:
        arrays = dict(job)
    out = {}
    for case in json.loads(str(arrays["cases"])):
        prefix = f"{case['name']}/"
        mine = {key.removeprefix(prefix): value for key, value in arrays.items() if key.startswith(prefix)}
        weights = {key.removeprefix("weights/"): value for key, value in mine.items() if key.startswith("weights/")}
        with torch.no_grad():
            result = run_case(case, torch.from_numpy(mine["ids"]), weights)
        out.update({prefix + key: value for key, value in result.items()})
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "numpy": np.__version__}
    np.savez_compressed(out_path, versions=json.dumps(versions), **out)


if __name__ == "__main__":
    main(*sys.argv[1:])
