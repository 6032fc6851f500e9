//! Encryption on the way to the server.
//!
//! It is either off, or the server proves who it is: what libpq calls `require` (encrypted, to whomever) is taken as
//! `verify-full`, and `prefer` (perhaps encrypted) as `disable`.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;

/// How connections are encrypted.
#[derive(Clone)]
pub(crate) enum Tls {
    Off,
    On(Connector),
}

impl Tls {
    /// As the parameters of a URL say: its mode, and the file with the certificates that are trusted instead of the
    /// system's.
    pub(crate) fn new(mode: Option<&str>, root_certs: Option<&str>) -> Result<Self, String> {
        match mode.unwrap_or("disable") {
            "disable" | "allow" | "prefer" => Ok(Self::Off),
            "require" | "verify-ca" | "verify-full" => {
                let provider = Arc::new(rustls::crypto::ring::default_provider());
                let config = ClientConfig::builder_with_provider(provider)
                    .with_safe_default_protocol_versions()
                    .map_err(|error| format!("TLS cannot be used here: {error}"))?
                    .with_root_certificates(roots(root_certs)?)
                    .with_no_client_auth();
                Ok(Self::On(Connector(Arc::new(config).into())))
            }
            other => Err(format!("sslmode={other} is not known: it must be disable, require or verify-full")),
        }
    }
}

fn roots(file: Option<&str>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let Some(file) = file else {
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            return Err("this machine has no certificates to trust: name a file of them with sslrootcert=…"
                .to_owned());
        }
        return Ok(roots);
    };
    let unreadable = |error: &dyn fmt::Display| format!("sslrootcert={file} cannot be read: {error}");
    for cert in CertificateDer::pem_file_iter(file).map_err(|error| unreadable(&error))? {
        let cert = cert.map_err(|error| unreadable(&error))?;
        roots.add(cert).map_err(|error| unreadable(&error))?;
    }
    if roots.is_empty() {
        return Err(unreadable(&"there is no certificate in it"));
    }
    Ok(roots)
}

/// Makes connections encrypted.
#[derive(Clone)]
pub(crate) struct Connector(TlsConnector);

impl MakeTlsConnect<Socket> for Connector {
    type Stream = Encrypted;
    type TlsConnect = Handshake;
    type Error = InvalidDnsNameError;

    fn make_tls_connect(&mut self, host: &str) -> Result<Handshake, InvalidDnsNameError> {
        Ok(Handshake { connector: self.0.clone(), host: ServerName::try_from(host.to_owned())? })
    }
}

/// With one host.
pub(crate) struct Handshake {
    connector: TlsConnector,
    host: ServerName<'static>,
}

impl TlsConnect<Socket> for Handshake {
    type Stream = Encrypted;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Encrypted>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move { Ok(Encrypted(self.connector.connect(self.host, socket).await?)) })
    }
}

/// A connection that is.
pub(crate) struct Encrypted(tokio_rustls::client::TlsStream<Socket>);

impl TlsStream for Encrypted {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Encrypted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "Off",
            Self::On(_) => "On",
        })
    }
}
