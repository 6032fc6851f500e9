//! The suites have teeth: a store that lacks one of its guards is found out, by the model and by a case.

#![cfg(feature = "unguarded")]

use std::sync::Arc;

use async_trait::async_trait;
use tasklane_core::guard::{Guard, Guards};
use tasklane_local::{MemoryOptions, MemoryStore};
use tasklane_ports::Store;
use tasklane_ports::conformance::model::{Plan, find_difference};
use tasklane_ports::conformance::store::{claim, commit, group, load, submit, unique};
use tasklane_ports::conformance::{StoreEnv, run_long};

struct Unguarded(MemoryStore);

impl Unguarded {
    fn without(guard: Guard) -> Self {
        let guards = Guards::without(guard);
        Self(MemoryStore::new(MemoryOptions { guards, ..MemoryOptions::default() }))
    }
}

#[async_trait]
impl StoreEnv for Unguarded {
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
fn the_model_finds_every_missing_guard() {
    let store_guards = [
        Guard::OwnerId,
        Guard::CommitNumber,
        Guard::CommitRepeat,
        Guard::RequestIdKey,
        Guard::UniqueKey,
        Guard::ArrivalsOrder,
        Guard::InboxDoneInGroup,
    ];
    run_long("guards", async {
        for guard in store_guards {
            let env = Unguarded::without(guard);
            let plan = Plan { sequences: 50, ..Plan::default() };
            let difference = find_difference(&env, reference, plan).await;
            let difference = difference.unwrap_or_else(|| panic!("nothing shows that {guard:?} is off"));
            println!("{guard:?}: {difference}\n");
        }
        Some(())
    });
}

macro_rules! found_by {
    ($($guard:ident => $theme:ident::$case:ident,)*) => {
        $(#[test]
        #[should_panic = ""]
        #[allow(non_snake_case, reason = "named after the guard")]
        fn $guard() {
            run_long(stringify!($case), async {
                $theme::$case(&Unguarded::without(Guard::$guard)).await;
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
        claim::a_claim_fences_a_commit_under_way(&Unguarded::without(Guard::OwnerId)).await;
        Some(())
    });
}
