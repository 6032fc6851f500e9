//! Servers that live as long as their value, and never longer than the test process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The bound of a server's start.
const START_MAX: Duration = Duration::from_secs(20);

/// Waits until its input closes, which happens when the test process ends in any way. Then it stops the
/// server and removes the folder, unless the input says `keep`.
const KEEPER: &str = r#"
"$@" >>"$0/log" 2>&1 &
pid=$!
echo $pid
read word
kill $pid 2>/dev/null
wait $pid 2>/dev/null
test "$word" = keep || rm -rf "$0"
"#;

/// A `redis-server` on a free port, in a folder of its own.
#[derive(Debug)]
pub(crate) struct RedisServer {
    port: u16,
    args: Vec<String>,
    folder: PathBuf,
    process: Option<Process>,
}

#[derive(Debug)]
struct Process {
    keeper: Child,
    input: Option<ChildStdin>,
    pid: u32,
}

impl RedisServer {
    /// Starts one without persistence. `None`, with a message, where there is no `redis-server`.
    pub(crate) fn start() -> Option<Self> {
        Self::start_with(&["--save", "", "--appendonly", "no"])
    }

    /// Starts one with these arguments.
    pub(crate) fn start_with(args: &[&str]) -> Option<Self> {
        if !is_there() {
            return None;
        }
        let folder = tempfile::Builder::new().prefix("tasklane-redis").tempdir().unwrap().keep();
        let args = args.iter().map(|&arg| arg.to_owned()).collect();
        let mut server = Self { port: free_port(), args, folder, process: None };
        server.start_again();
        Some(server)
    }

    /// Starts it again, on the same port and data.
    pub(crate) fn start_again(&mut self) {
        assert!(self.process.is_none(), "it runs already");
        let mut keeper = Command::new("sh")
            .arg("-c")
            .arg(KEEPER)
            .arg(&self.folder)
            .args(["redis-server", "--bind", "127.0.0.1", "--port", &self.port.to_string(), "--dir"])
            .arg(&self.folder)
            .args(&self.args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = keeper.stdin.take();
        let mut line = String::new();
        BufReader::new(keeper.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let pid = line.trim().parse().unwrap();
        self.process = Some(Process { keeper, input, pid });
        let started = Instant::now();
        while !self.try_command(&["PING"]).is_ok_and(|answer| answer.starts_with("+PONG")) {
            assert!(started.elapsed() < START_MAX, "the server does not start: {}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends it as a power cut would.
    pub(crate) fn kill(&mut self) {
        let process = self.process.as_ref().expect("it runs");
        let killed = Command::new("kill").args(["-9", &process.pid.to_string()]).status().unwrap();
        assert!(killed.success());
        self.stop("keep\n");
    }

    fn stop(&mut self, word: &str) {
        if let Some(mut process) = self.process.take() {
            let mut input = process.input.take().unwrap();
            input.write_all(word.as_bytes()).unwrap();
            drop(input);
            process.keeper.wait().unwrap();
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Sends a command and answers the start of its raw answer.
    pub(crate) fn command(&self, args: &[&str]) -> String {
        self.try_command(args).unwrap()
    }

    fn try_command(&self, args: &[&str]) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let parts = args.iter().map(|arg| format!("${}\r\n{arg}\r\n", arg.len()));
        let request = format!("*{}\r\n{}", args.len(), parts.collect::<String>());
        stream.write_all(request.as_bytes())?;
        let mut answer = vec![0; 1 << 16];
        let n = stream.read(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer[..n]).into_owned())
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.stop("");
        // A killed server has left its folder behind.
        if self.folder.exists() {
            std::fs::remove_dir_all(&self.folder).unwrap();
        }
    }
}

/// Which slots each node of a cluster begins with.
const RANGES: [(u16, u16); 3] = [(0, 5460), (5461, 10922), (10923, 16383)];

/// Three primaries that share the slots.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<RedisServer>,
}

impl Cluster {
    /// Starts one and waits until all nodes are well. `None`, with a message, where there is no
    /// `redis-server`.
    pub(crate) fn start() -> Option<Self> {
        let mut nodes = Vec::new();
        for _ in RANGES {
            nodes.push(start_node()?);
        }
        for (number, ((node, _), (first, last))) in nodes.iter().zip(RANGES).enumerate() {
            let expect_ok = |args: &[&str]| assert_eq!(node.command(args), "+OK\r\n", "{args:?}");
            expect_ok(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]);
            expect_ok(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]);
            for (other, bus) in &nodes {
                expect_ok(&["CLUSTER", "MEET", "127.0.0.1", &other.port().to_string(), bus]);
            }
        }
        let nodes: Vec<_> = nodes.into_iter().map(|(node, _)| node).collect();
        let well = |node: &RedisServer| {
            let info = node.command(&["CLUSTER", "INFO"]);
            info.contains("cluster_state:ok")
                && info.contains("cluster_known_nodes:3")
                && node.command(&["CLUSTER", "SLOTS"]).starts_with("*3")
        };
        wait("the cluster does not come together", || nodes.iter().all(well));
        Some(Self { nodes })
    }

    /// Adds a replica of a node, and waits until it has all data.
    pub(crate) fn add_replica(&mut self, of: usize) {
        let (replica, bus) = start_node().expect("the others could be started");
        let port = replica.port().to_string();
        assert_eq!(self.nodes[of].command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]), "+OK\r\n");
        let primary = self.nodes[of].id();
        let known = self.nodes.len() + 1;
        wait("the replica does not join", || {
            let is_known = |node: &RedisServer| {
                node.command(&["CLUSTER", "INFO"]).contains(&format!("cluster_known_nodes:{known}"))
            };
            self.nodes.iter().chain([&replica]).all(is_known)
        });
        wait("the replica cannot follow", || {
            replica.command(&["CLUSTER", "REPLICATE", &primary]) == "+OK\r\n"
        });
        wait("the replica does not follow", || {
            replica.command(&["INFO", "replication"]).contains("master_link_status:up")
        });
        self.nodes.push(replica);
    }

    pub(crate) fn url(&self) -> String {
        let nodes: Vec<_> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        format!("redis+cluster://{}", nodes.join(","))
    }
}

/// A node of a cluster, and the port at which other nodes talk to it.
fn start_node() -> Option<(RedisServer, String)> {
    let bus = free_port().to_string();
    let mut args =
        vec!["--save", "", "--appendonly", "no", "--cluster-enabled", "yes", "--cluster-port", &bus];
    // Short, so that a test can wait for a failover; long enough for a machine that is busy with other tests.
    args.extend(["--cluster-node-timeout", "5000"]);
    let node = RedisServer::start_with(&args)?;
    Some((node, bus))
}

fn wait(what: &str, mut until: impl FnMut() -> bool) {
    let started = Instant::now();
    while !until() {
        assert!(started.elapsed() < START_MAX, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl RedisServer {
    /// The slot of a key.
    pub(crate) fn slot_of(&self, key: &str) -> u16 {
        self.command(&["CLUSTER", "KEYSLOT", key])[1..].trim().parse().unwrap()
    }

    /// How many replicas have all data, after waiting for one.
    pub(crate) fn wait_for_replicas(&self) -> String {
        self.command(&["WAIT", "1", "4000"])
    }

    fn id(&self) -> String {
        self.command(&["CLUSTER", "MYID"]).lines().nth(1).unwrap().to_owned()
    }
}

/// Moving a slot, as `redis-cli --cluster reshard` does it.
impl Cluster {
    /// Which node a slot begins with.
    pub(crate) fn first_owner_of(slot: u16) -> usize {
        RANGES.iter().position(|(first, last)| (*first..=*last).contains(&slot)).unwrap()
    }

    pub(crate) fn begin_move(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        let (from, to) = (&self.nodes[from], &self.nodes[to]);
        assert_eq!(to.command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from.id()]), "+OK\r\n");
        assert_eq!(from.command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to.id()]), "+OK\r\n");
    }

    /// Moves up to `count` keys of a slot.
    pub(crate) fn move_keys(&self, slot: u16, from: usize, to: usize, count: usize) {
        let (from, to) = (&self.nodes[from], &self.nodes[to]);
        let answer = from.command(&["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), &count.to_string()]);
        let keys: Vec<&str> = answer.lines().skip(2).step_by(2).collect();
        let port = to.port().to_string();
        let mut command = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        command.extend(keys);
        assert_eq!(from.command(&command), "+OK\r\n");
    }

    pub(crate) fn end_move(&self, slot: u16, to: usize) {
        let (slot, id) = (slot.to_string(), self.nodes[to].id());
        // The new owner first, so that no client is redirected in a circle.
        assert_eq!(self.nodes[to].command(&["CLUSTER", "SETSLOT", &slot, "NODE", &id]), "+OK\r\n");
        for node in &self.nodes {
            assert_eq!(node.command(&["CLUSTER", "SETSLOT", &slot, "NODE", &id]), "+OK\r\n");
        }
    }
}

/// Whether servers can be started here. Where tests must not be skipped, a missing program is an error.
fn is_there() -> bool {
    static IS_THERE: OnceLock<bool> = OnceLock::new();
    *IS_THERE.get_or_init(|| {
        let version = Command::new("redis-server").arg("--version").output();
        let is_there = version.is_ok_and(|output| output.status.success());
        let required = std::env::var_os("CI").is_some_and(|ci| !ci.is_empty() && ci != "false")
            || std::env::var_os("TASKLANE_REQUIRE_SERVERS").is_some_and(|required| required == "1");
        assert!(is_there || !required, "redis-server is not there, and tests must not be skipped");
        if !is_there {
            eprintln!("SKIPPED: redis-server is not there; nothing of this file is tested");
        }
        is_there
    })
}

fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}
