//! A CA, and the files of nodes whose certificates it signed.

use std::fs;
use std::path::PathBuf;

use rcgen::{BasicConstraints, Certificate, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

use super::{Files, Tls};

/// A CA with a folder for files.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: Certificate,
    folder: TempDir,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let key = KeyPair::generate().expect("random numbers");
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self {
            certificate: params.self_signed(&key).expect("valid"),
            issuer: Issuer::new(params, key),
            folder: tempfile::tempdir().expect("a folder"),
        }
    }

    /// A file in the folder.
    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let file = self.folder.path().join(name);
        fs::write(&file, text).expect("space");
        file
    }

    /// The files of a node with this IP address.
    pub(crate) fn files(&self, address: &str) -> Files {
        let key = KeyPair::generate().expect("random numbers");
        let params = CertificateParams::new([address.to_owned()]).expect("an address");
        let certificate = params.signed_by(&key, &self.issuer).expect("valid");
        Files {
            certificate: self.file(&format!("{address}.pem"), &certificate.pem()),
            key: self.file(&format!("{address}.key"), &key.serialize_pem()),
            ca: self.file("ca.pem", &self.certificate.pem()),
        }
    }

    /// TLS of a node with this IP address.
    pub(crate) fn tls(&self, address: &str) -> Tls {
        Tls::load(&self.files(address)).expect("sound files")
    }
}
