//! Sends hostile requests at a steady pace and judges each answer.
//!
//! An answer is a success, or a problem with a stable code below 500, or 503 or 507 with a code that gives
//! the reason. Bytes that are no HTTP at all may get a bare status, or a closed connection; nothing may be
//! left hanging.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tasklane_core::rng::Rng;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::forms::{self, Route, routes};
use super::heads;
use super::plan::Class;
use super::system::System;
use super::tally::Reason;
use super::wire::{Answer, End, Outcome, Shot, ask, fire};
use crate::cargo::root;
use crate::chaos::clock::Boot;

/// The outcome that a request must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// Any answer of the proper form.
    Answered,
    /// A problem below 500.
    Refused,
    /// Any answer but a success.
    NoSuccess,
    /// A refusal, which may be a bare status or a closed connection.
    Rejected,
    /// Any answer but a failure of the server, which may be a bare status or a closed connection.
    Tolerated,
    /// The first answer is a problem; then the connection closes, or the next answer is right.
    FirstRefused,
    /// Nothing: the client has left.
    Nothing,
}

/// An exchange that takes longer hangs.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
/// Exchanges at a time.
const AT_ONCE: usize = 48;
/// One in so many requests has a hostile head, the others a hostile body, path or parameter.
const HEADS_PERCENT: u64 = 25;

/// The client and counters that send hostile requests and judge the answers.
#[derive(Debug)]
pub(super) struct Hostile {
    system: Arc<System>,
    routes: Vec<Route>,
    codes: BTreeSet<String>,
    seed: u64,
}

impl Hostile {
    pub(super) async fn new(system: &Arc<System>, seed: u64) -> Result<Self> {
        let description = ask(system.target(), "/api/openapi.json", ANSWER_WITHIN).await;
        let description = description.context("the server does not describe itself")?;
        let routes = routes(&description.json())?;
        Ok(Self { system: Arc::clone(system), routes, codes: codes()?, seed })
    }

    /// The request of an index: a pure function of the seed and the description.
    fn shot(&self, index: u64) -> (&'static str, Shot, Rule) {
        let mut rng = Rng::new(self.seed.rotate_left(20) ^ index);
        if rng.chance(HEADS_PERCENT) { heads::shot(&mut rng) } else { forms::shot(&self.routes, &mut rng) }
    }

    /// Sends so many requests, evenly over a time.
    pub(super) async fn run(self: Arc<Self>, count: usize, over: Duration) {
        let begun = Instant::now();
        let room = Arc::new(Semaphore::new(AT_ONCE));
        let mut under_way = JoinSet::new();
        let each = over.as_secs_f64() / f64::from(u32::try_from(count.max(1)).unwrap_or(u32::MAX));
        for index in 0..u64::try_from(count).unwrap_or(u64::MAX) {
            #[expect(clippy::cast_precision_loss, reason = "few enough")]
            let at = Duration::from_secs_f64(each * index as f64);
            tokio::time::sleep_until(begun + at).await;
            let permit = Arc::clone(&room).acquire_owned().await.expect("never closed");
            let hostile = Arc::clone(&self);
            under_way.spawn(async move {
                hostile.send(index).await;
                drop(permit);
            });
            while under_way.try_join_next().is_some() {}
        }
        under_way.join_all().await;
    }

    async fn send(&self, index: u64) {
        let (kind, shot, rule) = self.shot(index);
        let from = Boot::now();
        let outcome = fire(self.system.target(), &shot, ANSWER_WITHIN).await;
        let tally = &self.system.tally;
        tally.count(Class::Requests, kind);
        for answer in &outcome.answers {
            tally.answered(answer.status.to_string());
        }
        if outcome.answers.is_empty() {
            tally.answered(format!("{:?}", outcome.end).to_lowercase());
        }
        let Some(wrong) = judge(&self.codes, rule, shot.answers, &outcome) else { return };
        let is_excused = tally.is_excused(from, Boot::now(), wrong.excuses);
        if !is_excused {
            let answers: Vec<String> = outcome.answers.iter().map(shown).collect();
            let what = format!(
                "{} (request {index}): {} answered {answers:?}, {:?}",
                wrong.what,
                shot.shown(),
                outcome.end
            );
            tally.violation(&format!("hostile request, {kind}"), &what);
        }
    }
}

fn shown(answer: &Answer) -> String {
    let body: String = String::from_utf8_lossy(&answer.body).chars().take(300).collect();
    format!("{} {body}", answer.status)
}

/// The fault of an outcome, and why the attack itself might be the reason.
struct Wrong {
    what: &'static str,
    excuses: &'static [Reason],
}

fn judge(codes: &BTreeSet<String>, rule: Rule, wanted: usize, outcome: &Outcome) -> Option<Wrong> {
    const CUT: &[Reason] = &[Reason::Down, Reason::Crowded];
    let wrong = |what, excuses| Some(Wrong { what, excuses });
    let is_problem = |answer: &Answer| answer.code().is_some_and(|code| codes.contains(&code));
    if rule == Rule::Nothing {
        return None;
    }
    for answer in &outcome.answers {
        let is_told = is_problem(answer);
        match answer.status {
            503 | 507 if is_told => {}
            // The readiness of a server is an answer of its own kind.
            503 if answer.json().get("checks").is_some() => {}
            500.. => return wrong("a failure of the server", &[]),
            400.. if is_told || matches!(rule, Rule::Rejected | Rule::Tolerated) => {}
            400.. if answer.status != 404 && answer.body.is_empty() && rule == Rule::NoSuccess => {}
            400.. => return wrong("a refusal without a stable code", &[]),
            _ => {}
        }
    }
    let first = outcome.answers.first();
    let refuses = |answer: &Answer| answer.status >= 400;
    match (first, rule) {
        (Some(first), Rule::Refused | Rule::NoSuccess | Rule::FirstRefused | Rule::Rejected)
            if !refuses(first) =>
        {
            return wrong("it succeeded", &[]);
        }
        (None, Rule::Rejected | Rule::Tolerated) if outcome.end != End::Silent => return None,
        (None, _) if outcome.end != End::Silent => return wrong("no answer", CUT),
        _ => {}
    }
    let is_short = outcome.answers.len() < wanted;
    match outcome.end {
        End::Silent => wrong("it hangs", CUT),
        // A client that is refused early may have to reconnect, if the answer said so.
        End::Closed | End::Broken if rule == Rule::FirstRefused => {
            let is_announced = first.is_some_and(|first| first.header("connection") == Some("close"));
            if is_announced { None } else { wrong("closed without notice", CUT) }
        }
        End::Closed | End::Broken if is_short && rule == Rule::Answered => wrong("answers are missing", CUT),
        _ => None,
    }
}

/// The stable codes: each has a page.
fn codes() -> Result<BTreeSet<String>> {
    let folder: &Path = &root().join("docs/errors");
    let pages = std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let names = pages.flatten().filter_map(|page| Some(page.path().file_stem()?.to_str()?.to_owned()));
    let codes: BTreeSet<String> = names.collect();
    ensure!(codes.len() > 20, "{} has {} pages only", folder.display(), codes.len());
    Ok(codes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(status: u16, body: &str, end: End) -> Outcome {
        let headers = vec![("content-type".to_owned(), "application/problem+json".to_owned())];
        Outcome { answers: vec![Answer { status, headers, body: body.into() }], end }
    }

    fn wrong(rule: Rule, outcome: &Outcome) -> Option<&'static str> {
        let codes = ["wrong_type".to_owned(), "overloaded".to_owned()].into();
        judge(&codes, rule, 1, outcome).map(|wrong| wrong.what)
    }

    #[test]
    fn answers_are_judged() {
        let problem = r#"{"code":"wrong_type"}"#;
        let told = outcome(422, problem, End::Complete);
        assert_eq!(wrong(Rule::Refused, &told), None);
        assert!(wrong(Rule::Refused, &outcome(422, "{}", End::Complete)).is_some());
        assert!(wrong(Rule::Refused, &outcome(422, r#"{"code":"made_up"}"#, End::Complete)).is_some());
        assert!(wrong(Rule::Answered, &outcome(500, problem, End::Complete)).is_some());
        assert_eq!(wrong(Rule::Answered, &outcome(503, r#"{"code":"overloaded"}"#, End::Complete)), None);
        assert!(wrong(Rule::Refused, &outcome(201, "{}", End::Complete)).is_some());
        assert_eq!(wrong(Rule::Answered, &outcome(201, "{}", End::Complete)), None);
        let nothing = |end| Outcome { answers: Vec::new(), end };
        assert_eq!(wrong(Rule::Rejected, &nothing(End::Closed)), None);
        assert!(wrong(Rule::Rejected, &nothing(End::Silent)).is_some());
        assert!(wrong(Rule::Answered, &nothing(End::Closed)).is_some());
        assert_eq!(wrong(Rule::Nothing, &nothing(End::Closed)), None);
    }
}
