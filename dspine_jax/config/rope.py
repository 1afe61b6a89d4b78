"""Rotary position settings, which checkpoints write nested, flat, or both."""

from typing import Any

from dspine_jax.config.strict import (
    ABSENT,
    BOOL,
    FRACTION,
    INT_LIST,
    POSITIVE_NUMBER,
    Source,
    agreed,
)

_KEYS = ("rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved")
_SECTIONS = ("rope_parameters", "rope_scaling")


def read_rope(source: Source, *, default_partial: float | None) -> tuple[Any, Any, Any]:
    """Read (rope_theta, partial_rotary_factor, mrope_section or None), nested or flat.

    Nested means under `rope_parameters` or `rope_scaling`. Values that stand in several places must be equal.
    `default_partial` None makes `partial_rotary_factor` required. Only rope_type "default" is implemented.
    `mrope_section` splits the frequencies between three position axes; the three positions of a text token
    are equal, so for text it is plain one-dimensional RoPE and only checked.
    """
    sections = [section for key in _SECTIONS if (section := source.section(key)) is not None]
    plain = [section for section in sections if _is_plain(section)]
    if len(plain) < len(sections):
        # The other keys of an unimplemented kind mean nothing here: one fault is enough.
        source.skip(*_KEYS)
        return ABSENT, ABSENT, None
    theta, partial, mrope_section, _ = (
        agreed([(place, key) for place in (*plain, source)], kind, **default)
        for key, kind, default in (
            ("rope_theta", POSITIVE_NUMBER, {}),
            (
                "partial_rotary_factor",
                FRACTION,
                {} if default_partial is None else {"default": default_partial},
            ),
            ("mrope_section", INT_LIST, {"default": None}),
            ("mrope_interleaved", BOOL, {"default": None}),
        )
    )
    for section in plain:
        section.close({})
    return theta, partial, mrope_section


def mrope_fault(mrope_section: tuple[int, ...] | None, rotary_dim: int) -> str | None:
    """A sentence when the sections do not share out exactly the rotary_dim / 2 frequencies."""
    if mrope_section is None:
        return None
    if len(mrope_section) == 3 and sum(mrope_section) == rotary_dim // 2:
        return None
    return (
        f"mrope_section: got {list(mrope_section)}; wanted three counts with sum {rotary_dim // 2}, "
        f"half of the rotary width {rotary_dim} (head_dim * partial_rotary_factor)."
    )


def _is_plain(section: Source) -> bool:
    before = len(section.faults)
    for key in ("rope_type", "type"):
        section.expect(
            key,
            "default",
            why="Other position scalings (YaRN, linear, dynamic, ...) are not implemented; "
            "use the checkpoint's plain configuration.",
        )
    return len(section.faults) == before
