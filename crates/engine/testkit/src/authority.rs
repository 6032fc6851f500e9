//! A private certificate authority, made by the `openssl` program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::programs;

/// New elliptic-curve keys, valid for a day: made in milliseconds.
const KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1";

/// The names of a server on this machine.
pub(crate) const LOCAL: &[&str] = &["DNS:localhost", "IP:127.0.0.1"];

/// A certificate authority that no system trusts.
#[derive(Debug)]
pub struct Authority {
    folder: TempDir,
}

/// A certificate and its key, as PEM files. They last as long as their authority.
#[derive(Clone, Debug)]
pub struct Certificate {
    pub cert: PathBuf,
    pub key: PathBuf,
}

impl Authority {
    /// Makes an authority. `None`, said aloud, where `openssl` is missing.
    pub fn new() -> Option<Self> {
        programs::find("openssl")?;
        let authority = Self { folder: tempfile::tempdir().unwrap() };
        authority.openssl(&format!("req -x509 {KEY} -keyout ca.key -out ca.pem -subj /CN=authority"));
        Some(authority)
    }

    /// The certificate of the authority itself: the file that clients trust.
    pub fn ca(&self) -> PathBuf {
        self.path("ca.pem")
    }

    /// A certificate for a server at these names, each `DNS:name` or `IP:address`. Servers also call each other with it.
    pub fn server(&self, names: &[&str]) -> Certificate {
        self.certify(
            "server",
            "server",
            &format!("subjectAltName={}\nextendedKeyUsage=serverAuth,clientAuth", names.join(",")),
        )
    }

    /// A certificate for a server on this machine: `localhost` and 127.0.0.1.
    pub fn local_server(&self) -> Certificate {
        self.server(LOCAL)
    }

    /// A certificate for a client with this common name.
    pub fn client(&self, name: &str) -> Certificate {
        self.certify(name, name, "extendedKeyUsage=clientAuth")
    }

    fn certify(&self, file: &str, name: &str, extensions: &str) -> Certificate {
        // Each certificate has files of its own, so earlier ones stay valid.
        let number = fs::read_dir(self.folder.path()).unwrap().count();
        let file = format!("{file}{number}");
        fs::write(self.path(&format!("{file}.ext")), extensions).unwrap();
        self.openssl(&format!("req {KEY} -keyout {file}.key -out {file}.csr -subj /CN={name}"));
        self.openssl(&format!(
            "x509 -req -in {file}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 1 -extfile {file}.ext -out {file}.pem"
        ));
        Certificate { cert: self.path(&format!("{file}.pem")), key: self.path(&format!("{file}.key")) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn openssl(&self, args: &str) {
        let folder: &Path = self.folder.path();
        let made =
            Command::new("openssl").args(args.split_whitespace()).current_dir(folder).output().unwrap();
        assert!(made.status.success(), "openssl {args}: {}", String::from_utf8_lossy(&made.stderr));
    }
}
