import pytest

from node.membership.rhythm import CALM_S, PUBLISH_GAP_S, Rhythm
from node.membership.view import SUSPECT_AFTER_S


def times(rhythm, members, *, linked, until, start=0.0):
    """When records are published from `start` on if each is published as soon as it is due."""
    now, published = start, []
    while (now := max(now, rhythm.due(members, linked=linked))) <= until:
        rhythm.published(now)
        published.append(now)
    return published


def test_first_record_is_due_at_once():
    assert Rhythm().due(1, linked=True) < 0.0


def test_change_is_published_soon_and_repeated_and_then_rarely():
    rhythm = Rhythm()
    times(rhythm, 5, linked=True, until=60.0)
    rhythm.changed()
    assert times(rhythm, 5, linked=True, start=61.0, until=80.0) == [61, 62, 63, 64, 69, 74, 79]


def test_changes_that_come_together_are_published_as_one():
    rhythm = Rhythm()
    rhythm.published(10.0)
    rhythm.changed()
    rhythm.changed()
    assert rhythm.due(5, linked=True) == 10.0 + PUBLISH_GAP_S
    rhythm.published(10.1)
    assert rhythm.due(5, linked=True) == pytest.approx(11.1)


@pytest.mark.parametrize(("members", "interval"), [(2, 1.0), (20, 1.0), (30, 1.5), (500, 2.0)])
def test_record_is_a_sign_of_life_to_members_without_a_link(members, interval):
    first, second, *_, last = times(Rhythm(), members, linked=False, until=60.0)
    assert second - first == interval
    assert last > 60.0 - interval
    assert 2 * interval < SUSPECT_AFTER_S, "two in a row may be lost"


def test_link_or_member_that_comes_or_goes_has_the_record_repeated_without_a_burst():
    rhythm = Rhythm()
    *_, last = times(rhythm, 5, linked=True, until=60.0)
    for _ in range(10):
        rhythm.unsettled()
    assert rhythm.due(5, linked=True) == last + 1.0
    assert times(rhythm, 5, linked=True, until=last + 9.0) == [last + each for each in (1, 2, 3, 8)]


def test_lost_link_ends_the_calm():
    rhythm = Rhythm()
    *_, last = times(rhythm, 5, linked=True, until=60.0)
    assert rhythm.due(5, linked=True) == last + CALM_S
    assert rhythm.due(5, linked=False) == last + 1.0
