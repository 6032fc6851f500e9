//! The suite of the [`Intake`](crate::Intake). Numbers in the cases' docs are those of its promises.

/// One test for each case of the intake's suite. Takes an `async fn` that gives an `Option` of an
/// [`IntakeEnv`](crate::conformance::IntakeEnv) with an intake of its own.
#[macro_export]
macro_rules! intake_conformance {
    ($factory:expr) => {
        $crate::conformance_cases!(intake, run, $factory, {
            take: [
                messages_are_taken_in_order_and_unchanged,
                a_take_is_bounded,
                a_take_waits_for_a_message,
                a_take_that_was_given_up_loses_nothing,
                takers_share_what_comes,
            ],
            settle: [
                an_acknowledged_message_is_not_given_again,
                an_unacknowledged_message_is_given_again_under_the_same_id,
                what_a_living_taker_has_is_not_given_to_another,
                a_waiting_taker_is_given_what_was_recovered,
                a_late_acknowledgement_is_no_error,
                a_rejected_message_is_kept_with_its_reason,
                a_message_that_is_no_text_can_be_rejected,
            ],
        });
    };
}

mod talk {
    use crate::{Intake, IntakeMessage};

    pub(super) fn body(number: usize) -> Vec<u8> {
        format!("{{\"taskType\":\"SHELL\",\"payload\":\"“{number}” 漢\"}}").into_bytes()
    }

    pub(super) fn bodies(numbers: std::ops::Range<usize>) -> Vec<Vec<u8>> {
        numbers.map(body).collect()
    }

    /// Takes until so many messages have arrived.
    pub(super) async fn take(intake: &dyn Intake, count: usize) -> Vec<IntakeMessage> {
        let mut taken = Vec::new();
        while taken.len() < count {
            let more = intake.take(count - taken.len()).await.unwrap();
            assert!(!more.is_empty() && taken.len() + more.len() <= count);
            taken.extend(more);
        }
        taken
    }

    pub(super) fn ids(messages: &[IntakeMessage]) -> Vec<String> {
        messages.iter().map(|message| message.id.clone()).collect()
    }

    pub(super) fn sorted(messages: &[IntakeMessage]) -> Vec<Vec<u8>> {
        let mut bodies: Vec<_> = messages.iter().map(|message| message.body.clone()).collect();
        bodies.sort();
        bodies
    }
}

/// Taking messages.
pub mod take {
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::time::Duration;

    use super::talk::{bodies, body, ids, sorted, take};
    use crate::conformance::IntakeEnv;
    use crate::conformance::fixture::session_id;

    /// 3: of any content; each has an id of its own.
    pub async fn messages_are_taken_in_order_and_unchanged(env: &dyn IntakeEnv) {
        let intake = env.taker(session_id(1)).await;
        let mut sent = bodies(0..20);
        sent.extend([b"not json".to_vec(), b"\xff\x00\r\n\n".to_vec(), b" ".to_vec(), vec![b'x'; 1 << 20]]);
        env.produce(sent.clone()).await;
        let taken = take(&*intake, sent.len()).await;
        let came: Vec<_> = taken.iter().map(|message| message.body.clone()).collect();
        assert!(came == sent, "the order or the content has changed");
        assert_eq!(ids(&taken).into_iter().collect::<BTreeSet<_>>().len(), sent.len());
    }

    /// 1: messages above the limit stay in the intake.
    pub async fn a_take_is_bounded(env: &dyn IntakeEnv) {
        let (first, second) = (env.taker(session_id(1)).await, env.taker(session_id(2)).await);
        env.produce(bodies(0..10)).await;
        let mut all = first.take(3).await.unwrap();
        assert!((1..=3).contains(&all.len()));
        all.extend(take(&*second, 10 - all.len()).await);
        assert_eq!(sorted(&all), bodies(0..10));
    }

    /// 1: the first message wakes it, however long it waited.
    pub async fn a_take_waits_for_a_message(env: &dyn IntakeEnv) {
        let intake = env.taker(session_id(1)).await;
        for number in 0..5 {
            let taker = Arc::clone(&intake);
            let waiting = tokio::spawn(async move { take(&*taker, 1).await });
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert!(!waiting.is_finished());
            env.produce(vec![body(number)]).await;
            assert_eq!(waiting.await.unwrap()[0].body, body(number));
        }
    }

    /// 1: at whatever moment.
    pub async fn a_take_that_was_given_up_loses_nothing(env: &dyn IntakeEnv) {
        let intake = env.taker(session_id(1)).await;
        let mut came = Vec::new();
        for number in 0..20 {
            let patience = Duration::from_millis(u64::try_from(number % 5).unwrap());
            let (taken, ()) = tokio::join!(
                tokio::time::timeout(patience, intake.take(10)),
                env.produce(vec![body(number)])
            );
            came.extend(taken.into_iter().flat_map(Result::unwrap));
        }
        while came.len() < 20 {
            came.extend(intake.take(10).await.unwrap());
        }
        let mut sent = bodies(0..20);
        sent.sort();
        assert_eq!(sorted(&came), sent);
    }

    /// 5: however many takers wait.
    pub async fn takers_share_what_comes(env: &dyn IntakeEnv) {
        let mut takers = Vec::new();
        for number in 1..=3 {
            let intake = env.taker(session_id(number)).await;
            takers.push(tokio::spawn(async move {
                let mut came = Vec::new();
                while let Ok(more) = tokio::time::timeout(Duration::from_secs(2), intake.take(7)).await {
                    let more = more.unwrap();
                    intake.acknowledge(&ids(&more)).await.unwrap();
                    came.extend(more);
                }
                came
            }));
        }
        for batch in 0..20 {
            env.produce(bodies(batch * 10..batch * 10 + 10)).await;
        }
        let mut all = Vec::new();
        for taker in takers {
            all.extend(taker.await.unwrap());
        }
        let mut sent = bodies(0..200);
        sent.sort();
        assert_eq!(sorted(&all), sent);
        assert_eq!(ids(&all).into_iter().collect::<BTreeSet<_>>().len(), 200);
    }
}

/// Acknowledging, rejecting and recovering messages.
pub mod settle {
    use std::sync::Arc;
    use std::time::Duration;

    use super::talk::{bodies, body, ids, take};
    use crate::conformance::IntakeEnv;
    use crate::conformance::fixture::session_id;

    /// 4: not to any later taker.
    pub async fn an_acknowledged_message_is_not_given_again(env: &dyn IntakeEnv) {
        let first = env.taker(session_id(1)).await;
        env.produce(bodies(0..5)).await;
        let taken = take(&*first, 5).await;
        first.acknowledge(&ids(&taken)).await.unwrap();
        first.acknowledge(&[]).await.unwrap();
        drop(first);
        env.lose(session_id(1)).await;
        let second = env.taker(session_id(2)).await;
        second.recover(&[session_id(2)]).await.unwrap();
        env.produce(vec![body(9)]).await;
        assert_eq!(take(&*second, 1).await[0].body, body(9));
    }

    /// 1, 3: in their old order, before later messages.
    pub async fn an_unacknowledged_message_is_given_again_under_the_same_id(env: &dyn IntakeEnv) {
        let first = env.taker(session_id(1)).await;
        env.produce(bodies(0..12)).await;
        let taken = take(&*first, 12).await;
        first.acknowledge(&ids(&taken[3..5])).await.unwrap();
        drop(first);
        env.lose(session_id(1)).await;
        let second = env.taker(session_id(2)).await;
        second.recover(&[session_id(2), session_id(7)]).await.unwrap();
        let again = take(&*second, 10).await;
        assert_eq!(again, [&taken[..3], &taken[5..]].concat());
        // Once more, and by another.
        drop(second);
        env.lose(session_id(2)).await;
        let third = env.taker(session_id(3)).await;
        third.recover(&[session_id(3)]).await.unwrap();
        assert_eq!(take(&*third, 10).await, again);
    }

    /// 5: nor are the messages of the taker that calls `recover`.
    pub async fn what_a_living_taker_has_is_not_given_to_another(env: &dyn IntakeEnv) {
        let (first, second) = (env.taker(session_id(1)).await, env.taker(session_id(2)).await);
        env.produce(bodies(0..4)).await;
        let (one, other) = (take(&*first, 2).await, take(&*second, 2).await);
        second.recover(&[session_id(1), session_id(2)]).await.unwrap();
        // The taker that calls `recover` is alive, whatever the list says.
        first.recover(&[session_id(2)]).await.unwrap();
        env.produce(vec![body(9)]).await;
        assert_eq!(take(&*second, 1).await[0].body, body(9));
        first.acknowledge(&ids(&one)).await.unwrap();
        second.acknowledge(&ids(&other)).await.unwrap();
    }

    /// 1: without a new message.
    pub async fn a_waiting_taker_is_given_what_was_recovered(env: &dyn IntakeEnv) {
        let (first, second) = (env.taker(session_id(1)).await, env.taker(session_id(2)).await);
        env.produce(bodies(0..3)).await;
        let taken = take(&*first, 3).await;
        let waiting = Arc::clone(&second);
        let waiting = tokio::spawn(async move { take(&*waiting, 3).await });
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(first);
        env.lose(session_id(1)).await;
        second.recover(&[session_id(2)]).await.unwrap();
        assert_eq!(waiting.await.unwrap(), taken);
    }

    /// 1, 3: a taker that was wrongly declared lost does no harm.
    pub async fn a_late_acknowledgement_is_no_error(env: &dyn IntakeEnv) {
        let (first, second) = (env.taker(session_id(1)).await, env.taker(session_id(2)).await);
        env.produce(bodies(0..3)).await;
        let taken = take(&*first, 3).await;
        first.acknowledge(&ids(&taken[..1])).await.unwrap();
        first.acknowledge(&ids(&taken[..1])).await.unwrap();
        env.lose(session_id(1)).await;
        second.recover(&[session_id(2)]).await.unwrap();
        let again = take(&*second, 2).await;
        assert_eq!(again, taken[1..]);
        let _ = first.acknowledge(&ids(&taken)).await;
        second.acknowledge(&ids(&again)).await.unwrap();
        env.produce(vec![body(9)]).await;
        assert_eq!(take(&*second, 1).await[0].body, body(9));
    }

    /// 2: once, also when it is rejected twice.
    pub async fn a_rejected_message_is_kept_with_its_reason(env: &dyn IntakeEnv) {
        let first = env.taker(session_id(1)).await;
        env.produce(bodies(0..4)).await;
        let taken = take(&*first, 4).await;
        let rejected = [
            (taken[1].clone(), "payload: \"missing\"\nline 2".to_owned()),
            (taken[2].clone(), "taskType: unknown".to_owned()),
        ];
        first.reject(&rejected).await.unwrap();
        first.reject(&rejected[..1]).await.unwrap();
        first.reject(&[]).await.unwrap();
        first.acknowledge(&ids(&taken[..1])).await.unwrap();
        let mut dead = env.dead().await;
        dead.sort();
        let mut expected = rejected.map(|(message, reason)| (message.body, reason)).to_vec();
        expected.sort();
        assert_eq!(dead, expected);
        drop(first);
        env.lose(session_id(1)).await;
        let second = env.taker(session_id(2)).await;
        second.recover(&[session_id(2)]).await.unwrap();
        assert_eq!(take(&*second, 1).await, taken[3..]);
    }

    /// 2: it is kept with the bytes that were sent.
    pub async fn a_message_that_is_no_text_can_be_rejected(env: &dyn IntakeEnv) {
        let intake = env.taker(session_id(1)).await;
        let body = b"{\"a\":\xff\x00}".to_vec();
        env.produce(vec![body.clone()]).await;
        let taken = take(&*intake, 1).await;
        intake.reject(&[(taken[0].clone(), "not UTF-8".to_owned())]).await.unwrap();
        assert_eq!(env.dead().await, [(body, "not UTF-8".to_owned())]);
    }
}
