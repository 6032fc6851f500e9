//! Names in stored definitions and results of workflows stay: see `tasklane_testkit::golden`.

use tasklane_testkit::golden::check;
use tasklane_testkit::variants;
use tasklane_workflow::{Counts, OnFailure, ROOT, TriggerRule, analysis_of};

#[test]
fn definitions_and_results_keep_their_names() {
    check("workflow", |golden| {
        golden.json_variants(
            "TriggerRule",
            variants!(TriggerRule: AllSucceeded, AllDone, AnyFailed),
            [TriggerRule::AllSucceeded, TriggerRule::AllDone, TriggerRule::AnyFailed],
        );
        golden.json_variants(
            "OnFailure",
            variants!(OnFailure: Stop, Continue),
            [OnFailure::Stop, OnFailure::Continue],
        );
        let counts = Counts { waiting: 1, open: 2, succeeded: 3, failed: 4, cancelled: 5, skipped: 6 };
        golden.json("Counts", &counts);
        golden.text("the root of a job", ROOT);
        golden.text("the analysis of a task", analysis_of("r.0"));
    });
}
