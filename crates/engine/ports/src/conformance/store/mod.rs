//! The suite of the [`Store`](crate::Store). Numbers in the cases' docs are those of its promises.

pub mod claim;
pub mod commit;
pub mod durable;
pub mod group;
pub mod load;
pub mod paging;
pub mod policy;
pub mod query;
pub mod retire;
pub mod submit;

/// One test for each case of the store's suite. Takes an `async fn` that gives an `Option` of a
/// [`StoreEnv`](crate::conformance::StoreEnv) in a fresh, empty place.
#[macro_export]
macro_rules! store_conformance {
    ($factory:expr) => {
        $crate::conformance_cases!(store, run, $factory, {
            submit: [
                a_created_task_is_stored_as_it_was_sent,
                a_repeated_submit_changes_nothing,
                another_request_under_the_same_id_is_refused,
                racing_submits_create_once,
                outcomes_come_in_the_order_of_the_tasks,
                a_full_queue_refuses_what_is_above_it,
                only_waiting_tasks_fill_a_queue,
                a_large_payload_is_kept,
                every_lane_takes_tasks,
                any_text_is_kept,
                a_submit_as_large_as_the_store_takes_is_stored,
            ],
            claim: [
                a_lane_that_nobody_claimed_has_epoch_zero,
                a_claim_raises_the_epoch_and_names_the_owner,
                of_racing_claims_one_wins,
                a_claim_that_has_seen_another_epoch_is_lost,
                a_claim_is_repeated_while_its_owner_has_not_committed,
                a_claim_fences_a_commit_under_way,
                a_claim_waits_for_a_commit_that_is_being_written,
                a_claim_keeps_what_the_lane_holds,
                lanes_are_claimed_apart,
            ],
            commit: [
                stale_epoch_is_fenced,
                another_owner_is_fenced,
                nobody_commits_to_a_lane_that_was_not_claimed,
                numbers_begin_at_one_and_leave_none_out,
                a_repeated_commit_answers_the_first_outcomes,
                a_repeated_commit_changes_nothing,
                a_commit_racing_with_its_repetition_applies_once,
                a_commit_over_another_handle_goes_on,
                a_commit_without_groups_counts,
                a_commit_as_large_as_the_store_takes_is_written,
                submits_and_commits_at_once_lose_nothing,
            ],
            group: [
                a_group_with_another_expectation_is_skipped_alone,
                a_change_of_an_unknown_task_is_skipped,
                the_same_request_in_another_lane_is_another_task,
                a_path_outside_the_table_is_never_written,
                a_state_that_is_not_the_end_of_its_path_is_never_written,
                final_states_never_change,
                a_long_path_is_written_once,
                all_fields_of_a_state_are_kept,
                an_insert_creates_a_task,
                an_insert_and_its_first_assignment_are_one,
                an_insert_that_is_refused_skips_its_group,
                an_insert_with_a_wrong_change_leaves_nothing,
                an_insert_into_a_full_queue_is_refused,
                groups_apply_in_their_order,
                inbox_rows_go_with_the_group_that_names_them,
                inbox_rows_stay_when_their_group_is_skipped,
                records_are_written_replaced_and_removed,
                records_stay_when_their_group_is_skipped,
                ended_attempts_have_rows_by_number,
                a_result_is_kept_until_another_comes,
                a_large_result_is_kept,
            ],
            load: [
                lines_show_the_first_task_of_each,
                a_line_is_in_order,
                a_line_goes_on_after_a_position,
                tasks_leave_their_line_when_assigned_and_come_back,
                delayed_tasks_are_by_due_time,
                a_delayed_task_moves_to_its_line,
                a_retrying_task_is_delayed,
                in_flight_tasks_are_by_id,
                waiting_tasks_expire_by_deadline,
                the_inbox_is_in_order_of_arrival,
                records_are_by_key,
                arrivals_are_tasks_and_commands_in_one_order,
                arrivals_show_tasks_as_they_are_now,
                arrivals_go_on_where_they_ended,
                arrivals_under_concurrent_writers_appear_in_order,
                the_cursor_covers_what_was_there,
                arrivals_behind_a_committed_cursor_are_complete,
                tasks_are_read_by_id,
                large_bodies_are_left_out,
                a_lane_shows_nothing_of_another,
                an_unused_lane_is_empty,
            ],
            paging: [
                tiny_pages_of_every_kind_give_everything_once,
                pages_of_a_line_while_it_changes,
                pages_of_delayed_tasks_while_they_move,
                pages_of_the_list_while_tasks_come,
            ],
            query: [
                tasks_come_in_the_order_asked_for,
                the_list_is_newest_first,
                every_filter_selects,
                filters_combine_and_page,
                large_bodies_are_not_listed,
                counts_agree_with_the_tasks,
                counts_agree_after_racing_submits,
                counts_are_paged_by_queue,
                attempts_of_an_unknown_task_are_none,
            ],
            retire: [
                expired_tasks_are_told_by_when_they_finished,
                expired_tasks_are_found_page_by_page,
                expired_tasks_are_retired_page_by_page,
                a_stripped_task_keeps_what_it_is,
                a_request_is_known_after_its_task_was_stripped,
                a_forgotten_task_is_gone,
                a_request_is_new_after_its_task_was_forgotten,
                unfinished_tasks_are_never_retired,
                retiring_again_changes_nothing,
                racing_retires_count_once,
                counts_agree_after_tasks_were_forgotten,
                arrivals_pass_over_forgotten_tasks,
                retiring_does_not_disturb_an_owner,
                many_tasks_are_retired_at_once,
                what_was_retired_stays_so_after_a_crash,
            ],
            policy: [
                a_queue_without_a_policy_has_the_default_one,
                a_policy_changes_by_compare_and_set,
                of_racing_changes_one_wins,
                a_change_of_unknown_outcome_is_settled_by_reading,
                all_fields_of_a_policy_are_kept,
                changed_policies_are_read_after_a_revision,
                the_first_binding_counts,
                of_racing_bindings_one_counts,
            ],
            durable: [
                what_was_acknowledged_survives_a_crash,
                an_owner_goes_on_after_a_crash,
                a_repeated_commit_after_a_crash_answers_the_first_outcomes,
                arrival_numbers_rise_over_a_crash,
                a_closed_store_answers_nothing,
            ],
        });
    };
}
