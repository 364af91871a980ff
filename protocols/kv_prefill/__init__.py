"""`/kv-prefill/1`: a prompt's KV cache, streamed layer by layer while it is computed.

`messages` has what goes over the wire, `checks` what must hold between the messages, `codec` how
payloads are encoded, `coverage` (on `ranges`) what has arrived, and `client` and `server` the two
state machines. None of them does I/O. The protocol is documented in docs/kv-prefill.md.
"""
