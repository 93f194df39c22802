//! The loose form of the interface document, derived from the strict one: OpenAPI 3.0.3, which
//! every generator of clients reads.
//!
//! Generated code fails on details that no hand-written client would notice: a closed enum with a
//! new value, a null beside a reference, an alternative between two types. The loose form has none
//! of these. It accepts every answer of the strict form, and answers with new members and new
//! values, too. Requests are narrower in two places: times and delays are strings.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::schemas;

pub const VERSION: &str = "3.0.3";

/// The members of a schema that are kept unchanged. All other members only check values, and a
/// check older than the node refuses new values.
const KEPT: [&str; 5] = ["type", "format", "description", "required", "default"];

/// Formats of Punctual's own, for the tests that make values from the strict form.
const OWN_FORMATS: [&str; 2] = ["cursor", "delay"];

/// Writes parts of a strict document in their loose form.
#[derive(Debug)]
pub struct Loose {
    /// The strict components by name.
    components: BTreeMap<&'static str, Value>,
}

impl Loose {
    pub fn new() -> Self {
        Self { components: schemas::all().into_iter().collect() }
    }

    /// Returns the loose components: the objects with members. All others are written where they
    /// are used, because generators disagree on a name for a plain string.
    pub fn components(&self) -> Vec<(&'static str, Value)> {
        schemas::all()
            .into_iter()
            .map(|(name, strict)| (name, self.schema(&strict)))
            .filter(|(_, loose)| is_object(loose))
            .collect()
    }

    /// Returns a member of the document by its name, with all parts of it.
    pub fn member(&self, name: &str, strict: Value) -> Value {
        match (name, strict) {
            ("schema", strict) => self.schema(&strict),
            ("security", strict) => without_rights(strict),
            ("example" | "examples" | "x-codeSamples", unchanged) => unchanged,
            (_, Value::Object(members)) => members
                .into_iter()
                .map(|(name, value)| (name.clone(), self.member(&name, value)))
                .collect(),
            (_, Value::Array(items)) => {
                items.into_iter().map(|item| self.member("", item)).collect()
            }
            (_, scalar) => scalar,
        }
    }

    fn schema(&self, strict: &Value) -> Value {
        let mut loose = if let Some(target) = strict["$ref"].as_str() {
            self.referred(target)
        } else if let Some(first) = strict["allOf"].get(0).filter(|first| !first["$ref"].is_null())
        {
            // The rest of an `allOf` only narrows its first part.
            self.schema(first)
        } else if let Some(alternatives) = strict["oneOf"].as_array().filter(|_| !is_object(strict))
        {
            self.alternatives(alternatives)
        } else {
            return self.plain(strict);
        };
        let Some(description) = strict.get("description") else { return loose };
        if !loose["$ref"].is_null() {
            loose = json!({ "allOf": [loose] }); // nothing may stand beside a reference
        }
        loose["description"] = description.clone();
        if let Some(example) = strict["examples"].get(0) {
            loose["example"] = example.clone();
        }
        loose
    }

    fn referred(&self, target: &str) -> Value {
        let component = target.rsplit('/').next().and_then(|name| self.components.get(name));
        let loose = component.map_or_else(|| json!({}), |strict| self.schema(strict));
        if is_object(&loose) { json!({ "$ref": target }) } else { loose }
    }

    /// Returns the first of several scalars, nullable if null is one of them, else any value.
    fn alternatives(&self, alternatives: &[Value]) -> Value {
        let is_null = |schema: &&Value| schema["type"] == "null";
        let others: Vec<Value> = alternatives
            .iter()
            .filter(|schema| !is_null(schema))
            .map(|strict| self.schema(strict))
            .collect();
        let is_scalar = |schema: &Value| {
            matches!(schema["type"].as_str(), Some("string" | "integer" | "boolean"))
        };
        let mut loose = match others.as_slice() {
            [one] => one.clone(),
            [first, ..] if others.iter().all(is_scalar) => first.clone(),
            _ => return json!({}),
        };
        if alternatives.iter().any(|schema| is_null(&schema)) {
            if !loose["$ref"].is_null() {
                loose = json!({ "type": "object", "allOf": [loose] });
            }
            loose["nullable"] = json!(true);
        }
        loose
    }

    fn plain(&self, strict: &Value) -> Value {
        let Some(strict) = strict.as_object() else { return json!({}) };
        let mut loose = Map::new();
        for (name, value) in strict {
            match (name.as_str(), value) {
                ("format", format) if OWN_FORMATS.contains(&format.as_str().unwrap_or("")) => {}
                ("type", Value::Array(types)) => {
                    loose.insert("type".to_owned(), types.first().cloned().unwrap_or_default());
                    loose.insert("nullable".to_owned(), json!(true));
                }
                ("properties", Value::Object(properties)) => {
                    let property = |(name, schema)| (String::clone(name), self.schema(schema));
                    loose.insert(name.clone(), properties.iter().map(property).collect());
                }
                ("items", schema) => {
                    loose.insert(name.clone(), self.schema(schema));
                }
                ("additionalProperties", schema) if schema.is_object() => {
                    loose.insert(name.clone(), self.schema(schema));
                }
                ("enum", values) => {
                    loose.insert("x-extensible-enum".to_owned(), values.clone());
                    loose.entry("type").or_insert_with(|| json!("string"));
                }
                ("const", value) => {
                    let kind = if value.is_boolean() { "boolean" } else { "string" };
                    loose.entry("type").or_insert_with(|| json!(kind));
                }
                ("examples", examples) => {
                    loose.insert("example".to_owned(), examples[0].clone());
                }
                (kept, value) if KEPT.contains(&kept) => {
                    loose.insert(name.clone(), value.clone());
                }
                _ => {}
            }
        }
        complete(&mut loose);
        // Answers may get more members. Some generators refuse them unless the schema says so.
        if loose.contains_key("properties") && !strict.contains_key("additionalProperties") {
            loose.insert("additionalProperties".to_owned(), json!({}));
        }
        Value::Object(loose)
    }
}

/// Adds the members that generators need: the width of integers, the items of arrays.
fn complete(loose: &mut Map<String, Value>) {
    match loose.get("type").and_then(Value::as_str) {
        Some("integer") => {
            loose.entry("format").or_insert_with(|| json!("int64"));
        }
        Some("array") => {
            loose.entry("items").or_insert_with(|| json!({}));
        }
        _ => {}
    }
}

/// True for an object whose members are listed: generators make a type of it.
fn is_object(schema: &Value) -> bool {
    schema["properties"].is_object()
}

/// Empties the lists of rights: OpenAPI 3.0 has them only for OAuth.
fn without_rights(security: Value) -> Value {
    let emptied = |alternative: &Value| {
        let schemes = alternative.as_object().into_iter().flat_map(Map::keys);
        schemes.map(|scheme| (scheme.clone(), json!([]))).collect::<Value>()
    };
    security.as_array().map(|all| all.iter().map(emptied).collect()).unwrap_or(security)
}
