//! A choice of tasks of one topic: by ids, names, a prefix of names, or a key. A query has the same
//! members as a body.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::value::RawValue;

use crate::api::json::values::shown;
use crate::api::problems::problem::Problem;
use crate::api::problems::problem_type::ProblemType;
use crate::api::request::fields::{array, string, string_of_item};
use crate::api::request::query::Parameters;
use crate::domain::task::name::TaskNameError;
use crate::domain::{Choice, TaskId, TaskName, TopicName};

/// The members. At most one of them may be given.
pub const FIELDS: [&str; 5] = ["ids", "names", "name_prefix", "key", "key_base64"];

/// The text of the one member that is given.
enum GivenChoice<'a> {
    Many(Vec<Cow<'a, str>>),
    One(Cow<'a, str>),
}

/// Reads the choice of a body, whose members are in the order of [`FIELDS`].
pub fn of_body(
    members: [Option<&RawValue>; 5],
    topic: Option<&TopicName>,
) -> Result<Option<Choice>, Problem> {
    let given = members.iter().zip(FIELDS).filter_map(|(member, field)| Some(((*member)?, field)));
    let Some((value, field)) = the_only(given)? else { return Ok(None) };
    let given = match field {
        "ids" | "names" => {
            let array = array(value, field)?;
            check_count(array.count, field)?;
            let texts = array.items.into_iter().enumerate();
            let texts = texts.map(|(index, item)| string_of_item(item, field, index));
            GivenChoice::Many(texts.collect::<Result<_, _>>()?)
        }
        _ => GivenChoice::One(string(value, field)?),
    };
    choice_of(field, &given, topic).map(Some)
}

/// Reads the choice of a query. A list is a parameter that is repeated.
pub fn of_query(
    parameters: &Parameters,
    topic: Option<&TopicName>,
) -> Result<Option<Choice>, Problem> {
    let given = FIELDS.into_iter().filter_map(|field| Some((parameters.get(field)?, field)));
    let Some((value, field)) = the_only(given)? else { return Ok(None) };
    let given = match field {
        "ids" | "names" => {
            let values: Vec<Cow<'_, str>> = parameters.all(field).map(Cow::Borrowed).collect();
            check_count(values.len(), field)?;
            GivenChoice::Many(values)
        }
        _ => GivenChoice::One(Cow::Borrowed(value)),
    };
    choice_of(field, &given, topic).map(Some)
}

fn the_only<T>(
    mut given: impl Iterator<Item = (T, &'static str)>,
) -> Result<Option<(T, &'static str)>, Problem> {
    let first = given.next();
    match given.next() {
        None => Ok(first),
        Some((_, second)) => {
            let detail = format!("give only one of {}", FIELDS.join(", "));
            Err(Problem::new(ProblemType::ConflictingFields, detail).at(second))
        }
    }
}

fn check_count(count: usize, field: &'static str) -> Result<(), Problem> {
    if (1..=Choice::COUNT_MAX).contains(&count) {
        return Ok(());
    }
    let detail = format!("this has {count} {field}; expected 1 to {}", Choice::COUNT_MAX);
    Err(Problem::invalid(field, detail))
}

fn choice_of(
    field: &'static str,
    given: &GivenChoice<'_>,
    topic: Option<&TopicName>,
) -> Result<Choice, Problem> {
    if topic.is_none() {
        let detail = format!("{field} chooses among the tasks of one topic: give the topic");
        return Err(Problem::new(ProblemType::MissingField, detail).at("topic"));
    }
    match given {
        GivenChoice::Many(texts) => {
            let at = |index: usize| format!("{field}[{index}]");
            let texts = texts.iter().enumerate();
            if field == "ids" {
                let ids = texts.map(|(index, text)| {
                    text.parse::<TaskId>().map_err(|_error| {
                        let detail = format!("{:?} is no id of a task", shown(text));
                        Problem::invalid(at(index), detail)
                    })
                });
                return ids.collect::<Result<_, _>>().map(Choice::Ids);
            }
            let names = texts.map(|(index, text)| {
                TaskName::new(text).map_err(|error| Problem::invalid(at(index), error.to_string()))
            });
            names.collect::<Result<_, _>>().map(Choice::Names)
        }
        GivenChoice::One(prefix) if field == "name_prefix" => match TaskName::new(prefix) {
            // Names may begin with dots.
            Ok(_) | Err(TaskNameError::Dots) => Ok(Choice::NamePrefix(Box::from(&**prefix))),
            Err(error) => Err(Problem::invalid(field, error.to_string())),
        },
        GivenChoice::One(key) if field == "key" => Ok(Choice::Key(Box::from(key.as_bytes()))),
        GivenChoice::One(key) => STANDARD
            .decode(key.as_bytes())
            .map(|key| Choice::Key(key.into_boxed_slice()))
            .map_err(|error| {
                let detail =
                    format!("this is not base64 (RFC 4648, section 4, with padding): {error}");
                Problem::invalid(field, detail)
            }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::request::fields::members;

    const ID: &str = "01b9774e-55c0-8003-8000-000000000007";

    fn of_json(json: &str) -> Result<Option<Choice>, (ProblemType, String)> {
        let topic = TopicName::new("orders").unwrap();
        let read = of_body(members(json, &FIELDS).unwrap(), Some(&topic));
        read.map_err(|problem| (problem.kind(), problem.line()))
    }

    fn of_text(query: &str) -> Result<Option<Choice>, (ProblemType, String)> {
        let topic = TopicName::new("orders").unwrap();
        let uri = format!("/v1/tasks?{query}").parse().unwrap();
        let parameters = Parameters::read(&uri, &FIELDS).unwrap();
        let read = of_query(&parameters, Some(&topic));
        read.map_err(|problem| (problem.kind(), problem.line()))
    }

    #[test]
    fn a_choice_of_a_query_is_that_of_a_body() {
        let names = |names: &[&str]| {
            Choice::Names(names.iter().map(|name| TaskName::new(name).unwrap()).collect())
        };
        for (json, query, wanted) in [
            ("{}".to_owned(), String::new(), None),
            (
                format!(r#"{{"ids":["{ID}"]}}"#),
                format!("ids={ID}"),
                Some(Choice::Ids(vec![ID.parse().unwrap()])),
            ),
            (
                r#"{"names":["a,b","\u0063"]}"#.to_owned(),
                "names=a,b&names=c".to_owned(),
                Some(names(&["a,b", "c"])),
            ),
            (
                r#"{"name_prefix":"."}"#.to_owned(),
                "name_prefix=.".to_owned(),
                Some(Choice::NamePrefix(Box::from("."))),
            ),
            (r#"{"key":""}"#.to_owned(), "key=".to_owned(), Some(Choice::Key(Box::from(*b"")))),
            (
                r#"{"key_base64":"/w=="}"#.to_owned(),
                "key_base64=/w%3D%3D".to_owned(),
                Some(Choice::Key(Box::from(*b"\xff"))),
            ),
        ] {
            assert_eq!(of_json(&json), Ok(wanted.clone()), "{json}");
            assert_eq!(of_text(&query), Ok(wanted), "{query}");
        }
    }

    #[test]
    fn a_wrong_choice_is_refused_with_its_field() {
        use ProblemType as P;
        let many = vec!["\"a\""; Choice::COUNT_MAX + 1].join(",");
        for (json, kind, field) in [
            (r#"{"ids":["a"]}"#, P::InvalidValue, "ids[0]: "),
            (r#"{"ids":[]}"#, P::InvalidValue, "ids: "),
            (r#"{"ids":"a"}"#, P::InvalidValue, "ids: "),
            (r#"{"names":["a",""]}"#, P::InvalidValue, "names[1]: "),
            (r#"{"names":["a",7]}"#, P::InvalidValue, "names[1]: "),
            (r#"{"name_prefix":""}"#, P::InvalidValue, "name_prefix: "),
            (r#"{"key_base64":"?"}"#, P::InvalidValue, "key_base64: "),
            (r#"{"key":"a","key_base64":""}"#, P::ConflictingFields, "key_base64: "),
            (r#"{"ids":[],"key":"a"}"#, P::ConflictingFields, "key: "),
            (format!(r#"{{"names":[{many}]}}"#).as_str(), P::InvalidValue, "names: "),
        ] {
            let (found, line) = of_json(json).unwrap_err();
            assert!(found == kind && line.starts_with(field), "{json}: {line}");
        }
        for (query, field) in [("ids=a", "ids[0]: "), ("names=", "names[0]: ")] {
            let (found, line) = of_text(query).unwrap_err();
            assert!(found == P::InvalidValue && line.starts_with(field), "{query}: {line}");
        }
        let without_topic = of_body(members(r#"{"key":"a"}"#, &FIELDS).unwrap(), None);
        assert_eq!(without_topic.unwrap_err().kind(), P::MissingField);
    }
}
