"""What tasks build on: the ambient step, cache declarations, weight maps."""
