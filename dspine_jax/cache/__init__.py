"""Everything that changes while tokens are generated: frozen pytrees with named operations."""
