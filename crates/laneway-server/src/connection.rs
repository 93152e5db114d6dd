//! One connection: how long its headers may take, how large they may be, and how it ends.

use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

/// How long the headers of a request may take, and a connection may idle.
const HEADERS_WITHIN: Duration = Duration::from_secs(30);
const HEADERS_MAX: usize = 100;
const HEADER_BYTES_MAX: usize = 16 * 1024;

/// Answers the requests of one connection. After `stop` the request under way is the last.
pub(crate) async fn serve(socket: TcpStream, router: Router, stop: CancellationToken) {
    // Answers are written in one piece; waiting for more to send only adds delay.
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%error, "a connection ended before it began");
        return;
    }
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_WITHIN)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEADER_BYTES_MAX)
        .serve_connection(TokioIo::new(socket), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke off");
    }
}
