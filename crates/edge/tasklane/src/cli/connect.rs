//! The server that a command talks to.

use clap::ArgMatches;
use clap::parser::ValueSource;
use tasklane_client::{Client, Error};

use super::exit::Usage;
use super::out::{Out, remark};

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Server")]
pub(crate) struct Connect {
    /// The address of the server
    #[arg(
        long,
        global = true,
        env = "TASKLANE_URL",
        hide_env_values = true,
        default_value = "http://127.0.0.1:7070",
        value_name = "URL"
    )]
    url: String,

    /// The token of the server; set the variable rather than typing it
    #[arg(long, global = true, env = "TASKLANE_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    token: Option<String>,

    /// The namespace
    #[arg(long, global = true, env = "TASKLANE_NAMESPACE", hide_env_values = true, value_name = "NAME")]
    namespace: Option<String>,
}

impl Connect {
    pub(crate) fn client(&self) -> Result<Client, Error> {
        let mut builder = Client::builder(&self.url);
        // A variable that is empty counts as not set.
        if let Some(token) = self.token.as_ref().filter(|token| !token.is_empty()) {
            builder = builder.token(token);
        }
        if let Some(namespace) = self.namespace.as_ref().filter(|namespace| !namespace.is_empty()) {
            builder = builder.namespace(namespace);
        }
        builder.build()
    }
}

/// Which of these options were typed, and not set by variables: commands to which they do not apply refuse them.
#[derive(Debug)]
pub(crate) struct TypedOptions {
    url: bool,
    token: Option<String>,
    namespace: bool,
}

impl TypedOptions {
    pub(crate) fn of(matches: &ArgMatches) -> Self {
        let typed = |name: &str| matches.value_source(name) == Some(ValueSource::CommandLine);
        let token = typed("token").then(|| matches.get_one("token").cloned()).flatten();
        Self { url: typed("url"), token, namespace: typed("namespace") }
    }

    /// Warns of a token that other users of this machine can read.
    pub(crate) fn warn(&self, out: Out) {
        // Nothing but JSON goes where programs read JSON.
        if self.token.is_some() && !out.is_json() {
            remark(
                "warning: other users can read the value of --token in the list of processes (`ps`); set TASKLANE_TOKEN, \
                 or for a server `token` in its configuration file",
            );
        }
    }

    /// For commands that start a server: the token that it is to ask for.
    pub(crate) fn started(self, command: &str, out: Out) -> anyhow::Result<Option<String>> {
        self.warn(out);
        self.server(command)
    }

    /// For commands that are about a server of their own: the token that it is to ask for.
    pub(crate) fn server(self, command: &str) -> anyhow::Result<Option<String>> {
        if self.url {
            let instead = "it uses its own server; --listen sets the address";
            return Err(refused("--url", command, instead));
        }
        if self.namespace {
            return Err(refused("--namespace", command, "a server serves all namespaces"));
        }
        Ok(self.token)
    }

    /// For commands that are about no server.
    pub(crate) fn nothing(self, command: &str) -> anyhow::Result<()> {
        match self.server(command)? {
            Some(_) => Err(refused("--token", command, "it calls no server")),
            None => Ok(()),
        }
    }
}

fn refused(option: &str, command: &str, reason: &str) -> anyhow::Error {
    Usage(format!("{option} does not apply to `{command}`: {reason}")).into()
}
