//! Options of executors.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use crate::guard::Guard;

/// Options of the built-in executors.
#[derive(Clone, Debug)]
pub struct ExecutorOptions {
    /// Starts the commands; without a guard, the task types that need it are absent.
    pub guard: Option<Guard>,
    /// Options of `SHELL` and `PYTHON_SCRIPT`.
    pub command: CommandOptions,
    /// Options of `HTTP`.
    pub http: HttpOptions,
}

impl ExecutorOptions {
    /// The default options.
    pub fn new(guard: Option<Guard>) -> Self {
        Self { guard, command: CommandOptions::default(), http: HttpOptions::default() }
    }
}

/// Options to run and judge commands.
#[derive(Clone, Debug)]
pub struct CommandOptions {
    /// The program that runs the scripts of `SHELL`.
    pub shell: String,
    /// The program that runs `PYTHON_SCRIPT`.
    pub python: String,
    /// Where commands start unless the task says otherwise; by default where the worker was started.
    pub cwd: Option<PathBuf>,
    /// Names of the worker's own variables that commands get too. A name that ends in `*` stands for all
    /// names with this prefix.
    pub env_inherit: Vec<String>,
    /// Variables that every command gets.
    pub env: BTreeMap<String, String>,
    /// The largest result file, in bytes.
    pub result_bytes_max: usize,
    /// How much of the end of standard output is the result of a command that wrote none, in bytes.
    pub stdout_tail_bytes: usize,
    /// Exit codes that mean "retry, but not before this time has passed".
    pub retry_later_exit_codes: BTreeMap<i32, Duration>,
    /// Exit codes that mean "it would fail again".
    pub never_retry_exit_codes: BTreeSet<i32>,
    /// How often the worker reads the progress file.
    pub progress_every: Duration,
}

impl Default for CommandOptions {
    fn default() -> Self {
        let inherit = [
            "PATH",
            "HOME",
            "USER",
            "LOGNAME",
            "SHELL",
            "LANG",
            "LANGUAGE",
            "LC_*",
            "TZ",
            "TMPDIR",
            "SSL_CERT_FILE",
            "SSL_CERT_DIR",
        ];
        Self {
            shell: "/bin/sh".to_owned(),
            python: "python3".to_owned(),
            cwd: None,
            env_inherit: inherit.map(str::to_owned).into(),
            env: BTreeMap::new(),
            result_bytes_max: 256 << 10,
            stdout_tail_bytes: 4 << 10,
            // EX_TEMPFAIL of sysexits.h. It carries no time, so the wait is a minute, or longer by the retry
            // policy.
            retry_later_exit_codes: BTreeMap::from([(75, Duration::from_mins(1))]),
            never_retry_exit_codes: BTreeSet::new(),
            progress_every: Duration::from_millis(500),
        }
    }
}

/// Options to make and judge requests.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// How long making a connection may take.
    pub connect_timeout: Duration,
    /// Number of redirects that a request follows.
    pub redirects_max: usize,
    /// The largest part of an answer that is kept as the result, in bytes.
    pub body_bytes_max: usize,
    /// The longest wait that a server may ask for.
    pub retry_after_max: Duration,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            redirects_max: 10,
            body_bytes_max: 64 << 10,
            retry_after_max: Duration::from_hours(24),
        }
    }
}
