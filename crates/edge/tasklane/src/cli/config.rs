//! `tasklane config`: shows and checks the configuration.

use std::path::PathBuf;

use tasklane::config::{Sources, load, show, show_json};

use super::exit::{Exit, Usage};
use super::out::{Out, print_line, print_object, print_raw};
use super::process::{GivenSettings, Settings};

/// Show or check the configuration of a server
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Print the effective configuration and where each value comes from
    Show(#[command(flatten)] Box<Settings>),
    /// Check a file without the environment
    Check {
        /// The YAML file
        file: PathBuf,
    },
}

pub(crate) fn run(command: Command, token: Option<String>, out: Out) -> anyhow::Result<Exit> {
    match command {
        Command::Show(settings) => {
            let loaded = GivenSettings::from(*settings).load(token)?;
            if out.is_json() {
                print_object(&show_json(&loaded))?;
            } else {
                print_raw(show(&loaded).trim_end())?;
            }
        }
        Command::Check { .. } if token.is_some() => {
            return Err(Usage(
                "--token does not apply to `config check`: it checks only the file".to_owned(),
            )
            .into());
        }
        Command::Check { file } => {
            load(&Sources { file: Some(file.clone()), ..Sources::default() })?;
            if out.is_json() {
                print_object(&serde_json::json!({ "file": file, "ok": true }))?;
            } else {
                print_line(format_args!("{} is valid", file.display()))?;
            }
        }
    }
    Ok(Exit::OK)
}
