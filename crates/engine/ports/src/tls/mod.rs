//! Encryption on the way to an external system, by the URL parameters that libpq has.
//!
//! | parameter | meaning |
//! |---|---|
//! | `sslmode` | how much of the server's certificate is checked; which modes there are, the adapter decides |
//! | `sslrootcert` | file with the certificates that are trusted, in PEM; without it, those of the system |
//! | `sslcert`, `sslkey` | files with the client's certificate and its key, in PEM |

mod verify;

use std::fmt;
use std::io;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{CertificateError, ClientConfig, RootCertStore};

pub use verify::Check;

/// The parameters of a URL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// `sslmode`
    pub mode: Option<String>,
    /// `sslrootcert`
    pub root_certs: Option<String>,
    /// `sslcert`
    pub cert: Option<String>,
    /// `sslkey`
    pub key: Option<String>,
}

impl TlsOptions {
    /// The place of a parameter; `None` for parameters that have nothing to do with encryption.
    pub fn parameter(&mut self, name: &str) -> Option<&mut Option<String>> {
        Some(match name {
            "sslmode" => &mut self.mode,
            "sslrootcert" => &mut self.root_certs,
            "sslcert" => &mut self.cert,
            "sslkey" => &mut self.key,
            _ => return None,
        })
    }

    /// The name of a parameter that was given.
    pub fn any(&self) -> Option<&'static str> {
        let given = [
            ("sslmode", &self.mode),
            ("sslrootcert", &self.root_certs),
            ("sslcert", &self.cert),
            ("sslkey", &self.key),
        ];
        given.into_iter().find_map(|(name, value)| value.as_ref().map(|_| name))
    }
}

/// The settings of encrypted connections. An error names the parameter and the remedy.
pub fn client_config(check: Check, options: &TlsOptions) -> Result<ClientConfig, String> {
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
    Ok(match identity(options)? {
        None => config.with_no_client_auth(),
        Some((certs, key)) => config
            .with_client_auth_cert(certs, key)
            .map_err(|error| format!("sslcert and sslkey do not belong together: {error}"))?,
    })
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
        return Err(unreadable(parameter, file, &"the file holds no certificate in PEM"));
    }
    Ok(found)
}

/// The client's certificate, which the server asks for, with its key.
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
            "{error}; the file must hold a private key in PEM that no password protects (openssl pkey -in FILE -out FILE)"
        );
        unreadable("sslkey", key, &why)
    })?;
    Ok(Some((certs, key)))
}

fn unreadable(parameter: &str, file: &str, error: &dyn fmt::Display) -> String {
    format!("{parameter}={file} cannot be read: {error}")
}

/// The remedy for a server's certificate that was not accepted; `None` for other failures.
pub fn remedy(error: &io::Error, host: &str) -> Option<String> {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    let Some(rustls::Error::InvalidCertificate(cause)) = cause else { return None };
    Some(match cause {
        // An authority of the same name with another key shows as a bad signature.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "name the file with the certificate of the server's authority with sslrootcert=…".to_owned()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => format!(
            "the certificate is not for {host}: connect by a name that is in it, or skip the check of names with \
             sslmode=verify-ca"
        ),
        _ => "give the server a valid certificate".to_owned(),
    })
}

/// Text of a URL without its percent-encoding; `None` if the encoding is not valid.
pub fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        if *first != b'%' {
            bytes.push(*first);
            rest = after;
            continue;
        }
        let digits = after.get(..2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = &after[2..];
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_encoded_text_is_decoded() {
        assert_eq!(decoded("%2Fa%20b.pem").as_deref(), Some("/a b.pem"));
        for wrong in ["%", "%2", "%zz", "%ff"] {
            assert_eq!(decoded(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn files_that_cannot_be_used_are_named_with_their_parameter() {
        let refused = |options: TlsOptions| client_config(Check::AuthorityAndName, &options).unwrap_err();
        let file = |name: &str| Some(name.to_owned());
        let root_certs = file("/nowhere.pem");
        let missing = TlsOptions { root_certs, ..TlsOptions::default() };
        assert!(refused(missing).contains("sslrootcert=/nowhere.pem"));
        let check = |options: TlsOptions| client_config(Check::Nothing, &options).unwrap_err();
        assert!(check(TlsOptions { cert: file("/c"), ..TlsOptions::default() }).contains("sslkey="));
        assert!(check(TlsOptions { key: file("/k"), ..TlsOptions::default() }).contains("sslcert="));
    }
}
