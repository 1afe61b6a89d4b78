"""`dspine train`: a small target from text, and a DSpine drafter distilled from any target."""
