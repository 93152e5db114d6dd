//! What attempts spawn, on its way into `family.sql`, and looks at families.

use laneway_core::{
    Children, FollowUpOnFailure, Limits, NewTask, Outcome, Settle, Spawned, StoreError, TaskId, TaskView,
    content_hash,
};
use tokio_postgres::types::Type;

use crate::enqueue::Columns;
use crate::look;
use crate::store::{Parameter, PostgresStore};

/// Follow-ups that are shown at most.
const FOLLOW_UPS_MAX: i32 = 100;

/// Fails an attempt that has spawned what no store takes; nothing of it is stored.
pub(crate) fn refuse_spawned(settle: &mut Settle, limits: &Limits) {
    let Some(Err(refused)) = settle.spawned.as_ref().map(|spawned| spawned.check(limits)) else { return };
    settle.spawned = None;
    if matches!(settle.outcome, Outcome::Completed { .. }) {
        settle.outcome = Outcome::Failed { error: format!("{}: {refused}", refused.code) };
    }
}

/// The first and the last id of children that are stored already.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdRange {
    pub first: i64,
    pub last: i64,
}

/// The composite `spawn` of the schema, as parallel arrays: the first ones have an entry per settle, the others per task.
#[derive(Default)]
pub(crate) struct Spawns {
    families: Vec<Option<String>>,
    children: Vec<i32>,
    siblings: Vec<i32>,
    firsts: Option<Vec<Option<i64>>>,
    lasts: Option<Vec<Option<i64>>>,
    depth_max: i32,
    wait_ms: Option<i32>,
    places: Vec<i32>,
    relations: Vec<&'static str>,
    columns: Columns,
    hashes: Vec<Option<i64>>,
}

impl Spawns {
    /// What the entries of a call spawn; `None` when that is nothing. `born`: the children that are stored already, per entry.
    /// `wait_ms`: how long to wait for the key of a follow-up; none: as long as the transaction's own settings allow.
    pub fn of(
        entries: &[Option<&Spawned>],
        born: &[Option<IdRange>],
        limits: &Limits,
        wait_ms: Option<i32>,
    ) -> Option<Self> {
        if entries.iter().all(Option::is_none) {
            return None;
        }
        let depth_max = i32::try_from(limits.depth_max).unwrap_or(i32::MAX);
        let mut spawns = Self { depth_max, wait_ms, ..Self::default() };
        if born.iter().any(Option::is_some) {
            spawns.firsts = Some(born.iter().map(|ids| ids.map(|ids| ids.first)).collect());
            spawns.lasts = Some(born.iter().map(|ids| ids.map(|ids| ids.last)).collect());
        }
        for (place, spawned) in entries.iter().enumerate() {
            let is_born = born.get(place).is_some_and(Option::is_some);
            spawns.families.push(spawned.map(family_words));
            spawns.children.push(spawned.map_or(0, |spawned| spawned.children.len() as i32));
            spawns.siblings.push(spawned.map_or(0, |spawned| spawned.siblings.len() as i32));
            let related = spawned.iter().flat_map(|spawned| related(spawned));
            for (relation, task) in related.filter(|(relation, _)| !(is_born && *relation == "child")) {
                spawns.push(place as i32 + 1, relation, task);
            }
        }
        Some(spawns)
    }

    fn push(&mut self, place: i32, relation: &'static str, task: &NewTask) {
        self.places.push(place);
        self.relations.push(relation);
        self.columns.push(task);
        self.hashes.push(task.unique.as_ref().map(|_| content_hash(task)));
    }

    /// The argument by which a function takes them, after others: `, p_spawn => row($17, …)::laneway.spawn`.
    pub fn argument(schema: &str, first: usize) -> String {
        let numbers: Vec<_> = (first..first + 20).map(|number| format!("${number}")).collect();
        format!(", p_spawn => row({})::{schema}.spawn", numbers.join(", "))
    }

    /// The values of [`Spawns::argument`].
    pub fn parameters(&self) -> Vec<Parameter<'_>> {
        let mut parameters: Vec<Parameter<'_>> = vec![
            (&self.families, Type::TEXT_ARRAY),
            (&self.children, Type::INT4_ARRAY),
            (&self.siblings, Type::INT4_ARRAY),
            (&self.firsts, Type::INT8_ARRAY),
            (&self.lasts, Type::INT8_ARRAY),
            (&self.depth_max, Type::INT4),
            (&self.wait_ms, Type::INT4),
            (&self.places, Type::INT4_ARRAY),
            (&self.relations, Type::TEXT_ARRAY),
        ];
        parameters.extend(self.columns.parameters());
        parameters.push((&self.hashes, Type::INT8_ARRAY));
        parameters
    }

    #[cfg(feature = "sqlx")]
    /// The same as one JSON object, for drivers that have no use for our parameters.
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "families": self.families,
            "children": self.children,
            "siblings": self.siblings,
            "depth_max": self.depth_max,
            "wait_ms": self.wait_ms,
            "places": self.places,
            "relations": self.relations,
            "kinds": self.columns.kinds,
            "payloads": self.columns.payloads,
            "queues": self.columns.queues,
            "priorities": self.columns.priorities,
            "max_attempts": self.columns.max_attempts,
            "lanes": self.columns.lanes,
            "lane_limits": self.columns.lane_limits,
            "delays_ms": self.columns.delays_ms,
            "dues": self.columns.dues,
            "extras": self.columns.extras,
            "hashes": self.hashes,
        })
    }
}

/// Policy and flags of a family, as the schema reads them.
fn family_words(spawned: &Spawned) -> String {
    let flags = [(spawned.then, " then"), (spawned.again, " again")];
    let set = flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, word)| word);
    std::iter::once(spawned.policy.stored()).chain(set).collect()
}

/// The tasks in the order of their ids, with how they are related to their spawner.
fn related(spawned: &Spawned) -> impl Iterator<Item = (&'static str, &NewTask)> {
    let children = spawned.children.iter().map(|task| ("child", task));
    let siblings = spawned.siblings.iter().map(|task| ("sibling", task));
    let follow_ups = spawned.follow_ups.iter().map(|follow_up| match follow_up.on_failure {
        FollowUpOnFailure::Drop => ("drop", &follow_up.task),
        FollowUpOnFailure::Keep => ("keep", &follow_up.task),
    });
    children.chain(siblings).chain(follow_ups)
}

impl PostgresStore {
    pub(crate) async fn list_children(&self, page: Children) -> Result<Vec<TaskView>, StoreError> {
        page.check()?;
        self.list_family(page.parent, page.after, page.limit as i32, false).await
    }

    pub(crate) async fn list_follow_ups(&self, task: TaskId) -> Result<Vec<TaskView>, StoreError> {
        self.list_family(task, None, FOLLOW_UPS_MAX, true).await
    }

    async fn list_family(
        &self,
        parent: TaskId,
        after: Option<TaskId>,
        limit: i32,
        follow_ups: bool,
    ) -> Result<Vec<TaskView>, StoreError> {
        let call = "list_family(p_parent => $1, p_after => $2, p_limit => $3, p_follow_ups => $4)";
        let parameters: &[Parameter<'_>] = &[
            (&parent.0, Type::INT8),
            (&after.map(|after| after.0), Type::INT8),
            (&limit, Type::INT4),
            (&follow_ups, Type::BOOL),
        ];
        let rows = self.call("list a family", &self.with_progress(call), parameters).await?;
        Ok(rows.iter().map(look::task_view).collect())
    }
}
