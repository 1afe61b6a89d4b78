"""DSpine: a block drafter that reads tapped target layers and writes predecessor messages between its own."""

from dspine_jax.drafter.model import Drafter, DraftStates

__all__ = ["DraftStates", "Drafter"]
