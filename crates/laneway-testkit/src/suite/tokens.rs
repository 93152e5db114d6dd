//! Tokens of the server, as the store keeps them.

use jiff::{Timestamp, ToSpan};

use super::words::*;

fn ann() -> Actor {
    Actor::new(ActorName::new("ann").unwrap()).because("a new client")
}

fn a_token(name: &str, scopes: &[Scope]) -> NewToken {
    let name = ActorName::new(name).unwrap();
    NewToken { name, scopes: scopes.to_vec(), hash: TokenHash([7; 32]), expires_at: None }
}

pub async fn a_token_is_kept_with_its_hash_and_its_scopes(store: &TestStore) {
    let scopes = [Scope::Operate, Scope::Read, Scope::Read];

    let made = store.create_token(&ann(), a_token("grafana", &scopes)).await.unwrap();

    assert_eq!((made.name.as_str(), made.hash, made.expired), ("grafana", TokenHash([7; 32]), false));
    assert_eq!(made.scopes, [Scope::Read, Scope::Operate]);
    assert_eq!(store.token(made.id).await.unwrap(), Some(made.clone()));
    assert_eq!(store.tokens().await.unwrap(), [made]);
}

pub async fn a_revoked_token_is_gone_and_its_number_is_not_used_again(store: &TestStore) {
    let first = store.create_token(&ann(), a_token("first", &[Scope::Read])).await.unwrap();

    assert!(store.revoke_token(&ann(), first.id).await.unwrap());
    assert!(!store.revoke_token(&ann(), first.id).await.unwrap());

    assert_eq!(store.token(first.id).await.unwrap(), None);
    let second = store.create_token(&ann(), a_token("second", &[Scope::Read])).await.unwrap();
    assert!(second.id > first.id);
    assert_eq!(store.tokens().await.unwrap(), [second]);
}

pub async fn a_token_expires_by_the_clock_of_the_store(store: &TestStore) {
    let expires_at = Timestamp::now() + 1.hour();
    let token = NewToken { expires_at: Some(expires_at), ..a_token("short", &[Scope::Work]) };
    let made = store.create_token(&ann(), token).await.unwrap();
    assert!(!made.expired);

    store.advance_clock(secs(2 * 3_600)).await;

    assert!(store.token(made.id).await.unwrap().unwrap().expired);
}

pub async fn making_and_revoking_tokens_is_recorded_without_their_hash(store: &TestStore) {
    let made = store.create_token(&ann(), a_token("grafana", &[Scope::Read])).await.unwrap();
    store.revoke_token(&ann(), made.id).await.unwrap();

    let entries = store.audit(AuditPage::default()).await.unwrap();

    let [revoked, created] = &entries[..] else { panic!("{entries:?}") };
    let shown = serde_json::json!({"name": "grafana", "scopes": "read"});
    let json = |json: &Option<Json>| json.as_ref().map(|json| json.decode::<serde_json::Value>().unwrap());
    assert_eq!((created.action.as_str(), &created.actor), ("create_token", &ann()));
    assert_eq!((json(&created.before), json(&created.after)), (None, Some(shown.clone())));
    assert_eq!(
        (revoked.action.as_str(), revoked.subject.clone()),
        ("revoke_token", format!("token {}", made.id))
    );
    assert_eq!((json(&revoked.before), json(&revoked.after)), (Some(shown), None));
}

pub async fn tokens_that_allow_nothing_or_last_for_decades_are_refused(store: &TestStore) {
    let none = refusal(store.create_token(&ann(), a_token("none", &[])).await);
    assert_eq!((none.code, none.field), (Code::OutOfRange, "scopes"));
    let expires_at = Some("2100-01-01T00:00:00Z".parse().unwrap());
    let long = NewToken { expires_at, ..a_token("long", &[Scope::Read]) };
    let long = refusal(store.create_token(&ann(), long).await);
    assert_eq!((long.code, long.field), (Code::TimeOutOfRange, "expires_at"));
    assert!(long.message.starts_with("expires_at is 2100"), "{long}");

    assert_eq!(store.tokens().await.unwrap(), []);
    assert!(store.audit(AuditPage::default()).await.unwrap().is_empty());
}
