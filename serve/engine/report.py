"""What one cycle tells the host, in one integer array: one copy, whatever the requests want to know."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from dspine_jax.loop.state import LoopState
from dspine_jax.sampling.logprobs import Logprobs

FLAGS = 6  # emitted, accepted, ran, stopped, failed, done


@dataclasses.dataclass(frozen=True, eq=False)
class Lane:
    """One slot's part."""

    tokens: np.ndarray  # emitted since the last report, int32
    logprobs: Logprobs  # of these, with as many alternatives as the engine has room for; zeros when not wanted
    accepted: int  # proposals that the target agreed with; 0 when no cycle ran
    ran: bool  # the slot took part in the cycle
    stopped: bool  # the last token is a stop id
    failed: bool  # its numbers are not finite
    done: bool  # nothing more will come


def pack(state: LoopState, ran: Bool[Array, " B"]) -> Int[Array, "B columns"]:
    """The report of a state whose `ran` slots took part in the cycle. Floats travel as their bits."""
    if state.logprobs is None:
        raise ValueError("an engine's state always has room for logprobs")
    slots = ran.shape[0]

    def bits(x: Array) -> Array:
        return jax.lax.bitcast_convert_type(x, jnp.int32).reshape(slots, -1)

    accepted = jnp.where(ran, state.accepted[:, 0], 0)
    flags = (state.emitted, accepted, ran, state.stopped, state.failed, state.done)
    return jnp.concatenate(
        [
            jnp.stack([flag.astype(jnp.int32) for flag in flags], axis=1),
            state.tokens,
            bits(state.logprobs.tokens),
            state.logprobs.top_ids.reshape(slots, -1),
            bits(state.logprobs.top),
        ],
        axis=1,
    )


def unpack(row: np.ndarray, room: int, best: int) -> Lane:
    """One row of the report; `room` tokens fit into a slot's buffer, `best` alternatives into each token's."""
    emitted, accepted, ran, stopped, failed, done = (int(flag) for flag in row[:FLAGS])
    tokens, chosen, top_ids, top = np.split(row[FLAGS:], np.cumsum([room, room, room * best]))
    return Lane(
        tokens=tokens[:emitted].copy(),
        logprobs=Logprobs(
            tokens=chosen[:emitted].view(np.float32).copy(),
            top_ids=top_ids.reshape(room, best)[:emitted].copy(),
            top=top.reshape(room, best)[:emitted].view(np.float32).copy(),
        ),
        accepted=accepted,
        ran=bool(ran),
        stopped=bool(stopped),
        failed=bool(failed),
        done=bool(done),
    )
