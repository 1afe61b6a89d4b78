"""Projections of a few rows by streamed weights, and what follows them in a layer.

project            x W^T for several weights that read the same rows
project_gated      silu(x gate^T) * (x up^T)
project_residual   residual + x W^T
project_norm       the same, and the norm of it: what the next layer reads
"""

from pallas_kernels.projection.api import project, project_gated, project_norm, project_residual
from pallas_kernels.projection.tiles import Tiles, candidate_tiles, default_tiles

__all__ = [
    "Tiles",
    "candidate_tiles",
    "default_tiles",
    "project",
    "project_gated",
    "project_norm",
    "project_residual",
]
