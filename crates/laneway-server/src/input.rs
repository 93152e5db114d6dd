//! What a request brings: path, query and body, each refused with the name of what is wrong.

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;

use crate::problem::Problem;

/// The largest body that is read as a whole.
pub(crate) const BODY_BYTES_MAX: usize = 2 * 1024 * 1024;

/// The variable parts of a path, with `%2F` and the like read.
pub(crate) struct Segments<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Segments<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let found = Path::from_request_parts(parts, state).await;
        found.map(|Path(segments)| Self(segments)).map_err(|refused| {
            Problem::new("invalid_request", format!("the path is not valid: {}", refused.body_text()))
        })
    }
}

/// The parameters after `?`. Unknown ones are refused.
pub(crate) struct Asked<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Asked<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let query = parts.uri.query().unwrap_or_default();
        let read = serde_path_to_error::deserialize(form(query));
        read.map(Self).map_err(|error| refused(&error.path().to_string(), &error.inner().to_string()))
    }
}

fn form(query: &str) -> serde_urlencoded::Deserializer<'_> {
    serde_urlencoded::Deserializer::new(form_urlencoded::parse(query.as_bytes()))
}

/// A JSON body of at most 2 MiB. No body at all is read as `{}`.
pub(crate) struct Content<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Content<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let bytes = whole(body).await?;
        if bytes.is_empty() {
            return decode(b"{}").map(Self);
        }
        expect_json(&parts.headers)?;
        decode(&bytes).map(Self)
    }
}

/// Refuses a body that does not say that it is JSON: a web page of another site cannot make a browser say so unasked.
pub(crate) fn expect_json(headers: &HeaderMap) -> Result<(), Problem> {
    let content_type = media_type(headers);
    if content_type == "application/json" || content_type.ends_with("+json") {
        return Ok(());
    }
    let detail = format!("the body is `{content_type}`; send `Content-Type: application/json`");
    Err(Problem::new("unsupported_media_type", detail).field("Content-Type"))
}

/// What the body says it is, without its parameters.
pub(crate) fn media_type(headers: &HeaderMap) -> String {
    let text = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// The whole body, if it is not too large.
pub(crate) async fn whole(body: Body) -> Result<Bytes, Problem> {
    match Limited::new(body, BODY_BYTES_MAX).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            let detail = format!(
                "the body has more than {BODY_BYTES_MAX} bytes; send many tasks as `application/x-ndjson`"
            );
            Err(Problem::new("body_too_large", detail))
        }
        Err(_) => Err(Problem::new("invalid_request", "the body broke off")),
    }
}

/// Reads JSON; a mistake is answered with the path of the field.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    // Keeping track of the path costs time, so it is only found out when it is needed.
    serde_json::from_slice(bytes).map_err(|error| explain::<T>(bytes, &error))
}

fn explain<T: DeserializeOwned>(bytes: &[u8], error: &serde_json::Error) -> Problem {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    match serde_path_to_error::deserialize::<_, T>(&mut reader) {
        Err(error) if error.inner().is_data() => {
            refused(&error.path().to_string(), &error.inner().to_string())
        }
        _ => not_json(error),
    }
}

fn not_json(error: &serde_json::Error) -> Problem {
    Problem::new("invalid_json", format!("the body is not JSON: {error}")).field("body")
}

/// What serde says, with a stable code.
fn refused(path: &str, message: &str) -> Problem {
    let code = match message {
        text if text.starts_with("unknown field") => "unknown_field",
        text if text.starts_with("missing field") => "missing_field",
        _ => "invalid_type",
    };
    // serde names the place in the text as well; the path of the field says more.
    let said = message.split(" at line ").next().unwrap_or(message);
    let named = said.split('`').nth(1).unwrap_or_default();
    let field = match (code, path) {
        ("missing_field", "." | "") => named.to_owned(),
        ("missing_field", path) => format!("{path}.{named}"),
        (_, "." | "") => "body".to_owned(),
        (_, path) => path.to_owned(),
    };
    Problem::new(code, format!("{field}: {said}")).field(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Outer {
        #[allow(dead_code)]
        inner: Inner,
    }

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        #[allow(dead_code)]
        count: u32,
    }

    #[test]
    fn a_mistake_names_its_field() {
        for (body, code, field) in [
            (r#"{"inner": {"count": 1, "colour": 2}}"#, "unknown_field", "inner.colour"),
            (r#"{"inner": {}}"#, "missing_field", "inner.count"),
            (r#"{}"#, "missing_field", "inner"),
            (r#"{"inner": {"count": "x"}}"#, "invalid_type", "inner.count"),
            (r#"[]"#, "invalid_type", "body"),
            (r#"3"#, "invalid_type", "body"),
            (r#"{"inner": "#, "invalid_json", "body"),
            (r#"{"inner": {"count": 1}} x"#, "invalid_json", "body"),
        ] {
            let problem = decode::<Outer>(body.as_bytes()).unwrap_err();
            let shown = serde_json::to_value(problem.body()).unwrap();
            assert_eq!((&shown["code"], &shown["field"]), (&code.into(), &field.into()), "{body}: {shown}");
        }
    }
}
