//! The stored outcomes of a lane's last commit. Nearly all groups of nearly all commits are applied, so
//! outcomes are kept as runs: a thousand of them take a few bytes instead of a few pages in every
//! transaction.

use tasklane_core::commit::GroupOutcome;
use tasklane_core::id::Seq;

/// Runs of outcomes: how many, and the first one. The numbers of inserted tasks rise by one within a run;
/// other outcomes are the same throughout.
pub(crate) type OutcomeRuns = Vec<(u32, GroupOutcome)>;

pub(crate) fn pack(outcomes: &[GroupOutcome]) -> OutcomeRuns {
    let mut runs: OutcomeRuns = Vec::new();
    for outcome in outcomes {
        match runs.last_mut() {
            Some((count, first)) if *outcome == nth(first, *count) => *count += 1,
            _ => runs.push((1, outcome.clone())),
        }
    }
    runs
}

pub(crate) fn unpack(runs: &OutcomeRuns) -> Vec<GroupOutcome> {
    runs.iter().flat_map(|(count, first)| (0..*count).map(|n| nth(first, n))).collect()
}

/// The outcome `n` places after the first of a run.
fn nth(first: &GroupOutcome, n: u32) -> GroupOutcome {
    match first {
        GroupOutcome::Applied { seq: Some(seq) } => {
            GroupOutcome::Applied { seq: Some(Seq(seq.0 + u64::from(n))) }
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use tasklane_core::commit::SubmitOutcome;
    use tasklane_core::id::TaskId;
    use tasklane_core::status::Version;
    use tasklane_ports::codec::{decode, encode};

    use super::*;

    #[test]
    fn outcomes_come_back_as_they_were() {
        let applied = |seq: u64| GroupOutcome::Applied { seq: Some(Seq(seq)) };
        let exists =
            |task| GroupOutcome::NotCreated(SubmitOutcome::Exists { task: TaskId::from_random(task) });
        let cases: [Vec<GroupOutcome>; 4] = [
            vec![],
            vec![GroupOutcome::Applied { seq: None }; 1000],
            (5..1005).map(applied).collect(),
            vec![
                applied(7),
                applied(8),
                applied(8),
                GroupOutcome::NotCreated(SubmitOutcome::Duplicate),
                GroupOutcome::NotCreated(SubmitOutcome::Duplicate),
                exists(1),
                exists(1),
                exists(2),
                GroupOutcome::NotCreated(SubmitOutcome::QueueFull),
                GroupOutcome::Mismatch { found: None },
                GroupOutcome::Mismatch { found: Some(Version::NEW) },
                GroupOutcome::Applied { seq: None },
                applied(9),
            ],
        ];
        for outcomes in cases {
            let bytes = encode(&pack(&outcomes));
            assert!(outcomes.len() < 100 || bytes.len() < 100, "{} bytes", bytes.len());
            assert_eq!(unpack(&decode(&bytes).unwrap()), outcomes);
        }
    }
}
