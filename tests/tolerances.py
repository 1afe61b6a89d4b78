"""Every tolerance of the tests, and the one rule by which they are applied.

The rule: the root mean square of the difference, over the root mean square of what was wanted, is at most
the bound. It does not depend on the scale of the values, and an element near zero needs no exception.
float32 comes first: a form that is right in float32 is then allowed the rounding of a narrower type.
A bound follows from the type's rounding and the length of the sums, not from what a test happened to give.
No switch loosens a bound; changing one needs a reason beside it.
"""

import numpy as np
import numpy.typing as npt

# Whole models in float32 against another implementation in float32: the order of sums differs in every layer.
FP32_LOGITS = 1e-4
# Recurrent and convolution states after a prompt, float32 against float32: the same sums as the logits need.
FP32_STATES = 1e-4
# One op or layer in float32 against float64 or another float32 form: some hundred roundings by 6e-8.
FP32_OP = 1e-5
# The same where all keys of a block are nearly equal and nothing decays: in float32 the powers of a 16-row
# system of ones reach binomial(15, 7) = 6435 and cancel again; the measured error is 1.4e-5 against float64.
FP32_EQUAL_KEYS = 1e-4
# Tail scores whose residual is cancelled by the message to a hundredth: float32's rounding, a hundred times larger.
FP32_CANCELLED = 3e-4
# A replayed block in float32 against float64: sums of 128 products and systems of 16 rows solved row by row, so some
# ten roundings by 6e-8, also where keys repeat, decays are steep or absent, or the state is large.
FP32_REPLAY = 1e-6
# A span in chunks of 32 rows in float32 against float64: the same, for systems of 32 rows and a state that carries the
# rounding of all chunks before.
FP32_PREFILL = 1e-6
# Rotation by a float32 angle: at position 300 the angle itself is rounded by up to 1.5e-5.
FP32_ROPE = 3e-5
# Scores of the drafter's tail from float32 tables against the same scores made directly: the sum is split in two.
FP32_TAIL_TABLES = 1e-4
# The same from bfloat16 tables: each factor of the message and of the read-out is rounded by 2^-9.
BF16_TAIL_TABLES = 2e-2
# Whole tiny models in bfloat16 against float32: rounding by 2^-9 at each of about ten stages of each layer.
BF16_LOGITS = 3e-2
# Two bfloat16 forms of a four-layer target against each other, logits, layer outputs and states: their
# roundings add. Measured 2.5e-2; each of them is 3.0e-2 away from float32.
BF16_TARGET = 4e-2
# One op or layer in bfloat16 against float32: a few roundings by 2^-9.
BF16_OP = 1e-2
# Attention in bfloat16 against float64: weights, parts of the output and output are each rounded by 2^-9 at most.
BF16_ATTENTION = 4e-3
# One dot product of two rotated vectors at distant positions: their angles are rounded, see FP32_ROPE.
FP32_SCORE = 1e-4
# A change that must show: a hundred times the rounding of float32 in the tiny models.
FP32_VISIBLE = 1e-3
# Our bfloat16 target may be this much further from float32 than transformers' own; measured 0.98.
BF16_BESIDE_PEER = 1.1
# Share of the true best 16 tokens that the float8 pass must hand on among its 128.
FP8_RECALL = 0.99
# Scores of bfloat16 queries in two float8 parts against float64: an entry below 2^-10 of its row's largest is off by
# up to 4.4e-6 of the largest, which is about four times the row's root mean square; the others are exact.
E4M3_SPLIT = 2e-5
# Forms of one drafter that differ by rounding may differ by this share in acceptance length.
SAME_ACCEPTANCE = 0.05

# Kernels on a device against the float32 reference. The matrix unit adds with fewer bits than float32 has, by how much
# only a device can show: float32 operations are held to the rounding of some hundred such sums.
DEVICE_KERNELS = {
    "gated_delta_replay": FP32_OP,
    "gated_delta_prefill": FP32_OP,
    "tail_scores": FP32_OP,
    "bridge": BF16_OP,
    "gated_delta_block": BF16_OP,
    "project": BF16_OP,
    "project_gated": BF16_OP,
    "project_norm": BF16_OP,
    "rotate_heads": BF16_OP,
    "rotate_and_store": BF16_OP,
    "paged_block_attention": BF16_ATTENTION,
    "ring_block_attention": BF16_ATTENTION,
    # Also the share of tokens that may differ: of nearly equal scores another one may be chosen.
    "retrieval": 2e-2,
}


def relative_rms(got: npt.ArrayLike, want: npt.ArrayLike) -> float:
    """rms(got - want) / rms(want) in float64; 0 when both are all zero, infinite when only `want` is.

    Raises ValueError on different shapes; a NaN or an infinity in either gives infinity.
    """
    got64 = np.asarray(got).astype(np.float64)
    want64 = np.asarray(want).astype(np.float64)
    if got64.shape != want64.shape:
        raise ValueError(f"shapes differ: got {got64.shape}, wanted {want64.shape}")
    if not (np.isfinite(got64).all() and np.isfinite(want64).all()):
        return float("inf")
    if got64.size == 0:
        return 0.0
    error = float(np.sqrt(np.mean(np.square(got64 - want64))))
    scale = float(np.sqrt(np.mean(np.square(want64))))
    if scale == 0.0:
        return 0.0 if error == 0.0 else float("inf")
    return error / scale


def assert_close(name: str, got: npt.ArrayLike, want: npt.ArrayLike, bound: float) -> None:
    """Fail with the measured number, and the place of the largest difference, when the rule does not hold."""
    measured = relative_rms(got, want)
    if measured <= bound:
        return
    got64 = np.asarray(got).astype(np.float64)
    want64 = np.asarray(want).astype(np.float64)
    difference = np.nan_to_num(np.abs(got64 - want64), nan=np.inf)
    worst = tuple(int(i) for i in np.unravel_index(np.argmax(difference), difference.shape))
    raise AssertionError(
        f"{name}: relative rms {measured:.3g}, wanted at most {bound:.3g}; "
        f"largest difference at {worst}: got {got64[worst]:.9g}, wanted {want64[worst]:.9g}"
    )
