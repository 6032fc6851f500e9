//! A server that lives as long as the value that stands for it, and never longer than the test process.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A server that has not answered after this long will not.
const START_MAX: Duration = Duration::from_secs(100);

/// Waits for its input to end, which it does when the test process ends however it ends, and then ends the server and
/// removes its folder, unless it is told to keep it.
const KEEPER: &str = r#"
"$@" >>"$0/log" 2>&1 &
pid=$!
echo $pid
read word
kill -QUIT $pid 2>/dev/null
wait $pid 2>/dev/null
test "$word" = keep || rm -rf "$0"
"#;

/// Nobody, who has no other rights; the server refuses to run as root.
const NOBODY: u32 = 65_534;

/// A `postgres` on a free port, in a folder of its own.
#[derive(Debug)]
pub(crate) struct PostgresServer {
    port: u16,
    settings: Vec<String>,
    folder: PathBuf,
    process: Option<Process>,
}

#[derive(Debug)]
struct Process {
    keeper: Child,
    input: Option<ChildStdin>,
    pid: u32,
}

impl PostgresServer {
    /// Starts one that does not wait for the disk. `None`, said aloud, where there is none.
    pub(crate) fn start() -> Option<Self> {
        Self::start_with(&["fsync=off"])
    }

    /// Starts one with these settings.
    pub(crate) fn start_with(settings: &[&str]) -> Option<Self> {
        let programs = programs()?;
        let folder = tempfile::Builder::new().prefix("tasklane-postgres").tempdir().unwrap().keep();
        if is_root() {
            chown(&folder, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let data = folder.join("data");
        let made = as_nobody(&programs.join("initdb"))
            .args(["-U", "tasklane", "--auth=trust", "-E", "UTF8", "--no-locale", "--no-sync", "-D"])
            .arg(&data)
            .current_dir(&folder)
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        let settings = settings.iter().map(|&setting| setting.to_owned()).collect();
        let mut server = Self { port: free_port(), settings, folder, process: None };
        server.start_again();
        Some(server)
    }

    /// Starts it again, on the same port and data.
    pub(crate) fn start_again(&mut self) {
        assert!(self.process.is_none(), "it runs already");
        let postgres = as_nobody(&programs().expect("it was there before").join("postgres"));
        let mut keeper = Command::new("sh");
        keeper.arg("-c").arg(KEEPER).arg(&self.folder).arg(postgres.get_program()).args(postgres.get_args());
        keeper.arg("-D").arg(self.folder.join("data"));
        let port = format!("port={}", self.port);
        let sockets = format!("unix_socket_directories={}", self.folder.display());
        let own = ["listen_addresses=127.0.0.1", &port, &sockets, "max_connections=400"];
        for setting in own.into_iter().chain(self.settings.iter().map(String::as_str)) {
            keeper.args(["-c", setting]);
        }
        let mut keeper =
            keeper.current_dir(&self.folder).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = keeper.stdin.take();
        let mut line = String::new();
        BufReader::new(keeper.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let pid = line.trim().parse().unwrap();
        self.process = Some(Process { keeper, input, pid });
        let started = Instant::now();
        while !self.try_sql("SELECT 1").status.success() {
            assert!(started.elapsed() < START_MAX, "the server does not start: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends it as a crash of all its processes would.
    pub(crate) fn kill(&mut self) {
        // Its children end at once when they are told so, and none of them writes anything on its way out.
        self.signal("-QUIT");
        self.stop("keep\n");
    }

    /// Ends it in order, as a restart by its administrator does.
    pub(crate) fn shut_down(&mut self) {
        self.signal("-INT");
        self.stop("keep\n");
    }

    fn signal(&self, signal: &str) {
        let process = self.process.as_ref().expect("it runs");
        let sent = Command::new("kill").args([signal, &process.pid.to_string()]).status().unwrap();
        assert!(sent.success());
        // Only the main process has its folder locked until the others are gone.
        let lock = self.folder.join("data/postmaster.pid");
        let started = Instant::now();
        while lock.exists()
            && Path::new(&format!("/proc/{}", process.pid)).exists()
            && !is_zombie(process.pid)
        {
            assert!(started.elapsed() < START_MAX, "the server does not end: {}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn stop(&mut self, word: &str) {
        if let Some(mut process) = self.process.take() {
            let mut input = process.input.take().unwrap();
            input.write_all(word.as_bytes()).unwrap();
            drop(input);
            process.keeper.wait().unwrap();
        }
    }

    /// Puts a file that only the server may read beside its data.
    pub(crate) fn give(&self, name: &str, content: &[u8]) {
        let path = self.folder.join(name);
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        if is_root() {
            chown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
    }

    /// Starts with these settings from the next time on.
    pub(crate) fn set(&mut self, settings: &[&str]) {
        self.settings = settings.iter().map(|&setting| setting.to_owned()).collect();
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.as_ref().expect("it runs").pid
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://tasklane@127.0.0.1:{}/postgres", self.port)
    }

    /// Over its unix socket.
    pub(crate) fn socket_url(&self) -> String {
        let folder = self.folder.display().to_string().replace('/', "%2F");
        format!("postgres:///postgres?user=tasklane&host={folder}&port={}", self.port)
    }

    /// Runs SQL and answers what it printed, without headings.
    pub(crate) fn sql(&self, sql: &str) -> String {
        let output = self.try_sql(sql);
        assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    /// What makes up a schema, without what depends on the server.
    pub(crate) fn dump(&self, schema: &str) -> String {
        let output = Command::new(programs().expect("it was there before").join("pg_dump"))
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

    fn try_sql(&self, sql: &str) -> Output {
        Command::new(programs().expect("it was there before").join("psql"))
            .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", sql, &self.url()])
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.stop("");
        // Of one that was killed nobody else does.
        if self.folder.exists() {
            std::fs::remove_dir_all(&self.folder).unwrap();
        }
    }
}

fn is_zombie(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "))
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

fn as_nobody(program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={NOBODY}"), &format!("--regid={NOBODY}"), "--clear-groups"]).arg(program);
    command
}

/// Where the server's programs are. Debian keeps them out of the path. Where tests must not be skipped it is an error
/// that there are none.
fn programs() -> Option<&'static Path> {
    static PROGRAMS: OnceLock<Option<PathBuf>> = OnceLock::new();
    let found = PROGRAMS.get_or_init(|| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
        let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
        let mut versions: Vec<PathBuf> = versions.map(|version| version.path().join("bin")).collect();
        versions.sort();
        folders.extend(versions.into_iter().rev());
        let is_there =
            |folder: &PathBuf| ["initdb", "postgres", "psql"].iter().all(|p| folder.join(p).is_file());
        let found = folders.into_iter().find(is_there);
        let required = std::env::var_os("CI").is_some_and(|ci| !ci.is_empty() && ci != "false")
            || std::env::var_os("TASKLANE_REQUIRE_SERVERS").is_some_and(|required| required == "1");
        assert!(found.is_some() || !required, "PostgreSQL is not there, and tests must not be skipped");
        if found.is_none() {
            eprintln!("SKIPPED: PostgreSQL is not there; nothing of this file is tested");
        }
        found
    });
    found.as_deref()
}

fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}
