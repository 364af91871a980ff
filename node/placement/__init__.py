"""Which node loads which model: decided by the master, carried out by the node that is told to."""
