//! The user that a connection comes from.
//!
//! A server without a token runs commands for everyone whom it answers, so it answers only its own user and root. The
//! kernel knows who owns the client's socket on loopback. The server asks the kernel for this one socket by the two
//! addresses of the connection (`sock_diag`); where the kernel has no `sock_diag`, it reads `/proc/net/tcp`.
//!
//! The server asks before it reads from the connection. As long as the server's own socket is open, no other socket can
//! have the same two addresses, so the answer is about the socket that sent the request. A socket that its process has closed
//! has no owner any more: the kernel then reports inode 0 and user 0. Such a client counts as unknown, not as root.

use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use tokio::net::{TcpListener, TcpStream};

/// Marks the requests of a connection that comes from the server's own user or from root.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TrustedUser;

/// Finds the user of a connection.
#[derive(Debug)]
pub(crate) struct ClientUsers {
    /// `None` where the kernel has no `sock_diag`.
    diag: Option<Mutex<SockDiag>>,
    own: Option<u32>,
}

impl ClientUsers {
    /// For the connections of a listener.
    pub(crate) fn new(listener: &TcpListener) -> Self {
        let diag = listener.local_addr().ok().and_then(|listens| SockDiag::open(listens).ok());
        if diag.is_none() {
            tracing::info!("the kernel has no sock_diag: looking up the users of clients in /proc/net/tcp");
        }
        Self { diag: diag.map(Mutex::new), own: own_user() }
    }

    /// Whether the client is a process of this user or of root.
    pub(crate) async fn is_trusted(&self, connection: &TcpStream) -> bool {
        let (Ok(client), Ok(server)) = (connection.peer_addr(), connection.local_addr()) else {
            return false;
        };
        match self.user(canonical(client), canonical(server)).await {
            Some(user) => user == 0 || Some(user) == self.own,
            None => false,
        }
    }

    /// The owner of the client's socket; `None` if it is not a socket on the loopback interface of this network namespace.
    async fn user(&self, client: SocketAddr, server: SocketAddr) -> Option<u32> {
        if !client.ip().is_loopback() || !server.ip().is_loopback() {
            return None;
        }
        if let Some(diag) = &self.diag {
            // The kernel answers before `sendto` returns: this is some microseconds, and needs no other thread.
            match diag.lock().unwrap_or_else(PoisonError::into_inner).user(client, server) {
                Ok(user) => return user,
                Err(error) => {
                    tracing::warn!(%error, "sock_diag failed: looking up the user of a client in /proc");
                }
            }
        }
        tokio::task::spawn_blocking(move || user_in_tables(client, server)).await.ok().flatten()
    }
}

/// The user of this process; `None` if other users can look like it. In a user namespace all users that it does not map
/// look like the overflow user.
fn own_user() -> Option<u32> {
    const OVERFLOW: u32 = 65534;
    let own = rustix::process::geteuid().as_raw();
    let maps_all = || {
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        map.split_whitespace().eq(["0", "0", "4294967295"])
    };
    (own != OVERFLOW || maps_all()).then_some(own)
}

/// IPv4 addresses that are written as IPv6 addresses (`::ffff:127.0.0.1`) become IPv4 addresses again.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// States of a client's socket that has been accepted: established, or being closed by one of the two sides.
const CONNECTED: [u8; 5] = [1, 4, 5, 8, 11];

/// A netlink socket to the kernel's `sock_diag`.
#[derive(Debug)]
struct SockDiag {
    socket: OwnedFd,
    sequence: u32,
}

/// One socket, as `sock_diag` describes it.
#[derive(Debug)]
struct SocketDescription {
    state: u8,
    own: SocketAddr,
    other: SocketAddr,
    user: u32,
    inode: u32,
}

impl SockDiag {
    const REQUEST_BYTES: u32 = 16 + 56;
    const NLMSG_ERROR: u16 = 2;
    const SOCK_DIAG_BY_FAMILY: u16 = 20;
    const NLM_F_REQUEST: u16 = 1;
    const TCP: u8 = 6;

    /// Fails where the kernel does not find the listener itself: then it has no `sock_diag` for TCP.
    fn open(listens: SocketAddr) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(SOCK_DIAG))?;
        let mut diag = Self { socket, sequence: 0 };
        let nobody: IpAddr = match listens {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        match diag.ask(listens, SocketAddr::new(nobody, 0))? {
            Some(_) => Ok(diag),
            None => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn user(&mut self, client: SocketAddr, server: SocketAddr) -> io::Result<Option<u32>> {
        let found = self.ask(client, server)?.filter(|found| {
            // The kernel may answer with a listener at the client's address, or with a socket that has no process any more.
            CONNECTED.contains(&found.state)
                && found.inode != 0
                && (found.own, found.other) == (client, server)
        });
        Ok(found.map(|found| found.user))
    }

    /// The socket that is bound to `own` and connected to `other`.
    fn ask(&mut self, own: SocketAddr, other: SocketAddr) -> io::Result<Option<SocketDescription>> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = self.request(own, other);
        let kernel = SocketAddrNetlink::new(0, 0);
        rustix::net::sendto(&self.socket, &request, SendFlags::empty(), &kernel)?;
        loop {
            let mut answer = [0; 1024];
            let (filled, _, from) =
                rustix::net::recvfrom(&self.socket, &mut answer[..], RecvFlags::DONTWAIT)?;
            let from = from.and_then(|from| SocketAddrNetlink::try_from(from).ok());
            let answer = &answer[..filled];
            let is_ours = number(answer, 8).ok() == Some(self.sequence);
            if from == Some(kernel) && is_ours {
                return described(answer);
            }
        }
    }

    /// `struct nlmsghdr` and `struct inet_diag_req_v2`.
    fn request(&self, own: SocketAddr, other: SocketAddr) -> Vec<u8> {
        let family = if own.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let mut request = Vec::with_capacity(Self::REQUEST_BYTES as usize);
        request.extend(Self::REQUEST_BYTES.to_ne_bytes());
        request.extend(Self::SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        request.extend(Self::NLM_F_REQUEST.to_ne_bytes());
        request.extend(self.sequence.to_ne_bytes());
        request.extend(0_u32.to_ne_bytes());
        // The family, the protocol, no extensions, and padding; then all states.
        request.extend([family.as_raw().to_ne_bytes()[0], Self::TCP, 0, 0]);
        request.extend(u32::MAX.to_ne_bytes());
        request.extend(own.port().to_be_bytes());
        request.extend(other.port().to_be_bytes());
        request.extend(padded(own.ip()));
        request.extend(padded(other.ip()));
        // Any interface, and a socket with any cookie.
        request.extend(0_u32.to_ne_bytes());
        request.extend([u8::MAX; 8]);
        request
    }
}

/// `struct nlmsghdr`, and `struct nlmsgerr` or `struct inet_diag_msg`.
fn described(answer: &[u8]) -> io::Result<Option<SocketDescription>> {
    let kind = u16::from_ne_bytes(piece(answer, 4)?);
    let body = answer.get(16..).unwrap_or_default();
    match kind {
        SockDiag::NLMSG_ERROR => match io::Error::from_raw_os_error(-i32::from_ne_bytes(piece(body, 0)?)) {
            error if error.kind() == io::ErrorKind::NotFound => Ok(None),
            error => Err(error),
        },
        SockDiag::SOCK_DIAG_BY_FAMILY => {
            let [family, state] = piece(body, 0)?;
            let is_v4 = u16::from(family) == AddressFamily::INET.as_raw();
            let address = |port_at, ip_at| -> io::Result<SocketAddr> {
                let ip = if is_v4 {
                    IpAddr::from(piece::<4>(body, ip_at)?)
                } else {
                    IpAddr::from(piece::<16>(body, ip_at)?)
                };
                Ok(canonical(SocketAddr::new(ip, u16::from_be_bytes(piece(body, port_at)?))))
            };
            Ok(Some(SocketDescription {
                state,
                own: address(4, 8)?,
                other: address(6, 24)?,
                user: number(body, 64)?,
                inode: number(body, 68)?,
            }))
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn padded(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V6(ip) => ip.octets(),
        IpAddr::V4(ip) => {
            let mut padded = [0; 16];
            padded[..4].copy_from_slice(&ip.octets());
            padded
        }
    }
}

fn piece<const N: usize>(bytes: &[u8], at: usize) -> io::Result<[u8; N]> {
    let piece = bytes.get(at..at + N).and_then(|piece| piece.try_into().ok());
    piece.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

fn number(bytes: &[u8], at: usize) -> io::Result<u32> {
    piece(bytes, at).map(u32::from_ne_bytes)
}

/// Looks in the kernel's tables of all sockets. IPv4 connections of IPv6 sockets are in the table of IPv6.
fn user_in_tables(client: SocketAddr, server: SocketAddr) -> Option<u32> {
    let mapped = |address: SocketAddr| match address.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
        IpAddr::V6(_) => address,
    };
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let v4 = if client.is_ipv4() { user_in(&read("/proc/net/tcp"), client, server) } else { None };
    v4.or_else(|| user_in(&read("/proc/net/tcp6"), mapped(client), mapped(server)))
}

fn user_in(table: &str, client: SocketAddr, server: SocketAddr) -> Option<u32> {
    let (client, server) = (in_table(client), in_table(server));
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (own, other, state) = (fields.next()?, fields.next()?, fields.next()?);
        if own != client || other != server || !CONNECTED.contains(&u8::from_str_radix(state, 16).ok()?) {
            return None;
        }
        let (user, inode) = (fields.nth(3)?, fields.nth(1)?);
        if inode == "0" { None } else { user.parse().ok() }
    })
}

/// As `/proc/net/tcp` writes an address: `0100007F:1F90`.
fn in_table(address: SocketAddr) -> String {
    let octets = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let mut text = String::new();
    for word in octets.chunks_exact(4) {
        let _ = write!(text, "{:08X}", u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
    }
    let _ = write!(text, ":{:04X}", address.port());
    text
}

#[cfg(test)]
mod tests {
    use std::net::{Shutdown, TcpListener as StdListener, TcpStream as StdStream};

    use tokio::io::AsyncReadExt;

    use super::*;

    /// A connection to `listens` from a client that connects to `target`.
    async fn connection(listens: &str, target: &str) -> (ClientUsers, StdStream, TcpStream) {
        let listener = StdListener::bind(listens).unwrap();
        let port = listener.local_addr().unwrap().port();
        listener.set_nonblocking(true).unwrap();
        let listener = TcpListener::from_std(listener).unwrap();
        let client = StdStream::connect((target, port)).unwrap();
        let (server, _) = listener.accept().await.unwrap();
        (ClientUsers::new(&listener), client, server)
    }

    fn addresses(server: &TcpStream) -> (SocketAddr, SocketAddr) {
        (canonical(server.peer_addr().unwrap()), canonical(server.local_addr().unwrap()))
    }

    #[tokio::test]
    async fn the_user_is_found_by_both_ways_over_ipv4_ipv6_and_mapped_addresses() {
        let own = rustix::process::geteuid().as_raw();
        for (listens, target) in [
            ("127.0.0.1:0", "127.0.0.1"),
            ("[::1]:0", "::1"),
            ("[::]:0", "127.0.0.1"),
            ("127.0.0.1:0", "::ffff:127.0.0.1"),
        ] {
            let (users, client, server) = connection(listens, target).await;
            assert!(users.is_trusted(&server).await, "{listens} from {target}");
            let (from, to) = addresses(&server);
            assert_eq!(users.user(from, to).await, Some(own), "{listens} from {target}");
            assert_eq!(user_in_tables(from, to), Some(own), "{listens} from {target}");
            // A client that has said everything and waits for the answer still owns its socket.
            client.shutdown(Shutdown::Write).unwrap();
            assert_eq!(users.user(from, to).await, Some(own), "{listens} from {target}");
        }
    }

    /// The kernel reports user 0 for it: it would pass for root.
    #[tokio::test]
    async fn a_socket_without_a_process_has_no_user() {
        let (users, client, mut server) = connection("127.0.0.1:0", "127.0.0.1").await;
        let (from, to) = addresses(&server);
        drop(client);
        assert_eq!(server.read(&mut [0]).await.unwrap(), 0);
        assert_eq!(users.user(from, to).await, None);
        assert_eq!(user_in_tables(from, to), None);
        assert!(!users.is_trusted(&server).await);
    }

    #[tokio::test]
    async fn a_client_that_is_not_here_has_no_user() {
        let (users, _client, server) = connection("127.0.0.1:0", "127.0.0.1").await;
        let (from, to) = addresses(&server);
        let listener = StdListener::bind("127.0.0.1:0").unwrap();
        for elsewhere in ["10.0.0.9:4000", "[2001:db8::1]:4000"] {
            assert_eq!(users.user(elsewhere.parse().unwrap(), to).await, None);
            assert_eq!(users.user(from, elsewhere.parse().unwrap()).await, None);
        }
        // Without a connection the kernel answers with a listener at the client's address.
        assert_eq!(users.user(listener.local_addr().unwrap(), to).await, None);
    }

    #[tokio::test]
    async fn only_the_own_user_and_root_are_trusted() {
        let (users, _client, server) = connection("127.0.0.1:0", "127.0.0.1").await;
        let own = rustix::process::geteuid().as_raw();
        let other = ClientUsers { diag: None, own: Some(own + 1) };
        assert!(users.is_trusted(&server).await);
        assert_eq!(other.is_trusted(&server).await, own == 0);
    }

    #[test]
    fn a_line_of_the_table_is_read() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 7 1 0 100 0 0 10 0\n\
            1: 0100007F:C350 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1001        0 8 1 0 20 4 30 10 -1\n\
            2: 0100007F:C351 0100007F:1F90 05 00000000:00000000 00:00000000 00000000     0        0 0 1 0 20 4 30 10 -1\n";
        let user =
            |client: &str, server: &str| user_in(table, client.parse().unwrap(), server.parse().unwrap());
        if cfg!(target_endian = "little") {
            assert_eq!(user("127.0.0.1:50000", "127.0.0.1:8080"), Some(1001));
            assert_eq!(user("127.0.0.1:50001", "127.0.0.1:8080"), None);
            assert_eq!(user("127.0.0.1:8080", "0.0.0.0:0"), None);
            assert_eq!(user("127.0.0.1:50002", "127.0.0.1:8080"), None);
        }
    }
}
