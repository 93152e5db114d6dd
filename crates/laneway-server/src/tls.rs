//! TLS for calls to others, with the certificates that the machine trusts.

use std::sync::Arc;

use tokio_rustls::TlsConnector;

/// Makes TLS connections. Reads the certificates of the machine, or those that `SSL_CERT_FILE` and `SSL_CERT_DIR` name.
pub(crate) fn connector() -> Result<TlsConnector, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    // A certificate that cannot be read is no reason to call nobody.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config).into())
}
