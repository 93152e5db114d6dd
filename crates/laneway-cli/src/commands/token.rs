//! `laneway token`: who may talk to the HTTP interface from other machines.

use clap::{Args, Subcommand};
use jiff::Timestamp;
use laneway_core::{ActorName, Scope, Store, Token as Stored, TokenId, parse_span};
use laneway_server::tokens::{TokenRequest, issue};
use serde::Serialize;

use super::queues::Changed;
use crate::context::Context;
use crate::output::{Column, column, right, text};
use crate::problem::{Exit, Outcome, Problem};

/// Tokens for the HTTP interface.
#[derive(Debug, Subcommand)]
pub enum Token {
    /// Make a token; it is shown once
    Create(Create),
    /// List tokens, without their secrets
    Ls,
    /// Make a token invalid
    Revoke {
        /// Its number
        id: i64,
    },
}

/// Makes a token.
#[derive(Args, Debug)]
pub struct Create {
    /// Who uses it: what it does is in the audit under this name
    pub name: String,
    /// What it allows: read, enqueue, operate, work or admin; may be repeated
    #[arg(long = "scope", value_name = "SCOPE", value_delimiter = ',', required = true)]
    pub scopes: Vec<String>,
    /// Until this long from now, such as 90d; for ever if not given
    #[arg(long = "for", value_name = "SPAN")]
    pub span: Option<String>,
}

const COLUMNS: &[Column<Stored>] = &[
    right(column("ID", |token: &Stored, _| token.id.to_string())),
    column("NAME", |token, _| token.name.to_string()),
    column("SCOPES", |token, _| {
        token.scopes.iter().map(|scope| scope.as_str()).collect::<Vec<_>>().join(",")
    }),
    column("MADE", |token, now| text::ago(token.created_at, now)),
    column("EXPIRES", |token, now| match (token.expired, token.expires_at) {
        (true, _) => "has expired".into(),
        (_, Some(then)) => text::until(then, now),
        _ => "never".into(),
    }),
];

impl Token {
    /// True when it changes something.
    pub fn operates(&self) -> bool {
        !matches!(self, Self::Ls)
    }

    pub async fn run(&self, context: &Context) -> Outcome {
        match self {
            Self::Create(create) => create.run(context).await,
            Self::Ls => {
                let tokens = context.store().await?.store.tokens().await?;
                context.out.list("tokens", &tokens, COLUMNS, None)?;
                Ok(Exit::Done)
            }
            Self::Revoke { id } => revoke(&*context.store().await?.store, *id, context).await,
        }
    }
}

impl Create {
    async fn run(&self, context: &Context) -> Outcome {
        #[derive(Serialize)]
        struct Answer<'a> {
            id: i64,
            token: &'a str,
        }
        let expires_at = self.span.as_deref().map(|span| parse_span("for", span)).transpose()?;
        let request = TokenRequest {
            name: ActorName::new(&self.name)?,
            scopes: self.scopes.iter().map(|scope| scope.parse()).collect::<Result<Vec<Scope>, _>>()?,
            expires_at: expires_at.map(|span| Timestamp::now() + span),
        };
        let opened = context.store_to_fill().await?;
        let issued = issue(&*opened.store, &context.actor, request).await?;
        let id = issued.token.id;
        context.out.answer(&Answer { id: id.0, token: &issued.text }, &id.to_string(), &issued.text)?;
        context.out.note(&format!(
            "token {id}; keep it, it cannot be shown again. It is sent as: Authorization: Bearer TOKEN"
        ));
        Ok(Exit::Done)
    }
}

async fn revoke(store: &dyn Store, id: i64, context: &Context) -> Outcome {
    if !store.revoke_token(&context.actor, TokenId(id)).await? {
        return Err(Problem::nothing(format!("there is no token {id}")));
    }
    let name = id.to_string();
    context.out.answer(
        &Changed { name: &name, changed: true },
        &name,
        &format!("token {id} is refused within seconds"),
    )?;
    Ok(Exit::Done)
}
