"""The `--map parameter=tensor.name` entries of a user, sorted by model."""

from collections.abc import Collection, Iterable, Mapping

from dspine_jax.errors import WeightsError

FORM = "wanted [target:|drafter:]parameter=tensor.name"


def split_overrides(entries: Iterable[str], parameters: Mapping[str, Collection[str]]) -> dict[str, dict[str, str]]:
    """Model -> parameter -> tensor.

    `parameters` names the parameters of each model at hand. An entry without a model goes to the only model
    that has the parameter.

    Raises:
        WeightsError: a malformed entry, an unknown or ambiguous parameter, a parameter given twice.
    """
    split: dict[str, dict[str, str]] = {model: {} for model in parameters}
    for entry in entries:
        left, equals, tensor = entry.partition("=")
        model, colon, parameter = left.rpartition(":")
        if not equals or not tensor or not parameter or (colon and model not in ("target", "drafter")):
            raise WeightsError(f"--map {entry!r} cannot be read; {FORM}")
        if not colon:
            model = _owner(entry, parameter, parameters)
        if model not in split:
            raise WeightsError(f"--map {entry!r} is for the {model}, and only the {', '.join(split)} is read here")
        if parameter in split[model]:
            raise WeightsError(
                f"--map gives {parameter} of the {model} twice: {split[model][parameter]!r} and {tensor!r}"
            )
        split[model][parameter] = tensor
    return split


def _owner(entry: str, parameter: str, parameters: Mapping[str, Collection[str]]) -> str:
    owners = [model for model, names in parameters.items() if parameter in names]
    if len(owners) > 1:
        raise WeightsError(f"--map {entry!r}: both models have {parameter}; write target:{entry} or drafter:{entry}")
    if not owners:
        raise WeightsError(f"--map {entry!r}: no parameter {parameter!r} in the {' or the '.join(parameters)}")
    return owners[0]
