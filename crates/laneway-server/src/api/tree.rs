//! Looking at families.

use axum::Json;
use axum::extract::State;
use laneway_core::{Skip, TaskId};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::access::{Caller, Read};
use crate::input::{Asked, Segments};
use crate::problem::{Problem, ProblemBody};
use crate::routes::App;
use crate::wire::tree::Tree;

/// Rows of a tree, if nothing else is asked for.
const ROWS: u32 = 100;

/// How much of a family is shown.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct TreeQuery {
    /// Tasks that are shown at most: 1 to 1000. 100. The others are counted.
    max_rows: Option<u32>,
}

/// A task with its children and theirs, and what follows them.
///
/// What needs attention is shown first, level by level; children that find no room are counted in `rest`.
#[utoipa::path(
    get, path = "/api/v1/tasks/{id}/tree", tag = "tasks", security(("token" = ["read"])),
    params(("id" = i64, Path, description = "The number of the family's top"), TreeQuery),
    responses((status = 200, body = Tree), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn tree(
    _: Caller<Read>,
    State(app): State<App>,
    Segments(id): Segments<String>,
    Asked(query): Asked<TreeQuery>,
) -> Result<Json<Tree>, Problem> {
    let id: TaskId = id.parse()?;
    let tree = app.store.tree(id, query.max_rows.unwrap_or(ROWS)).await?;
    tree.map(|tree| Json(tree.into())).ok_or_else(|| Problem::skipped(id, Skip::NotFound))
}
