"""The drafter's parallel part: context fusion, five (or so) layers over one block, a bridge after each."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from dspine_jax.cache.draft_ring import DraftCache
from dspine_jax.config import DrafterConfig
from dspine_jax.drafter.attention import DraftAttention
from dspine_jax.layers import Embedding, GatedMLP, Linear, Scale
from dspine_jax.norms import rms_norm
from pallas_kernels.attention_inputs import rotate_and_store, rotate_heads
from pallas_kernels.bridge import BridgeGates, bridge
from pallas_kernels.implementation import Implementation
from pallas_kernels.projection import project, project_norm
from pallas_kernels.row_norm import RowNorm
from pallas_kernels.tail import refine


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["hidden", "residual", "magnitude", "code"], meta_fields=[]
)
@dataclasses.dataclass(frozen=True)
class DraftStates:
    """What the tail needs of the proposal rows 1 .. T-1."""

    hidden: Float[Array, "B T-1 H"]  # after the last write and the final norm
    residual: Float[Array, "B T-1 H"]  # x before the last write
    magnitude: Float[Array, "B T-1 1"]  # r, float32
    code: Float[Array, "B T-1 C"]  # c of the receiver rows, float32


class DraftLayer(nnx.Module):
    """Pre-norm block attention, then pre-norm MLP."""

    def __init__(self, config: DrafterConfig, kind: str, dtype: jnp.dtype, implementation: Implementation | None):
        self.config = config
        self.implementation: Implementation | None = implementation
        self.input_layernorm = Scale(config.hidden_size, dtype)
        self.self_attn = DraftAttention(config, kind, dtype, implementation)
        self.post_attention_layernorm = Scale(config.hidden_size, dtype)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size, dtype)

    def __call__(self, x, positions, context):
        eps = self.config.rms_norm_eps
        inner = RowNorm(self.post_attention_layernorm.weight[...], eps, "plain")
        normed = rms_norm(x, self.input_layernorm.weight[...], eps)
        x, normed = self.self_attn(normed, x, inner, positions, context)
        # What comes next is a bridge, which changes the rows before anything takes their norm.
        return self.mlp(normed, x, self.implementation)


class Injection(nnx.Module):
    """Weights of the bridge: a readout and a write per layer, the shared gates, the token codebook."""

    def __init__(self, config: DrafterConfig, dtype: jnp.dtype):
        hidden, code, message = config.hidden_size, config.transfer_dim, config.message_dim
        layers = range(config.num_hidden_layers)
        self.readouts = nnx.List([Linear(code, hidden, dtype) for _ in layers])
        self.writes = nnx.List([Linear(hidden, message, dtype) for _ in layers])
        self.codebook = Embedding(config.vocab_size, code, dtype)
        self.receiver_gate = Linear(message, code, dtype)
        self.predecessor_gate = Linear(message, code, dtype)
        self.message = Linear(message, code, dtype)
        self.gate_bias = nnx.Param(jnp.zeros((message,), dtype))

    @property
    def gates(self) -> BridgeGates:
        """The shared projections G, Gp, A and b."""
        return BridgeGates(
            receiver_gate=self.receiver_gate.weight[...],
            predecessor_gate=self.predecessor_gate.weight[...],
            message=self.message.weight[...],
            gate_bias=self.gate_bias[...],
        )

    def token_code(self, ids: Int[Array, "*R"]) -> Float[Array, "*R C"]:
        """sqrt(C) E[id] in float32: the code of a known token."""
        codes = self.codebook(ids).astype(jnp.float32)
        return codes.shape[-1] ** 0.5 * codes


class Drafter(nnx.Module):
    """Parameter paths are the checkpoint's names; embedding and head belong to the target and come as arguments."""

    def __init__(
        self,
        config: DrafterConfig,
        dtype: jnp.dtype = jnp.bfloat16,
        implementation: Implementation | None = None,
    ):
        self.config = config
        self.implementation: Implementation | None = implementation
        features = len(config.target_layer_ids) * config.hidden_size
        self.fc = Linear(config.hidden_size, features, dtype)
        self.hidden_norm = Scale(config.hidden_size, dtype)
        self.layers = nnx.List([DraftLayer(config, kind, dtype, implementation) for kind in config.layer_types])
        self.norm = Scale(config.hidden_size, dtype)
        self.injection = Injection(config, dtype)

    def write_context(
        self,
        features: Float[Array, "B T F"],
        positions: Int[Array, "B T"],
        valid: Bool[Array, "B T"],
        cache: DraftCache,
    ) -> DraftCache:
        """Fuses target features once and stores every layer's keys and values of the valid rows."""
        rings = []
        for layer, ring, (k, v) in zip(self.layers, cache.layers, self._context_rows(features), strict=True):
            _, *stored = rotate_and_store(
                [],
                layer.self_attn.keys(k),
                v,
                *ring.rows,
                ring.places(positions, valid),
                positions,
                layer.self_attn.rope,
                implementation=self._for_rows(features),
            )
            rings.append(ring.with_rows(*stored))
        return DraftCache(layers=tuple(rings))

    def context(
        self, features: Float[Array, "B T F"], positions: Int[Array, "B T"]
    ) -> list[tuple[Float[Array, "B T K D"], Float[Array, "B T K D"]]]:
        """Keys and values of every layer for target features at these positions."""
        implementation = self._for_rows(features)
        heads = []
        for layer, (k, v) in zip(self.layers, self._context_rows(features), strict=True):
            own = layer.self_attn
            (k,) = rotate_heads([own.keys(k)], positions, own.rope, implementation=implementation)
            heads.append((k, v.reshape(k.shape)))
        return heads

    def _context_rows(self, features):
        """What k_proj and v_proj of every layer give for these features; all layers read the same rows."""
        weights = [one.weight[...] for layer in self.layers for one in (layer.self_attn.k_proj, layer.self_attn.v_proj)]
        both = project(self.fuse(features), weights, implementation=self._for_rows(features))
        return list(zip(both[::2], both[1::2], strict=True))

    def fuse(self, features: Float[Array, "B T F"]) -> Float[Array, "B T H"]:
        """C = RMSNorm(fc(features); hidden_norm); it does not pass through any input_layernorm."""
        norm = RowNorm(self.hidden_norm.weight[...], self.config.rms_norm_eps, "plain")
        _, fused = project_norm(features, self.fc.weight[...], None, norm, implementation=self._for_rows(features))
        return fused

    def _for_rows(self, features):
        """The kernels serve blocks; a prompt chunk's dense work is XLA's."""
        chunk = features.shape[1] > self.config.block_size
        return "xla" if chunk and self.implementation != "reference" else self.implementation

    def __call__(
        self,
        anchor: Int[Array, " B"],
        position: Int[Array, " B"],
        cache: DraftCache,
        embedding: Float[Array, "V H"],
        *,
        bridged: bool = True,
    ) -> DraftStates:
        """One block per slot: row 0 is the anchor at `position`, rows 1 .. block_size - 1 are to be proposed.

        `bridged=False` leaves every write out (an ablation); the tail can still make the last one.
        """
        cfg = self.config
        rows = cfg.block_size
        masks = jnp.full((anchor.shape[0], rows - 1), cfg.mask_token_id, anchor.dtype)
        x = embedding[jnp.concatenate([anchor[:, None], masks], axis=1)]
        positions = position[:, None] + jnp.arange(rows, dtype=position.dtype)[None, :]
        return self.run_block(x, positions, anchor, cache, bridged=bridged)

    def run_block(
        self,
        x: Float[Array, "B T H"],
        positions: Int[Array, "B T"],
        anchor: Int[Array, " B"],
        cache: DraftCache,
        *,
        bridged: bool,
    ) -> DraftStates:
        """The layers and their bridges over embedded rows."""
        inj = self.injection
        anchor_code = inj.token_code(anchor)
        before = x
        r = jnp.zeros((*x.shape[:2], 1), jnp.float32)
        c = jnp.zeros((*x.shape[:2], self.config.transfer_dim), jnp.float32)
        weights = zip(self.layers, cache.layers, inj.readouts, inj.writes, strict=True)
        for index, (layer, context, readout, write) in enumerate(weights):
            x = before = layer(x, positions, context)
            if bridged or index == len(self.layers) - 1:
                written, r, c = bridge(
                    before,
                    anchor_code,
                    readout.weight[...],
                    write.weight[...],
                    inj.gates,
                    eps=self.config.rms_norm_eps,
                    implementation=self.implementation,
                )
                x = written if bridged else x
        hidden = rms_norm(x[:, 1:], self.norm.weight[...], self.config.rms_norm_eps)
        return DraftStates(hidden=hidden, residual=before[:, 1:], magnitude=r[:, 1:], code=c[:, 1:])

    def refine(self, states: DraftStates, predecessor: Int[Array, "B T-1 U"]) -> Float[Array, "B T-1 U H"]:
        """h_t(u): the last write made again with a known predecessor token u, normed; float32 throughout."""
        return refine(
            states.residual,
            states.magnitude,
            states.code,
            self.injection.codebook(predecessor),
            self.last_write,
            self.norm.weight[...],
            self.injection.gates,
            eps=self.config.rms_norm_eps,
        )

    @property
    def last_write(self) -> Float[Array, "H M"]:
        """The write that the tail makes again."""
        return self.injection.writes[self.config.num_hidden_layers - 1].weight[...]
