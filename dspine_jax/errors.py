"""The one error of reading and resolving checkpoints."""


class WeightsError(ValueError):
    """A checkpoint cannot be read, or does not say what the model needs. The message is the whole report."""
