//! Sentinels: they know which server is the primary now.
//!
//! The adapter asks them before every connection, so a connection made after a failover leads to the new
//! primary. The adapter closes a connection when its server answers `READONLY`; sentinels close connections
//! to a primary that they demote.

use std::sync::atomic::{AtomicUsize, Ordering};

use redis::{Cmd, ConnectionAddr, ErrorKind, RedisError, Value};

use crate::connection::{Endpoint, LiveConnection, Timeouts};
use crate::tls::refused;

/// The sentinels of one primary.
#[derive(Debug)]
pub(crate) struct Sentinels {
    /// The name of the primary at the sentinels.
    name: String,
    endpoints: Vec<Endpoint>,
    /// The position of the sentinel that answered last.
    preferred: AtomicUsize,
}

impl Sentinels {
    pub(crate) fn new(name: String, endpoints: Vec<Endpoint>) -> Self {
        Self { name, endpoints, preferred: AtomicUsize::new(0) }
    }

    /// The address of the primary, as the first sentinel that answers knows it.
    pub(crate) async fn primary(&self, timeouts: Timeouts) -> Result<ConnectionAddr, RedisError> {
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name);
        let first = self.preferred.load(Ordering::Relaxed);
        let mut failure = None;
        for number in (0..self.endpoints.len()).map(|next| (first + next) % self.endpoints.len()) {
            match ask(&self.endpoints[number], timeouts, &command).await {
                Ok(Some((host, port))) => {
                    self.preferred.store(number, Ordering::Relaxed);
                    return Ok(ConnectionAddr::Tcp(host, port));
                }
                Ok(None) => {}
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(|| {
            refused(format!(
                "the sentinels know no primary called {0}: use the name of `sentinel monitor` in \
                 redis+sentinel://host:26379/{0}",
                self.name
            ))
        }))
    }
}

async fn ask(
    endpoint: &Endpoint,
    timeouts: Timeouts,
    command: &Cmd,
) -> Result<Option<(String, u16)>, RedisError> {
    // A sentinel is not behind other sentinels: this recursion ends here.
    let live = Box::pin(LiveConnection::connect(endpoint, timeouts, None)).await?;
    match live.send(command).await {
        Ok(Value::Nil) => Ok(None),
        Ok(answer) => {
            let (host, port): (String, String) = redis::from_redis_value(answer)?;
            let port = port.parse();
            let port = port.map_err(|_| (ErrorKind::UnexpectedReturnType, "a sentinel answers no port"))?;
            Ok(Some((host, port)))
        }
        Err(error) if error.detail().is_some_and(|detail| detail.contains("unknown command")) => {
            Err(refused(format!(
                "{endpoint} is no sentinel: name sentinels in redis+sentinel://, or the server itself in redis://"
            )))
        }
        Err(error) => Err(error),
    }
}
