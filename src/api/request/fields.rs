//! JSON objects, taken apart without a copy: each member is a slice of the body.
//!
//! The whole text is first checked to be JSON. Then each member is read by the code that knows its
//! type, so that errors name the field and the right form.

use std::borrow::Cow;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::api::json::times;
use crate::api::json::values::{kind_of, reason_of, shown, string_of, unlike};
use crate::api::problems::problem::Problem;
use crate::api::problems::problem_type::ProblemType;
use crate::domain::TopicName;
use crate::domain::time::duration::spelled;

/// Returns the members of the object in `text`, in the order of `names`. Refuses other values than
/// objects, members with other names, and members that occur twice.
pub fn members<'a, const N: usize>(
    text: &'a str,
    names: &[&'static str; N],
) -> Result<[Option<&'a RawValue>; N], Problem> {
    let mut found = [None; N];
    for (name, value) in object(text)?.pairs {
        let Some(index) = names.iter().position(|known| *known == name) else {
            let detail =
                format!("there is no such field; the valid fields are {}", names.join(", "));
            return Err(Problem::new(ProblemType::UnknownField, detail).at(shown(&name)));
        };
        if found[index].replace(value).is_some() {
            return Err(Problem::new(ProblemType::DuplicateField, "the field is given twice")
                .at(names[index]));
        }
    }
    Ok(found)
}

/// The members of an object in the order of the text, up to [`Object::PAIRS_MAX`].
pub struct Object<'a> {
    pub pairs: Vec<(Cow<'a, str>, &'a RawValue)>,
    pub count: usize,
}

impl Object<'_> {
    /// The most members that are kept, more than any of our objects may have. The rest is only
    /// counted: a body of empty members must not take many times its size in memory.
    pub const PAIRS_MAX: usize = 256;
}

/// Reads the object in `text`. Its names may occur twice.
pub fn object(text: &str) -> Result<Object<'_>, Problem> {
    serde_json::from_str(text).map_err(|error| problem_of(&error, "an object", text))
}

/// An array of any length, of which at most [`Array::ITEMS_MAX`] items are kept.
pub struct Array<'a> {
    pub items: Vec<&'a RawValue>,
    pub count: usize,
}

impl Array<'_> {
    pub const ITEMS_MAX: usize = 10_000;
}

/// Reads the values of an array. The caller adds the field to a problem.
pub fn values(value: &RawValue) -> Result<Array<'_>, Problem> {
    serde_json::from_str(value.get()).map_err(|error| problem_of(&error, "an array", value.get()))
}

pub fn array<'a>(value: &'a RawValue, field: &'static str) -> Result<Array<'a>, Problem> {
    values(value).map_err(|problem| problem.at(field))
}

/// Reads a string.
pub fn string<'a>(value: &'a RawValue, field: &'static str) -> Result<Cow<'a, str>, Problem> {
    string_of(value).map_err(|wrong| Problem::invalid(field, wrong))
}

/// Reads a string of an array.
pub fn string_of_item<'a>(
    value: &'a RawValue,
    field: &'static str,
    index: usize,
) -> Result<Cow<'a, str>, Problem> {
    string_of(value).map_err(|wrong| Problem::invalid(format!("{field}[{index}]"), wrong))
}

/// Reads true or false.
pub fn boolean(value: &RawValue, field: &'static str) -> Result<bool, Problem> {
    match value.get() {
        "true" => Ok(true),
        "false" => Ok(false),
        other => Err(Problem::invalid(field, unlike(other, "true or false"))),
    }
}

/// Reads a whole number from 1 to `max`.
pub fn count(value: &RawValue, max: u16, field: &'static str) -> Result<u16, Problem> {
    large_count(value, max.into(), field).map(az::SaturatingAs::saturating_as)
}

/// Reads a whole number from 1 to `max`.
pub fn large_count(value: &RawValue, max: u64, field: &'static str) -> Result<u64, Problem> {
    let wanted = format!("a whole number from 1 to {max}");
    let text = value.get();
    if kind_of(text) != "a number" {
        return Err(Problem::invalid(field, unlike(text, &wanted)));
    }
    let number =
        times::whole_number(text, &wanted).map_err(|wrong| Problem::invalid(field, wrong))?;
    let count = Some(number).filter(|count| (1..=max).contains(count));
    count.ok_or_else(|| Problem::invalid(field, format!("this is {number}; expected {wanted}")))
}

/// Reads a duration.
pub fn duration(value: &RawValue, field: &'static str) -> Result<Duration, Problem> {
    times::delay(value).map_err(|wrong| Problem::invalid(field, wrong))
}

/// Refuses a topic of Kafka itself.
pub fn refuse_internal(topic: &TopicName, field: &'static str) -> Result<(), Problem> {
    if !topic.is_internal() {
        return Ok(());
    }
    let detail = format!("{topic} is an internal topic of Kafka, which nobody else may write to");
    Err(Problem::invalid(field, detail))
}

/// Returns the problem for a text that is not JSON, or another value than `wanted`.
fn problem_of(error: &serde_json::Error, wanted: &str, text: &str) -> Problem {
    if error.is_data() {
        return Problem::new(ProblemType::InvalidValue, unlike(text.trim_start(), wanted));
    }
    if text.trim().is_empty() {
        return Problem::new(
            ProblemType::MalformedJson,
            format!("the body is empty; expected {wanted}"),
        );
    }
    let (line, column) = (error.line(), error.column());
    Problem::new(
        ProblemType::MalformedJson,
        format!("line {line}, column {column}: {}", reason_of(error)),
    )
}

/// The name of a member, borrowed when it has no escapes.
struct Name<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameVisitor;
        impl<'de> Visitor<'de> for NameVisitor {
            type Value = Name<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }
            fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Self::Value, E> {
                Ok(Name(Cow::Borrowed(name)))
            }
            fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
                Ok(Name(Cow::Owned(name.to_owned())))
            }
        }
        deserializer.deserialize_str(NameVisitor)
    }
}

impl<'de> Deserialize<'de> for Object<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor;
        impl<'de> Visitor<'de> for ObjectVisitor {
            type Value = Object<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut object = Object { pairs: Vec::with_capacity(8), count: 0 };
                while let Some((Name(name), value)) =
                    map.next_entry::<Name<'de>, &'de RawValue>()?
                {
                    object.count += 1;
                    if object.pairs.len() < Object::PAIRS_MAX {
                        object.pairs.push((name, value));
                    }
                }
                Ok(object)
            }
        }
        deserializer.deserialize_map(ObjectVisitor)
    }
}

impl<'de> Deserialize<'de> for Array<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ArrayVisitor;
        impl<'de> Visitor<'de> for ArrayVisitor {
            type Value = Array<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
                let mut array = Array { items: Vec::new(), count: 0 };
                while array.count < Array::ITEMS_MAX {
                    let Some(item) = items.next_element::<&'de RawValue>()? else {
                        return Ok(array);
                    };
                    array.items.push(item);
                    array.count += 1;
                }
                while items.next_element::<IgnoredAny>()?.is_some() {
                    array.count += 1;
                }
                Ok(array)
            }
        }
        deserializer.deserialize_seq(ArrayVisitor)
    }
}

/// Reads a span that has to be in a range.
pub fn span_within(
    value: &RawValue,
    field: &'static str,
    range: RangeInclusive<Duration>,
) -> Result<Duration, Problem> {
    let span = duration(value, field)?;
    if range.contains(&span) {
        return Ok(span);
    }
    let [span, min, max] = [span, *range.start(), *range.end()].map(spelled);
    let detail = format!("this is {span}; expected a span from {min} to {max}");
    Err(Problem::invalid(field, detail))
}
