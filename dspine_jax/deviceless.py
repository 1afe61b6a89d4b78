"""Compiles programs for a GPU that is not here: XLA and ptxas need a description of the device, not the device.

Wants the packages of the extra `aot`, and JAX_PLATFORMS=cpu in the environment before jax is imported where no GPU is.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies

GPUS = Path(__file__).parent / "assets" / "gpus"


@dataclasses.dataclass(frozen=True)
class AbstractGPU:
    """A described GPU."""

    name: str
    mesh: jax.sharding.Mesh

    def place(self, shapes: Any) -> Any:
        """A pytree of arrays or shapes as abstract arrays on this GPU."""
        sharding = jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec())
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), shapes)

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Calls traced and compiled inside are made for this GPU."""
        with jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh):
            yield


def description(name: str) -> str:
    """The text of `assets/gpus/NAME.txtpb`, or of a file at the path `name`. Raises ValueError for an unknown name."""
    known = sorted(path.stem for path in GPUS.glob("*.txtpb"))
    path = GPUS / f"{name}.txtpb" if name in known else Path(name)
    if not path.is_file():
        raise ValueError(f"the GPU is {name!r}, wanted one of {known} or the path of a description file")
    return path.read_text(encoding="utf-8")


@functools.cache
def abstract_gpu(name: str) -> AbstractGPU:
    """The GPU of that name in `assets/gpus`, or of a description file in the same format (XLA's GpuTargetConfig).

    Raises ValueError for an unknown name, and where the packages to compile with are missing.
    """
    text = description(name)
    try:
        topology = topologies.get_topology_desc("", "cuda", target_config=text, topology="1x1x1")
    except Exception as error:
        raise ValueError(
            f"cannot compile for {name}: {error}. Wanted the packages of the extra `aot` (pip install"
            " 'dspine-jax[aot]') and JAX_PLATFORMS=cpu in the environment on a machine without a GPU"
        ) from error
    return AbstractGPU(name=name, mesh=topologies.make_mesh(topology, (1,), ("device",)))
