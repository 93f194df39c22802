//! The schemas of requests and answers: the components of the OpenAPI document, in JSON Schema
//! 2020-12 as OpenAPI 3.1 uses it.
//!
//! Request schemas are exact. They allow no unknown fields, and the API accepts all that they
//! accept, as far as a schema can say: schemas count characters where the API counts bytes, and
//! know no calendar. Answer schemas are open, because members may be added. The tests treat them as
//! closed.

mod answers;
mod cluster;
mod feedback;
mod parts;
mod pops;
mod requests;
mod schedules;
mod topics;

pub use parts::reference;

use serde_json::Value;

/// Returns all components, in the order of the document.
pub fn all() -> Vec<(&'static str, Value)> {
    let mut all = parts::all();
    all.extend(requests::all());
    all.extend(feedback::all());
    all.extend(answers::all());
    all.extend(cluster::all());
    all.extend(schedules::all());
    all.extend(topics::all());
    all.extend(pops::all());
    all
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn references(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(members) => {
                if let Some(Value::String(target)) = members.get("$ref") {
                    found.insert(target.trim_start_matches("#/components/schemas/").to_owned());
                }
                members.values().for_each(|value| references(value, found));
            }
            Value::Array(items) => items.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }

    #[test]
    fn a_component_that_is_named_is_there() {
        let names: BTreeSet<String> = all().into_iter().map(|(name, _)| name.to_owned()).collect();
        let mut named = BTreeSet::new();
        all().iter().for_each(|(_, schema)| references(schema, &mut named));
        assert_eq!(named.difference(&names).collect::<Vec<_>>(), Vec::<&String>::new());
    }

    #[test]
    fn every_component_and_every_property_is_described() {
        for (name, schema) in all() {
            assert!(schema["description"].is_string(), "{name}");
            for (property, schema) in schema["properties"].as_object().into_iter().flatten() {
                assert!(
                    schema["description"].is_string() || schema["$ref"].is_string(),
                    "{name}.{property}"
                );
            }
        }
    }
}
