//! Rare paths carry a counter, so that the simulator can name the paths that no seed reached.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// How often rare things happened in a lane.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            /// Name and count of each.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }

            /// Adds the counts of another lane, or of an earlier owner of this one.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counters! {
    /// Reports of an attempt that is not the current one.
    report_of_old_attempt,
    /// Reports of a session that does not have the attempt.
    report_of_other_session,
    /// Reports of tasks that are not in flight.
    report_of_idle_task,
    /// Reports that came before loading was complete.
    report_while_loading,
    /// Dispatches sent again.
    dispatch_resent,
    /// Attempts sent under a new epoch after a takeover.
    dispatch_after_takeover,
    /// Attempts found running or queued at their worker after a takeover.
    attempt_adopted,
    /// Recalls sent.
    recall_sent,
    /// Attempts given back by their worker.
    handed_back,
    /// Attempts lost, with their worker or by it.
    attempt_lost,
    /// Tasks stopped because too many attempts were lost.
    lost_limit,
    /// Tasks cancelled because the limit of their key was reached.
    newest_cancelled,
    /// Tasks failed because they did not start in time.
    start_timeout,
    /// Attempts that ran past timeout and grace.
    attempt_overrun,
    /// Choices deferred until an asked worker answers.
    choice_waited,
    /// Workers that did not answer a demand for room in time.
    answer_late,
    /// Workers that sent and did not receive.
    worker_not_receiving,
    /// Sessions revoked.
    session_revoked,
    /// Stops sent again.
    stop_resent,
    /// Successes that won against a cancel.
    success_despite_cancel,
    /// Cancels of tasks that were not in memory.
    cancel_of_paged_task,
    /// Cancels that came too late.
    cancel_too_late,
    /// Cancels of tasks that waited for their retry.
    cancel_of_retrying,
    /// Groups that the store skipped.
    group_mismatch,
    /// Inserts that the store had already.
    insert_duplicate,
    /// Inserts that were refused.
    insert_refused,
    /// Rows dropped because their task was changed while they were read.
    stale_row_dropped,
    /// Tasks dropped from a window because there were too many.
    window_evicted,
    /// Arrivals left in the store because their line's window is full.
    arrival_left_in_store,
    /// Lines parked at a limit.
    line_parked,
    /// Queues parked at a rate or limit.
    queue_parked,
    /// Credit given back on request.
    credit_returned,
    /// Dispatch numbers given up because their task was not created.
    dispatch_number_skipped,
    /// Lines left in the store because there are too many.
    line_left_in_store,
    /// Changes written with more than one step.
    path_coalesced,
    /// Commits begun while another one was under way.
    commit_ahead,
    /// Steps of the wall clock.
    clock_stepped,
    /// Steps of the wall clock that the owner before had not written.
    clock_step_found,
    /// Stored times of tasks moved by a step before they were read.
    stored_time_moved,
    /// Policies applied.
    policy_applied,
}
