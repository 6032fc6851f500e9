//! Encrypted connections: `rediss://` and its relatives.
//!
//! | `sslmode` | the server's certificate |
//! |---|---|
//! | `verify-full` (default) | signed by a trusted authority, for the host's name |
//! | `verify-ca` | signed by a trusted authority |
//! | `require` | not checked; as `verify-ca` where `sslrootcert` is given |

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use redis::{ErrorKind, RedisError};
use rustls::pki_types::ServerName;
use tasklane_ports::tls::{self, Check, TlsOptions};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Makes connections encrypted.
#[derive(Clone)]
pub(crate) struct Tls {
    connector: TlsConnector,
    check: Check,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("check", &self.check).finish_non_exhaustive()
    }
}

impl Tls {
    pub(crate) fn new(options: &TlsOptions) -> Result<Self, String> {
        let check = match options.mode.as_deref().unwrap_or("verify-full") {
            "verify-full" => Check::AuthorityAndName,
            "verify-ca" => Check::Authority,
            "require" if options.root_certs.is_some() => Check::Authority,
            "require" => Check::Nothing,
            other => {
                return Err(format!(
                    "sslmode={other} is not known here: sslmode must be verify-full (the default), verify-ca or require; \
                     without encryption use redis:// in place of rediss://"
                ));
            }
        };
        let config = tls::client_config(check, options)?;
        Ok(Self { connector: TlsConnector::from(Arc::new(config)), check })
    }

    /// Encrypts a connection to a host.
    pub(crate) async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>, RedisError> {
        let name = match ServerName::try_from(host.to_owned()) {
            Ok(name) => name,
            Err(_) if self.check != Check::AuthorityAndName => IpAddr::from(Ipv4Addr::UNSPECIFIED).into(),
            Err(_) => return Err(refused(format!("{host} is not a name that a certificate can have"))),
        };
        self.connector.connect(name, stream).await.map_err(|error| explained(error, host))
    }
}

/// A rejected certificate is an error of its own kind, with the remedy.
fn explained(error: io::Error, host: &str) -> RedisError {
    match tls::remedy(&error, host) {
        Some(remedy) => refused(format!("the certificate of {host} is not accepted: {error}; {remedy}")),
        None if error.kind() == io::ErrorKind::InvalidData => refused(format!(
            "{host} does not encrypt connections at this port: {error}; use its TLS port, or redis:// in place of rediss://"
        )),
        None => error.into(),
    }
}

/// An error that only a change of settings ends, of this side or of the server's.
pub(crate) fn refused(reason: String) -> RedisError {
    RedisError::from((ErrorKind::Client, "connection refused by settings", reason))
}
