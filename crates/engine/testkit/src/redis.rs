//! One Redis, or Valkey, on a free port.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use crate::authority::{Authority, LOCAL};
use crate::daemon::{Daemon, free_port};
use crate::programs;

/// Nothing is written to disk.
pub const IN_MEMORY: &[&str] = &["--save", "", "--appendonly", "no"];

/// A `redis-server` in a folder of its own.
#[derive(Debug)]
pub struct RedisServer {
    daemon: Daemon,
    port: u16,
    tls: Option<TlsPort>,
    /// `AUTH` of [`command`](Self::command).
    password: Option<String>,
}

/// The encrypted port beside the plain one.
#[derive(Clone, Debug)]
struct TlsPort {
    port: u16,
    ca: PathBuf,
}

/// How a server encrypts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TlsSettings<'a> {
    authority: &'a Authority,
    names: &'a [&'a str],
    client_certs: bool,
}

impl<'a> TlsSettings<'a> {
    pub(crate) fn new(authority: &'a Authority) -> Self {
        Self { authority, names: LOCAL, client_certs: false }
    }
}

impl RedisServer {
    /// Starts a server with its data in memory. `None`, said aloud, where `redis-server` is missing.
    pub fn start() -> Option<Self> {
        Self::start_with(IN_MEMORY)
    }

    /// Starts one with these arguments.
    pub fn start_with(args: &[&str]) -> Option<Self> {
        Self::launch("redis-server", args, None, None)
    }

    /// Starts a server that demands this password.
    pub fn start_with_password(password: &str) -> Option<Self> {
        Self::launch("redis-server", IN_MEMORY, None, Some(password))
    }

    /// Starts one whose URL is that of an encrypted port with a certificate of the authority. Clients may show a
    /// certificate, and must if `client_certs` says so. [`command`](Self::command) uses a plain port beside it.
    pub fn start_tls(authority: &Authority, client_certs: bool, args: &[&str]) -> Option<Self> {
        let tls = TlsSettings { client_certs, ..TlsSettings::new(authority) };
        Self::launch("redis-server", args, Some(tls), None)
    }

    /// Starts an encrypted one whose certificate is for these names alone.
    pub fn start_tls_named(authority: &Authority, names: &[&str]) -> Option<Self> {
        let tls = TlsSettings { authority, names, client_certs: false };
        Self::launch("redis-server", IN_MEMORY, Some(tls), None)
    }

    /// Starts a Valkey, where its program is in PATH. Debian 12 has none.
    pub fn start_valkey() -> Option<Self> {
        programs::find_optional("valkey-server")?;
        Self::launch("valkey-server", IN_MEMORY, None, None)
    }

    pub(crate) fn launch(
        program: &str,
        args: &[&str],
        tls: Option<TlsSettings<'_>>,
        password: Option<&str>,
    ) -> Option<Self> {
        let program = programs::find(program)?;
        let daemon = Daemon::new("redis");
        let port = free_port();
        let folder = daemon.folder().display().to_string();
        let mut command: Vec<String> = vec![program.display().to_string()];
        let mut add = |words: &[&str]| command.extend(words.iter().map(|&word| word.to_owned()));
        add(&["--bind", "127.0.0.1", "--port", &port.to_string(), "--dir", &folder]);
        if let Some(password) = password {
            add(&["--requirepass", password, "--masterauth", password]);
        }
        let tls = tls.map(|TlsSettings { authority, names, client_certs }| {
            let (tls_port, certificate) = (free_port(), authority.server(names));
            add(&["--tls-port", &tls_port.to_string()]);
            add(&["--tls-ca-cert-file", &authority.ca().display().to_string()]);
            add(&["--tls-cert-file", &certificate.cert.display().to_string()]);
            add(&["--tls-key-file", &certificate.key.display().to_string()]);
            add(&["--tls-auth-clients", if client_certs { "yes" } else { "optional" }]);
            TlsPort { port: tls_port, ca: authority.ca() }
        });
        add(args);
        let mut server = Self { daemon, port, tls, password: password.map(str::to_owned) };
        let ready = server.is_ready();
        server.daemon.start(command, ready);
        Some(server)
    }

    fn is_ready(&self) -> impl FnMut() -> bool + use<> {
        let (port, password) = (self.port, self.password.clone());
        move || {
            raw_command(port, password.as_deref(), &["PING"]).is_ok_and(|answer| answer.starts_with("+PONG"))
        }
    }

    /// `redis://…`, or `rediss://…?sslrootcert=…` where the server has an encrypted port.
    pub fn url(&self) -> String {
        let user = self.password.as_ref().map_or_else(String::new, |password| format!(":{password}@"));
        match &self.tls {
            None => format!("redis://{user}127.0.0.1:{}", self.port),
            Some(tls) => {
                format!("rediss://{user}127.0.0.1:{}?sslrootcert={}", tls.port, tls.ca.display())
            }
        }
    }

    /// The port that clients use: the encrypted one where there is one.
    pub fn port(&self) -> u16 {
        self.tls.as_ref().map_or(self.port, |tls| tls.port)
    }

    /// Sends a command over the plain port and answers the start of its raw answer.
    pub fn command(&self, args: &[&str]) -> String {
        raw_command(self.port, self.password.as_deref(), args).unwrap()
    }

    /// Sends a command that must answer `OK`.
    pub fn expect_ok(&self, args: &[&str]) {
        assert_eq!(self.command(args), "+OK\r\n", "{args:?}");
    }

    pub fn kill(&mut self) {
        self.daemon.kill();
    }

    /// Starts it again on the same port and data.
    pub fn restart(&mut self) {
        let ready = self.is_ready();
        self.daemon.restart(ready);
    }

    pub fn pause(&self) {
        self.daemon.pause();
    }

    pub fn resume(&self) {
        self.daemon.resume();
    }

    pub fn daemon(&self) -> &Daemon {
        &self.daemon
    }
}

/// Sends a command on a connection of its own and answers the start of its raw answer.
pub(crate) fn raw_command(port: u16, password: Option<&str>, args: &[&str]) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    if let Some(password) = password {
        ask(&mut stream, &["AUTH", password])?;
    }
    ask(&mut stream, args)
}

fn ask(stream: &mut TcpStream, args: &[&str]) -> std::io::Result<String> {
    let parts = args.iter().map(|arg| format!("${}\r\n{arg}\r\n", arg.len()));
    let request = format!("*{}\r\n{}", args.len(), parts.collect::<String>());
    stream.write_all(request.as_bytes())?;
    let mut answer = vec![0; 1 << 16];
    let read = stream.read(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer[..read]).into_owned())
}
