"""Bridge: every row of a draft block writes a gated message from its predecessor's code into its own residual.

For row t of a block, with x the residual after a layer's MLP (H hidden, C code width, M message width):

    r_t = sqrt(mean(x_t^2));   z_t = R (x_t / (r_t + eps));   c_t = sqrt(C) z_t / (||z_t|| + eps)
    m_t = sigmoid(G c_t + Gp c_{t-1} + b) * (A c_{t-1}),  m_0 = 0;   x'_t = x_t + r_t W m_t

Row 0 is a known token: its code is sqrt(C) times its codebook vector. m_0 = 0 keeps blocks from mixing.
"""

from pallas_kernels.bridge.api import bridge
from pallas_kernels.bridge.gates import BridgeGates
from pallas_kernels.bridge.reference import bridge_reference
from pallas_kernels.bridge.tiles import Tiles, candidate_tiles, default_tiles

__all__ = ["BridgeGates", "Tiles", "bridge", "bridge_reference", "candidate_tiles", "default_tiles"]
