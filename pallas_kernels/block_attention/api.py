"""The public functions: they check their arguments and choose an implementation."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.block_attention.combine import COLUMNS
from pallas_kernels.block_attention.gate import gated
from pallas_kernels.block_attention.mosaic_gpu import paged_block_attention_mosaic_gpu, ring_block_attention_mosaic_gpu
from pallas_kernels.block_attention.reference import paged_block_attention_reference, ring_block_attention_reference
from pallas_kernels.block_attention.tiles import MAX_ROWS, Geometry, Tiles, default_tiles, size_key
from pallas_kernels.block_attention.xla import paged_block_attention_xla, ring_block_attention_xla
from pallas_kernels.device import num_sms
from pallas_kernels.implementation import Implementation, resolve
from pallas_kernels.shared_memory import LINES
from pallas_kernels.tuning import tuned_tiles


def paged_block_attention(
    q: Float[Array, "B T N D"],
    k_pages: Float[Array, "P page K D"],
    v_pages: Float[Array, "P page K D"],
    page_table: Int[Array, "B pages"],
    start: Int[Array, " B"],
    *,
    gate: Float[Array, "B T N G"] | None = None,
    implementation: Implementation | None = None,
    tiles: Tiles | None = None,
) -> Float[Array, "B T N D"]:
    """Row t of slot b reads the positions 0 .. start[b] + t from the slot's pages; the result has q's dtype.

    With a gate each head is multiplied by the sigmoid of its gate's last D numbers: what comes before them may be the
    query, as a projection leaves both side by side. The new rows' own keys and values are already in the pages; rows of
    a page that hold no position yet must be finite. The kernel wants bfloat16, at most 16 rows, a head size of 64, 128,
    192 or 256, pages of a multiple of 64 positions and int32 tables; `tiles` is for it alone. Raises ValueError for
    shapes that do not fit together, and for a named implementation that cannot run.
    """
    _check_heads(q, k_pages, v_pages, names=("k_pages", "v_pages"))
    _check_per_slot(q, start, "start")
    if page_table.ndim != 2 or page_table.shape[0] != q.shape[0]:
        raise ValueError(f"page_table has shape {page_table.shape}, wanted one row of pages per slot: {q.shape[0]}")
    if gate is not None and (gate.shape[:3] != q.shape[:3] or gate.shape[3] < q.shape[3]):
        raise ValueError(f"gate has shape {gate.shape}, wanted {q.shape[:3]} heads of at least {q.shape[3]} numbers")
    obstacles = _obstacles(q, (k_pages, v_pages, *([] if gate is None else [gate])), tiles)
    keys = (tiles or Tiles(splits=1)).keys
    if k_pages.shape[1] % keys:
        obstacles.append(f"a page has {k_pages.shape[1]} positions, wanted a multiple of {keys}")
    if gate is not None and gate.shape[3] % COLUMNS:
        obstacles.append(f"a gate and what comes before it are {gate.shape[3]} long, wanted a multiple of {COLUMNS}")
    if {page_table.dtype, start.dtype} != {jnp.dtype(jnp.int32)}:
        obstacles.append(f"page_table and start are {page_table.dtype} and {start.dtype}, wanted int32")
    operands = (q, k_pages, v_pages, page_table, start)
    op = "paged_block_attention"
    match resolve(op, implementation, obstacles):
        case "mosaic_gpu":
            return paged_block_attention_mosaic_gpu(*operands, gate, tiles=tiles or _tiles(op, q, k_pages))
        case "xla":
            return gated(paged_block_attention_xla(*operands), gate)
        case "reference":
            return gated(paged_block_attention_reference(*operands), gate).astype(q.dtype)


def ring_block_attention(
    q: Float[Array, "B T N D"],
    ring_k: Float[Array, "B R K D"],
    ring_v: Float[Array, "B R K D"],
    block_k: Float[Array, "B T K D"],
    block_v: Float[Array, "B T K D"],
    length: Int[Array, " B"],
    *,
    window: int | None,
    causal: bool,
    implementation: Implementation | None = None,
    tiles: Tiles | None = None,
) -> Float[Array, "B T N D"]:
    """Row t of slot b, at position length[b] + t, reads its window before `length` and its block; q's dtype.

    Position p < length lies in ring row p % R, where the last R positions are held. `window` counts the row itself:
    it reaches window - 1 positions back, into the ring only; None reaches all that the ring holds. Within the block a
    row reads the rows up to itself, or all of them when not `causal`. Ring rows that hold no position must be finite.
    The kernel wants what that of `paged_block_attention` wants. Raises ValueError for shapes that do not fit together,
    and for a named implementation that cannot run.
    """
    _check_heads(q, ring_k, ring_v, names=("ring_k", "ring_v"))
    _check_heads(q, block_k, block_v, names=("block_k", "block_v"))
    _check_per_slot(q, length, "length")
    slots, rows, _, dim = q.shape
    kv_heads = block_k.shape[2]
    if block_k.shape != (slots, rows, kv_heads, dim) or ring_k.shape != (slots, ring_k.shape[1], kv_heads, dim):
        raise ValueError(
            f"ring_k and block_k have shapes {ring_k.shape} and {block_k.shape}, "
            f"wanted {(slots, 'R', 'K', dim)} and {(slots, rows, 'K', dim)} for q of shape {q.shape}"
        )
    if window is not None and window < 1:
        raise ValueError(f"window is {window}, wanted at least 1: a row's window counts the row itself; None for all")
    obstacles = _obstacles(q, (ring_k, ring_v, block_k, block_v), tiles)
    if length.dtype != jnp.int32:
        obstacles.append(f"length is {length.dtype}, wanted int32")
    if ring_k.shape[1] % LINES:
        obstacles.append(f"the ring has {ring_k.shape[1]} rows, wanted a multiple of {LINES}")
    operands = (q, ring_k, ring_v, block_k, block_v, length)
    op = "ring_block_attention"
    match resolve(op, implementation, obstacles):
        case "mosaic_gpu":
            tiles = tiles or _tiles(op, q, ring_k)
            return ring_block_attention_mosaic_gpu(*operands, window=window, causal=causal, tiles=tiles)
        case "xla":
            return ring_block_attention_xla(*operands, window=window, causal=causal)
        case "reference":
            result = ring_block_attention_reference(*operands, window=window, causal=causal)
            return result.astype(q.dtype)


def _check_heads(q: Array, k: Array, v: Array, *, names: tuple[str, str]) -> None:
    if q.ndim != 4 or k.ndim != 4 or k.shape != v.shape or k.shape[3] != q.shape[3] or q.shape[2] % k.shape[2]:
        raise ValueError(
            f"q, {names[0]} and {names[1]} have shapes {q.shape}, {k.shape} and {v.shape}, wanted [B, T, N, D] and "
            "twice the same [.., .., K, D] with N a multiple of K"
        )


def _check_per_slot(q: Array, value: Array, name: str) -> None:
    if value.shape != q.shape[:1]:
        raise ValueError(f"{name} has shape {value.shape}, wanted one number per slot: {q.shape[:1]}")


def _obstacles(q: Array, others: tuple[Array, ...], tiles: Tiles | None) -> list[str]:
    """Why the kernel cannot run: what both kinds of context have in common. The first of `others` are keys."""
    rows = q.shape[1]
    geometry = _geometry(q, others[0])
    found = geometry.obstacles()
    if rows > MAX_ROWS:
        found.append(f"there are {rows} new rows per slot, wanted at most {MAX_ROWS}")
    if any(x.dtype != jnp.bfloat16 for x in (q, *others)):
        found.append(f"the operands are {sorted({str(x.dtype) for x in (q, *others)})}, wanted bfloat16")
    if tiles is not None:
        found += tiles.obstacles(geometry)
    return found


def _tiles(op: str, q: Array, k: Array) -> Tiles:
    """Measured on this device, or the heuristic."""
    geometry, slots, kv_heads = _geometry(q, k), q.shape[0], k.shape[2]
    heuristic = default_tiles(geometry, slots=slots, kv_heads=kv_heads, sms=num_sms())
    return tuned_tiles(op, size_key(geometry, slots=slots, kv_heads=kv_heads), heuristic)


def _geometry(q: Array, k: Array) -> Geometry:
    return Geometry.of(q.shape[1], q.shape[2] // k.shape[2], q.shape[3])
