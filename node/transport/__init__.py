"""libp2p for bulk data: a host, and byte streams over it."""
