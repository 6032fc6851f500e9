//! A `pgbouncer` in front of a PostgreSQL.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::daemon::{Daemon, free_port};
use crate::postgres::{PostgresServer, as_nobody};
use crate::programs;

/// A pooler on a free port. It ends with its handle.
#[derive(Debug)]
pub struct PgBouncer {
    port: u16,
    _daemon: Daemon,
}

impl PgBouncer {
    /// Starts a pooler with these lines in its settings, such as `pool_mode = transaction`. `None`, said aloud, where
    /// there is none. `TASKLANE_TEST_PGBOUNCER` may name a program of another version.
    pub fn start(server: &PostgresServer, settings: &[&str]) -> Option<Self> {
        let program = match std::env::var_os("TASKLANE_TEST_PGBOUNCER") {
            Some(program) => PathBuf::from(program),
            None => programs::find("pgbouncer")?,
        };
        let (port, mut daemon) = (free_port(), Daemon::new("pgbouncer"));
        let file = daemon.folder().join("pgbouncer.ini");
        let lines = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = any\nmax_client_conn = 400\n{}\n",
            server.port(),
            settings.join("\n")
        );
        // With `auth_type = any` the user is that of the database's line.
        fs::write(&file, lines.replace("* = ", "* = user=tasklane ")).unwrap();
        fs::set_permissions(daemon.folder(), fs::Permissions::from_mode(0o755)).unwrap();
        let bouncer = as_nobody(&program);
        let mut command = vec![bouncer.get_program().to_owned()];
        command.extend(bouncer.get_args().map(ToOwned::to_owned));
        command.push(file.into());
        daemon.start(command, || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Some(Self { port, _daemon: daemon })
    }

    /// The port of the pooler.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The server's database, through the pooler.
    pub fn url(&self) -> String {
        format!("postgres://tasklane@127.0.0.1:{}/postgres", self.port)
    }
}
