//! Which server is meant.

use tasklane_client::{Client, Error};

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Server")]
pub(crate) struct Connect {
    /// Where the server is
    #[arg(
        long,
        global = true,
        env = "TASKLANE_URL",
        hide_env_values = true,
        default_value = "http://127.0.0.1:7070",
        value_name = "URL"
    )]
    url: String,

    /// What the server asks for; better given by the variable than typed
    #[arg(long, global = true, env = "TASKLANE_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    token: Option<String>,

    /// The namespace that is meant
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
