"""`dspine bench`: plain and speculative decoding side by side, on the same prompts, in one run."""
