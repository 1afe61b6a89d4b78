"""The drafter in float64 NumPy for one request, from its formulas; shares no code with the package."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from dspine_jax.config import DrafterConfig


@dataclasses.dataclass(frozen=True)
class BlockStates:
    """All T rows of one block."""

    hidden: np.ndarray  # [T, H] after the last write and the final norm
    residual: np.ndarray  # [T, H] before the last write
    magnitude: np.ndarray  # [T]
    code: np.ndarray  # [T, C]


@dataclasses.dataclass(frozen=True)
class Gates:
    """G, Gp, A [M, C] and b [M]."""

    receiver: np.ndarray
    predecessor: np.ndarray
    message: np.ndarray
    bias: np.ndarray

    def __call__(self, code: np.ndarray, previous: np.ndarray) -> np.ndarray:
        gate = 1 / (1 + np.exp(-(self.receiver @ code + self.predecessor @ previous + self.bias)))
        return gate * (self.message @ previous)


def bridge(
    x: np.ndarray, anchor_code: np.ndarray, readout: np.ndarray, write: np.ndarray, gates: Gates, eps: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x' [T, H], r [T] and c [T, C] of one block."""
    r = np.sqrt((x**2).mean(-1))
    z = (x / (r + eps)[:, None]) @ readout.T
    c = np.sqrt(z.shape[-1]) * z / (np.linalg.norm(z, axis=-1, keepdims=True) + eps)
    c[0] = anchor_code
    written = x.copy()
    for t in range(1, len(x)):
        written[t] = x[t] + r[t] * (write @ gates(c[t], c[t - 1]))
    return written, r, c


class DrafterOracle:
    """One request: context features in, the states, candidates and scores of the next block out."""

    def __init__(self, config: DrafterConfig, drafter: dict, embedding: jax.Array, head: jax.Array):
        self.config = config
        self.w = {name: wide(value) for name, value in drafter.items()}
        self.embedding, self.head = wide(embedding), wide(head)
        self.gates = Gates(
            *(
                self.w[f"injection.{name}"]
                for name in ("receiver_gate.weight", "predecessor_gate.weight", "message.weight", "gate_bias")
            )
        )

    def code(self, token: int) -> np.ndarray:
        stored = self.w["injection.codebook.weight"][token]
        return np.sqrt(len(stored)) * stored

    def context(self, layer: int, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values [S, K, D] of positions 0 .. S - 1."""
        fused = self.norm(wide(features) @ self.w["fc.weight"].T, "hidden_norm")
        return self.key_value(layer, fused, np.arange(len(features)))

    def key_value(self, layer, x, positions):
        name = f"layers.{layer}.self_attn"
        k = (x @ self.w[f"{name}.k_proj.weight"].T).reshape(len(x), -1, self.config.head_dim)
        v = (x @ self.w[f"{name}.v_proj.weight"].T).reshape(k.shape)
        return self.rope(self.norm(k, f"{name}.k_norm"), positions), v

    def block(self, anchor: int, features: np.ndarray, *, bridged: bool = True) -> BlockStates:
        """The block after `len(features)` context positions."""
        cfg, eps = self.config, self.config.rms_norm_eps
        start, rows = len(features), cfg.block_size
        x = self.embedding[[anchor] + [cfg.mask_token_id] * (rows - 1)]
        before, r, c = x, np.zeros(rows), np.zeros((rows, cfg.transfer_dim))
        for layer, kind in enumerate(cfg.layer_types):
            name = f"layers.{layer}"
            x = x + self.attention(layer, kind, self.norm(x, f"{name}.input_layernorm"), start, features)
            y = self.norm(x, f"{name}.post_attention_layernorm")
            gate = y @ self.w[f"{name}.mlp.gate_proj.weight"].T
            up = y @ self.w[f"{name}.mlp.up_proj.weight"].T
            x = before = x + (gate / (1 + np.exp(-gate)) * up) @ self.w[f"{name}.mlp.down_proj.weight"].T
            if bridged or layer == cfg.num_hidden_layers - 1:
                written, r, c = bridge(
                    x,
                    self.code(anchor),
                    self.w[f"injection.readouts.{layer}.weight"],
                    self.w[f"injection.writes.{layer}.weight"],
                    self.gates,
                    eps,
                )
                x = written if bridged else x
        return BlockStates(hidden=self.norm(x, "norm"), residual=before, magnitude=r, code=c)

    def attention(self, layer, kind, x, start, features):
        cfg, name = self.config, f"layers.{layer}.self_attn"
        own = start + np.arange(len(x))
        q = (x @ self.w[f"{name}.q_proj.weight"].T).reshape(len(x), cfg.num_attention_heads, cfg.head_dim)
        q = self.rope(self.norm(q, f"{name}.q_norm"), own)
        context_k, context_v = self.context(layer, features)
        block_k, block_v = self.key_value(layer, x, own)
        k, v = np.concatenate([context_k, block_k]), np.concatenate([context_v, block_v])
        causal = cfg.is_causal if cfg.is_causal is not None else kind == "sliding_attention"
        out = np.zeros_like(q)
        for i, position in enumerate(own):
            seen = []
            for key in range(start + len(x)):
                if key < start:
                    near = kind != "sliding_attention" or key > position - cfg.sliding_window
                else:
                    near = not causal or key <= position
                if near:
                    seen.append(key)
            for n in range(cfg.num_attention_heads):
                kv = n // (cfg.num_attention_heads // cfg.num_key_value_heads)
                score = k[seen, kv] @ q[i, n] / np.sqrt(cfg.head_dim)
                weight = np.exp(score - score.max())
                out[i, n] = weight @ v[seen, kv] / weight.sum()
        return out.reshape(len(x), -1) @ self.w[f"{name}.o_proj.weight"].T

    def candidates(self, states: BlockStates) -> np.ndarray:
        """[T-1, k] best tokens of the proposal rows, best first."""
        return np.argsort(-(states.hidden[1:] @ self.head.T), axis=-1, kind="stable")[:, : self.config.head_topk]

    def refined(self, states: BlockStates, anchor: int, candidates: np.ndarray) -> np.ndarray:
        """y_t(u) [T-1, k, H]: the row with its last write made for predecessor u, before the norm."""
        write = self.w[f"injection.writes.{self.config.num_hidden_layers - 1}.weight"]
        y = np.zeros((*candidates.shape, states.residual.shape[-1]))
        for t in range(len(candidates)):
            for u in range(candidates.shape[1]):
                token = anchor if t == 0 else candidates[t - 1, u]
                message = self.gates(states.code[t + 1], self.code(token))
                y[t, u] = states.residual[t + 1] + states.magnitude[t + 1] * (write @ message)
        return y

    def scores(self, states: BlockStates, anchor: int, candidates: np.ndarray) -> np.ndarray:
        """s_t(u, v) [T-1, k, k]."""
        h = self.norm(self.refined(states, anchor, candidates), "norm")
        return np.einsum("tuh,tvh->tuv", h, self.head[candidates])

    def rho(self, states: BlockStates, anchor: int, candidates: np.ndarray) -> np.ndarray:
        """What the final norm divides a refined row by, [T-1, k]."""
        y = self.refined(states, anchor, candidates)
        return np.sqrt((y**2).mean(-1) + self.config.rms_norm_eps)

    def norm(self, x, name):
        mean = (x**2).mean(-1, keepdims=True)
        return x / np.sqrt(mean + self.config.rms_norm_eps) * self.w[f"{name}.weight"]

    def rope(self, x, positions):
        half = self.config.head_dim // 2
        angle = positions[:, None] * self.config.rope_theta ** (-np.arange(half) / half)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def chain(scores: np.ndarray, candidates: np.ndarray) -> list[int]:
    """v_t = argmax_v s_t(v_{t-1}, v); the first of equal scores."""
    tokens, u = [], 0
    for score, row in zip(scores, candidates, strict=True):
        u = int(np.argmax(score[u]))
        tokens.append(int(row[u]))
    return tokens


def wide(x) -> np.ndarray:
    return np.asarray(jnp.asarray(x).astype(jnp.float32)).astype(np.float64)
