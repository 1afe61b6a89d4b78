"""Conversion of Hugging Face checkpoints to Orbax, and inspection of what a conversion would do."""
