"""Chat requests: taken in at any node, answered by the one whose engine decodes."""
