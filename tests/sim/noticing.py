"""A rule that is broken on purpose is noticed by a judge, by the right one where only one can.

Each run begins with the seed that noticed the break when somebody last looked (`_NOTICED_BY`; not
there: seed 0). That is a hint: once it notices nothing, all seeds are tried, and only time is lost.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

import pytest

from tests.sim.judges import Verdict

#: Break -> a seed that notices it soon, where the first few do not.
_NOTICED_BY = {
    "_announce_the_rest_as_new": 1,
    "_answer_at_once": 1,
    "_answer_for_what_is_paused": 12,
    "_ask_once_only": 8,
    "_ask_the_target_too_early": 2,
    "_bring_nothing_back": 1,
    "_call_everything_durable": 1,
    "_call_expiries_deletions": 2,
    "_call_nobody_who_waits_for_a_permit": 2,
    "_correct_nothing": 3,
    "_cut_dumps_short": 4,
    "_cut_the_ring_too_early": 54,
    "_drop_by_key": 1,
    "_drop_the_floor": 1,
    "_end_leases_by_the_wall_clock": 1,
    "_fall_too_far": 22,
    "_finish_before_commit": 4,
    "_follow_whoever_answers_first": 2,
    "_forget_a_key": 1,
    "_forget_a_key_of_the_ring": 2,
    "_forget_the_log": 2,
    "_forget_the_purge_seqno": 1,
    "_forget_the_row_of_a_pause": 7,
    "_forget_tombstones_by_key": 6,
    "_forget_what_is_filtered": 1,
    "_forget_what_was_purged": 4,
    "_forget_who_deposed": 1,
    "_give_equal_versions_up": 8,
    "_ignore_builders": 3,
    "_ignore_the_slowest": 25,
    "_keep_rows_of_dropped_vbuckets": 2,
    "_keep_the_purge_seqno": 9,
    "_keep_what_is_to_be_emptied": 3,
    "_let_followers_live_through_a_rollback": 11,
    "_lose_a_barrier": 2,
    "_never_dial_again": 1,
    "_never_mind_what_was_purged": 25,
    "_never_return": 15,
    "_never_roll_back": 1,
    "_never_roll_back_silently": 1,
    "_never_see_that_nothing_comes": 20,
    "_never_stop": 8,
    "_number_checkpoints_anew": 2,
    "_pass_on_although_deletions_were_purged": 15,
    "_pass_on_at_once": 34,
    "_promote_above_our_own_only": 2,
    "_purge_replicas_freely": 9,
    "_purge_what_is_not_due": 3,
    "_raise_floors_at_promotion": 4,
    "_raise_the_floor": 3,
    "_repair_nothing": 4,
    "_return_barriers_before_the_last_item": 42,
    "_say_nothing_of_the_beginning": 43,
    "_skip_a_failed_batch": 1,
    "_skip_what_is_unacknowledged": 8,
    "_stay_active_though_deposed": 1,
    "_store_no_purge_seqno": 2,
    "_take_the_newest_header": 6,
    "_take_the_range_when_it_is_sent": 1,
    "_take_the_store_view_too_late": 1,
    "_take_what_is_out_of_order": 2,
    "_wait_for_no_disk": 8,
    "_wait_for_no_replica": 1,
}


def notice(
    break_it: Callable[..., None], run: Callable[[int], object], told: str, seeds: int
) -> None:
    """Run with one seed after the other until a judge complains, in words that `told` matches.

    Fails when `seeds` seeds notice nothing.
    """
    for seed in (_NOTICED_BY.get(break_it.__name__, 0), *range(seeds)):
        try:
            run(seed)
        except Verdict as verdict:
            said = str(verdict).split("\nthe last events", maxsplit=1)[0]
            assert re.search(told, said), said
            return
    pytest.fail(f"{seeds} seeds noticed nothing")


def happens(wanted: Iterable[str], accounts: Iterable[Mapping[str, int]]) -> None:
    """Run one after the other until everything wanted has happened; fails when something never has.

    Judges that have nothing to judge find no fault.
    """
    lacking = set(wanted)
    for account in accounts:
        lacking -= {name for name, count in account.items() if count}
        if not lacking:
            return
    pytest.fail(f"never happened: {sorted(lacking)}")
