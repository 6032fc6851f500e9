//! The suite of the [`Coordinator`](crate::Coordinator). Numbers in the cases' docs are those of its promises.

/// One test for each case of the coordinator's suite. Takes an `async fn` that gives an `Option` of a
/// [`CoordinatorEnv`](crate::conformance::CoordinatorEnv) with a coordinator of its own.
#[macro_export]
macro_rules! coordinator_conformance {
    ($factory:expr) => {
        $crate::conformance_cases!(coordinator, run_alone, $factory, {
            session: [
                a_renewed_session_lives,
                a_session_that_is_not_renewed_ends,
                a_session_lives_for_one_ttl_after_its_last_renewal,
                an_ended_session_cannot_be_used,
                an_identity_is_never_used_again,
                closing_ends_a_session_at_once,
                a_guard_may_close_with_the_token,
                a_revoked_session_ends_after_its_ttl,
                a_wrong_secret_is_refused,
                a_ttl_that_is_too_short_is_refused,
                jumps_of_the_wall_clock_move_no_lease,
            ],
            grant: [
                a_grant_has_one_holder,
                of_racing_acquires_one_wins,
                a_released_grant_is_free,
                a_grant_ends_with_its_session,
                lanes_are_granted_apart,
                a_sequence_of_holders_never_overlaps,
            ],
            watch: [
                a_watch_first_shows_everything,
                a_watch_shows_every_change_that_lasts,
                a_watch_is_told_of_an_end,
                a_new_holder_is_never_shown_beside_the_old_one,
                watching_can_be_cancelled,
                a_new_watch_is_no_older_than_its_call,
                renewals_are_not_told,
                revisions_rise_with_changes,
            ],
        });
    };
}

mod talk {
    use std::time::Duration;

    use tasklane_core::id::SessionId;
    use tasklane_core::member::{Role, WorkerDescriptor};

    use crate::conformance::CoordinatorEnv;
    use crate::conformance::fixture::{name, session_id};
    use crate::{Coordinator, OpenSession, SessionToken, View, Watch};

    pub(super) fn server(number: u128) -> Role {
        Role::Server { address: format!("10.0.0.{number}:7400"), bus: String::new() }
    }

    pub(super) fn worker(text: &str, capacity: u32) -> Role {
        Role::Worker(WorkerDescriptor {
            name: name(text),
            capacity,
            weight: 2,
            labels: [("zone".to_owned(), "“eu” 漢".to_owned())].into(),
            task_types: [name("SHELL"), name("HTTP")].into(),
            draining: false,
            pause_reason: None,
            address: String::new(),
        })
    }

    /// Opens a session, identified by a number.
    pub(super) async fn open(env: &dyn CoordinatorEnv, number: u128) -> SessionToken {
        open_over(&*env.coordinator(), env, number).await
    }

    pub(super) async fn open_over(
        coordinator: &dyn Coordinator,
        env: &dyn CoordinatorEnv,
        number: u128,
    ) -> SessionToken {
        let (session, role) = (session_id(number), server(number));
        let token = coordinator.open(OpenSession { session, ttl: env.ttl(), role }).await.unwrap();
        assert_eq!(token.session, session);
        token
    }

    /// The view now.
    pub(super) async fn view(env: &dyn CoordinatorEnv) -> View {
        env.second().await.watch().await.unwrap().next().await.unwrap()
    }

    /// Keeps a session alive over a time.
    pub(super) async fn keep(env: &dyn CoordinatorEnv, token: &SessionToken, time: Duration) {
        let pause = env.ttl() / 4;
        let mut passed = Duration::ZERO;
        while passed < time {
            env.pass(pause).await;
            passed += pause;
            env.coordinator().renew(token).await.unwrap();
        }
    }

    /// Follows a watch until a view is as wanted.
    pub(super) async fn until(
        watch: &mut Box<dyn Watch>,
        what: &str,
        wanted: impl Fn(&View) -> bool,
    ) -> View {
        for _ in 0..1_000 {
            let view = watch.next().await.expect("the coordinator is open");
            if wanted(&view) {
                return view;
            }
        }
        panic!("{what} was never seen");
    }

    pub(super) fn has(view: &View, session: SessionId) -> bool {
        view.members.contains_key(&session)
    }
}

/// Sessions.
pub mod session {
    use std::time::Duration;

    use tasklane_core::member::Member;

    use super::talk::{has, keep, open, server, view, worker};
    use crate::conformance::fixture::{LANE, session_id};
    use crate::conformance::{CoordinatorEnv, skipped};
    use crate::{CoordinatorError, OpenSession, SessionToken};

    fn ended(answer: Result<impl std::fmt::Debug, CoordinatorError>, token: &SessionToken) {
        match answer {
            Err(CoordinatorError::SessionEnded { session }) => assert_eq!(session, token.session),
            other => panic!("{other:?}"),
        }
    }

    /// 1: for many TTLs.
    pub async fn a_renewed_session_lives(env: &dyn CoordinatorEnv) {
        let token = open(env, 1).await;
        let listed = view(env).await.members;
        let member = Member { session: token.session, role: server(1) };
        assert_eq!(listed.into_iter().collect::<Vec<_>>(), [(token.session, member)]);
        keep(env, &token, env.ttl() * 4).await;
        assert!(has(&view(env).await, token.session));
    }

    /// 2: and it is not seen to live on.
    pub async fn a_session_that_is_not_renewed_ends(env: &dyn CoordinatorEnv) {
        let token = open(env, 1).await;
        env.pass(env.ttl() + env.slack()).await;
        assert!(!has(&view(env).await, token.session));
    }

    /// 1: another's end does not touch it.
    pub async fn a_session_lives_for_one_ttl_after_its_last_renewal(env: &dyn CoordinatorEnv) {
        let token = open(env, 1).await;
        let other = open(env, 2).await;
        env.pass(env.ttl() / 2).await;
        env.coordinator().renew(&token).await.unwrap();
        env.coordinator().close(&other).await.unwrap();
        env.pass(env.ttl() * 3 / 4).await;
        // One and a quarter TTL after it was opened, three quarters after it was renewed.
        assert!(has(&view(env).await, token.session));
        env.coordinator().renew(&token).await.unwrap();
    }

    /// 3: for anything.
    pub async fn an_ended_session_cannot_be_used(env: &dyn CoordinatorEnv) {
        let coordinator = env.coordinator();
        let (closed, expired) = (open(env, 1).await, open(env, 2).await);
        coordinator.close(&closed).await.unwrap();
        env.pass(env.ttl() + env.slack()).await;
        for token in [&closed, &expired] {
            ended(coordinator.renew(token).await, token);
            ended(coordinator.update(token, server(9)).await, token);
            ended(coordinator.acquire(token, LANE).await, token);
            coordinator.close(token).await.unwrap();
            coordinator.revoke(token.session).await.unwrap();
        }
        let view = view(env).await;
        assert!(view.members.is_empty() && view.grants.is_empty(), "{view:?}");
    }

    /// 3: neither while the session lives nor after its end, over any handle.
    pub async fn an_identity_is_never_used_again(env: &dyn CoordinatorEnv) {
        let coordinator = env.coordinator();
        let (closed, expired) = (open(env, 1).await, open(env, 2).await);
        coordinator.close(&closed).await.unwrap();
        env.pass(env.ttl() + env.slack()).await;
        let living = open(env, 3).await;
        for token in [&closed, &expired, &living] {
            for coordinator in [&coordinator, &env.second().await] {
                let role = worker("other", 1);
                let again = OpenSession { session: token.session, ttl: env.ttl(), role };
                ended(coordinator.open(again).await, token);
            }
        }
        // The living session is unchanged.
        let members: Vec<_> = view(env).await.members.into_values().collect();
        assert_eq!(members, [Member { session: living.session, role: server(3) }]);
        coordinator.renew(&living).await.unwrap();
    }

    /// 4: without waiting for a TTL.
    pub async fn closing_ends_a_session_at_once(env: &dyn CoordinatorEnv) {
        let (token, other) = (open(env, 1).await, open(env, 2).await);
        env.coordinator().acquire(&token, LANE).await.unwrap();
        env.coordinator().close(&token).await.unwrap();
        let view = view(env).await;
        assert!(!has(&view, token.session) && has(&view, other.session));
        assert!(view.grants.is_empty());
        ended(env.coordinator().renew(&token).await, &token);
    }

    /// 4: over another connection, with nothing but the token.
    pub async fn a_guard_may_close_with_the_token(env: &dyn CoordinatorEnv) {
        let token = open(env, 1).await;
        let copy = SessionToken { session: token.session, secret: token.secret.clone() };
        let guard = env.second().await;
        guard.renew(&copy).await.unwrap();
        guard.close(&copy).await.unwrap();
        ended(env.coordinator().renew(&token).await, &token);
    }

    /// 4: it may no longer renew, but keeps its grants until its TTL ends.
    pub async fn a_revoked_session_ends_after_its_ttl(env: &dyn CoordinatorEnv) {
        let token = open(env, 1).await;
        env.coordinator().acquire(&token, LANE).await.unwrap();
        env.pass(env.ttl() / 2).await;
        env.coordinator().renew(&token).await.unwrap();
        env.second().await.revoke(token.session).await.unwrap();
        ended(env.coordinator().renew(&token).await, &token);
        env.pass(env.ttl() / 2).await;
        let before = view(env).await;
        assert!(has(&before, token.session), "it lives for one TTL after its last renewal");
        assert_eq!(before.grants.get(&LANE), Some(&token.session));
        env.pass(env.ttl() / 2 + env.slack()).await;
        let after = view(env).await;
        assert!(!has(&after, token.session) && after.grants.is_empty());
        // It may also be closed earlier.
        let token = open(env, 2).await;
        env.coordinator().revoke(token.session).await.unwrap();
        env.coordinator().close(&token).await.unwrap();
        assert!(!has(&view(env).await, token.session));
    }

    /// 3: knowing a session's name is not holding it.
    pub async fn a_wrong_secret_is_refused(env: &dyn CoordinatorEnv) {
        let (token, other) = (open(env, 1).await, open(env, 2).await);
        let forged = SessionToken { session: token.session, secret: other.secret.clone() };
        ended(env.coordinator().renew(&forged).await, &forged);
        ended(env.coordinator().acquire(&forged, LANE).await, &forged);
        let _ = env.coordinator().close(&forged).await;
        env.coordinator().renew(&token).await.unwrap();
    }

    /// 1: a coordinator promises no TTL that it cannot keep.
    pub async fn a_ttl_that_is_too_short_is_refused(env: &dyn CoordinatorEnv) {
        let min = env.coordinator().capabilities().ttl_min;
        assert!(env.ttl() >= min, "the environment's own TTL is too short");
        let ttl = min.checked_sub(Duration::from_micros(1)).unwrap();
        let open = OpenSession { session: session_id(1), ttl, role: server(1) };
        let refused = env.coordinator().open(open).await;
        assert!(matches!(refused, Err(CoordinatorError::TtlTooShort { .. })), "{refused:?}");
        assert!(view(env).await.members.is_empty());
    }

    /// 7: neither an end too early nor one too late, whichever way it jumps.
    pub async fn jumps_of_the_wall_clock_move_no_lease(env: &dyn CoordinatorEnv) {
        const HOUR_MILLIS: i64 = 3_600_000;
        for (number, jump) in [(1, HOUR_MILLIS), (2, -HOUR_MILLIS)] {
            let token = open(env, number).await;
            assert!(env.coordinator().acquire(&token, LANE).await.unwrap());
            if !env.jump_wall_clock(jump).await {
                skipped("jumps_of_the_wall_clock_move_no_lease", "the clock cannot be moved here");
                return;
            }
            env.pass(env.ttl() / 2).await;
            assert!(has(&view(env).await, token.session));
            env.coordinator().renew(&token).await.unwrap();
            env.jump_wall_clock(jump).await;
            env.pass(env.ttl() * 3 / 4).await;
            let alive = view(env).await;
            assert!(has(&alive, token.session), "its time is not over");
            assert_eq!(alive.grants.get(&LANE), Some(&token.session));
            env.pass(env.ttl() / 4 + env.slack()).await;
            let ended = view(env).await;
            assert!(!has(&ended, token.session) && ended.grants.is_empty(), "the session outlived its TTL");
        }
    }
}

/// Grants of lanes.
pub mod grant {
    use std::sync::Arc;

    use futures::future::join_all;

    use super::talk::{keep, open, view};
    use crate::conformance::CoordinatorEnv;
    use crate::conformance::fixture::{LANE, OTHER_LANE};

    /// 5: acquiring a held grant again does no harm.
    pub async fn a_grant_has_one_holder(env: &dyn CoordinatorEnv) {
        let (first, second) = (open(env, 1).await, open(env, 2).await);
        let (here, there) = (env.coordinator(), env.second().await);
        assert!(here.acquire(&first, LANE).await.unwrap());
        assert!(!there.acquire(&second, LANE).await.unwrap());
        assert!(there.acquire(&first, LANE).await.unwrap());
        assert_eq!(view(env).await.grants, [(LANE, first.session)].into());
        // Releasing a grant that a session does not hold takes nothing from its holder.
        there.release(&second, LANE).await.unwrap();
        there.release(&second, OTHER_LANE).await.unwrap();
        assert!(!there.acquire(&second, LANE).await.unwrap());
    }

    /// 5: however many try.
    pub async fn of_racing_acquires_one_wins(env: &dyn CoordinatorEnv) {
        let handles = [env.coordinator(), env.second().await];
        let mut tokens = Vec::new();
        for number in 0..6 {
            tokens.push(open(env, number).await);
        }
        let racers = tokens.iter().cloned().enumerate().map(|(racer, token)| {
            let coordinator = Arc::clone(&handles[racer % 2]);
            tokio::spawn(async move { coordinator.acquire(&token, LANE).await.unwrap() })
        });
        let won: Vec<bool> = join_all(racers).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(won.iter().filter(|won| **won).count(), 1, "{won:?}");
        let winner = tokens[won.iter().position(|won| *won).unwrap()].session;
        assert_eq!(view(env).await.grants, [(LANE, winner)].into());
    }

    /// 5: for any session, at once.
    pub async fn a_released_grant_is_free(env: &dyn CoordinatorEnv) {
        let (first, second) = (open(env, 1).await, open(env, 2).await);
        let coordinator = env.coordinator();
        assert!(coordinator.acquire(&first, LANE).await.unwrap());
        coordinator.release(&first, LANE).await.unwrap();
        assert!(view(env).await.grants.is_empty());
        assert!(env.second().await.acquire(&second, LANE).await.unwrap());
        coordinator.release(&first, LANE).await.unwrap();
        assert_eq!(view(env).await.grants, [(LANE, second.session)].into());
    }

    /// 5: and not before.
    pub async fn a_grant_ends_with_its_session(env: &dyn CoordinatorEnv) {
        let (first, second) = (open(env, 1).await, open(env, 2).await);
        let coordinator = env.coordinator();
        assert!(coordinator.acquire(&first, LANE).await.unwrap());
        keep(env, &second, env.ttl() * 3 / 4).await;
        assert!(!coordinator.acquire(&second, LANE).await.unwrap());
        keep(env, &second, env.ttl() / 4 + env.slack()).await;
        assert!(coordinator.acquire(&second, LANE).await.unwrap());
        coordinator.close(&second).await.unwrap();
        assert!(view(env).await.grants.is_empty());
    }

    /// 5: a session may hold many.
    pub async fn lanes_are_granted_apart(env: &dyn CoordinatorEnv) {
        let (first, second) = (open(env, 1).await, open(env, 2).await);
        let coordinator = env.coordinator();
        assert!(coordinator.acquire(&first, LANE).await.unwrap());
        assert!(coordinator.acquire(&second, OTHER_LANE).await.unwrap());
        coordinator.release(&first, OTHER_LANE).await.unwrap();
        assert_eq!(view(env).await.grants, [(LANE, first.session), (OTHER_LANE, second.session)].into());
        coordinator.close(&second).await.unwrap();
        assert_eq!(view(env).await.grants, [(LANE, first.session)].into());
        assert!(coordinator.acquire(&first, OTHER_LANE).await.unwrap());
    }

    /// 5: handed from one to the next, many times.
    pub async fn a_sequence_of_holders_never_overlaps(env: &dyn CoordinatorEnv) {
        let handles = [env.coordinator(), env.second().await];
        let tokens = [open(env, 1).await, open(env, 2).await];
        for round in 0..20 {
            let (mine, other) = (round % 2, (round + 1) % 2);
            assert!(handles[mine].acquire(&tokens[mine], LANE).await.unwrap());
            assert!(!handles[other].acquire(&tokens[other], LANE).await.unwrap());
            handles[mine].release(&tokens[mine], LANE).await.unwrap();
        }
    }
}

/// Watches.
pub mod watch {
    use std::time::Duration;

    use super::talk::{has, keep, open, open_over, server, until, worker};
    use crate::OpenSession;
    use crate::conformance::CoordinatorEnv;
    use crate::conformance::fixture::{LANE, session_id};

    /// 6: at once, over any handle.
    pub async fn a_watch_first_shows_everything(env: &dyn CoordinatorEnv) {
        let coordinator = env.coordinator();
        let empty = coordinator.watch().await.unwrap().next().await.unwrap();
        assert_eq!(empty, crate::View::default());
        let token = open(env, 1).await;
        let open = OpenSession { session: session_id(2), ttl: env.ttl(), role: worker("w-1", 8) };
        coordinator.open(open).await.unwrap();
        coordinator.acquire(&token, LANE).await.unwrap();
        for handle in [coordinator, env.second().await] {
            let view = handle.watch().await.unwrap().next().await.unwrap();
            let roles: Vec<_> = view.members.into_values().map(|member| member.role).collect();
            assert_eq!(roles, [server(1), worker("w-1", 8)]);
            assert_eq!(view.grants, [(LANE, token.session)].into());
        }
    }

    /// 6: members, their offers, and grants.
    pub async fn a_watch_shows_every_change_that_lasts(env: &dyn CoordinatorEnv) {
        let coordinator = env.coordinator();
        let mut watch = env.second().await.watch().await.unwrap();
        watch.next().await.unwrap();
        let token = open(env, 1).await;
        until(&mut watch, "a new member", |view| has(view, token.session)).await;
        coordinator.update(&token, worker("w-1", 3)).await.unwrap();
        until(&mut watch, "its offer", |view| {
            view.members.get(&token.session).is_some_and(|member| member.role == worker("w-1", 3))
        })
        .await;
        coordinator.acquire(&token, LANE).await.unwrap();
        until(&mut watch, "its grant", |view| view.grants.get(&LANE) == Some(&token.session)).await;
        coordinator.release(&token, LANE).await.unwrap();
        until(&mut watch, "the release", |view| view.grants.is_empty()).await;
        coordinator.close(&token).await.unwrap();
        until(&mut watch, "its end", |view| view.members.is_empty()).await;
    }

    /// 2, 6: without a further request.
    pub async fn a_watch_is_told_of_an_end(env: &dyn CoordinatorEnv) {
        let (lost, kept) = (open(env, 1).await, open(env, 2).await);
        env.coordinator().acquire(&lost, LANE).await.unwrap();
        let mut watch = env.second().await.watch().await.unwrap();
        let told = until(&mut watch, "the end of a session", |view| !has(view, lost.session));
        let time = env.ttl() + env.slack();
        let view = tokio::select! {
            view = told => view,
            () = async { keep(env, &kept, time * 2).await } => panic!("the watch showed no end"),
        };
        assert!(has(&view, kept.session) && view.grants.is_empty());
    }

    /// 6: in no view is a lane held by a session that is not a member, and holders follow each other.
    pub async fn a_new_holder_is_never_shown_beside_the_old_one(env: &dyn CoordinatorEnv) {
        let coordinator = env.coordinator();
        let mut watch = env.second().await.watch().await.unwrap();
        let mut number = 0;
        for round in 1..=10 {
            let token = open_over(&*coordinator, env, round).await;
            assert!(coordinator.acquire(&token, LANE).await.unwrap());
            let view = until(&mut watch, "the grant", |view| {
                assert!(view.grants.values().all(|holder| has(view, *holder)), "{view:?}");
                view.grants.contains_key(&LANE)
            })
            .await;
            let holder = view.grants[&LANE];
            let shown = (1..=round).find(|n| session_id(*n) == holder).unwrap();
            assert!(shown >= number, "holder {shown} is shown after {number}");
            number = shown;
            coordinator.close(&token).await.unwrap();
        }
    }

    /// 6: a cancelled `next` loses nothing.
    pub async fn watching_can_be_cancelled(env: &dyn CoordinatorEnv) {
        let mut watch = env.second().await.watch().await.unwrap();
        watch.next().await.unwrap();
        for number in 0..5 {
            let nothing = tokio::time::timeout(Duration::from_millis(1), watch.next()).await;
            assert!(nothing.is_err(), "{nothing:?}");
            let token = open(env, number).await;
            until(&mut watch, "a new member", |view| has(view, token.session)).await;
            env.coordinator().close(&token).await.unwrap();
            until(&mut watch, "its end", |view| !has(view, token.session)).await;
        }
    }

    /// 6: also beside a watch that has not shown the change yet.
    pub async fn a_new_watch_is_no_older_than_its_call(env: &dyn CoordinatorEnv) {
        let (here, there) = (env.coordinator(), env.second().await);
        let mut first = there.watch().await.unwrap();
        for number in 0..20 {
            let token = open_over(&*here, env, number).await;
            let view = there.watch().await.unwrap().next().await.unwrap();
            assert!(has(&view, token.session), "{number}");
            here.close(&token).await.unwrap();
            let view = there.watch().await.unwrap().next().await.unwrap();
            assert!(!has(&view, token.session), "{number}");
        }
        until(&mut first, "the end of the last one", |view| view.members.is_empty()).await;
    }

    /// 6: they are no change, and neither is an offer that stays the same.
    pub async fn renewals_are_not_told(env: &dyn CoordinatorEnv) {
        let token = open(env, 1).await;
        let mut watch = env.second().await.watch().await.unwrap();
        let first = until(&mut watch, "the session", |view| has(view, token.session)).await;
        for _ in 0..5 {
            env.coordinator().renew(&token).await.unwrap();
            env.coordinator().update(&token, server(1)).await.unwrap();
            env.pass(env.ttl() / 10).await;
        }
        let nothing = tokio::time::timeout(Duration::from_millis(1), watch.next()).await;
        assert!(nothing.is_err(), "{nothing:?}");
        assert_eq!(super::talk::view(env).await, first);
    }

    /// 6: of two views the one with the higher revision is newer, for every watcher.
    pub async fn revisions_rise_with_changes(env: &dyn CoordinatorEnv) {
        let (here, there) = (env.coordinator(), env.second().await);
        let mut revisions = Vec::new();
        let mut note = async || {
            let views = [here.watch().await.unwrap().next().await, there.watch().await.unwrap().next().await];
            assert_eq!(views[0], views[1]);
            revisions.push(views[0].as_ref().unwrap().revision);
        };
        note().await;
        let token = open(env, 1).await;
        note().await;
        here.update(&token, worker("w-1", 3)).await.unwrap();
        note().await;
        there.acquire(&token, LANE).await.unwrap();
        note().await;
        here.release(&token, LANE).await.unwrap();
        note().await;
        there.acquire(&token, LANE).await.unwrap();
        note().await;
        there.close(&token).await.unwrap();
        note().await;
        assert!(revisions.is_sorted_by(|earlier, later| earlier < later), "{revisions:?}");
    }
}
