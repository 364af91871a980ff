from itertools import pairwise

from node.discovery.pacing import Pacing


def test_first_change_is_taken_up_at_once_and_the_gaps_grow_while_more_come():
    pacing = Pacing()
    now, taken = 0.0, []
    while now < 60:
        wait = pacing.wait_s(now)
        if wait == 0:
            pacing.taken(now)
            taken.append(now)
        now += 0.1
    assert taken[:2] == [0.0, taken[1]]
    gaps = [later - earlier for earlier, later in pairwise(taken)]
    assert gaps[0] < 0.7
    assert gaps[-1] > 2.9
    # What has settled is told within 5 s, settling and announcing included.
    assert max(gaps) < 3.2


def test_after_a_quiet_time_a_change_is_taken_up_at_once_again():
    pacing = Pacing()
    for now in range(10):
        pacing.taken(float(now))
    assert pacing.wait_s(10.0) > 1
    assert pacing.wait_s(100.0) == 0
    pacing.taken(100.0)
    assert pacing.wait_s(100.0) < 1
