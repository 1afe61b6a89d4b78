"""The `quantization_config` of a target checkpoint. Only block-scaled FP8 is read."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from dspine_jax.config.strict import ABSENT, ConfigError, Kind, Source, is_int

_BLOCK = Kind(
    "a list of two positive integers [rows, columns]",
    lambda v: isinstance(v, list | tuple) and len(v) == 2 and all(is_int(n) and n > 0 for n in v),
    tuple,
)
_NAMES = Kind(
    "a list of module names, or null",
    lambda v: v is None or (isinstance(v, list | tuple) and all(isinstance(name, str) for name in v)),
    lambda v: None if v is None else tuple(v),
)

IGNORABLE: dict[str, str] = {
    "activation_scheme": "activations are never quantised here: weights are expanded when they are read",
    "modules_to_convert": "the tensors of the checkpoint show what was converted",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockFp8:
    """FP8 (e4m3) weights with one scale per block of `block_size` (rows, columns).

    `unconverted` names the modules that the exporter left alone; None where it does not list them.
    """

    block_size: tuple[int, int]
    unconverted: tuple[str, ...] | None

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Self | None:
        """The quantisation that a whole `config.json` mapping declares, at either level; None without one."""
        text = config.get("text_config")
        levels = [config] + ([text] if isinstance(text, Mapping) else [])
        declared = [level["quantization_config"] for level in levels if level.get("quantization_config") is not None]
        if not declared:
            return None
        if any(other != declared[0] for other in declared[1:]):
            raise ConfigError("quantization_config", ["stands at both levels of the config with different values."])
        return cls.from_mapping(declared[0])

    @classmethod
    def from_mapping(cls, quantization_config: Mapping[str, Any]) -> Self:
        """Parse one `quantization_config` mapping; raises ConfigError for anything but block-scaled FP8."""
        source = Source(quantization_config, "quantization_config")
        read = cls.read(source)
        if read is None:
            raise ConfigError("target config", source.faults)
        return read

    @classmethod
    def read(cls, source: Source) -> Self | None:
        """Parse from an open source, leaving faults there; None when there were any."""
        before = len(source.faults)
        source.expect("quant_method", "fp8", why="Only block-scaled FP8 checkpoints are read.", required=True)
        if len(source.faults) > before:
            # The other keys of another method mean nothing here.
            return None
        source.expect("fmt", "e4m3", "float8_e4m3fn", why="Only e4m3 weights are read.")
        source.expect("scale_fmt", None, "float", "float32", why="Only scales stored as plain numbers are read.")
        block_size = source.take("weight_block_size", _BLOCK)
        skipped = [source.take(key, _NAMES, default=None) for key in ("modules_to_not_convert", "ignored_layers")]
        source.expect("quantize_lm_head", False, why="The output head must stay unquantised.")
        source.close(IGNORABLE)
        if len(source.faults) > before:
            return None
        named = [names for names in skipped if names is not None and names is not ABSENT]
        return cls(
            block_size=block_size,
            unconverted=tuple(dict.fromkeys(name for names in named for name in names)) if named else None,
        )

    def head_fault(self) -> str | None:
        """A sentence when the list of unconverted modules shows that the output head was converted."""
        if self.unconverted is None or any("lm_head" in name for name in self.unconverted):
            return None
        return (
            "quantization_config: the modules left unconverted do not include 'lm_head'; wanted an "
            "unquantised output head, which proposals and verification share."
        )
