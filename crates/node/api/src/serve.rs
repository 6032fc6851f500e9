//! Serves a router over TCP.
//!
//! Connections are bounded: when there are as many as may be, new ones wait in the backlog. One whose other side has
//! stopped reading is dropped; one that still sends when it has its answer is closed when it has had time to read it. When
//! the server is told to stop it takes no new ones, lets answers under way finish, ends streams and waiting requests, and closes idle
//! connections; what still lingers after a grace time is dropped.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use crate::ServeOptions;
use crate::client_user::{ClientUsers, TrustedUser};
use crate::extract::Closing;
use crate::linger::{Linger, Unread};
use crate::stall::Stall;

/// The head of a request must have arrived within this time; an idle connection is closed after it.
const HEAD_TIMEOUT: Duration = Duration::from_mins(1);

/// The head of a request has at most this many bytes.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// What is under way when the server is told to stop may take this long.
const GRACE: Duration = Duration::from_secs(10);

/// Wait after a failed accept, as when the process has no file descriptors left.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Serves `router` until `shutdown` is done, then lets what is under way finish.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    options: ServeOptions,
    shutdown: impl Future<Output = ()> + Send,
) {
    let closing = CancellationToken::new();
    let connections = TaskTracker::new();
    let room = Arc::new(Semaphore::new(options.connections_max));
    let users = options.check_users.then(|| Arc::new(ClientUsers::new(&listener)));
    let mut shutdown = pin!(shutdown);
    loop {
        let accept = async {
            let permit = Arc::clone(&room).acquire_owned().await.expect("never closed");
            (listener.accept().await, permit)
        };
        let (accepted, permit) = tokio::select! {
            accepted = accept => accepted,
            () = &mut shutdown => break,
        };
        match accepted {
            Ok((stream, _)) => {
                // Answers are small and wait for nothing: holding them back for more gains nothing.
                let _ = stream.set_nodelay(true);
                let (users, router, closing) = (users.clone(), router.clone(), closing.clone());
                connections.spawn(async move {
                    let user = match users {
                        Some(users) => users.is_trusted(&stream).await.then_some(TrustedUser),
                        None => None,
                    };
                    connection(Stall::new(stream, options.write_timeout), router, user, closing).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_AGAIN).await;
            }
        }
    }
    drop(listener);
    closing.cancel();
    connections.close();
    if tokio::time::timeout(GRACE, connections.wait()).await.is_err() {
        tracing::warn!(left = connections.len(), "some requests did not end in time");
    }
}

async fn connection(
    stream: Stall<TcpStream>,
    router: Router,
    user: Option<TrustedUser>,
    closing: CancellationToken,
) {
    let told = closing.clone();
    let unread = Unread::default();
    let stream = Linger::new(stream, unread.clone());
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(|body| Body::new(unread.watch(body)));
        request.extensions_mut().insert(Closing(closing.clone()));
        if let Some(user) = user {
            request.extensions_mut().insert(user);
        }
        router.clone().oneshot(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
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
