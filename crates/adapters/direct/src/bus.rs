//! The public handle of the direct bus.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use tasklane_core::message::Message;
use tasklane_ports::{Address, Bus, BusCapabilities, BusError, Subscription};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::connect::{self, DirectOptions, MESSAGE_BYTES_MAX};
use crate::endpoint::Endpoint;
use crate::routes::{Bounds, ConnectionCounts, DirectCounters, OpenSubscription, Routes, lock};
use crate::subscription::SubscriptionBounds;

/// Carries messages between members. Clones are handles of the same bus. It closes with its last clone, or by
/// [`close`](Self::close).
#[derive(Clone, Debug)]
pub struct DirectBus(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    routes: Arc<Routes>,
    options: Arc<DirectOptions>,
    endpoint: Option<Endpoint>,
    /// Servers that this member dials, each with the token that stops its dialler.
    dialled: Mutex<HashMap<Endpoint, CancellationToken>>,
    /// `set_peers` may be called from anywhere.
    runtime: Handle,
}

impl DirectBus {
    /// Opens the bus: a server begins to listen. The bus dials no server before
    /// [`set_peers`](Self::set_peers).
    pub async fn listen(mut options: DirectOptions) -> Result<Self, BusError> {
        options.message_bytes_max = options.message_bytes_max.min(MESSAGE_BYTES_MAX);
        let routes = Arc::new(Routes::new(Bounds {
            message_bytes_max: options.message_bytes_max,
            peer_bytes_max: options.peer_bytes_max,
            subscription: SubscriptionBounds {
                parts: options.waiting_max,
                bytes: options.waiting_bytes_max,
                at_once: options.receive_max,
            },
            announce_timeout: options.announce_timeout,
        }));
        let options = Arc::new(options);
        let mut endpoint = None;
        if let Some(bind) = options.bind {
            let unavailable = |source: std::io::Error| BusError::Unavailable { source: source.into() };
            let listener = TcpListener::bind(bind).await.map_err(unavailable)?;
            let bound = listener.local_addr().map_err(unavailable)?;
            let own = Endpoint::new(bound, options.advertise.as_deref())
                .map_err(|reason| BusError::Unavailable { source: reason.into() })?;
            let secret = own.secret().clone();
            tokio::spawn(connect::serve(Arc::clone(&routes), listener, secret, Arc::clone(&options)));
            endpoint = Some(own);
        }
        let runtime = Handle::current();
        Ok(Self(Arc::new(Inner { routes, options, endpoint, dialled: Mutex::default(), runtime })))
    }

    /// `host:port/secret` of a server, for its peers. A process that knows it may connect.
    pub fn endpoint(&self) -> Option<String> {
        self.0.endpoint.as_ref().map(ToString::to_string)
    }

    /// Connects to these servers, given as their endpoints, and to no others. The member's own endpoint is
    /// skipped.
    pub fn set_peers(&self, endpoints: Vec<String>) {
        let mut wanted = HashSet::new();
        for text in endpoints {
            match Endpoint::parse(&text) {
                Ok(endpoint) if Some(&endpoint) == self.0.endpoint.as_ref() => {}
                Ok(endpoint) => {
                    wanted.insert(endpoint);
                }
                Err(reason) => tracing::warn!(reason, "a peer cannot be dialled"),
            }
        }
        let mut dialled = lock(&self.0.dialled);
        if self.0.routes.leaving().is_cancelled() {
            return;
        }
        dialled.retain(|endpoint, stop| {
            let is_wanted = wanted.remove(endpoint);
            if !is_wanted {
                stop.cancel();
            }
            is_wanted
        });
        for endpoint in wanted {
            let stop = CancellationToken::new();
            dialled.insert(endpoint.clone(), stop.clone());
            let (routes, options) = (Arc::clone(&self.0.routes), Arc::clone(&self.0.options));
            self.0.runtime.spawn(connect::dial(routes, endpoint, options, stop));
        }
    }

    /// The numbers of connected members and of connections, updated at each change.
    pub fn connected(&self) -> watch::Receiver<ConnectionCounts> {
        self.0.routes.connected()
    }

    /// The numbers of lost messages.
    pub fn counters(&self) -> DirectCounters {
        self.0.routes.counters()
    }

    /// Ends each subscription once it has received its waiting messages, and each connection once its peer
    /// has taken its waiting batches or `close_timeout` has passed.
    pub async fn close(&self) {
        self.0.routes.close(self.0.options.close_timeout).await;
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.routes.abandon();
    }
}

#[async_trait]
impl Bus for DirectBus {
    fn capabilities(&self) -> BusCapabilities {
        BusCapabilities { message_bytes_max: self.0.options.message_bytes_max }
    }

    async fn publish(&self, address: Address, messages: Vec<Message>) -> Result<(), BusError> {
        self.0.routes.publish(address, messages)
    }

    fn publish_now(&self, address: Address, message: Message) -> Option<Message> {
        // A refused message is lost, as any message may be.
        let _ = self.0.routes.publish(address, vec![message]);
        None
    }

    fn is_heard(&self, address: Address) -> bool {
        self.0.routes.is_heard(address)
    }

    async fn subscribe(&self, address: Address) -> Result<Box<dyn Subscription>, BusError> {
        let subscription = Arc::clone(&self.0.routes).subscribe(address).await?;
        Ok(Box::new(DirectSubscription(subscription)))
    }
}

#[derive(Debug)]
struct DirectSubscription(OpenSubscription);

#[async_trait]
impl Subscription for DirectSubscription {
    async fn receive(&mut self) -> Option<Vec<Message>> {
        self.0.receive().await
    }
}
