//! `tasklane executor` and `tasklane analyzer`: definitions of task types.

use std::path::PathBuf;

use anyhow::Context;
use serde_json::Value;
use tasklane_client::{Client, DefinitionKind, TypeDefinition};

use super::exit::Exit;
use super::out::{Out, remark};
use super::submit;

/// Definitions of task types
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List the definitions
    List,
    /// Show the definition for a task type, as YAML
    Get {
        /// The task type
        #[arg(value_name = "TYPE")]
        task_type: String,
    },
    /// Register a definition for a task type
    Put {
        /// The task type
        #[arg(value_name = "TYPE")]
        task_type: String,

        /// The definition, as YAML or JSON; - for standard input
        file: PathBuf,

        /// Replace a different definition
        #[arg(long)]
        replace: bool,
    },
    /// Remove the definitions for task types
    Delete {
        /// The task types
        #[arg(required = true, value_name = "TYPE")]
        task_types: Vec<String>,
    },
}

pub(crate) async fn run(
    kind: DefinitionKind,
    command: Command,
    client: &Client,
    out: Out,
) -> anyhow::Result<Exit> {
    match command {
        Command::List => {
            let all = client.definitions(kind).await?;
            out.rows(&all, &["TYPE", "BY", "DESCRIPTION"], cells)?;
            if all.is_empty() {
                remark("no definition is registered yet; docs/jobs.md has examples");
            }
        }
        Command::Get { task_type } => {
            let found = client.definition(kind, &task_type).await?;
            let text = serde_saphyr::to_string(&found.definition).context("cannot write it as YAML")?;
            out.either(&found, |_| text)?;
        }
        Command::Put { task_type, file, replace } => {
            let text = submit::read_text(&file)?;
            let definition: Value =
                serde_saphyr::from_str(&text).with_context(|| format!("{} is not YAML", file.display()))?;
            let put = client.register(kind, &task_type, &definition, replace).await?;
            out.either(&put, |put| put.task_type.clone())?;
        }
        Command::Delete { task_types } => {
            for task_type in task_types {
                client.unregister(kind, &task_type).await?;
            }
        }
    }
    Ok(Exit::OK)
}

fn cells(row: &TypeDefinition) -> Vec<String> {
    let definition = &row.definition;
    let ways = ["command", "script", "python", "http", "taskType"];
    let way = ways.into_iter().find(|way| definition.get(way).is_some_and(|value| !value.is_null()));
    let description = definition.get("description").and_then(Value::as_str).unwrap_or_default();
    vec![row.task_type.clone(), way.unwrap_or_default().to_owned(), description.to_owned()]
}
