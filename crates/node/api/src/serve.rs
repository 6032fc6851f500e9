//! Serves a router over TCP.
//!
//! Connections are bounded: at the limit, the longest idle one is closed for a new one. A connection whose
//! client has stopped reading is dropped. A connection whose client still sends after its answer is closed
//! when the client has had time to read it. On shutdown the server accepts no new connections, lets answers
//! under way finish, ends streams and waiting requests, and closes idle connections; the rest is dropped
//! after a grace time.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::header::{CONNECTION, EXPECT, HeaderValue};
use axum::http::{Request, Response};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use tasklane_runtime::descriptors::Lack;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use crate::ServeOptions;
use crate::client_user::{ClientUsers, TrustedUser};
use crate::connections::{Connection, Connections, Place};
use crate::drain_body::{DrainBody, Unread};
use crate::extract::Closing;
use crate::tracked::Tracked;
use crate::write_timeout::WriteTimeout;

/// How often connections are looked at that may be late.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The head of a request has at most this many bytes. Clients without a token send heads too, so heads of all connections
/// together must fit into memory.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// Answers under way at a shutdown may take this long.
const GRACE: Duration = Duration::from_secs(10);

/// Wait after a failed accept, as when the process has no file descriptors left.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Serves `router` until `shutdown` is done, then lets answers under way finish.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    options: ServeOptions,
    shutdown: impl Future<Output = ()> + Send,
) {
    let users = options.check_users.then(|| Arc::new(ClientUsers::new(&listener)));
    let server = Server {
        router,
        users,
        connections: Connections::new(options),
        closing: CancellationToken::new(),
        tasks: TaskTracker::new(),
    };
    tokio::select! {
        () = server.accept(listener) => {}
        () = server.look_for_late_ones() => {}
        () = shutdown => {}
    }
    server.closing.cancel();
    server.tasks.close();
    if tokio::time::timeout(GRACE, server.tasks.wait()).await.is_err() {
        tracing::warn!(left = server.tasks.len(), "some requests did not end in time");
    }
}

/// The state that all connections share.
#[derive(Debug)]
struct Server {
    router: Router,
    users: Option<Arc<ClientUsers>>,
    connections: Arc<Connections>,
    closing: CancellationToken,
    tasks: TaskTracker,
}

impl Server {
    /// Serves connections until its task is dropped.
    async fn accept(&self, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, address)) => {
                    // One for which there is no place is closed by dropping it.
                    if let Some(place) = self.connections.place(address.ip()).await {
                        // Answers are small and wait for nothing: holding them back for more gains nothing.
                        let _ = stream.set_nodelay(true);
                        let (users, router, closing) =
                            (self.users.clone(), self.router.clone(), self.closing.clone());
                        self.tasks.spawn(connection(stream, place, users, router, closing));
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    if Lack::of(&error).is_some() {
                        self.connections.close_longest_idle();
                    }
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            }
        }
    }

    async fn look_for_late_ones(&self) {
        let every = LOOK_EVERY.min(self.connections.head_timeout());
        loop {
            tokio::time::sleep(every).await;
            self.connections.close_late();
        }
    }
}

/// Serves a connection to its end, or until it has to give way.
async fn connection(
    stream: TcpStream,
    place: Place,
    users: Option<Arc<ClientUsers>>,
    router: Router,
    closing: CancellationToken,
) {
    let requests = async {
        let user = match users {
            Some(users) => users.is_trusted(&stream).await.then_some(TrustedUser),
            None => None,
        };
        requests(stream, &place, router, user, closing).await;
    };
    tokio::select! {
        () = requests => {}
        () = place.closed() => tracing::debug!("an idle connection was closed"),
    }
}

async fn requests(
    stream: TcpStream,
    place: &Place,
    router: Router,
    user: Option<TrustedUser>,
    closing: CancellationToken,
) {
    let told = closing.clone();
    let unread = Unread::default();
    let stream = Tracked::new(stream, Arc::clone(&**place));
    let stream = WriteTimeout::new(stream, place.write_timeout());
    let stream = DrainBody::new(stream, unread.clone());
    let service = hyper::service::service_fn(|request: Request<Incoming>| {
        // Not only when the answer is asked for: a connection with a request does not give way.
        let is_served = place.begin();
        let mut request = request.map(|body| Body::new(unread.watch(body)));
        request.extensions_mut().insert(Closing(closing.clone()));
        if let Some(user) = user {
            request.extensions_mut().insert(user);
        }
        answer(is_served, Arc::clone(&**place), unread.clone(), router.clone(), request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // Connections are looked at together: a timer for each costs more.
        .header_read_timeout(None)
        // `Tracked` looks after clients that are gone.
        .half_close(true)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let result = tokio::select! {
        result = &mut connection => result,
        () = told.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended");
    }
}

/// Answers a request, unless its connection has just been closed for another one.
async fn answer(
    is_served: bool,
    connection: Arc<Connection>,
    unread: Unread,
    router: Router,
    request: Request<Body>,
) -> Result<Response<TrackedBody>, std::convert::Infallible> {
    if !is_served {
        return std::future::pending().await;
    }
    let is_expecting = request.headers().contains_key(EXPECT);
    let mut response = router.oneshot(request).await?;
    if !unread.drain(is_expecting).await {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    connection.answers();
    Ok(response.map(|body| TrackedBody { body, connection }))
}

/// The body of an answer. It notifies its connection when all of it was given out.
#[derive(Debug)]
struct TrackedBody {
    body: Body,
    connection: Arc<Connection>,
}

impl hyper::body::Body for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for TrackedBody {
    fn drop(&mut self) {
        self.connection.has_answered();
    }
}
