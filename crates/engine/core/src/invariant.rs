//! The invariants that keep Tasklane right, by name, so that a test can switch one off and see that the
//! simulator's checker notices. Without the feature `switchable-invariants` every invariant is on, at no
//! cost.

macro_rules! invariants {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// One check or rule that correctness rests on.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Invariant { $($(#[$doc])* $name,)* }

        impl Invariant {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Its name, for the command line.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }
        }
    };
}

invariants! {
    /// Store: a commit names the claim's random owner id.
    OwnerId,
    /// Store: a commit is numbered one after the last.
    CommitNumber,
    /// Store: a repeated commit is answered with the outcomes of the first, not applied again.
    CommitRepeat,
    /// Store: the request id is the primary key of a task.
    RequestIdKey,
    /// Store: a unique key is held by one task.
    UniqueKey,
    /// Store: a document is replaced only by a writer that names its version.
    DocumentVersion,
    /// Store: arrival numbers become visible in their order.
    ArrivalsOrder,
    /// Store: inbox rows are removed in the group that applies them.
    InboxDoneInGroup,
    /// Ownership: after an outcome that cannot be settled the lane is claimed and loaded again.
    ReclaimAfterUnknown,
    /// Ownership: a lane that failed under several owners in a row is left alone for a while.
    ParkedLaneRests,
    /// Lane: the owner learns the effect of an insert from the outcome and does not assume it.
    InsertOutcome,
    /// Lane: reports must name the current attempt.
    AttemptMatch,
    /// Lane: reports must come from the session that has the attempt.
    SessionMatch,
    /// Lane: every assignment takes a new attempt number, also after a recall.
    NewAttemptAfterRecall,
    /// Lane: an assignment is committed before it is sent.
    WriteAhead,
    /// Lane: a report is acknowledged only when its effect is committed.
    AckAfterCommit,
    /// Lane: a report is called stale only after loading is complete.
    StaleAfterLoading,
    /// Lane: the inbox is read at takeover.
    InboxAtTakeover,
    /// Lane: attempts in flight count against limits after a takeover.
    LimitsAfterTakeover,
    /// Lane: the stored times of rates are loaded at takeover.
    RateAfterTakeover,
    /// Lane: a task waits for the answer of a worker that was asked for room and may be the best choice.
    ChoiceWaitsForAnswers,
    /// Lane: lines with keys take turns.
    LinesTakeTurns,
    /// Lane: if the limit asks for it, the newest task above the limit is cancelled.
    NewestCancelled,
    /// Lane: a limit that a task brings along counts.
    OwnLimits,
    /// Lane: a cancel of a task with a live attempt is stored with the task.
    CancelRequestedKept,
    /// Lane: a cancel reaches a task that waits for its retry.
    CancelWaitingRetry,
    /// Lane: a task whose attempts keep getting lost is stopped.
    LostLimit,
    /// Lane: durations in memory move with a step of the wall clock.
    StepMovesMemory,
    /// Lane: durations in the store move when they are read.
    StepMovesStored,
    /// Lane: steps are written into the lane's record.
    StepRecorded,
    /// Lane: a step that no owner has written is found at takeover.
    StepFoundAtTakeover,
    /// Lane: a unique key with a time is held without the steps of the wall clock.
    KeysKeepLength,
    /// Lane: the end of a watched task is noted in the group that ends it.
    EndNoted,
    /// Lane: an attempt is given up only when its session has ended.
    LostNeedsSessionEnd,
    /// Worker: a dispatch number is taken once.
    DispatchNumber,
    /// Worker: messages of an earlier owner are ignored.
    WorkerEpoch,
    /// Worker: attempts are stopped before the session can have ended.
    SelfFencing,
    /// Worker: the trust window counts from before the renewal was sent.
    LeaseFromBeforeAsked,
    /// Worker: final reports are resent until they are acknowledged.
    ReportRepetition,
    /// Worker: an attempt reported as recalled before its start is never started.
    RecallRefusesLater,
    /// Worker: dispatches beyond the room and its surplus are handed back.
    SurplusHandedBack,
    /// Retention: no task is removed while the wall clock is not settled.
    RetentionWaits,
    /// Lock: no lease of another machine ends while the wall clock is not settled.
    LocksWait,
    /// Lock: a lease of the same machine ends by the steady clock.
    LocksKeepLength,
    /// Schedule: missed times are not made up for while the wall clock is not settled.
    CatchUpWaits,
    /// Schedule: the next time is planned again after the wall clock goes back.
    PlannedAgain,
    /// Schedule: planned fires are submitted before any other decision.
    PlannedFirst,
    /// Workflow: a node is decided when all nodes that it waits for have ended.
    NodeWaitsForAll,
    /// Workflow: a run is over when all its tasks have ended.
    CompositeWaitsForChildren,
    /// Workflow: a node stopped before it begins cannot begin after the run is over.
    StoppedNodesTombstoned,
    /// Workflow: an item of a map stopped before it begins cannot begin after the map is over.
    StoppedItemsTombstoned,
    /// Workflow: a subtask of a job stopped before it begins cannot begin after the job is over.
    StoppedSubtasksTombstoned,
    /// Workflow: nodes that succeeded in an earlier run are not taken over below a node that runs again.
    TakenOverUnchanged,
    /// Coordinator: a revoked session ends one TTL after its last renewal, not at once.
    RevokeWaitsTtl,
    /// Coordinator: a failure detector ends a session only after watching it unrenewed for one TTL.
    DetectorWaitsTtl,
}

/// Which invariants are on. All of them, except where a test says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Invariants {
    #[cfg(feature = "switchable-invariants")]
    off: Option<Invariant>,
}

impl Invariants {
    /// All on.
    pub const ALL_ON: Self = Self {
        #[cfg(feature = "switchable-invariants")]
        off: None,
    };

    /// All on but one.
    #[cfg(feature = "switchable-invariants")]
    pub const fn without(invariant: Invariant) -> Self {
        Self { off: Some(invariant) }
    }

    /// Whether an invariant is on.
    #[inline]
    pub fn on(self, invariant: Invariant) -> bool {
        #[cfg(feature = "switchable-invariants")]
        return self.off != Some(invariant);
        #[cfg(not(feature = "switchable-invariants"))]
        {
            let _ = invariant;
            true
        }
    }
}
