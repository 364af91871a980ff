"""The node: everything in one trio process."""

from node.lean_libp2p import leave_out_unused

leave_out_unused()
