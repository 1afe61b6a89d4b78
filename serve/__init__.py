"""Text in and text out around the engine, which knows token ids only."""
