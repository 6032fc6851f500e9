//! A TCP proxy in front of a server. It cuts, pauses and refuses connections on request.
//!
//! The proxy has threads of its own, so it serves tests of any runtime and may be shared by all of them.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

/// A proxy on a port of its own.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    target: Option<SocketAddr>,
    paused: bool,
    refusing: bool,
    ended: bool,
    /// Both ends of each connection that was made. Ended ones stay in the list until the next cut.
    open: Vec<(TcpStream, TcpStream)>,
    /// Counts accepted connections.
    accepted: usize,
}

impl Proxy {
    /// Starts a proxy in front of an address.
    pub fn start(target: impl ToSocketAddrs) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        shared.state.lock().unwrap().target = target.to_socket_addrs().unwrap().next();
        let accepting = Arc::clone(&shared);
        thread::spawn(move || accept(&listener, &accepting));
        Self { address, shared }
    }

    /// Starts a proxy in front of a local port.
    pub fn before(port: u16) -> Self {
        Self::start(("127.0.0.1", port))
    }

    /// The port of the proxy.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// The address of the proxy.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends new connections to another address, as a changed DNS record does. Open connections stay.
    pub fn retarget(&self, target: impl ToSocketAddrs) {
        self.shared.state.lock().unwrap().target = target.to_socket_addrs().unwrap().next();
    }

    /// Breaks all connections. New ones are made as usual.
    pub fn cut(&self) {
        for (client, server) in self.shared.state.lock().unwrap().open.drain(..) {
            let _ = client.shutdown(Shutdown::Both);
            let _ = server.shutdown(Shutdown::Both);
        }
    }

    /// Breaks all connections and refuses new ones until [`resume`](Self::resume).
    pub fn refuse(&self) {
        self.shared.state.lock().unwrap().refusing = true;
        self.cut();
    }

    /// Swallows everything, in both directions and on new connections too, until [`resume`](Self::resume); neither side
    /// sees its connection end. Bytes sent meanwhile arrive after the pause.
    pub fn pause(&self) {
        self.shared.state.lock().unwrap().paused = true;
    }

    /// Ends a pause or a refusal.
    pub fn resume(&self) {
        let mut state = self.shared.state.lock().unwrap();
        state.paused = false;
        state.refusing = false;
        self.shared.changed.notify_all();
    }

    /// How many connections were accepted so far.
    pub fn accepted(&self) -> usize {
        self.shared.state.lock().unwrap().accepted
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.state.lock().unwrap().ended = true;
        self.resume();
        self.cut();
        // The accepting thread waits for one more connection before it ends.
        let _ = TcpStream::connect(self.address);
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for client in listener.incoming() {
        let mut state = shared.state.lock().unwrap();
        if state.ended {
            return;
        }
        let Ok(client) = client else { continue };
        if state.refusing {
            continue;
        }
        state.accepted += 1;
        let Some(Ok(server)) = state.target.map(TcpStream::connect) else { continue };
        let (Ok(client_again), Ok(server_again)) = (client.try_clone(), server.try_clone()) else { continue };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        for (from, to) in [(&client, &server), (&server, &client)] {
            let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) else { continue };
            let shared = Arc::clone(shared);
            thread::spawn(move || pass(from, to, &shared));
        }
        state.open.push((client_again, server_again));
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, shared: &Shared) {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        shared.wait_while_paused();
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    // The end of a connection passes no pause either.
    shared.wait_while_paused();
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

impl Shared {
    fn wait_while_paused(&self) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| state.paused && !state.ended).unwrap());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that answers each byte with the same byte.
    fn echo() -> u16 {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                thread::spawn(move || std::io::copy(&mut stream.try_clone().unwrap(), &mut stream));
            }
        });
        port
    }

    fn asked(stream: &mut TcpStream, word: u8) -> Option<u8> {
        stream.write_all(&[word]).ok()?;
        let mut answer = [0];
        stream.read_exact(&mut answer).ok()?;
        Some(answer[0])
    }

    #[test]
    fn connections_are_passed_paused_cut_and_refused() {
        let proxy = Proxy::before(echo());
        let connect = || TcpStream::connect(proxy.address()).unwrap();
        let mut stream = connect();
        assert_eq!(asked(&mut stream, 1), Some(1));
        proxy.pause();
        stream.write_all(&[2]).unwrap();
        stream.set_nonblocking(true).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
        stream.set_nonblocking(false).unwrap();
        proxy.resume();
        let mut held = [0];
        stream.read_exact(&mut held).unwrap();
        assert_eq!(held, [2]);
        proxy.cut();
        assert_eq!(asked(&mut stream, 3), None);
        assert_eq!(asked(&mut connect(), 4), Some(4));
        proxy.refuse();
        assert_eq!(asked(&mut connect(), 5), None);
        proxy.resume();
        assert_eq!(asked(&mut connect(), 6), Some(6));
        proxy.retarget(("127.0.0.1", echo()));
        assert_eq!(asked(&mut connect(), 7), Some(7));
        assert!(proxy.accepted() >= 4);
    }
}
