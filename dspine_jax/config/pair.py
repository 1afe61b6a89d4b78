"""Does this drafter belong to this target? Checked before anything is compiled."""

from collections.abc import Mapping
from typing import Any

from dspine_jax.config.drafter import DrafterConfig
from dspine_jax.config.quantization import BlockFp8
from dspine_jax.config.strict import ConfigError
from dspine_jax.config.target import TargetConfig


def check_pair(
    target: TargetConfig,
    drafter: DrafterConfig,
    *,
    block_size: int | None = None,
    target_quantization: Mapping[str, Any] | None = None,
    drafter_quantization: Mapping[str, Any] | None = None,
) -> None:
    """Raise ConfigError, which lists every reason why the two cannot work together.

    `block_size` is what a caller asked for, if anything: another size than the checkpoint's changes what the
    drafter computes. The quantisation mappings are the `quantization_config` of each checkpoint; a quantised
    target is accepted while its output head is not quantised.
    """
    faults = [
        f"{name}: the target has {got}, the drafter wants {wanted}. Use the target that it was trained for."
        for name, got, wanted in (
            ("hidden_size", target.hidden_size, drafter.hidden_size),
            ("vocab_size", target.vocab_size, drafter.vocab_size),
            ("num_target_layers", target.num_hidden_layers, drafter.num_target_layers),
        )
        if got != wanted
    ]
    outside = [i for i in drafter.target_layer_ids if i >= target.num_hidden_layers - 1]
    if outside:
        faults.append(
            f"target_layer_ids: got {outside} among {list(drafter.target_layer_ids)}; "
            f"wanted ids below the target's last layer {target.num_hidden_layers - 1}."
        )
    for name, got, limit in (
        ("mask_token_id", drafter.mask_token_id, target.vocab_size - 1),
        ("head_topk", drafter.head_topk, target.vocab_size),
    ):
        if got > limit:
            faults.append(
                f"{name}: got {got}; wanted at most {limit}: the target's vocabulary has {target.vocab_size}."
            )
    if block_size is not None and block_size != drafter.block_size:
        faults.append(
            f"block_size: got {block_size}; wanted {drafter.block_size}, which the drafter was trained with. "
            "Leave the block size out."
        )
    faults += _quantization_faults(target, target_quantization, drafter_quantization)
    if faults:
        raise ConfigError("target and drafter do not fit together", faults)


def _quantization_faults(
    target: TargetConfig,
    target_quantization: Mapping[str, Any] | None,
    drafter_quantization: Mapping[str, Any] | None,
) -> list[str]:
    faults: list[str] = []
    if target_quantization is not None:
        try:
            head_fault = BlockFp8.from_mapping(target_quantization).head_fault()
        except ConfigError as error:
            faults += [f"target {fault}" for fault in error.faults]
        else:
            # A tied head is the embedding, which block quantisation never touches.
            if head_fault is not None and not target.tie_word_embeddings:
                faults.append(f"target {head_fault}")
    if drafter_quantization is not None:
        method = drafter_quantization.get("quant_method")
        faults.append(
            f"drafter quantization_config: got quant_method {method!r}; wanted an unquantised drafter. "
            "Use its BF16 export."
        )
    return faults
