//! `tasklane explain`: why a task is not running.

use tasklane_client::{Client, Explanation};

use super::exit::Exit;
use super::out::Out;

/// Say why a task is not running
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
    let reasons =
        explanation.reasons.iter().map(|reason| format!("- {} ({})\n", reason.message, reason.code));
    match explanation.reasons.len() {
        0 => explanation.summary.clone(),
        _ => format!("{}, because:\n{}", explanation.status, reasons.collect::<String>()),
    }
}
