//! `tasklane explain`: why a task is not running.

use tasklane_client::{Client, Explanation};
use tasklane_core::printable::printable;

use super::exit::Exit;
use super::out::Out;

/// Explain why a task is not running
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The task
    id: String,
}

pub(crate) async fn run(args: Args, client: &Client, out: Out) -> anyhow::Result<Exit> {
    let explanation = client.explain(&args.id).await?;
    out.either(&explanation, shown).map(|()| Exit::OK)
}

fn shown(explanation: &Explanation) -> String {
    let reasons = explanation.reasons.iter();
    let reasons =
        reasons.map(|reason| format!("- {} ({})\n", printable(&reason.message), printable(&reason.code)));
    match explanation.reasons.len() {
        0 => printable(&explanation.summary).into_owned(),
        _ => format!("{}, because:\n{}", explanation.status, reasons.collect::<String>()),
    }
}
