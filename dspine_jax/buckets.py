"""The few static sizes that requests are rounded up to, so that a warmed-up process compiles nothing more.

Sizes are powers of two: one program per (batch, capacity, tokens, stop ids) bucket, whatever the exact lengths.
"""

PAGE = 64  # positions of a page of the target's keys and values
PREFILL_CHUNK = 128  # prompt tokens read by one dispatch
MIN_CAPACITY = 256  # positions per slot
MIN_TOKENS = 64  # emitted tokens per slot
MIN_STOP_IDS = 4


def round_up(size: int, smallest: int = 1) -> int:
    """The smallest power of two that is at least `size` and `smallest`; `smallest` is a power of two."""
    return max(smallest, 1 << max(size - 1, 0).bit_length())
