"""Changes of the logits that depend on the history: penalties, biases and masks.

A verified row sees exactly the history that it would have had in plain decoding: the tokens emitted before the block
and the proposals up to that row. Proposals enter the stored history only once they were emitted.

Order: repetition penalty, frequency and presence penalty, bias, masks. Repetition looks at prompt and emitted tokens,
the other two only at emitted ones.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from dspine_jax.cache.slots import clear_slots


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["counts", "in_prompt", "bias", "repetition", "frequency", "presence", "min_tokens"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class Processors:
    """One row per slot; present only in batches of which some request needs it."""

    counts: Int[Array, "B V"]  # how often each token was emitted
    in_prompt: Bool[Array, "B V"]
    bias: Float[Array, "B V"]  # -inf: impossible
    repetition: Float[Array, " B"]  # 1: off
    frequency: Float[Array, " B"]
    presence: Float[Array, " B"]
    min_tokens: Int[Array, " B"]

    def count(self, tokens: Int[Array, "B T"], emitted: Bool[Array, "B T"]) -> "Processors":
        """The history with the emitted ones of these tokens."""
        slot = jnp.arange(tokens.shape[0])[:, None]
        counts = self.counts.at[slot, tokens].add(emitted.astype(self.counts.dtype))
        return dataclasses.replace(self, counts=counts)

    def drain(self, emitted: Int[Array, " B"]) -> "Processors":
        """With tokens counted anew from 0, after these many."""
        return dataclasses.replace(self, min_tokens=jnp.maximum(self.min_tokens - emitted, 0))

    def reset_slots(self, fresh: Bool[Array, " B"]) -> "Processors":
        """No history and no effect in the marked slots."""
        neutral = {"repetition": 1}
        fields = dataclasses.fields(self)
        return Processors(**{f.name: clear_slots(getattr(self, f.name), fresh, neutral.get(f.name, 0)) for f in fields})

    def process(
        self,
        logits: Float[Array, "B R V"],
        proposals: Int[Array, "B R-1"],
        emitted: Int[Array, " B"],
        stop_ids: Int[Array, "B K"],
    ) -> Float[Array, "B R V"]:
        """Row i chooses token number `emitted` + i, after the history and proposals 0 .. i-1.

        The history's penalties are the same for all rows; only in the columns of the proposals does the count differ
        from row to row, so only those are made again.
        """
        rows = logits.shape[1]
        columns = jnp.broadcast_to(proposals[:, None], (proposals.shape[0], rows, rows - 1))
        same = proposals[:, :, None] == proposals[:, None, :]  # [B, column, proposal]
        read = jnp.arange(rows - 1)[None, :] < jnp.arange(rows)[:, None]  # [R, proposal]
        again = jnp.sum(same[:, None] & read[None, :, None], axis=-1, dtype=self.counts.dtype)

        def gather(x):
            return jnp.take_along_axis(x, proposals, axis=1)[:, None]

        in_columns = self._penalize(
            jnp.take_along_axis(logits, columns, axis=2),
            gather(self.counts) + again,
            gather(self.in_prompt),
            gather(self.bias),
        )
        slot, row = jnp.arange(logits.shape[0])[:, None, None], jnp.arange(rows)[None, :, None]
        out = self._penalize(logits, self.counts[:, None], self.in_prompt[:, None], self.bias[:, None])
        out = out.at[slot, row, columns].set(in_columns)
        stop = jnp.broadcast_to(stop_ids[:, None], (stop_ids.shape[0], rows, stop_ids.shape[1]))
        banned = self._stops_banned(emitted, rows)[:, :, None] & (stop >= 0)
        return out.at[slot, row, jnp.where(banned, stop, logits.shape[2])].set(-jnp.inf, mode="drop")

    def process_candidates(
        self,
        scores: Float[Array, "B T-1 k k"],
        candidates: Int[Array, "B T-1 k"],
        emitted: Int[Array, " B"],
        stop_ids: Int[Array, "B K"],
    ) -> Float[Array, "B T-1 k k"]:
        """The same for the drafter's tables, with the history as it is before the block.

        What the law of a proposal is does not matter for the output, as long as it is the law that is verified with;
        so the block's own tokens are left out here. A row whose candidates are all impossible stays as it was.
        """
        batch, rows = candidates.shape[:2]

        def gather(x):
            return jnp.take_along_axis(x, candidates.reshape(batch, -1), axis=1).reshape(candidates.shape)[:, :, None]

        out = self._penalize(scores, gather(self.counts), gather(self.in_prompt), gather(self.bias))
        is_stop = jnp.any(candidates[..., None] == stop_ids[:, None, None], axis=-1)
        banned = is_stop & self._stops_banned(emitted, rows)[:, :, None]
        out = jnp.where(banned[:, :, None], -jnp.inf, out)
        return jnp.where(jnp.any(out > -jnp.inf, axis=-1, keepdims=True), out, scores)

    def _penalize(self, x, count, in_prompt, bias):
        """One formula for all shapes [B, ...], so that the same logit and history give the same bits."""

        def per_slot(value):
            return value.reshape(-1, *(1,) * (x.ndim - 1))

        repetition = per_slot(self.repetition)
        x = jnp.where((count > 0) | in_prompt, jnp.where(x > 0, x / repetition, x * repetition), x)
        x = x - per_slot(self.frequency) * count.astype(x.dtype)
        x = x - jnp.where(count > 0, per_slot(self.presence), 0.0)
        return x + bias

    def _stops_banned(self, emitted, rows):
        return emitted[:, None] + jnp.arange(rows, dtype=emitted.dtype)[None, :] < self.min_tokens[:, None]
