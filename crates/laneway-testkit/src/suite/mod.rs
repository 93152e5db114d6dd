//! The behaviours that every store must show.
//!
//! One function is one behaviour, named by it: given, when, then. [`store_suite!`](crate::store_suite) lists
//! them all and makes a test of each, so a new behaviour reaches every store at once. Each test has a store of its
//! own, whose invariants are checked at the end.
//!
//! The functions have no further documentation: their names are it.
#![allow(missing_docs)]

pub mod act;
pub mod cancel;
pub mod claim;
pub mod enqueue;
pub mod families;
pub mod filters;
pub mod follow_ups;
pub mod hints;
pub mod keep;
pub mod lane_lists;
pub mod lanes;
pub mod later;
pub mod liveness;
pub mod look;
pub mod progress;
pub mod refusals;
pub mod schedules;
pub mod serial;
pub mod settle;
pub mod tokens;
pub mod unique;
pub mod watch;
pub mod why;

/// The words that behaviours are written in.
mod words {
    pub(super) use laneway_core::*;

    pub(super) use crate::store::*;
    pub(super) use crate::worker::*;
}

/// Makes one test of every behaviour. The argument is an expression that makes a fresh
/// [`TestStore`](crate::store::TestStore); it is evaluated for each test.
#[macro_export]
macro_rules! store_suite {
    ($fresh:expr) => {
        $crate::behaviours! { $fresh =>
            enqueue {
                an_enqueued_task_is_pending_with_everything_it_was_given,
                a_task_without_settings_has_the_written_defaults,
                a_lane_is_kept_with_the_task,
                ids_ascend_in_the_order_of_a_bulk,
                ids_ascend_from_call_to_call_over_all_handles,
                a_bulk_with_one_bad_task_stores_nothing,
                an_empty_bulk_is_an_empty_answer,
                a_bulk_may_mix_queues_lanes_delays_and_kinds,
                a_bulk_of_thousands_arrives_whole,
                the_one_odd_task_of_a_large_bulk_keeps_what_it_says,
                a_payload_keeps_its_text,
                a_payload_of_exactly_one_mebibyte_is_accepted,
                payloads_around_every_thousand_bytes_arrive_whole,
                names_may_have_any_printable_character,
                a_task_is_seen_through_another_handle_at_once,
                concurrent_enqueues_are_all_stored_under_ids_of_their_own,
                a_refused_task_does_not_harm_its_concurrent_neighbours,
            }
            claim {
                the_oldest_task_goes_first,
                a_lower_priority_number_goes_first,
                an_urgent_task_that_arrives_later_goes_first,
                a_claim_is_ordered_by_priority_then_id_with_lanes_mixed_in,
                a_claim_takes_no_more_than_it_asked_for,
                a_claim_hands_out_the_task_as_it_was_enqueued,
                a_claimed_task_is_leased_to_its_worker,
                a_claimed_task_is_not_claimed_again,
                two_workers_share_a_queue_without_overlap,
                several_queues_are_served_in_the_order_of_the_request,
                every_queue_of_a_request_has_a_maximum_of_its_own,
                a_queue_that_was_not_asked_for_is_left_alone,
                kinds_that_the_worker_cannot_run_stay_where_they_are,
                no_kinds_at_all_claim_nothing,
                many_tasks_of_other_kinds_do_not_hide_one_that_can_run,
                an_unknown_session_claims_nothing_and_is_told,
                a_known_session_is_not_told_that_it_is_lost,
                a_filled_claim_says_that_there_is_probably_more,
                a_claim_says_when_what_is_left_is_blocked,
                nothing_is_claimed_from_a_paused_queue_until_it_is_resumed,
                a_queue_can_be_paused_before_it_has_tasks,
                resuming_a_queue_that_nobody_knows_changes_nothing,
                a_paused_queue_accepts_tasks_and_results_and_keeps_its_clock,
                a_lease_says_how_many_tasks_it_holds_or_nothing,
                kinds_that_run_alone_get_a_lease_each,
                an_advance_settles_before_it_claims,
                a_queue_may_be_claimed_from_twice_in_one_advance,
                a_quick_look_finds_everything_in_the_end,
            }
            schedules {
                every_change_of_a_schedule_is_in_the_audit,
                a_program_that_changes_schedules_is_in_the_audit_as_such,
                a_new_schedule_has_all_that_it_was_given_and_a_next_fire,
                a_schedule_fires_when_its_time_has_come_and_not_before,
                a_fired_task_has_everything_that_the_schedule_says_and_its_fire_time,
                a_scheduled_task_with_a_delay_waits_after_its_fire,
                an_interval_keeps_its_beat_however_late_it_is_fired,
                a_cron_schedule_fires_at_the_times_of_its_zone,
                missed_fires_are_skipped_unless_told_otherwise,
                missed_fires_can_be_made_up_for_once,
                all_missed_fires_can_be_made_up_for,
                of_too_many_missed_fires_the_last_are_made_up_for,
                a_schedule_may_overlap_itself,
                a_schedule_that_may_not_overlap_waits_for_the_end_of_its_task,
                a_schedule_that_may_not_overlap_makes_up_for_what_it_missed_with_one_task,
                a_cancelled_task_is_not_open,
                a_fire_whose_key_is_taken_is_skipped,
                a_paused_schedule_does_not_fire_and_makes_up_for_nothing,
                a_schedule_can_be_run_by_hand_without_moving_its_next_fire,
                a_run_by_hand_counts_as_open_where_overlap_is_not_allowed,
                putting_the_same_rule_again_leaves_the_next_fire_alone,
                a_changed_rule_sets_the_next_fire_anew,
                a_paused_schedule_stays_paused_when_it_is_changed,
                a_removed_schedule_fires_no_more_and_its_tasks_stay,
                what_is_unknown_is_answered_and_changes_nothing,
                however_many_fire_at_once_each_fire_time_counts_once,
                changing_a_schedule_while_it_fires_loses_and_doubles_nothing,
                an_idle_worker_is_told_when_the_next_schedule_fires,
                schedules_are_listed_by_name_in_pages,
                a_schedule_that_nobody_fires_is_shown_as_overdue,
                more_schedules_than_one_call_fires_are_fired_by_the_next,
                a_preview_is_bounded,
                bad_schedules_are_refused_and_change_nothing,
            }
            settle {
                a_completed_task_has_ended,
                a_plain_success_keeps_kind_and_queue_but_not_its_payload,
                a_success_with_a_result_keeps_result_and_payload,
                a_success_at_the_second_attempt_keeps_its_payload,
                a_failed_task_keeps_its_error_and_payload,
                a_retried_task_waits_and_an_attempt_is_charged,
                a_retried_task_runs_again_as_the_next_attempt,
                a_retry_of_the_last_attempt_has_failed,
                a_retry_of_an_only_attempt_has_failed,
                a_snooze_charges_nothing,
                a_task_given_back_is_pending_at_once_and_not_charged,
                a_cancelled_attempt_keeps_its_reason,
                every_task_of_a_lease_has_an_outcome_of_its_own,
                a_lease_is_settled_piece_by_piece_in_any_order,
                a_settle_with_a_wrong_token_is_stale_and_changes_nothing,
                a_settle_by_another_session_is_stale_and_changes_nothing,
                a_settle_of_a_task_that_was_never_in_the_lease_is_stale,
                a_settle_of_an_unknown_lease_is_stale,
                a_worker_that_comes_back_too_late_is_stale,
                an_attempt_before_a_retry_is_stale_after_it,
                a_second_settle_of_one_task_changes_nothing,
                a_second_settle_after_the_lease_has_ended_changes_nothing,
                of_two_settles_in_one_call_the_first_counts,
                of_two_settles_of_a_whole_lease_the_first_counts,
                a_completion_behind_another_outcome_of_the_same_task_does_not_count,
                good_and_stale_settles_of_one_call_are_judged_apart,
                successes_of_one_lease_are_judged_one_by_one,
                a_repeated_advance_settles_nothing_twice,
                a_repeated_advance_hands_out_the_same_tasks_and_no_more,
                a_repeated_advance_hands_out_only_what_is_not_settled,
                a_repeated_advance_whose_first_try_was_lost_is_carried_out,
                a_repeated_advance_of_a_dead_session_is_stale,
                an_error_with_a_nul_character_is_recorded,
                an_over_long_error_is_cut,
                an_over_long_result_is_replaced_by_a_note,
                an_endless_delay_is_cut_to_five_years,
            }
            lane_lists {
                lanes_are_listed_by_backlog_by_held_and_by_key,
                a_listed_lane_is_what_a_look_at_it_shows,
                a_listed_lane_tells_whether_a_failure_has_halted_it,
                pages_of_lanes_neither_skip_nor_repeat,
                a_lane_is_listed_before_any_worker_has_looked_at_it,
                lanes_of_other_queues_are_not_listed,
                a_long_backlog_is_counted_up_to_a_bound,
                of_many_long_lanes_the_longest_goes_first,
                a_page_of_lanes_has_between_one_and_five_hundred,
            }
            lanes {
                a_lane_without_a_limit_runs_one_at_a_time_in_order,
                a_lane_of_limit_three_runs_three_at_a_time,
                a_limit_is_filled_over_several_small_claims,
                a_limit_holds_for_tasks_that_arrive_one_by_one,
                an_unlimited_lane_runs_everything,
                a_claim_takes_from_hundreds_of_lanes_at_once,
                limits_hold_whatever_two_workers_do,
                concurrent_claims_do_not_exceed_a_limit,
                the_last_limit_given_by_an_enqueue_counts,
                an_enqueue_without_a_limit_leaves_the_lanes_limit,
                an_operators_limit_is_not_changed_by_enqueues,
                a_raised_limit_lets_more_start,
                a_lowered_limit_lets_nothing_start_above_it,
                a_lowered_limit_leaves_an_urgent_task_in_front,
                a_limit_lowered_before_anything_runs_binds_the_next_claim,
                a_limit_may_go_down_and_up_again,
                lanes_of_one_key_in_two_queues_are_two_lanes,
                a_retried_task_holds_its_ordered_lane_until_it_has_ended,
                a_snoozed_task_holds_its_ordered_lane,
                a_task_given_back_is_the_first_of_its_lane_again,
                a_dead_workers_task_is_the_first_of_its_lane_again,
                an_urgent_task_does_not_overtake_one_in_back_off_in_an_ordered_lane,
                an_urgent_task_does_not_overtake_one_that_came_back,
                an_urgent_task_does_not_overtake_a_dead_workers_task,
                after_the_last_failed_attempt_an_ordered_lane_goes_on,
                a_retried_task_frees_its_turn_in_a_wider_lane,
                a_task_given_back_in_a_wider_lane_is_next,
                a_task_that_came_back_runs_before_those_behind_it,
                an_ordered_lane_that_becomes_wider_lets_others_start_beside_a_waiting_task,
                an_urgent_task_goes_first_in_its_lane,
                a_lane_with_an_urgent_head_goes_before_other_lanes_and_free_tasks,
                a_lanes_priority_is_that_of_its_head,
                a_lane_that_has_lost_its_urgent_head_is_still_served,
                a_lane_with_many_tasks_does_not_starve_its_neighbour,
                lanes_take_turns,
                lanes_and_free_tasks_alternate,
                a_worker_with_one_slot_takes_lanes_and_free_tasks_alike,
                what_lanes_cannot_fill_free_tasks_do_and_the_other_way_round,
                in_an_ordered_lane_a_head_of_another_kind_holds_up_the_rest,
                a_worker_leaves_a_lane_to_others_whose_next_task_it_cannot_run,
                in_a_wider_lane_tasks_of_other_kinds_are_passed_over,
                lanes_whose_heads_cannot_run_do_not_hide_one_that_can,
                lanes_at_their_limit_do_not_hide_free_tasks_or_other_lanes,
                an_interval_spaces_the_starts_of_a_lane,
                an_interval_is_from_start_to_start_in_an_ordered_lane_too,
                an_interval_leaves_other_lanes_alone,
                an_interval_of_zero_removes_it,
                a_failure_halts_a_lane_that_is_told_so,
                a_failure_does_not_halt_other_lanes,
                what_runs_in_a_lane_that_halts_goes_on,
                spent_attempts_halt_a_lane_and_retries_do_not,
                a_cancelled_task_does_not_halt_its_lane,
                a_poisonous_task_halts_its_lane,
                resuming_a_lane_that_is_not_halted_is_harmless,
                an_unknown_lane_is_none,
                setting_a_lane_that_nobody_knows_makes_it,
                settings_that_are_not_named_stay,
                a_lane_shows_what_waits_and_what_is_in_progress,
                a_task_in_back_off_counts_as_in_progress_in_an_ordered_lane_only,
            }
            later {
                a_delayed_task_waits_in_later_and_says_until_when,
                a_delayed_task_starts_no_earlier_than_it_is_due,
                a_task_can_be_given_a_due_time,
                a_due_time_in_the_past_and_no_delay_mean_at_once,
                due_tasks_run_by_priority_and_id_like_all_others,
                an_advance_of_any_queue_moves_due_tasks,
                an_unfilled_claim_tells_when_the_next_task_is_due,
                a_claim_with_nothing_scheduled_tells_no_due_time,
                a_filled_claim_tells_no_due_time,
                a_lane_that_waits_for_its_interval_counts_as_due,
                a_delayed_task_holds_no_turn_of_its_lane,
                a_delayed_task_waits_for_its_lane_when_it_is_due,
                a_due_task_keeps_its_place_by_id_in_its_lane,
            }
            liveness {
                a_registered_worker_is_listed,
                registering_twice_renews,
                workers_are_listed_in_the_order_of_their_start,
                a_renewal_tells_capacity_and_time,
                an_unknown_session_that_renews_is_lost,
                a_renewal_keeps_the_leases_that_the_worker_knows,
                a_lease_that_its_worker_does_not_know_is_given_back,
                a_lease_of_an_advance_whose_answer_is_on_its_way_is_left_alone,
                a_worker_that_stops_gives_everything_back_uncharged,
                a_worker_that_has_stopped_is_unknown,
                stopping_a_worker_that_nobody_knows_is_harmless,
                a_sweep_leaves_living_workers_alone,
                a_dead_workers_tasks_run_again,
                a_sweep_gives_back_only_what_is_not_settled,
                a_sweep_of_an_idle_worker_gives_nothing_back,
                a_task_whose_workers_died_three_times_has_failed,
                a_success_after_a_crash_keeps_its_history,
                two_sweepers_share_the_work,
                a_worker_that_was_swept_is_told_so,
                a_silent_worker_that_comes_back_before_a_sweep_keeps_its_tasks,
            }
            progress {
                a_running_task_shows_what_it_has_told_last,
                progress_is_gone_with_its_attempt,
                progress_of_tasks_that_run_elsewhere_is_passed_over,
                progress_outside_of_its_range_and_long_notes_are_cut,
            }
            hints {
                a_cancel_and_a_drain_tell_the_worker_that_it_has_orders,
                a_sleeper_is_hinted_by_an_enqueue,
                a_sleeper_is_hinted_by_a_bulk_into_lanes,
                a_sleeper_is_hinted_when_something_will_be_due_before_it_wakes,
                a_sleeper_is_hinted_when_a_schedule_will_fire_before_it_wakes,
                a_sleeper_is_hinted_when_a_schedule_fires,
                a_sleeper_is_hinted_when_a_settle_frees_a_lane,
                a_sleeper_is_hinted_when_a_task_is_given_back,
                a_sleeper_is_hinted_when_a_worker_stops,
                a_sleeper_is_hinted_when_a_dead_workers_tasks_are_swept,
                a_sleeper_is_hinted_when_a_queue_is_resumed,
                a_sleeper_is_hinted_when_a_kind_or_a_lane_is_resumed,
                a_sleeper_is_hinted_when_a_task_is_retried,
                a_sleeper_is_hinted_when_a_lane_may_run_more,
                a_sleeper_is_hinted_when_a_halted_lane_is_resumed,
                a_fence_is_passed_once_nothing_older_is_under_way,
                waking_up_without_having_slept_is_harmless,
                falling_asleep_twice_is_one_sleep,
                a_task_enqueued_while_a_worker_falls_asleep_is_not_missed,
                what_can_be_claimed_is_visible_before_falling_asleep,
                what_is_due_is_visible_before_falling_asleep,
                what_cannot_be_claimed_does_not_keep_a_worker_awake,
            }
            look {
                an_unknown_task_is_none,
                an_empty_list_is_one_empty_page,
                pending_tasks_are_listed_by_id,
                later_tasks_are_listed_by_due_time_and_rows_of_one_instant_by_id,
                leased_tasks_are_listed_by_id,
                ended_tasks_are_listed_last_first_without_skips_or_repeats,
                a_cursor_stays_where_it_is_while_more_tasks_end,
                no_task_waits_for_children_yet,
                a_list_can_be_limited_to_one_queue,
                a_list_of_a_queue_that_nobody_knows_is_empty,
                a_listed_task_is_the_task_that_get_shows,
                counts_are_by_queue_and_state,
                hundreds_of_tasks_that_end_one_by_one_are_all_counted,
                an_empty_store_counts_nothing,
                house_keeping_removes_no_task,
            }
            cancel {
                a_pending_task_is_cancelled_at_once,
                a_delayed_task_is_cancelled_at_once,
                the_worker_of_a_running_task_is_told_until_it_settles,
                only_the_worker_of_the_task_is_told,
                an_attempt_that_would_run_again_is_cancelled_instead,
                an_attempt_that_ends_first_stands,
                a_requested_cancel_meets_a_worker_that_stops,
                a_requested_cancel_meets_a_lease_that_its_worker_does_not_know,
                a_requested_cancel_meets_a_worker_that_dies,
                an_ended_task_is_not_cancelled,
                a_plain_success_is_not_cancelled,
                an_unknown_task_is_not_found,
                a_cancelled_head_lets_its_lane_go_on,
                a_cancelled_task_frees_the_turn_that_is_bound_to_it,
                a_cancelled_task_in_back_off_gives_its_turn_to_the_next,
                a_cancelled_task_in_back_off_leaves_an_empty_lane_usable,
            }
            filters {
                a_filter_selects_by_state,
                a_list_has_only_what_belongs_into_it_whatever_the_filter_says,
                a_filter_selects_by_queue_and_kind_in_every_list,
                a_filter_selects_by_lane_and_negation_means_those_without_one_too,
                a_filter_selects_by_tag,
                a_filter_selects_by_worker,
                a_filter_selects_by_error_text_while_a_task_waits_and_when_it_has_ended,
                a_filter_compares_attempts,
                a_filter_compares_ages_and_moments_by_the_stores_clock,
                a_filter_compares_payload_values_at_a_path,
                a_filter_with_quotes_and_percent_signs_means_them,
                a_look_for_rare_tasks_ends_and_says_how_far_it_came,
                a_look_through_history_finds_everything_page_by_page,
                a_filter_over_a_kibibyte_is_refused,
            }
            unique {
                a_second_task_with_the_same_key_is_not_stored,
                a_key_belongs_to_a_kind_in_a_queue,
                a_key_is_free_when_its_task_has_ended,
                a_key_is_free_when_its_task_was_cancelled,
                a_task_that_runs_again_keeps_its_key_until_it_has_ended,
                a_key_outlives_a_dead_worker_and_not_a_poisonous_task,
                a_key_while_pending_is_free_when_its_task_starts,
                a_task_that_comes_back_does_not_take_its_pending_key_again,
                a_key_for_a_time_outlives_its_task_and_ends_with_its_time,
                house_keeping_removes_keys_whose_time_is_over_and_no_others,
                a_task_that_shall_be_refused_names_the_one_that_is_there,
                a_bulk_with_one_refused_key_stores_nothing,
                a_bulk_stores_what_is_new_and_names_what_is_there,
                a_replaced_payload_leaves_everything_else_as_it_was,
                merged_payloads_have_the_members_of_both,
                a_merged_payload_that_is_too_large_changes_nothing,
                a_task_that_runs_or_has_ended_is_not_changed,
                a_repeated_enqueue_with_an_idempotency_key_makes_no_second_task,
                an_idempotency_key_with_other_content_is_a_conflict,
                of_many_concurrent_enqueues_of_one_key_one_is_stored,
                keys_that_are_not_valid_are_refused,
            }
            act {
                an_action_answers_for_each_task,
                a_failed_task_that_is_retried_starts_anew,
                a_retried_task_has_all_its_attempts_again,
                a_cancelled_task_can_be_retried_and_others_can_not,
                a_retried_task_goes_back_into_its_lane,
                a_retried_task_finds_its_lane_when_that_is_long_gone,
                a_retried_task_takes_its_key_again_if_nobody_holds_it,
                a_task_is_snoozed_until_its_time,
                a_snoozed_task_in_back_off_keeps_its_turn,
                only_a_task_that_waits_is_snoozed_or_gets_another_priority,
                a_deleted_task_is_gone,
                a_running_task_and_a_plain_success_are_not_deleted,
                a_task_with_another_priority_goes_where_it_belongs,
                a_paused_kind_is_not_claimed,
                a_paused_kind_holds_up_an_ordered_lane_and_is_passed_over_in_a_wider_one,
                a_paused_lane_starts_nothing,
                a_lane_can_be_paused_before_anybody_knows_it,
                a_lane_that_is_halted_and_paused_needs_both_to_be_ended,
                a_pause_ends_by_itself,
                pausing_again_changes_how_long,
                pauses_are_listed_with_who_and_why,
                a_worker_is_told_to_drain,
                a_worker_is_told_to_stop,
                an_edited_task_runs_with_what_it_was_given,
                a_task_that_is_due_later_or_stands_in_a_lane_is_edited_in_its_place,
                what_runs_or_has_ended_is_not_edited,
                an_edit_is_recorded_with_how_it_was_and_is,
                an_edit_of_nothing_or_out_of_range_is_refused,
                a_bulk_keeps_its_pace_whoever_drives_it,
                bulks_are_listed_by_state,
                a_bulk_acts_on_all_that_its_filter_means_step_by_step,
                a_dry_run_counts_and_does_nothing,
                a_bulk_can_be_stopped_and_goes_on_where_it_was,
                a_bulk_leaves_alone_what_came_after_it,
                of_two_who_take_the_same_step_one_does,
                a_bulk_meets_tasks_in_every_place_and_ends,
                every_action_leaves_one_row_that_says_who_and_what,
                the_audit_is_read_page_by_page,
                a_bulk_is_recorded_with_its_steps,
                bulks_are_listed_newest_first_in_pages,
                actions_that_are_not_valid_are_refused,
            }
            families {
                children_are_stored_with_the_settle_and_their_parent_waits,
                a_parent_completes_with_its_result_when_its_last_child_has,
                a_parent_fails_after_all_its_children_when_one_has_failed,
                a_child_fails_only_when_its_attempts_are_spent,
                the_first_three_errors_are_kept_and_cut,
                a_settle_that_does_not_count_spawns_nothing,
                an_attempt_that_has_not_completed_spawns_nothing,
                a_request_to_cancel_meets_an_attempt_that_spawns,
                siblings_are_counted_before_the_end_of_the_child_that_adds_them,
                failures_can_be_ignored,
                a_family_that_fails_fast_stops_what_is_open,
                a_sibling_that_comes_to_a_family_that_is_stopped_is_cancelled,
                a_child_may_have_children,
                a_family_that_would_be_too_deep_fails_its_parent,
                what_is_refused_about_a_child_fails_its_parent_and_stores_nothing,
                a_parent_in_a_lane_keeps_its_turn_while_it_waits,
                lanes_of_children_are_lanes_of_their_own,
                a_child_in_a_lane_gives_its_turn_up_while_it_waits,
                a_lane_that_halts_on_failure_is_halted_by_a_failed_family,
                a_parent_takes_its_next_step_when_its_children_have_ended_well,
                a_step_may_spawn_again_and_its_children_are_the_latest,
                a_family_that_ended_badly_has_no_next_step,
                a_step_that_fails_is_tried_again,
                cancelling_a_parent_reaches_all_open_descendants,
                a_parent_of_which_no_child_runs_is_cancelled_at_once,
                a_child_that_is_cancelled_or_deleted_counts_as_failed,
                a_waiting_task_is_not_snoozed_deleted_or_moved,
                a_retried_parent_starts_over_with_a_new_family,
                the_failed_children_of_a_parent_can_be_retried,
                children_that_failed_because_of_theirs_are_retried_in_the_same_way,
                a_task_without_failed_children_has_none_to_retry,
                a_child_that_is_retried_alone_is_open_again_for_its_parent,
                a_child_that_is_retried_in_a_family_that_is_stopped_is_cancelled,
                a_parent_waits_for_a_child_that_is_retried_with_it,
                a_child_of_a_former_family_joins_the_one_that_its_parent_waits_for,
                a_parent_that_waits_again_waits_for_what_was_retried_before,
                the_children_of_dead_workers_come_back_and_poison_counts_as_failed,
                children_are_read_page_by_page_with_results_and_errors,
                waiting_tasks_are_counted_listed_and_explained,
                a_filter_by_lane_finds_children_in_theirs,
                the_key_of_a_parent_is_held_until_its_family_has_ended,
                a_family_of_thousands_ends_once,
                the_tasks_of_a_large_family_have_lanes_times_and_large_payloads,
                a_large_family_of_an_attempt_that_does_not_count_is_not_stored,
                two_workers_end_a_family_together,
                a_tree_shows_what_is_open_or_failed_and_counts_the_rest,
                the_life_of_a_family_is_told_to_watchers,
                settling_with_nothing_spawned_is_an_ordinary_end,
            }
            follow_ups {
                a_follow_up_waits_until_its_spawner_has_ended,
                a_follow_up_of_a_task_without_children_is_runnable_at_once,
                when_the_spawner_fails_those_are_dropped_that_were_not_kept,
                a_failed_attempt_leaves_only_what_is_kept,
                when_the_spawner_is_cancelled_so_is_what_follows,
                the_delay_of_a_follow_up_counts_from_the_end,
                a_follow_up_whose_key_is_held_is_not_stored,
                a_follow_up_waits_for_the_last_step,
                a_follow_up_that_waits_can_be_cancelled_deleted_and_moved_but_not_snoozed,
                follow_ups_without_a_due_time_come_last_in_their_list,
                a_deleted_or_cancelled_step_takes_its_follow_ups_with_it,
            }
            serial {
                top_level_tasks_run_one_at_a_time_in_order,
                nothing_else_starts_while_a_task_waits_for_its_children_or_is_in_back_off,
                a_large_family_keeps_to_the_limit_of_a_serial_queue,
                a_dead_worker_leaves_a_serial_queue_in_order,
                follow_ups_run_after_it_in_order_of_priority,
                children_of_children_are_refused_in_a_serial_queue,
                lanes_are_refused_in_a_serial_queue,
                a_queue_with_open_tasks_is_not_made_serial,
                a_full_serial_queue_says_who_is_waiting,
            }
            keep {
                counts_are_the_same_before_and_after_house_keeping,
                the_tasks_of_a_queue_are_counted_by_kind_and_state,
                very_many_pending_tasks_are_counted_up_to_a_bound_that_is_told,
                a_queue_shows_since_when_its_oldest_task_is_ready,
                a_queue_shows_since_when_its_oldest_parent_waits,
                a_queue_is_listed_wherever_its_tasks_are,
                a_task_that_was_due_is_ready_since_then,
                a_queue_that_keeps_no_successes_leaves_nothing_behind,
                history_goes_after_seven_days_and_failures_after_thirty,
                house_keeping_tells_what_it_has_removed,
                every_queue_keeps_its_history_as_long_as_it_says,
                settings_of_a_queue_are_shown_and_those_not_named_stay,
                new_lanes_have_the_limit_of_their_queue,
                a_changed_setting_of_a_queue_is_recorded_once,
                days_outside_one_to_3650_are_refused,
                the_newest_twenty_failed_attempts_are_kept,
                statistics_tell_what_a_queue_did_and_how_long_it_took,
                waiting_counts_from_when_a_task_was_due,
                totals_tell_what_each_queue_did,
                a_claimed_task_says_how_long_it_was_runnable,
                a_store_tells_its_versions_and_what_its_tables_take,
                a_large_settle_is_counted_whole,
                a_queue_without_statistics_has_none,
                a_queue_that_keeps_no_successes_still_counts_them,
                a_series_of_too_many_points_or_odd_steps_is_refused,
                a_lane_that_is_only_needed_later_keeps_its_limit,
                an_empty_lane_remembers_its_limit_for_ten_minutes,
            }
            watch {
                what_operators_snooze_and_delete_is_told,
                what_a_bulk_snoozes_and_deletes_is_told,
                a_watcher_sees_a_task_through_its_life,
                a_bulk_a_delay_a_cancel_and_a_plain_success_are_told,
                of_a_bulk_only_what_was_stored_is_told,
                a_dead_workers_task_and_a_retried_one_are_told,
                a_reader_goes_on_where_it_stopped_in_small_steps,
                two_watchers_see_the_same,
                a_watcher_that_was_silent_for_too_long_has_a_gap,
                a_watcher_that_stopped_is_unknown,
                changes_that_were_removed_are_a_gap,
                a_watch_of_no_time_or_of_hours_and_odd_pages_are_refused,
            }
            tokens {
                a_token_is_kept_with_its_hash_and_its_scopes,
                a_revoked_token_is_gone_and_its_number_is_not_used_again,
                a_token_expires_by_the_clock_of_the_store,
                making_and_revoking_tokens_is_recorded_without_their_hash,
                tokens_that_allow_nothing_or_last_for_decades_are_refused,
            }
            why {
                an_unknown_task_has_no_reasons,
                the_next_task_is_claimable_and_others_are_behind_it,
                tasks_ahead_are_counted_up_to_a_bound,
                a_scheduled_task_waits_for_its_time,
                a_task_in_back_off_says_after_which_error,
                pauses_of_queue_kind_and_lane_are_told_with_who,
                a_full_lane_says_who_holds_it,
                a_lane_can_be_held_by_a_task_in_back_off,
                a_halted_lane_and_one_that_rests_say_so,
                a_kind_that_nobody_handles_says_who_is_there,
                a_silent_worker_does_not_count,
                a_running_task_says_where_and_an_ended_one_how,
            }
            refusals {
                a_payload_over_one_mebibyte,
                a_payload_over_the_limit_that_was_configured,
                a_bulk_over_the_limit_that_was_configured,
                a_bulk_over_a_hundred_thousand,
                a_payload_that_is_nested_too_deeply,
                a_payload_with_a_nul_character,
                a_payload_with_half_a_surrogate_pair,
                a_payload_with_a_number_that_fits_nowhere,
                a_payload_that_is_not_json,
                an_empty_name,
                a_name_over_two_hundred_bytes,
                a_name_with_characters_that_nobody_sees,
                a_priority_outside_a_thousand,
                attempts_outside_one_to_a_thousand,
                a_lane_limit_outside_one_to_a_million,
                a_negative_delay,
                a_delay_of_more_than_five_years,
                a_due_time_before_the_year_2000,
                a_due_time_more_than_five_years_ahead,
                a_timeout_of_nothing_or_of_months,
                a_retry_policy_without_steps_or_with_endless_ones,
                more_than_thirty_two_tags,
                a_trace_context_with_control_characters,
                a_page_of_none_or_of_more_than_five_hundred,
                a_lane_interval_of_more_than_thirty_days,
            }
        }
    };
}

/// The mechanics of [`store_suite!`](crate::store_suite).
#[doc(hidden)]
#[macro_export]
macro_rules! behaviours {
    ($fresh:expr => $($theme:ident { $($behaviour:ident,)* })*) => {
        // The lists go on as plain tokens, because `$fresh` cannot be repeated at another depth.
        $($crate::behaviours! { @theme ($fresh) $theme $($behaviour)* })*
    };
    (@theme ($fresh:expr) $theme:ident $($behaviour:ident)*) => {
        mod $theme {
            #[allow(unused_imports)]
            use super::*;
            $($crate::behaviours! { @test ($fresh) $theme $behaviour })*
        }
    };
    (@test ($fresh:expr) $theme:ident $behaviour:ident) => {
        #[tokio::test]
        async fn $behaviour() {
            let store: $crate::store::TestStore = $fresh.await;
            $crate::suite::$theme::$behaviour(&store).await;
            store.check().await;
        }
    };
}

#[cfg(test)]
mod tests {
    /// A behaviour that is written but not listed would never run.
    #[test]
    fn every_behaviour_is_listed() {
        let listed = include_str!("mod.rs");
        let themes = [
            include_str!("cancel.rs"),
            include_str!("claim.rs"),
            include_str!("enqueue.rs"),
            include_str!("families.rs"),
            include_str!("filters.rs"),
            include_str!("follow_ups.rs"),
            include_str!("hints.rs"),
            include_str!("keep.rs"),
            include_str!("lanes.rs"),
            include_str!("later.rs"),
            include_str!("liveness.rs"),
            include_str!("look.rs"),
            include_str!("refusals.rs"),
            include_str!("schedules.rs"),
            include_str!("serial.rs"),
            include_str!("settle.rs"),
            include_str!("tokens.rs"),
            include_str!("watch.rs"),
            include_str!("why.rs"),
        ];
        for theme in themes {
            let names = theme.split("\npub async fn ").skip(1).filter_map(|rest| rest.split('(').next());
            for name in names {
                assert!(listed.contains(&format!("    {name},\n")), "`{name}` is missing in `store_suite!`");
            }
        }
    }
}
