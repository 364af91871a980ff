"""Orders are remembered until the cluster shows them, and no longer."""

from node.membership.view import ClusterView
from node.placement.decide import PlannedLoad
from node.placement.ledger import SHOWN_WITHIN_S, Ledger
from tests.support.records import instance_record, node_record

LOAD = PlannedLoad("a", "host-a", "acme/Tiny", "mlx", ("decode",), 5, "")


def view() -> ClusterView:
    cluster = ClusterView(node_record("me"), 0.0)
    cluster.merge(node_record("a"), 0.0)
    return cluster


def test_until_the_record_shows_it() -> None:
    ledger, cluster = Ledger(), view()
    number = ledger.add(LOAD, 0.0)
    assert [each.instance for each in ledger.outstanding(cluster, 0.0)] == [""]
    ledger.named(number, "mlx-1", 1.0)
    assert [each.instance for each in ledger.outstanding(cluster, 1.0)] == ["mlx-1"]
    cluster.merge(node_record("a", instance_record("mlx-1"), sequence=2), 1.0)
    assert ledger.outstanding(cluster, 1.0) == ()


def test_until_it_was_refused_removed_or_the_node_is_gone() -> None:
    ledger, cluster = Ledger(), view()
    ledger.drop(ledger.add(LOAD, 0.0))
    ledger.named(ledger.add(LOAD, 0.0), "mlx-1", 0.0)
    ledger.forget("mlx-1")
    assert ledger.outstanding(cluster, 0.0) == ()
    ledger.add(LOAD, 0.0)
    assert len(ledger.outstanding(cluster, 0.0)) == 1
    cluster.connection_lost("a")
    assert len(ledger.outstanding(cluster, 0.0)) == 1
    for second in range(20):
        cluster.tick(float(second))
    assert ledger.outstanding(cluster, 0.0) == ()


def test_not_for_ever() -> None:
    ledger, cluster = Ledger(), view()
    number = ledger.add(LOAD, 0.0)
    ledger.named(number, "mlx-1", 10.0)
    assert ledger.outstanding(cluster, 10.0 + SHOWN_WITHIN_S)
    assert ledger.outstanding(cluster, 10.1 + SHOWN_WITHIN_S) == ()
