//! The suites have teeth: a store that lacks one of its invariants is found out, by the model and by a case.

#![cfg(feature = "switchable-invariants")]

use std::sync::Arc;

use async_trait::async_trait;
use tasklane_core::invariant::{Invariant, Invariants};
use tasklane_local::{MemoryOptions, MemoryStore};
use tasklane_ports::Store;
use tasklane_ports::conformance::model::{Plan, find_difference};
use tasklane_ports::conformance::store::{claim, commit, group, load, submit, unique};
use tasklane_ports::conformance::{StoreEnv, run_long};

struct WithoutInvariant(MemoryStore);

impl WithoutInvariant {
    fn without(invariant: Invariant) -> Self {
        let invariants = Invariants::without(invariant);
        Self(MemoryStore::new(MemoryOptions { invariants, ..MemoryOptions::default() }))
    }
}

#[async_trait]
impl StoreEnv for WithoutInvariant {
    fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.0.clone())
    }

    async fn reopen(&self) -> Arc<dyn Store> {
        self.store()
    }
}

fn reference() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new(MemoryOptions::default()))
}

#[test]
fn the_model_finds_every_missing_invariant() {
    let store_invariants = [
        Invariant::OwnerId,
        Invariant::CommitNumber,
        Invariant::CommitRepeat,
        Invariant::RequestIdKey,
        Invariant::UniqueKey,
        Invariant::ArrivalsOrder,
        Invariant::InboxDoneInGroup,
    ];
    run_long("invariants", async {
        for invariant in store_invariants {
            let env = WithoutInvariant::without(invariant);
            let plan = Plan { sequences: 50, ..Plan::default() };
            let difference = find_difference(&env, reference, plan).await;
            let difference = difference.unwrap_or_else(|| panic!("nothing shows that {invariant:?} is off"));
            println!("{invariant:?}: {difference}\n");
        }
        Some(())
    });
}

macro_rules! found_by {
    ($($invariant:ident => $theme:ident::$case:ident,)*) => {
        $(#[test]
        #[should_panic = ""]
        #[allow(non_snake_case, reason = "named after the invariant")]
        fn $invariant() {
            run_long(stringify!($case), async {
                $theme::$case(&WithoutInvariant::without(Invariant::$invariant)).await;
                Some(())
            });
        })*
    };
}

found_by! {
    OwnerId => commit::another_owner_is_fenced,
    CommitNumber => commit::numbers_begin_at_one_and_leave_none_out,
    CommitRepeat => commit::a_repeated_commit_answers_the_first_outcomes,
    RequestIdKey => submit::racing_submits_create_once,
    UniqueKey => unique::of_racing_submits_with_a_unique_key_one_is_created,
    ArrivalsOrder => load::arrivals_go_on_where_they_ended,
    InboxDoneInGroup => group::inbox_rows_stay_when_their_group_is_skipped,
}

/// Promise 5 does not rest on the owner id alone: the epoch fences too.
#[test]
fn the_epoch_alone_stops_a_commit_under_way() {
    run_long("fences", async {
        claim::a_claim_fences_a_commit_under_way(&WithoutInvariant::without(Invariant::OwnerId)).await;
        Some(())
    });
}
