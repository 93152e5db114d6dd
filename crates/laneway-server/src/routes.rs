//! Which path leads where, and the document that says so.

use std::collections::HashSet;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use laneway_core::Store;
use tokio_util::sync::CancellationToken;
use utoipa::OpenApi as _;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::{
    act, audit, bulk, enqueue, health, lanes, overview, queues, schedules, stats, stream, tasks,
    tokens as token_routes, tree, workers,
};
use crate::base_path::BasePath;
use crate::driver::Bulks;
use crate::feed::Feed;
use crate::guard::guard;
use crate::metrics::{self, Metrics};
use crate::probes;
use crate::problem::Problem;
use crate::server::{Routes, Tokens};
use crate::settings::SettingsSource;
use crate::tokens::Seen;

/// What every handler may use. Cheap to clone.
pub(crate) type App = Arc<Parts>;

pub(crate) struct Parts {
    pub store: Arc<dyn Store>,
    pub tokens: Tokens,
    /// What all routes have in front of them.
    pub base_path: BasePath,
    pub settings: Arc<dyn SettingsSource>,
    /// Nothing may be changed.
    pub read_only: bool,
    pub routes: Routes,
    pub seen: Seen,
    /// The names under which the server may be called; none: any.
    pub hosts: Option<HashSet<String>>,
    pub metrics: Metrics,
    pub feed: Feed,
    pub bulks: Bulks,
    /// Cancelled when the server stops.
    pub stop: CancellationToken,
}

#[derive(utoipa::OpenApi)]
#[openapi(info(title = "Laneway", description = "Durable tasks for PostgreSQL and SQLite over HTTP"))]
struct Document;

/// Metrics and health.
fn probes() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(metrics::scrape))
        .routes(routes!(probes::livez))
        .routes(routes!(probes::readyz))
}

/// Every route that is documented.
fn documented() -> OpenApiRouter<App> {
    probes()
        .routes(routes!(enqueue::enqueue, tasks::list))
        .routes(routes!(tasks::get, act::delete, act::change))
        .routes(routes!(act::retry))
        .routes(routes!(act::cancel))
        .routes(routes!(act::snooze))
        .routes(routes!(act::clone))
        .routes(routes!(tasks::why))
        .routes(routes!(tree::tree))
        .routes(routes!(tasks::failures))
        .routes(routes!(tasks::result))
        .routes(routes!(bulk::start, bulk::list))
        .routes(routes!(bulk::preview))
        .routes(routes!(bulk::get))
        .routes(routes!(bulk::abort))
        .routes(routes!(bulk::resume))
        .routes(routes!(queues::list))
        .routes(routes!(queues::get, queues::change))
        .routes(routes!(queues::kinds))
        .routes(routes!(queues::pause))
        .routes(routes!(queues::resume))
        .routes(routes!(queues::drain))
        .routes(routes!(queues::pause_kind))
        .routes(routes!(queues::resume_kind))
        .routes(routes!(queues::pauses))
        .routes(routes!(queues::counts))
        .routes(routes!(lanes::list))
        .routes(routes!(lanes::get, lanes::change))
        .routes(routes!(lanes::pause))
        .routes(routes!(lanes::resume))
        .routes(routes!(workers::list))
        .routes(routes!(workers::get))
        .routes(routes!(workers::drain))
        .routes(routes!(workers::stop))
        .routes(routes!(schedules::list, schedules::create))
        .routes(routes!(schedules::get, schedules::put, schedules::change, schedules::remove))
        .routes(routes!(schedules::pause))
        .routes(routes!(schedules::resume))
        .routes(routes!(schedules::run))
        .routes(routes!(schedules::next))
        .routes(routes!(schedules::preview))
        .routes(routes!(audit::list))
        .routes(routes!(stats::series))
        .routes(routes!(overview::overview))
        .routes(routes!(overview::suggest))
        .routes(routes!(health::store))
        .routes(routes!(health::settings))
        .routes(routes!(health::reload))
        .routes(routes!(stream::stream))
        .routes(routes!(token_routes::list, token_routes::create))
        .routes(routes!(token_routes::revoke))
}

/// All routes, behind the guard.
pub(crate) fn router(app: App) -> Router {
    let routes = match app.routes {
        Routes::All => documented(),
        Routes::Probes => probes(),
    };
    let (router, mut document) = routes.split_for_parts();
    let scheme = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
    document.components.get_or_insert_default().add_security_scheme("token", scheme);
    if !app.base_path.is_none() {
        document.servers = Some(vec![utoipa::openapi::Server::new(app.base_path.as_str())]);
    }
    let document: Arc<str> = document.to_json().expect("the document can be encoded").into();
    let openapi = move || {
        let document = Arc::clone(&document);
        async move { ([(header::CONTENT_TYPE, "application/json")], document.to_string()) }
    };
    let router = router.route("/openapi.json", get(openapi));
    let router = match app.base_path.is_none() {
        true => router,
        false => Router::new().nest(app.base_path.as_str(), router).merge(probes().split_for_parts().0),
    };
    router
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(from_fn_with_state(Arc::clone(&app), guard))
        .with_state(app)
}

async fn no_route(State(app): State<App>, request: Request) -> Response {
    let path = request.uri().path().escape_debug().to_string();
    let detail = format!("there is nothing at `{path}`; see {}/openapi.json", app.base_path);
    Problem::new("no_route", detail).into_response()
}

async fn no_method(State(app): State<App>, request: Request) -> Response {
    let (method, base) = (request.method(), &app.base_path);
    let detail = format!("`{method}` cannot be asked of this path; see {base}/openapi.json");
    Problem::new("method_not_allowed", detail).into_response()
}
