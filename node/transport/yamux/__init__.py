"""yamux: a state machine without I/O, and glue to trio and to py-libp2p's interfaces."""
