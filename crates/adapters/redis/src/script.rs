//! The scripts and their calls: by their hash, or with their code where a server does not know them yet.

use std::sync::LazyLock;

use redis::{Arg, Cmd};

/// A script, ready to be called.
#[derive(Debug)]
pub(crate) struct Script {
    code: &'static str,
    hash: String,
}

impl Script {
    fn new(code: &'static str) -> Self {
        Self { code, hash: redis::Script::new(code).get_hash().to_owned() }
    }

    /// A call of this script; the script's own arguments follow.
    pub(crate) fn call<'a>(&self, keys: impl ExactSizeIterator<Item = &'a str>) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.hash).arg(keys.len());
        for key in keys {
            command.arg(key);
        }
        command
    }

    #[cfg(test)]
    pub(crate) fn code(&self) -> &str {
        self.code
    }

    /// The same call for a server that does not know the script.
    pub(crate) fn with_code(&self, call: &Cmd) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(self.code);
        for arg in call.args_iter().skip(2) {
            if let Arg::Simple(bytes) = arg {
                command.arg(bytes);
            }
        }
        command
    }
}

macro_rules! scripts {
    ($($name:ident: $flags:literal $(+ $file:literal)+;)*) => {
        /// All of them.
        #[derive(Debug)]
        pub(crate) struct Scripts {
            $(pub(crate) $name: Script,)*
        }

        pub(crate) static SCRIPTS: LazyLock<Scripts> = LazyLock::new(|| Scripts {
            $($name: Script::new(concat!(
                "#!lua", $flags, "\n",
                $(include_str!(concat!("scripts/", $file)),)+
            )),)*
        });
    };
}

// With the first line a server checks before it starts a script: memory, role, and that all keys are of one
// slot.
scripts! {
    submit: "" + "writing.lua" + "submit.lua";
    commit: "" + "writing.lua" + "commit.lua";
    claim: "" + "claim.lua";
    post: "" + "post.lua";
    // No reader in the eyes of a server; and publishing takes no memory.
    publish: " flags=allow-oom" + "publish.lua";
    put_once: "" + "put_once.lua";
    put_policy: "" + "put_policy.lua";
    put_documents: "" + "put_documents.lua";
    append_logs: "" + "append_logs.lua";
    retire: "" + "reading.lua" + "retire.lua";
    rows: " flags=no-writes" + "reading.lua" + "rows.lua";
    arrivals: " flags=no-writes" + "reading.lua" + "arrivals.lua";
    records: " flags=no-writes" + "reading.lua" + "records.lua";
    view: " flags=no-writes" + "reading.lua" + "view.lua";
    list: " flags=no-writes" + "reading.lua" + "list.lua";
    expired: " flags=no-writes" + "reading.lua" + "expired.lua";
    attempts: " flags=no-writes" + "attempts.lua";
    counts: " flags=no-writes" + "counts.lua";
    policies: " flags=no-writes" + "reading.lua" + "policies.lua";
    documents: " flags=no-writes" + "reading.lua" + "documents.lua";
    // These move stored values, and sessions take next to no memory: both go on when no memory is left.
    take: " flags=allow-oom" + "take.lua";
    reject: " flags=allow-oom" + "reject.lua";
    recover: " flags=allow-oom" + "recover.lua";
    open: " flags=allow-oom" + "sessions.lua" + "open.lua";
    renew: " flags=allow-oom" + "sessions.lua" + "renew.lua";
    update: " flags=allow-oom" + "sessions.lua" + "update.lua";
    close: " flags=allow-oom" + "sessions.lua" + "close.lua";
    revoke: " flags=allow-oom" + "sessions.lua" + "revoke.lua";
    acquire: " flags=allow-oom" + "sessions.lua" + "acquire.lua";
    release: " flags=allow-oom" + "sessions.lua" + "release.lua";
    end: " flags=allow-oom" + "sessions.lua" + "end.lua";
    raise: " flags=allow-oom" + "sessions.lua" + "raise.lua";
    renewal_numbers: " flags=allow-oom" + "renewal_numbers.lua";
    members: " flags=allow-oom" + "members.lua";
}
