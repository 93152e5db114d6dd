//! Addresses, TLS and the connection pool.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Pool, QueueMode, RecyclingMethod, Runtime};
use laneway_core::StoreError;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;

/// How long a caller waits for a free connection, and a connection for its server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A parsed address.
#[derive(Clone)]
pub(crate) struct Address {
    pub config: tokio_postgres::Config,
    pub tls: MakeRustlsConnect,
    /// Hosts and ports for messages, without the password.
    pub target: String,
}

/// How far the server's certificate is checked, in libpq's words.
#[derive(Clone, Copy, PartialEq)]
enum Verify {
    /// `prefer`, `require`: encrypted, but anybody may answer.
    Nothing,
    /// `verify-ca`: somebody with a certificate of a known authority.
    Authority,
    /// `verify-full`: this host.
    Host,
}

impl Address {
    pub fn parse(url: &str) -> Result<Self, StoreError> {
        let (url, parameters) = take_tls_parameters(url);
        let (mode, verify) = match parameters.mode.as_deref() {
            None => (None, Verify::Nothing),
            Some("disable") => (Some(SslMode::Disable), Verify::Nothing),
            Some("prefer") => (Some(SslMode::Prefer), Verify::Nothing),
            Some("require") => (Some(SslMode::Require), Verify::Nothing),
            Some("verify-ca") => (Some(SslMode::Require), Verify::Authority),
            Some("verify-full") => (Some(SslMode::Require), Verify::Host),
            Some(other) => {
                return Err(bad_address(format!(
                    "sslmode `{other}` is unknown; one of: disable, prefer, require, verify-ca, verify-full"
                )));
            }
        };
        let mut config: tokio_postgres::Config = url.parse().map_err(|error: tokio_postgres::Error| {
            let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            bad_address(format!(
                "{error}: {source}; it looks like postgres://user:password@host:5432/database"
            ))
        })?;
        if let Some(mode) = mode {
            config.ssl_mode(mode);
        }
        if config.get_application_name().is_none() {
            config.application_name("laneway");
        }
        config.connect_timeout(*config.get_connect_timeout().unwrap_or(&CONNECT_TIMEOUT));
        config.keepalives_idle(Duration::from_secs(30));
        config.keepalives_interval(Duration::from_secs(10));
        config.keepalives_retries(3);
        let tls = MakeRustlsConnect::new(tls_config(verify, parameters.root.as_deref())?);
        Ok(Self { target: target(&config), config, tls })
    }

    pub fn pool(&self, size: usize) -> Result<Pool, StoreError> {
        // `Fast`: a connection that was seen to break is not handed out again, and no round trip is spent on asking.
        let manager = Manager::from_config(
            self.config.clone(),
            self.tls.clone(),
            ManagerConfig { recycling_method: RecyclingMethod::Fast },
        );
        Pool::builder(manager)
            .max_size(size.max(1))
            // The one that was used last: its server process has everything at hand.
            .queue_mode(QueueMode::Lifo)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(CONNECT_TIMEOUT))
            .create_timeout(Some(CONNECT_TIMEOUT))
            .build()
            .map_err(|error| StoreError::Unexpected {
                doing: "make the connection pool",
                source: error.into(),
            })
    }
}

fn bad_address(problem: String) -> StoreError {
    StoreError::Address { problem }
}

fn target(config: &tokio_postgres::Config) -> String {
    let ports = config.get_ports();
    let hosts = config.get_hosts().iter().enumerate().map(|(place, host)| {
        let port = ports.get(place).or(ports.first()).copied().unwrap_or(5432);
        match host {
            Host::Tcp(name) => format!("{name}:{port}"),
            #[cfg(unix)]
            Host::Unix(path) => format!("{}:{port}", path.display()),
        }
    });
    let hosts: Vec<_> = hosts.collect();
    match config.get_dbname() {
        Some(name) => format!("{}/{name}", hosts.join(",")),
        None => hosts.join(","),
    }
}

#[derive(Default)]
struct TlsParameters {
    mode: Option<String>,
    root: Option<String>,
}

/// Takes `sslmode` and `sslrootcert`, which the driver knows only in part, out of a URL or key-value address.
fn take_tls_parameters(address: &str) -> (String, TlsParameters) {
    let mut taken = TlsParameters::default();
    let mut keep = |pair: &&str| match pair.split_once('=') {
        Some(("sslmode", value)) => {
            taken.mode = Some(value.to_owned());
            false
        }
        Some(("sslrootcert", value)) => {
            taken.root = Some(value.replace("%2F", "/").replace("%2f", "/"));
            false
        }
        _ => true,
    };
    let rest = if address.contains("://") {
        let (base, query) = address.split_once('?').unwrap_or((address, ""));
        let query: Vec<_> = query.split('&').filter(|pair| !pair.is_empty()).filter(&mut keep).collect();
        if query.is_empty() { base.to_owned() } else { format!("{base}?{}", query.join("&")) }
    } else {
        address.split_whitespace().filter(&mut keep).collect::<Vec<_>>().join(" ")
    };
    (rest, taken)
}

fn tls_config(verify: Verify, root: Option<&str>) -> Result<ClientConfig, StoreError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| bad_address(format!("TLS cannot be used: {error}")))?;
    if verify == Verify::Nothing {
        let anybody = Arc::new(Lenient { provider, roots: None });
        return Ok(builder.dangerous().with_custom_certificate_verifier(anybody).with_no_client_auth());
    }
    let roots = root_certificates(root)?;
    if verify == Verify::Host {
        return Ok(builder.with_root_certificates(roots).with_no_client_auth());
    }
    let roots =
        rustls::client::WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .build()
            .map_err(|error| bad_address(format!("the root certificates cannot be used: {error}")))?;
    let authority = Arc::new(Lenient { provider, roots: Some(roots) });
    Ok(builder.dangerous().with_custom_certificate_verifier(authority).with_no_client_auth())
}

fn root_certificates(file: Option<&str>) -> Result<RootCertStore, StoreError> {
    let mut roots = RootCertStore::empty();
    match file {
        Some(file) => {
            let certificates = CertificateDer::pem_file_iter(Path::new(file))
                .and_then(Iterator::collect::<Result<Vec<_>, _>>)
                .map_err(|error| bad_address(format!("sslrootcert `{file}` cannot be read: {error}")))?;
            roots.add_parsable_certificates(certificates);
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if roots.is_empty() {
        return Err(bad_address("no root certificates were found; name a file with sslrootcert".into()));
    }
    Ok(roots)
}

/// Checks less than rustls would by itself, as libpq's weaker modes do: never the host's name, and the authority only
/// when `roots` are given. Signatures of the handshake are always checked.
#[derive(Debug)]
struct Lenient {
    provider: Arc<CryptoProvider>,
    roots: Option<Arc<rustls::client::WebPkiServerVerifier>>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        use rustls::CertificateError::{NotValidForName, NotValidForNameContext};
        let Some(roots) = &self.roots else { return Ok(ServerCertVerified::assertion()) };
        match roots.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            Err(rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. })) => {
                Ok(ServerCertVerified::assertion())
            }
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_parameters_are_taken_out_of_both_forms_of_an_address() {
        let (url, taken) =
            take_tls_parameters("postgres://u:p@h/d?sslmode=verify-full&x=1&sslrootcert=%2Fetc%2Fca.pem");
        assert_eq!(url, "postgres://u:p@h/d?x=1");
        assert_eq!(
            (taken.mode.as_deref(), taken.root.as_deref()),
            (Some("verify-full"), Some("/etc/ca.pem"))
        );

        let (pairs, taken) = take_tls_parameters("host=h sslmode=disable dbname=d");
        assert_eq!(pairs, "host=h dbname=d");
        assert_eq!(taken.mode.as_deref(), Some("disable"));
    }

    #[test]
    fn messages_name_every_host_and_no_password() {
        let address =
            Address::parse("postgres://user:secret@one:1,two:2/app?target_session_attrs=read-write").unwrap();
        assert_eq!(address.target, "one:1,two:2/app");
    }

    #[test]
    fn bad_addresses_say_what_is_allowed() {
        for (url, says) in [
            ("postgres://h/d?sslmode=maybe", "sslmode `maybe` is unknown; one of: disable"),
            ("postgres://h:x/d", "postgres://user:password@host:5432/database"),
            ("postgres://h/d?sslmode=verify-full&sslrootcert=/none", "sslrootcert `/none` cannot be read"),
        ] {
            let error = Address::parse(url).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(says), "{url}: {error}");
        }
    }
}
