//! TLS 1.3 on a connection, if the job wants it: both ends show a certificate, and check the other's.
//!
//! A node has a certificate that a CA of the job signed and that names the node's IP address. A client
//! checks both, a server only the first: it does not know who comes. That the client belongs to the
//! job, the [handshake](crate::handshake) shows, which follows inside TLS.
//!
//! No session is resumed, so nothing of a connection is kept, and a server that has nothing to say
//! sends nothing: it gives away no tickets.

mod layer;

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, RootCertStore,
    ServerConfig, ServerConnection,
};

pub(crate) use self::layer::Layer;

/// The files of a node, in the format PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The certificate of the node, and those between it and the CA.
    pub certificate: PathBuf,
    /// The private key of the certificate, without a passphrase.
    pub key: PathBuf,
    /// The certificates of the CA.
    pub ca: PathBuf,
}

/// A file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The file.
    pub file: PathBuf,
    /// The reason.
    pub why: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file.display(), self.why)
    }
}

impl std::error::Error for Error {}

/// The certificates of this node, for any number of clients and servers.
#[derive(Clone, Debug)]
pub struct Tls {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or is not what it should be.
    pub fn load(files: &Files) -> Result<Self, Error> {
        let chain = certificates(&files.certificate)?;
        let key = private_key(&files.key)?;
        let mut roots = RootCertStore::empty();
        for root in certificates(&files.ca)? {
            let added = roots.add(root);
            added
                .map_err(|why| wrong(&files.ca, format!("its certificate is not valid: {why}")))?;
        }
        let roots = Arc::new(roots);
        let provider = Arc::new(ring::default_provider());
        let unusable = |error| match error {
            rustls::Error::InvalidCertificate(why) => {
                let why = format!("its certificate is not valid: {why}");
                wrong(&files.certificate, why)
            }
            rustls::Error::InconsistentKeys(_) => {
                let certificate = files.certificate.display();
                let why = format!("expected the private key of the certificate in {certificate}");
                wrong(&files.key, why)
            }
            why => wrong(&files.key, format!("its private key cannot be used: {why}")),
        };
        let client = ClientConfig::builder_with_provider(Arc::clone(&provider));
        let mut client = client
            .with_protocol_versions(&[&TLS13])
            .map_err(unusable)?
            .with_root_certificates(Arc::clone(&roots))
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(unusable)?;
        client.resumption = Resumption::disabled();
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider));
        let verifier = verifier.build();
        let verifier = verifier.map_err(|why| wrong(&files.ca, why.to_string()))?;
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(unusable)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .map_err(unusable)?;
        server.send_tls13_tickets = 0;
        Ok(Self {
            client: Arc::new(client),
            server: Arc::new(server),
        })
    }

    /// TLS over a new connection to a server with this address.
    pub(crate) fn at_client(&self, address: IpAddr) -> io::Result<Layer> {
        let name = ServerName::from(address);
        let made = ClientConnection::new(Arc::clone(&self.client), name);
        made.map(Layer::new).map_err(io::Error::other)
    }

    /// TLS over a new connection from a client.
    pub(crate) fn at_server(&self) -> io::Result<Layer> {
        let made = ServerConnection::new(Arc::clone(&self.server));
        made.map(Layer::new).map_err(io::Error::other)
    }
}

fn wrong(file: &Path, why: String) -> Error {
    let file = file.to_owned();
    Error { file, why }
}

fn read(file: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(file).map_err(|why| wrong(file, format!("it cannot be read: {why}")))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let bytes = read(file)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let found = found.map_err(|why| wrong(file, format!("it is not valid PEM: {why}")))?;
    if found.is_empty() {
        let why = "expected a certificate in PEM, between BEGIN CERTIFICATE and END CERTIFICATE";
        return Err(wrong(file, why.to_owned()));
    }
    Ok(found)
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, Error> {
    let found = PrivateKeyDer::from_pem_slice(&read(file)?);
    found.map_err(|why| {
        let why = format!("expected a private key in PEM, without a passphrase: {why}");
        wrong(file, why)
    })
}

/// The text for an error of TLS.
fn described(error: &rustls::Error) -> String {
    use CertificateError as Bad;
    match error {
        rustls::Error::InvalidCertificate(Bad::UnknownIssuer | Bad::BadSignature) => {
            "the CA of this side did not sign the certificate of the peer".to_owned()
        }
        rustls::Error::InvalidCertificate(
            why @ (Bad::NotValidForName | Bad::NotValidForNameContext { .. }),
        ) => format!("the certificate of the peer does not name its IP address: {why}"),
        rustls::Error::InvalidCertificate(why) => {
            format!("the certificate of the peer is not valid: {why}")
        }
        rustls::Error::NoCertificatesPresented => "the peer showed no certificate".to_owned(),
        rustls::Error::AlertReceived(AlertDescription::UnknownCA) => {
            "the peer refused the certificate of this side: its CA did not sign it".to_owned()
        }
        rustls::Error::AlertReceived(
            why @ (AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateRequired
            | AlertDescription::DecryptError),
        ) => format!("the peer refused the certificate of this side: {why:?}"),
        why => format!("TLS failed: {why}"),
    }
}

#[cfg(test)]
mod tests;
