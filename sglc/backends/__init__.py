"""What runs a segment: the local runtime and remote APIs behind one protocol."""
