"""From the engine's events to answers: text, deltas, and the two forms in which they are sent."""
