"""Engine instances of this node: their processes, the connection to each, and their supervision."""
