//! Making connections: a server accepts them, every member dials.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status, Streaming};

use crate::connection::Connection;
use crate::endpoint::{Endpoint, Secret};
use crate::routes::{Routes, UselessPeer};
use crate::wire;
use crate::wire::bus_client::BusClient;
use crate::wire::bus_server::{Bus, BusServer};

/// How to use the direct bus.
#[derive(Clone, Debug)]
pub struct DirectOptions {
    /// Where a server listens; port 0 takes a free one. `None` for a worker, which only dials.
    pub bind: Option<SocketAddr>,
    /// The name under which peers reach this server, `host` or `host:port`, where that differs from `bind`.
    pub advertise: Option<String>,
    /// Largest message, encoded. At most 16 MiB.
    pub message_bytes_max: usize,
    /// Bytes that wait for one peer. When there are more, the oldest batches are dropped.
    pub peer_bytes_max: usize,
    /// Parts of messages that wait for one subscription. When there are more, the oldest messages are
    /// dropped.
    pub waiting_max: usize,
    /// … or about so many bytes.
    pub waiting_bytes_max: usize,
    /// Messages that one `receive` gives.
    pub receive_max: usize,
    /// How long `subscribe` waits for the acknowledgements of peers. Later calls do not wait for a peer that
    /// missed this time until it acknowledges again.
    pub announce_timeout: Duration,
    /// How long `close` waits for peers to take their waiting batches.
    pub close_timeout: Duration,
    /// How long making a connection may take.
    pub connect_timeout: Duration,
    /// A peer that was silent for this long receives a ping.
    pub keep_alive_interval: Duration,
    /// A connection is closed when the answer to a ping takes longer than this.
    pub keep_alive_timeout: Duration,
    /// First pause between two attempts to reach a peer; it doubles with each attempt,
    pub retry_first: Duration,
    /// up to this pause. Every pause has jitter.
    pub retry_max: Duration,
}

impl Default for DirectOptions {
    fn default() -> Self {
        Self {
            bind: None,
            advertise: None,
            message_bytes_max: 4 << 20,
            peer_bytes_max: 16 << 20,
            waiting_max: 1 << 16,
            waiting_bytes_max: 64 << 20,
            receive_max: 512,
            announce_timeout: Duration::from_millis(500),
            close_timeout: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(2),
            keep_alive_interval: Duration::from_secs(2),
            keep_alive_timeout: Duration::from_secs(3),
            retry_first: Duration::from_millis(50),
            retry_max: Duration::from_secs(2),
        }
    }
}

/// The upper bound of `message_bytes_max` of any member. Receivers apply this bound and not their own
/// setting, so that members with different settings understand each other.
pub(crate) const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// The same bound with the rest of a frame.
const FRAME_BYTES_MAX: usize = MESSAGE_BYTES_MAX + (1 << 20);
/// How many bytes may be on the way to a peer that has taken none of them. HTTP/2's own 64 KiB would bind
/// throughput to the round trip.
const WINDOW_BYTES: u32 = 2 << 20;
/// Calls at the same time over one connection. A peer needs one.
const CALLS_MAX: u32 = 8;
/// Pause after a failed accept, mostly because too many files are open.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Accepts connections until the routes leave.
pub(crate) async fn serve(
    routes: Arc<Routes>,
    listener: TcpListener,
    secret: Secret,
    options: Arc<DirectOptions>,
) {
    let leaving = routes.leaving().clone();
    let host = ConnectionHost { routes, secret, hello_timeout: options.connect_timeout };
    let service = BusServer::new(host).max_decoding_message_size(FRAME_BYTES_MAX);
    let server = Server::builder()
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_concurrent_streams(CALLS_MAX)
        .http2_keepalive_interval(Some(options.keep_alive_interval))
        .http2_keepalive_timeout(Some(options.keep_alive_timeout));
    let ended =
        server.serve_with_incoming_shutdown(service, connections(listener), leaving.cancelled()).await;
    if let Err(error) = ended {
        tracing::warn!(%error, "the server of the bus has ended: peers cannot connect");
    }
}

fn connections(listener: TcpListener) -> impl Stream<Item = std::io::Result<TcpStream>> {
    futures::stream::unfold(listener, |listener| async {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    // Without it small frames wait for the kernel.
                    let _ = stream.set_nodelay(true);
                    return Some((Ok(stream), listener));
                }
                Err(error) => {
                    tracing::warn!(%error, "a peer could not connect");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            }
        }
    })
}

/// The server's side of a connection.
#[derive(Debug)]
struct ConnectionHost {
    routes: Arc<Routes>,
    secret: Secret,
    hello_timeout: Duration,
}

#[tonic::async_trait]
impl Bus for ConnectionHost {
    type ConnectStream = std::pin::Pin<Box<dyn Stream<Item = Result<wire::Frame, Status>> + Send>>;

    async fn connect(
        &self,
        request: Request<Streaming<wire::Frame>>,
    ) -> Result<Response<Self::ConnectStream>, Status> {
        let shown = request.metadata().get("authorization").map_or(&[][..], |value| value.as_encoded_bytes());
        if !self.secret.is_shown_by(shown) {
            tracing::debug!(from = ?request.remote_addr(), "a peer without the secret was refused");
            return Err(Status::unauthenticated("the secret of this server is needed"));
        }
        let connection =
            self.routes.open_connection().ok_or_else(|| Status::unavailable("this server is leaving"))?;
        let frames = connection.frames().map(Ok);
        let (routes, hello_timeout) = (Arc::clone(&self.routes), self.hello_timeout);
        tokio::spawn(async move {
            let ended = read(&routes, &connection, request.into_inner(), hello_timeout).await;
            routes.close_connection(&connection);
            tracing::debug!(connection = connection.number, reason = %ended, "the connection of a peer has ended");
        });
        Ok(Response::new(Box::pin(frames)))
    }
}

/// Why a connection has ended.
#[derive(Debug, thiserror::Error)]
enum DisconnectReason {
    #[error("the peer ended the connection")]
    ByPeer,
    #[error("this member ended the connection")]
    Here,
    // Only the debug form of these errors names the cause.
    #[error("the connection broke or could not be made: {0:?}")]
    Broken(Box<dyn std::error::Error + Send + Sync>),
    #[error("the peer sent no hello in time")]
    Silent,
    #[error(transparent)]
    Useless(UselessPeer),
}

/// Reads the frames of a peer until the connection ends.
async fn read(
    routes: &Routes,
    connection: &Arc<Connection>,
    mut frames: Streaming<wire::Frame>,
    hello_timeout: Duration,
) -> DisconnectReason {
    let said = async {
        let Ok(mut next) = tokio::time::timeout(hello_timeout, frames.message()).await else {
            return DisconnectReason::Silent;
        };
        loop {
            match next {
                Ok(Some(frame)) => {
                    if let Err(useless) = routes.on_frame(connection, frame) {
                        return DisconnectReason::Useless(useless);
                    }
                }
                Ok(None) => return DisconnectReason::ByPeer,
                Err(status) => return DisconnectReason::Broken(status.into()),
            }
            next = frames.message().await;
        }
    };
    tokio::select! {
        ended = said => ended,
        () = connection.closed() => DisconnectReason::Here,
    }
}

/// Keeps a connection to a server until `stop` is cancelled.
pub(crate) async fn dial(
    routes: Arc<Routes>,
    endpoint: Endpoint,
    options: Arc<DirectOptions>,
    stop: CancellationToken,
) {
    let mut tries = 0;
    loop {
        let (was_up, ended) = tokio::select! {
            result = converse(&routes, &endpoint, &options) => result,
            () = stop.cancelled() => return,
        };
        tracing::debug!(peer = endpoint.place(), was_up, reason = %ended, "not connected");
        if matches!(ended, DisconnectReason::Useless(UselessPeer::Own)) {
            // The endpoint is this member's own, for as long as it is in the list.
            return;
        }
        tries = if was_up { 0 } else { tries + 1 };
        tokio::select! {
            () = tokio::time::sleep(pause(&options, tries)) => {}
            () = stop.cancelled() => return,
            () = routes.leaving().cancelled() => return,
        }
    }
}

fn pause(options: &DirectOptions, tries: u32) -> Duration {
    let longest = options.retry_first.saturating_mul(1 << tries.min(16)).min(options.retry_max);
    longest.mul_f64(rand::random_range(0.5..=1.0))
}

/// One connection to a server, from dialling to its end. Answers also whether messages could pass.
async fn converse(routes: &Routes, endpoint: &Endpoint, options: &DirectOptions) -> (bool, DisconnectReason) {
    let channel = tokio::select! {
        result = connect(endpoint, options) => result,
        () = routes.leaving().cancelled() => return (false, DisconnectReason::Here),
    };
    let channel = match channel {
        Ok(channel) => channel,
        Err(error) => return (false, DisconnectReason::Broken(error.into())),
    };
    let Some(connection) = routes.open_connection() else { return (false, DisconnectReason::Here) };
    // Dropping it closes the connection, also when this future is dropped.
    let connection = DialledConnection { routes, connection };
    let mut request = Request::new(connection.connection.frames());
    let mut bearer: MetadataValue<_> =
        endpoint.secret().bearer().parse().expect("secrets consist of letters and digits");
    bearer.set_sensitive(true);
    request.metadata_mut().insert("authorization", bearer);
    let mut client = BusClient::new(channel).max_decoding_message_size(FRAME_BYTES_MAX);
    let answered = tokio::time::timeout(options.connect_timeout, client.connect(request)).await;
    let frames = match answered {
        Ok(Ok(response)) => response.into_inner(),
        Ok(Err(status)) => return (false, DisconnectReason::Broken(status.into())),
        Err(_) => return (false, DisconnectReason::Silent),
    };
    let ended = read(routes, &connection.connection, frames, options.connect_timeout).await;
    (connection.connection.is_up(), ended)
}

async fn connect(endpoint: &Endpoint, options: &DirectOptions) -> Result<Channel, tonic::transport::Error> {
    tonic::transport::Endpoint::from_shared(endpoint.url())?
        .connect_timeout(options.connect_timeout)
        .tcp_nodelay(true)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .http2_keep_alive_interval(options.keep_alive_interval)
        .keep_alive_timeout(options.keep_alive_timeout)
        .keep_alive_while_idle(true)
        .connect()
        .await
}

/// A connection that is closed when it is dropped.
struct DialledConnection<'a> {
    routes: &'a Routes,
    connection: Arc<Connection>,
}

impl Drop for DialledConnection<'_> {
    fn drop(&mut self) {
        self.routes.close_connection(&self.connection);
    }
}

#[cfg(test)]
mod tests {
    use tasklane_ports::Address;
    use tonic::Code;

    use super::*;
    use crate::DirectBus;
    use crate::frame::{MemberId, to_wire};

    async fn server() -> (DirectBus, Endpoint) {
        let bind = Some("127.0.0.1:0".parse().unwrap());
        let server = DirectBus::listen(DirectOptions { bind, ..DirectOptions::default() }).await.unwrap();
        let endpoint = Endpoint::parse(&server.endpoint().unwrap()).unwrap();
        (server, endpoint)
    }

    /// The answer of a server to a dialler with this secret and this frame.
    async fn call(
        endpoint: &Endpoint,
        shown: Option<&str>,
        frames: impl Stream<Item = wire::Frame> + Send + 'static,
    ) -> Result<Streaming<wire::Frame>, Status> {
        let channel = connect(endpoint, &DirectOptions::default()).await.unwrap();
        let mut request = Request::new(frames);
        if let Some(shown) = shown {
            request.metadata_mut().insert("authorization", shown.parse().unwrap());
        }
        BusClient::new(channel).connect(request).await.map(Response::into_inner)
    }

    #[tokio::test]
    async fn whoever_does_not_know_the_secret_is_refused() {
        let (_server, endpoint) = server().await;
        let bearer = endpoint.secret().bearer();
        for shown in [None, Some(""), Some("Bearer "), Some(&bearer[..bearer.len() - 1])] {
            let refused = call(&endpoint, shown, futures::stream::pending()).await;
            assert_eq!(refused.unwrap_err().code(), Code::Unauthenticated, "{shown:?}");
        }
        assert!(call(&endpoint, Some(&bearer), futures::stream::pending()).await.is_ok());
    }

    /// A frame that breaks the protocol ends the connection.
    #[tokio::test]
    async fn whoever_does_not_keep_to_the_protocol_is_left() {
        let (server, endpoint) = server().await;
        let hello = Some(MemberId::random().hello());
        let short = Some(wire::Hello { member: vec![1; 15].into() });
        let frame = |hello| wire::Frame { hello, ..wire::Frame::default() };
        for wrong in [vec![frame(None)], vec![frame(short)], vec![frame(hello.clone()), frame(hello)]] {
            let frames = futures::stream::iter(wrong).chain(futures::stream::pending());
            let mut answers = call(&endpoint, Some(&endpoint.secret().bearer()), frames).await.unwrap();
            while let Some(frame) = answers.message().await.unwrap() {
                assert!(frame.parcels.is_empty());
            }
        }
        assert_eq!(server.connected().borrow().connections, 0);
    }

    /// A newer member may send fields that this one does not know; the rest of the frame counts.
    #[tokio::test]
    async fn what_is_not_known_is_passed_over() {
        use tasklane_core::id::LaneId;
        use tasklane_core::message::Message;
        use tasklane_ports::{Bus as _, codec};

        let (server, endpoint) = server().await;
        let mut subscription = server.subscribe(Address::Events).await.unwrap();
        let hint = Message::Hint { lane: LaneId(1) };
        let events = Some(to_wire(Address::Events));
        let unknown = wire::Address { to: None };
        let parcel = |address, messages: Vec<u8>| wire::Parcel { address, messages: messages.into() };
        let frame = wire::Frame {
            hello: Some(MemberId::random().hello()),
            listening: Some(wire::Listening {
                version: 7,
                begun: vec![unknown.clone(), to_wire(Address::Events)],
                ended: vec![unknown.clone()],
            }),
            heard: 1,
            parcels: vec![
                parcel(Some(unknown), codec::encode(&[&hint])),
                parcel(None, codec::encode(&[&hint])),
                parcel(events.clone(), codec::encode("something else")),
                parcel(events.clone(), Vec::new()),
                parcel(events, codec::encode(&[&hint])),
            ],
        };
        let frames = futures::stream::iter([frame]).chain(futures::stream::pending());
        let mut answers = call(&endpoint, Some(&endpoint.secret().bearer()), frames).await.unwrap();
        assert_eq!(subscription.receive().await, Some(vec![hint.clone()]));
        assert_eq!(server.counters().unreadable, 2);
        let mut heard = 0;
        while heard == 0 {
            heard = answers.message().await.unwrap().unwrap().heard;
        }
        assert_eq!(heard, 7);
        server.publish(Address::Events, vec![hint]).await.unwrap();
        while answers.message().await.unwrap().unwrap().parcels.is_empty() {}
    }

    #[test]
    fn pauses_grow_and_are_bounded() {
        let options = DirectOptions::default();
        for tries in 0..100 {
            let pause = pause(&options, tries);
            let longest = options.retry_max.min(options.retry_first * 2_u32.pow(tries.min(10)));
            assert!(pause >= longest / 2 && pause <= longest, "{tries}: {pause:?}");
        }
    }
}
