"""How fast a KV cache moves between two nodes, against other ways to move the same bytes."""
