"""Which checkpoint tensor fills which parameter: the name tables of the models, as data.

A parameter's own name (the path in its module) is the checkpoint's name without a prefix, so a row says
only what is not plain: how the stored array becomes the parameter, whether it may be FP8, and facts about
its numbers that the model relies on. Every parameter of a model matches exactly one row.
"""

import re
from dataclasses import dataclass, field

IDENTITY = "identity"
SQUEEZE_CONV = "squeeze_conv"
DEQUANTIZE_BLOCK = "dequantize_block"


@dataclass(frozen=True)
class Row:
    """One family of parameters. `name` may hold N for a layer number."""

    name: str
    transform: str = IDENTITY
    fp8: bool = False
    note: str = ""

    @property
    def pattern(self) -> re.Pattern[str]:
        return _compile(self.name)


@dataclass(frozen=True)
class Ignored:
    """A family of checkpoint tensors that no parameter takes, and why that is right. `name` is a glob."""

    name: str
    reason: str

    @property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(re.escape(self.name).replace(r"\*", ".*"))


@dataclass(frozen=True)
class NameTable:
    """Rows, ignored families, and how a checkpoint spells a parameter's name.

    `prefixes` are tried longest first; `top_level` names carry no prefix; `aliases` map a checkpoint's name
    (after its prefix) to the parameter's.
    """

    model: str
    rows: tuple[Row, ...]
    ignored: tuple[Ignored, ...]
    prefixes: tuple[str, ...]
    top_level: frozenset[str] = frozenset()
    aliases: dict[str, str] = field(default_factory=dict)

    def row(self, parameter: str) -> Row:
        """The row of a parameter; the table covers each parameter once."""
        rows = [row for row in self.rows if row.pattern.fullmatch(parameter)]
        if len(rows) != 1:
            raise LookupError(f"the {self.model} name table has {len(rows)} rows for parameter {parameter!r}")
        return rows[0]

    def parameter(self, tensor: str) -> str:
        """The parameter name that a checkpoint's tensor name spells; it need not exist."""
        if tensor in self.top_level:
            return tensor
        for prefix in self.prefixes:
            if tensor.startswith(prefix):
                rest = tensor.removeprefix(prefix)
                return self.aliases.get(rest, rest) if rest not in self.top_level else tensor
        return self.aliases.get(tensor, tensor)

    def ignored_reason(self, tensor: str) -> str | None:
        return next((rule.reason for rule in self.ignored if rule.pattern.fullmatch(tensor)), None)


def _compile(name: str) -> re.Pattern[str]:
    return re.compile(r"\.".join(r"(0|[1-9]\d*)" if part == "N" else re.escape(part) for part in name.split(".")))


ZERO_CENTRED = "stored as the difference from 1"
PLAIN = "multiplies as stored"
ALWAYS_FP32 = "kept in float32 for every model dtype"
ROTARY = Ignored("*rotary_emb.inv_freq", "rotary frequencies follow from the config")

_MLP = tuple(Row(f"layers.N.mlp.{part}_proj.weight", fp8=True) for part in ("gate", "up", "down"))

TARGET = NameTable(
    model="target",
    prefixes=("model.language_model.", "model."),
    top_level=frozenset({"lm_head.weight"}),
    rows=(
        Row("embed_tokens.weight"),
        Row("norm.weight", note=ZERO_CENTRED),
        Row("lm_head.weight"),
        Row("layers.N.input_layernorm.weight", note=ZERO_CENTRED),
        Row("layers.N.post_attention_layernorm.weight", note=ZERO_CENTRED),
        *_MLP,
        Row("layers.N.linear_attn.in_proj_qkv.weight", fp8=True, note="rows: q, then k, then v"),
        Row("layers.N.linear_attn.in_proj_z.weight", fp8=True),
        Row("layers.N.linear_attn.in_proj_a.weight", fp8=True),
        Row("layers.N.linear_attn.in_proj_b.weight", fp8=True),
        Row(
            "layers.N.linear_attn.conv1d.weight",
            SQUEEZE_CONV,
            note="[channels, 1, kernel] -> [channels, kernel]",
        ),
        Row("layers.N.linear_attn.A_log", note=ALWAYS_FP32),
        Row("layers.N.linear_attn.dt_bias", note=ALWAYS_FP32),
        Row("layers.N.linear_attn.norm.weight", note=f"{PLAIN}; {ALWAYS_FP32}"),
        Row("layers.N.linear_attn.out_proj.weight", fp8=True),
        Row("layers.N.self_attn.q_proj.weight", fp8=True, note="per head: query, then gate"),
        Row("layers.N.self_attn.k_proj.weight", fp8=True),
        Row("layers.N.self_attn.v_proj.weight", fp8=True),
        Row("layers.N.self_attn.o_proj.weight", fp8=True),
        Row("layers.N.self_attn.q_norm.weight", note=ZERO_CENTRED),
        Row("layers.N.self_attn.k_norm.weight", note=ZERO_CENTRED),
    ),
    ignored=(
        Ignored("mtp.*", "the multi-token-prediction layer is not part of the text model"),
        Ignored("model.visual.*", "the vision tower is not part of the text model"),
        ROTARY,
    ),
)

PLAIN_TARGET = NameTable(
    model="target",
    prefixes=("model.",),
    top_level=frozenset({"lm_head.weight"}),
    rows=(
        Row("embed_tokens.weight"),
        Row("norm.weight", note=PLAIN),
        Row("lm_head.weight"),
        Row("layers.N.input_layernorm.weight", note=PLAIN),
        Row("layers.N.post_attention_layernorm.weight", note=PLAIN),
        *_MLP,
        *(Row(f"layers.N.self_attn.{part}_proj.weight", fp8=True) for part in "qkvo"),
        Row("layers.N.self_attn.q_norm.weight", note=PLAIN),
        Row("layers.N.self_attn.k_norm.weight", note=PLAIN),
    ),
    ignored=(ROTARY,),
)

TIED_HEAD = Ignored("lm_head.weight", "tie_word_embeddings is true: the head is the embedding")

DRAFTER = NameTable(
    model="drafter",
    prefixes=("model.",),
    aliases={
        "encoder.fc.weight": "fc.weight",
        "encoder.output_norm_enc.weight": "hidden_norm.weight",
        # As SpecForge exports them.
        "injection.bias": "injection.gate_bias",
        "transfer_codes": "injection.codebook.weight",
    },
    rows=(
        Row("fc.weight"),
        Row("hidden_norm.weight", note=PLAIN),
        Row("norm.weight", note=PLAIN),
        Row("layers.N.input_layernorm.weight", note=PLAIN),
        Row("layers.N.post_attention_layernorm.weight", note=PLAIN),
        *(Row(f"layers.N.mlp.{part}_proj.weight") for part in ("gate", "up", "down")),
        *(Row(f"layers.N.self_attn.{part}_proj.weight") for part in "qkvo"),
        Row("layers.N.self_attn.q_norm.weight", note=PLAIN),
        Row("layers.N.self_attn.k_norm.weight", note=PLAIN),
        Row("injection.readouts.N.weight"),
        Row("injection.writes.N.weight"),
        Row("injection.codebook.weight"),
        Row("injection.receiver_gate.weight"),
        Row("injection.predecessor_gate.weight"),
        Row("injection.message.weight"),
        Row("injection.gate_bias"),
    ),
    ignored=(
        Ignored("embed_tokens.weight", "the drafter uses the target's embedding"),
        Ignored("model.embed_tokens.weight", "the drafter uses the target's embedding"),
        Ignored("lm_head.weight", "the drafter uses the target's head"),
        Ignored("*transfer_ready", "a flag of training: whether the codes have been made"),
        ROTARY,
    ),
)
