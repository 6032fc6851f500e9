//! Encryption on the way to the server, by the parameters that libpq has.
//!
//! | `sslmode` | encrypted | the server's certificate |
//! |---|---|---|
//! | `disable` | never | |
//! | `prefer` (default), `allow` | if the server offers it | not checked |
//! | `require` | always | not checked; as `verify-ca` where `sslrootcert` is given |
//! | `verify-ca` | always | signed by a trusted authority |
//! | `verify-full` | always | … and valid for the host's name |
//!
//! Trusted are the certificates in `sslrootcert`, or those of the system.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, PrivateKeyDer, ServerName};
use rustls::{CertificateError, ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;

use crate::verify::{self, Check};

/// The parameters of a URL.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TlsOptions {
    pub(crate) mode: Option<String>,
    pub(crate) root_certs: Option<String>,
    pub(crate) cert: Option<String>,
    pub(crate) key: Option<String>,
}

/// How connections are encrypted.
#[derive(Clone)]
pub(crate) enum Tls {
    Off,
    /// Where the server offers it.
    Preferred(Connector),
    Required(Connector),
}

impl Tls {
    pub(crate) fn new(options: &TlsOptions) -> Result<Self, String> {
        let root_certs = options.root_certs.as_deref();
        let check = match options.mode.as_deref().unwrap_or("prefer") {
            "disable" => return Ok(Self::Off),
            "allow" | "prefer" => Check::Nothing,
            "require" if root_certs.is_none() => Check::Nothing,
            "require" | "verify-ca" => Check::Authority,
            "verify-full" => Check::AuthorityAndName,
            other => {
                return Err(format!(
                    "sslmode={other} is not known: it must be disable, prefer, require, verify-ca or verify-full"
                ));
            }
        };
        let connector = Connector::new(check, options)?;
        Ok(match options.mode.as_deref() {
            None | Some("allow" | "prefer") => Self::Preferred(connector),
            Some(_) => Self::Required(connector),
        })
    }
}

fn roots(file: Option<&str>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let Some(file) = file.filter(|file| *file != "system") else {
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            return Err("this machine has no certificates to trust: name a file of them with sslrootcert=…"
                .to_owned());
        }
        return Ok(roots);
    };
    for cert in certificates("sslrootcert", file)? {
        roots.add(cert).map_err(|error| unreadable("sslrootcert", file, &error))?;
    }
    Ok(roots)
}

fn certificates(parameter: &str, file: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = found.map_err(|error| unreadable(parameter, file, &error))?;
    if found.is_empty() {
        return Err(unreadable(parameter, file, &"there is no certificate in it"));
    }
    Ok(found)
}

/// The certificate that the server asks the client for, with its key.
type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn identity(options: &TlsOptions) -> Result<Option<Identity>, String> {
    let (cert, key) = match (options.cert.as_deref(), options.key.as_deref()) {
        (None, None) => return Ok(None),
        (Some(cert), Some(key)) => (cert, key),
        (Some(_), None) => {
            return Err("sslcert needs the certificate's key too: name its file with sslkey=…".into());
        }
        (None, Some(_)) => {
            return Err("sslkey needs the key's certificate too: name its file with sslcert=…".into());
        }
    };
    let certs = certificates("sslcert", cert)?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(|error| {
        let why = format!(
            "{error}; it must hold a private key in PEM that no password protects (openssl pkey -in FILE -out FILE)"
        );
        unreadable("sslkey", key, &why)
    })?;
    Ok(Some((certs, key)))
}

fn unreadable(parameter: &str, file: &str, error: &dyn fmt::Display) -> String {
    format!("{parameter}={file} cannot be read: {error}")
}

/// Makes connections encrypted.
#[derive(Clone)]
pub(crate) struct Connector {
    tls: TlsConnector,
    /// Names are not checked, so a host that no certificate can name is allowed.
    any_name: bool,
    /// The server has offered encryption.
    offered: Arc<AtomicBool>,
}

impl Connector {
    fn new(check: Check, options: &TlsOptions) -> Result<Self, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let roots = match check {
            Check::Nothing => RootCertStore::empty(),
            Check::Authority | Check::AuthorityAndName => roots(options.root_certs.as_deref())?,
        };
        let verifier = verify::verifier(check, roots, &provider)?;
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("TLS cannot be used here: {error}"))?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let config = match identity(options)? {
            None => config.with_no_client_auth(),
            Some((certs, key)) => config
                .with_client_auth_cert(certs, key)
                .map_err(|error| format!("sslcert and sslkey do not belong together: {error}"))?,
        };
        let any_name = !matches!(check, Check::AuthorityAndName);
        Ok(Self { tls: Arc::new(config).into(), any_name, offered: Arc::default() })
    }

    /// For one connection.
    pub(crate) fn fresh(&self) -> Self {
        Self { offered: Arc::default(), ..self.clone() }
    }

    /// Whether the server of this connection has offered encryption.
    pub(crate) fn was_offered(&self) -> bool {
        self.offered.load(Ordering::Relaxed)
    }
}

impl MakeTlsConnect<Socket> for Connector {
    type Stream = Encrypted;
    type TlsConnect = Handshake;
    type Error = InvalidDnsNameError;

    fn make_tls_connect(&mut self, host: &str) -> Result<Handshake, InvalidDnsNameError> {
        let host = match ServerName::try_from(host.to_owned()) {
            Ok(host) => host,
            // An address is not sent to the server.
            Err(_) if self.any_name => IpAddr::from(Ipv4Addr::UNSPECIFIED).into(),
            Err(error) => return Err(error),
        };
        Ok(Handshake { connector: self.clone(), host })
    }
}

/// With one host.
pub(crate) struct Handshake {
    connector: Connector,
    host: ServerName<'static>,
}

impl TlsConnect<Socket> for Handshake {
    type Stream = Encrypted;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Encrypted>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        self.connector.offered.store(true, Ordering::Relaxed);
        Box::pin(async move {
            let host = self.host.to_str().into_owned();
            match self.connector.tls.connect(self.host, socket).await {
                Ok(stream) => Ok(Encrypted(stream)),
                Err(error) => Err(explained(error, &host)),
            }
        })
    }
}

/// Adds the parameter that would help.
fn explained(error: io::Error, host: &str) -> io::Error {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    let remedy = match cause {
        Some(rustls::Error::InvalidCertificate(cause)) => match cause {
            // Authorities of the same name differ in their signatures.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "name the file with the certificate of the server's authority with sslrootcert=…".to_owned()
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => format!(
                "the certificate is not for {host}: connect by a name that is in it, or give up checking names with \
                 sslmode=verify-ca"
            ),
            _ => return error,
        },
        _ => return error,
    };
    io::Error::new(error.kind(), format!("{error}; {remedy}"))
}

/// An encrypted connection.
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
            Self::Preferred(_) => "Preferred",
            Self::Required(_) => "Required",
        })
    }
}
