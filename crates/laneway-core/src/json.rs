//! JSON text that was checked once and is carried unparsed.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::validate::{Code, InvalidInput, PAYLOAD_DEPTH_MAX};

/// A JSON document as text, checked so that both stores accept it and no client chokes on it: at most 64
/// levels deep, no NUL, no half surrogate pair, no number outside i64 and f64.
///
/// ```
/// use laneway_core::Json;
///
/// let payload = Json::encode(&serde_json::json!({"order": 7})).unwrap();
/// assert_eq!(payload.as_str(), r#"{"order":7}"#);
///
/// let refused = Json::parse(r#"{"n": 1e400}"#).unwrap_err();
/// assert_eq!(refused.to_string(), "payload contains the number 1e400, which fits no 64-bit float; send it as a string");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Json(Arc<str>);

impl Json {
    /// Checks `text` and keeps it as it is: key order, spelling of numbers and white space included.
    ///
    /// # Errors
    /// `invalid_json`, `payload_too_deep`, `nul_not_allowed`, `invalid_unicode`, `number_out_of_range`.
    pub fn parse(text: impl Into<Arc<str>>) -> Result<Self, InvalidInput> {
        let text = text.into();
        check(&text)?;
        Ok(Self(text))
    }

    /// Encodes `value` and checks the result.
    ///
    /// # Errors
    /// As [`Json::parse`]; `invalid_json` also when the value cannot be encoded, such as a map whose keys
    /// are not strings.
    pub fn encode(value: &impl Serialize) -> Result<Self, InvalidInput> {
        let text =
            serde_json::to_string(value).map_err(|error| invalid(format!("cannot be encoded: {error}")))?;
        Self::parse(text)
    }

    /// Text that a store has already checked and stored.
    pub fn trusted(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// The JSON text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Two objects as one: the members of `new`, in front of them those of this one that `new` does not name. Only the
    /// first level is merged; values keep their text. If either is not an object, it is `new`.
    ///
    /// ```
    /// use laneway_core::Json;
    ///
    /// let old = Json::parse(r#"{"ids": [1], "since": 5}"#)?;
    /// let new = Json::parse(r#"{"since": 7.0}"#)?;
    /// assert_eq!(old.merged(&new).as_str(), r#"{"ids":[1],"since":7.0}"#);
    /// # Ok::<(), laneway_core::InvalidInput>(())
    /// ```
    pub fn merged(&self, new: &Self) -> Self {
        let (Ok(Members(old)), Ok(Members(new_members))) = (self.decode(), new.decode()) else {
            return new.clone();
        };
        let named: HashSet<&str> = new_members.iter().map(|(key, _)| &**key).collect();
        let kept = old.iter().filter(|(key, _)| !named.contains(&**key));
        let members: Vec<_> = kept
            .chain(&new_members)
            .map(|(key, value)| {
                let key = serde_json::to_string(key).expect("a string can be encoded");
                format!("{key}:{}", value.get())
            })
            .collect();
        Self(format!("{{{}}}", members.join(",")).into())
    }

    /// Decodes the document.
    ///
    /// # Errors
    /// What `serde_json` says when the document does not fit `T`.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.0)
    }
}

/// The members of an object, in order and unparsed.
struct Members(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Members;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

impl Default for Json {
    /// `{}`
    fn default() -> Self {
        Self("{}".into())
    }
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue = serde_json::from_str(&self.0).map_err(serde::ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        Self::parse(raw.get()).map_err(serde::de::Error::custom)
    }
}

fn invalid(problem: impl fmt::Display) -> InvalidInput {
    InvalidInput::new(Code::InvalidJson, "payload", problem)
}

fn check(text: &str) -> Result<(), InvalidInput> {
    // `IgnoredAny` checks the grammar without recursion, so hostile nesting cannot overflow the stack.
    serde_json::from_str::<serde::de::IgnoredAny>(text)
        .map_err(|error| invalid(format!("is not valid JSON: {error}")))?;
    check_content(text)
}

/// Walks the tokens of text that is known to be JSON.
fn check_content(text: &str) -> Result<(), InvalidInput> {
    let bytes = text.as_bytes();
    let (mut at, mut depth) = (0, 0);
    while at < bytes.len() {
        match bytes[at] {
            b'{' | b'[' => {
                depth += 1;
                if depth > PAYLOAD_DEPTH_MAX {
                    let problem = format!("is nested deeper than {PAYLOAD_DEPTH_MAX} levels; flatten it");
                    return Err(InvalidInput::new(Code::PayloadTooDeep, "payload", problem));
                }
                at += 1;
            }
            b'}' | b']' => {
                depth -= 1;
                at += 1;
            }
            b'"' => at = check_string(bytes, at + 1)?,
            b'-' | b'0'..=b'9' => {
                let end = at + bytes[at..].iter().take_while(|b| is_number_byte(**b)).count();
                check_number(&text[at..end])?;
                at = end;
            }
            _ => at += 1,
        }
    }
    Ok(())
}

/// Checks the escapes of a string that starts at `at`, and returns where it ends.
fn check_string(bytes: &[u8], mut at: usize) -> Result<usize, InvalidInput> {
    loop {
        match bytes[at] {
            b'"' => return Ok(at + 1),
            b'\\' if bytes[at + 1] == b'u' => {
                let unit = hex_unit(bytes, at + 2);
                at += 6;
                match unit {
                    0 => {
                        let problem = "contains \\u0000; a NUL cannot be stored, remove it";
                        return Err(InvalidInput::new(Code::NulNotAllowed, "payload", problem));
                    }
                    0xD800..=0xDBFF if bytes[at..].starts_with(b"\\u") => match hex_unit(bytes, at + 2) {
                        0xDC00..=0xDFFF => at += 6,
                        _ => return Err(lone_surrogate(unit)),
                    },
                    0xD800..=0xDFFF => return Err(lone_surrogate(unit)),
                    _ => (),
                }
            }
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

fn lone_surrogate(unit: u32) -> InvalidInput {
    let problem = format!("contains \\u{unit:04x}, half of a surrogate pair; send the whole character");
    InvalidInput::new(Code::InvalidUnicode, "payload", problem)
}

fn hex_unit(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |unit, digit| unit * 16 + (*digit as char).to_digit(16).unwrap_or(0))
}

fn is_number_byte(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E')
}

fn check_number(number: &str) -> Result<(), InvalidInput> {
    let (fits, what) = if number.contains(['.', 'e', 'E']) {
        (number.parse::<f64>().is_ok_and(f64::is_finite), "float")
    } else {
        (number.parse::<i64>().is_ok(), "integer")
    };
    if fits {
        return Ok(());
    }
    let problem = format!("contains the number {number}, which fits no 64-bit {what}; send it as a string");
    Err(InvalidInput::new(Code::NumberOutOfRange, "payload", problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_that_a_store_or_a_client_would_choke_on_are_refused() {
        let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        for (text, code) in [
            ("", "invalid_json"),
            ("{", "invalid_json"),
            ("{} x", "invalid_json"),
            ("\u{feff}{}", "invalid_json"),
            ("NaN", "invalid_json"),
            ("\"a\0b\"", "invalid_json"),
            (r#""\u0000""#, "nul_not_allowed"),
            (r#"{"a\u0000":1}"#, "nul_not_allowed"),
            (r#""\ud800""#, "invalid_unicode"),
            (r#""\ud800\u0041""#, "invalid_unicode"),
            (r#""\udc00""#, "invalid_unicode"),
            ("9223372036854775808", "number_out_of_range"),
            ("-9223372036854775809", "number_out_of_range"),
            ("[1e309]", "number_out_of_range"),
            (&deep(65), "payload_too_deep"),
            (&deep(100_000), "payload_too_deep"),
        ] {
            let refused = Json::parse(text).unwrap_err();
            assert_eq!(refused.code.as_str(), code, "{text:.40}: {refused}");
            assert_eq!(refused.field, "payload");
        }
    }

    #[test]
    fn ordinary_documents_keep_their_text() {
        for text in [
            "null",
            r#"{ "b": 1, "a": [1.50, -0, 1e3] }"#,
            r#""\ud83d\ude00 \\u0000 \" \\""#,
            "9223372036854775807",
            &format!("{}1{}", "[".repeat(64), "]".repeat(64)),
        ] {
            assert_eq!(Json::parse(text).unwrap().as_str(), text);
        }
    }
}
