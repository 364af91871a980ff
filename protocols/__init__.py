"""What goes over wires: messages, framing, codecs and state machines, none of which does I/O."""
