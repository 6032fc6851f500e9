//! A `postgres` on a free port, in a folder of its own.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::process::Signal;

use crate::authority::{Authority, Certificate};
use crate::daemon::{Daemon, free_port, wait_until};
use crate::programs;

/// The user `nobody`: the server refuses to run as root.
const NOBODY: u32 = 65_534;

/// A server, and the folder with its data.
#[derive(Debug)]
pub struct PostgresServer {
    port: u16,
    settings: Vec<String>,
    daemon: Daemon,
}

impl PostgresServer {
    /// Starts a server that does not wait for the disk. `None`, said aloud, where there is none.
    pub fn start() -> Option<Self> {
        Self::start_with(&["fsync=off"])
    }

    /// Starts a server with these settings.
    pub fn start_with(settings: &[&str]) -> Option<Self> {
        let mut server = Self::empty()?;
        let made = as_nobody(&programs::find("initdb")?)
            .args(["-U", "tasklane", "--auth=trust", "-E", "UTF8", "--no-locale", "--no-sync", "-D"])
            .arg(server.data())
            .current_dir(server.daemon.folder())
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        server.set(settings);
        server.start_again();
        Some(server)
    }

    /// Starts a server that offers TLS with this certificate, and takes connections without it as well.
    pub fn start_tls(authority: &Authority, certificate: &Certificate) -> Option<Self> {
        let mut server = Self::start()?;
        server.shut_down();
        server.offer_tls(authority, certificate);
        server.start_again();
        Some(server)
    }

    /// Starts a standby of this server, which follows it and only reads.
    pub fn standby(&self) -> Option<Self> {
        let mut standby = Self::empty()?;
        let copied = as_nobody(&programs::find("pg_basebackup")?)
            .args(["-R", "-X", "stream", "-c", "fast", "--no-sync", "-U", "tasklane", "-h"])
            .arg(self.daemon.folder())
            .args(["-p", &self.port.to_string(), "-D"])
            .arg(standby.data())
            .current_dir(standby.daemon.folder())
            .output()
            .unwrap();
        assert!(copied.status.success(), "{copied:?}");
        standby.set(&["fsync=off"]);
        standby.start_again();
        Some(standby)
    }

    /// Makes a standby a server that takes writes.
    pub fn promote(&self) {
        assert_eq!(self.sql("SELECT pg_promote(true, 60)"), "t", "{}", self.daemon.log());
    }

    /// A folder without data.
    fn empty() -> Option<Self> {
        for program in ["initdb", "postgres", "psql"] {
            programs::find(program)?;
        }
        let daemon = Daemon::new("postgres").ended_by("QUIT");
        if is_root() {
            chown(daemon.folder(), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        Some(Self { port: free_port(), settings: Vec::new(), daemon })
    }

    /// Starts the server again, on the same port and data.
    pub fn start_again(&mut self) {
        let postgres = as_nobody(&programs::find("postgres").expect("it was there before"));
        let mut command = vec![postgres.get_program().to_owned()];
        command.extend(postgres.get_args().map(ToOwned::to_owned));
        command.extend(["-D".into(), self.data().into()]);
        let port = format!("port={}", self.port);
        let sockets = format!("unix_socket_directories={}", self.daemon.folder().display());
        let own = ["listen_addresses=127.0.0.1", &port, &sockets, "max_connections=400"];
        for setting in own.into_iter().chain(self.settings.iter().map(String::as_str)) {
            command.extend(["-c".into(), setting.into()]);
        }
        let (folder, port) = (self.daemon.folder().to_owned(), self.port);
        self.daemon.start(command, || try_sql(&folder, port, "SELECT 1").status.success());
    }

    /// Ends the server as a crash of all its processes would.
    pub fn kill(&mut self) {
        // Its children end at once, and none of them writes anything on its way out.
        self.daemon.end(Signal::QUIT);
    }

    /// Ends the server in order, as a restart by its administrator does.
    pub fn shut_down(&mut self) {
        self.daemon.end(Signal::INT);
    }

    /// Puts a file that only the server may read beside its data.
    pub fn give(&self, name: &str, content: &[u8]) {
        let path = self.daemon.folder().join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        if is_root() {
            chown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
    }

    /// Starts with these settings from the next time on.
    pub fn set(&mut self, settings: &[&str]) {
        self.settings = settings.iter().map(|&setting| setting.to_owned()).collect();
    }

    /// Offers TLS with this certificate from the next start on; clients may prove themselves to its authority.
    pub fn offer_tls(&mut self, authority: &Authority, certificate: &Certificate) {
        let files = [("ca.pem", authority.ca()), ("server.pem", certificate.cert.clone())];
        for (name, file) in files.into_iter().chain([("server.key", certificate.key.clone())]) {
            self.give(name, &fs::read(file).unwrap());
        }
        self.set(&[
            "fsync=off",
            "ssl=on",
            "ssl_ca_file=../ca.pem",
            "ssl_cert_file=../server.pem",
            "ssl_key_file=../server.key",
        ]);
    }

    /// Takes connections over TCP by these lines of `pg_hba.conf` alone, at once.
    pub fn admit(&self, lines: &[&str]) {
        let socket = ["local all all trust", "local replication all trust"];
        let lines: Vec<&str> = socket.iter().chain(lines).copied().collect();
        self.give("data/pg_hba.conf", (lines.join("\n") + "\n").as_bytes());
        let loaded_at = "SELECT pg_conf_load_time()";
        let before = self.sql(loaded_at);
        self.sql("SELECT pg_reload_conf()");
        // The main process reads the file in its own time.
        wait_until("pg_hba.conf is not read", || self.sql(loaded_at) != before);
    }

    /// The port of the server.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The main process.
    pub fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// Over TCP, without asking for TLS or against it.
    pub fn url(&self) -> String {
        format!("postgres://tasklane@127.0.0.1:{}/postgres", self.port)
    }

    /// Over the server's unix socket.
    pub fn socket_url(&self) -> String {
        let folder = self.daemon.folder().display().to_string().replace('/', "%2F");
        format!("postgres:///postgres?user=tasklane&host={folder}&port={}", self.port)
    }

    /// Runs SQL and answers its output, without headings.
    pub fn sql(&self, sql: &str) -> String {
        let output = try_sql(self.daemon.folder(), self.port, sql);
        assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    /// The tables and functions of a schema, without the parts that depend on the server.
    pub fn dump(&self, schema: &str) -> String {
        let output = Command::new(programs::find("pg_dump").expect("it is a part of PostgreSQL"))
            .args(["--schema-only", "--no-owner", "--no-privileges", "-n", schema, &self.url()])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap().replace(&format!("{schema}."), "");
        let text = text.replace(&format!("'{schema}'"), "'tasklane'");
        let ours = |line: &&str| {
            !["--", "SET ", "SELECT pg_catalog", "\\restrict", "\\unrestrict", "CREATE SCHEMA"]
                .iter()
                .any(|start| line.starts_with(start))
        };
        let mut dump = String::new();
        for line in text.lines().filter(ours) {
            if !(line.is_empty() && (dump.is_empty() || dump.ends_with("\n\n"))) {
                dump.push_str(line);
                dump.push('\n');
            }
        }
        dump.trim_end().to_owned() + "\n"
    }

    fn data(&self) -> PathBuf {
        self.daemon.folder().join("data")
    }
}

/// Over the unix socket, which every server has.
fn try_sql(folder: &Path, port: u16, sql: &str) -> Output {
    Command::new(programs::find("psql").expect("it was there before"))
        .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-U", "tasklane", "-d", "postgres", "-h"])
        .arg(folder)
        .args(["-p", &port.to_string(), "-c", sql])
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// A command that runs as `nobody` where the test runs as root.
pub(crate) fn as_nobody(program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={NOBODY}"), &format!("--regid={NOBODY}"), "--clear-groups"]).arg(program);
    command
}
