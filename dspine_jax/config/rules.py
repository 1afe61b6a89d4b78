"""Consistency rules that both models share. A rule's parameters name the fields that it needs."""


def one_type_per_layer(layer_types: tuple[str, ...], num_hidden_layers: int) -> str | None:
    if len(layer_types) == num_hidden_layers:
        return None
    got = len(layer_types)
    return f"layer_types: got {got} entries; wanted one per layer, num_hidden_layers is {num_hidden_layers}."


def key_value_heads_divide(num_attention_heads: int, num_key_value_heads: int) -> str | None:
    if num_attention_heads % num_key_value_heads == 0:
        return None
    return (
        f"num_attention_heads: got {num_attention_heads}; wanted a multiple of "
        f"num_key_value_heads {num_key_value_heads}."
    )


def head_dim_is_even(head_dim: int) -> str | None:
    return None if head_dim % 2 == 0 else f"head_dim: got {head_dim}; wanted an even number."
