//! Reads query parameters, and refuses unknown and repeated ones.

use axum::extract::Query;
use axum::http::Uri;
use percent_encoding::percent_decode_str;

use crate::api::json::times;
use crate::api::json::values::shown;
use crate::api::problems::problem::Problem;
use crate::api::problems::problem_type::ProblemType;
use crate::domain::{PendingState, PrincipalName, Timestamp, TopicName, When};

/// Refuses a path with a wrong percent-encoding. Otherwise two spellings would mean one name.
pub fn check_path(uri: &Uri) -> Result<(), Problem> {
    if !is_percent_encoded(uri.path()) {
        let detail = "a % in a path must be followed by two hexadecimal digits; write % itself as \
                      %25";
        return Err(Problem::new(ProblemType::InvalidValue, detail));
    }
    Ok(())
}

/// Refuses query parameters on a path that takes none: ignoring a `?dry_run=true` would do harm.
/// Refuses a wrong path, too.
pub fn refuse(uri: &Uri) -> Result<(), Problem> {
    check_path(uri)?;
    let Some(query) = uri.query().filter(|query| !query.is_empty()) else { return Ok(()) };
    let name: String = query.split(['=', '&']).next().unwrap_or(query).chars().take(100).collect();
    Err(Problem::new(ProblemType::UnknownField, "this path takes no query parameters").at(name))
}

/// Reads the principal whose tasks are meant, from the field or parameter `name`.
pub fn submitter_of(text: &str, name: &'static str) -> Result<PrincipalName, Problem> {
    match PrincipalName::new(text) {
        Ok(submitter) if submitter.is_anonymous() => {
            let detail = "tasks of anonymous callers have no submitter; name a principal";
            Err(Problem::invalid(name, detail))
        }
        Ok(submitter) => Ok(submitter),
        Err(error) => Err(Problem::invalid(name, error.to_string())),
    }
}

/// Refuses a query with a wrong percent-encoding. The decoder would replace the wrong characters,
/// and the request would select something else.
fn check_query(query: &str) -> Result<(), Problem> {
    if is_percent_encoded(query) && percent_decode_str(query).decode_utf8().is_ok() {
        return Ok(());
    }
    let detail = "the query is not UTF-8 in percent-encoding; write % itself as %25";
    Err(Problem::new(ProblemType::InvalidValue, detail))
}

fn is_percent_encoded(text: &str) -> bool {
    text.split('%')
        .skip(1)
        .all(|rest| rest.len() >= 2 && rest.bytes().take(2).all(|byte| byte.is_ascii_hexdigit()))
}

/// Parameters that are lists: each value has the name before it.
const REPEATED: [&str; 2] = ["ids", "names"];

/// The query parameters of a request. Each occurs at most once, unless it is a list.
#[derive(Debug, Default)]
pub struct Parameters(Vec<(String, String)>);

impl Parameters {
    /// Reads the parameters. Refuses names that are not in `names`, and names that occur twice.
    pub fn read(uri: &Uri, names: &[&str]) -> Result<Self, Problem> {
        check_query(uri.query().unwrap_or_default())?;
        let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(uri).map_err(|error| {
            Problem::new(ProblemType::InvalidValue, format!("the query cannot be read: {error}"))
        })?;
        for (index, (name, _)) in pairs.iter().enumerate() {
            if !names.contains(&name.as_str()) {
                let detail = format!(
                    "there is no such query parameter; the valid ones are {}",
                    names.join(", ")
                );
                return Err(Problem::new(ProblemType::UnknownField, detail).at(shown(name)));
            }
            let is_list = REPEATED.contains(&name.as_str());
            if !is_list && pairs[..index].iter().any(|(known, _)| known == name) {
                return Err(Problem::new(
                    ProblemType::DuplicateField,
                    "the query parameter is given twice",
                )
                .at(shown(name)));
            }
        }
        Ok(Self(pairs))
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Returns all values of a list.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn topic(&self) -> Result<Option<TopicName>, Problem> {
        let topic = self.get("topic").map(TopicName::new).transpose();
        topic.map_err(|error| Problem::invalid("topic", error.to_string()))
    }

    /// Reads a principal that has submitted tasks.
    pub fn submitter(&self, name: &'static str) -> Result<Option<PrincipalName>, Problem> {
        self.get(name).map(|text| submitter_of(text, name)).transpose()
    }

    /// Reads the state of pending tasks.
    pub fn state(&self) -> Result<Option<PendingState>, Problem> {
        let Some(text) = self.get("state") else { return Ok(None) };
        let state = PendingState::ALL.into_iter().find(|state| state.as_str() == text);
        state.map(Some).ok_or_else(|| {
            let valid = PendingState::ALL.map(PendingState::as_str).join(", ");
            let detail = format!("{:?} is no state of pending tasks: {valid}", shown(text));
            Problem::invalid("state", detail)
        })
    }

    /// Reads the conditions of a PUT on the pending task of the name: `when`, and the latest time
    /// for `later`.
    pub fn when(&self) -> Result<(Option<When>, Option<Timestamp>), Problem> {
        let not_after = self.time("not_after")?;
        let Some(text) = self.get("when") else {
            return match not_after {
                None => Ok((None, None)),
                Some(_) => Err(only_with_later()),
            };
        };
        let Some(when) = When::ALL.into_iter().find(|when| when.as_str() == text) else {
            let valid = When::ALL.map(When::as_str).join(", ");
            let detail = format!("{:?} is none of {valid}", shown(text));
            return Err(Problem::invalid("when", detail));
        };
        if not_after.is_some() && when != When::Later {
            return Err(only_with_later());
        }
        Ok((Some(when), not_after))
    }

    pub fn time(&self, name: &'static str) -> Result<Option<Timestamp>, Problem> {
        let time = self.get(name).map(times::due_at_of_parameter).transpose();
        time.map_err(|wrong| Problem::invalid(name, wrong))
    }

    /// Reads a whole number from 1 to `most`.
    pub fn count(&self, name: &'static str, default: usize, most: usize) -> Result<usize, Problem> {
        let Some(text) = self.get(name) else { return Ok(default) };
        let number = text.parse().ok().filter(|number| {
            (1..=most).contains(number) && text.bytes().all(|byte| byte.is_ascii_digit())
        });
        number.ok_or_else(|| {
            Problem::invalid(
                name,
                format!("{:?} is not a whole number from 1 to {most}", shown(text)),
            )
        })
    }
}

fn only_with_later() -> Problem {
    let detail = "not_after needs when=later: the new task is due then at the latest";
    Problem::new(ProblemType::ConflictingFields, detail).at("not_after")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str) -> Result<Parameters, Problem> {
        Parameters::read(
            &format!("/v1/tasks?{query}").parse().unwrap(),
            &["topic", "due_from", "limit"],
        )
    }

    #[test]
    fn parameters_are_there_once_and_known() {
        assert_eq!(read("topic=a%2Eb&limit=7").unwrap().get("topic"), Some("a.b"));
        assert!(read("").unwrap().get("topic").is_none());
        assert_eq!(read("dry_run=true").unwrap_err().kind(), ProblemType::UnknownField);
        assert_eq!(read("topic=a&topic=a").unwrap_err().kind(), ProblemType::DuplicateField);
    }

    #[test]
    fn a_query_that_is_not_utf8_selects_nothing_else() {
        assert_eq!(read("topic=caf%C3%A9").unwrap().get("topic"), Some("café"));
        for wrong in ["topic=caf%E9", "topic=%FF", "topic=%C3", "topic=100%", "topic=%zz"] {
            assert_eq!(read(wrong).unwrap_err().kind(), ProblemType::InvalidValue, "{wrong}");
        }
    }

    #[test]
    fn a_submitter_is_a_principal_with_a_name_of_its_own() {
        assert_eq!(submitter_of("jwt:k8s/a", "submitted_by").unwrap().as_str(), "jwt:k8s/a");
        for wrong in ["", "a b", "anonymous"] {
            let problem = submitter_of(wrong, "submitted_by").unwrap_err();
            assert_eq!(problem.kind(), ProblemType::InvalidValue, "{wrong}");
        }
    }

    #[test]
    fn a_state_is_one_of_pending_tasks() {
        let state = |text| Parameters(vec![("state".to_owned(), text)]).state();
        for known in PendingState::ALL {
            assert_eq!(state(known.as_str().to_owned()).unwrap(), Some(known));
        }
        for wrong in ["dead", "Awaiting", ""] {
            let problem = state(wrong.to_owned()).unwrap_err();
            assert_eq!(problem.kind(), ProblemType::InvalidValue, "{wrong}");
        }
    }

    #[test]
    fn only_a_later_task_has_a_limit_to_it() {
        let when = |query: &str| {
            let uri = format!("/v1/topics/t/tasks/n?{query}").parse().unwrap();
            Parameters::read(&uri, &["when", "not_after"]).unwrap().when()
        };
        let at = Timestamp::from_millis(1_896_082_200_000);
        assert_eq!(when("").unwrap(), (None, None));
        assert_eq!(when("when=absent").unwrap(), (Some(When::Absent), None));
        let later = when("when=later&not_after=1896082200000").unwrap();
        assert_eq!(later, (Some(When::Later), Some(at)));
        for wrong in ["not_after=1896082200000", "when=earlier&not_after=1896082200000"] {
            assert_eq!(when(wrong).unwrap_err().kind(), ProblemType::ConflictingFields, "{wrong}");
        }
        for wrong in ["when=", "when=Later", "when=later&not_after=soon"] {
            assert_eq!(when(wrong).unwrap_err().kind(), ProblemType::InvalidValue, "{wrong}");
        }
    }

    #[test]
    fn a_time_may_have_its_plus_escaped_or_not() {
        let time = |query: &str| read(query).unwrap().time("due_from").unwrap().unwrap();
        let wanted = Timestamp::from_millis(1_896_082_200_000);
        for query in [
            "due_from=1896082200000",
            "due_from=2030-01-31T09:30:00Z",
            "due_from=2030-01-31T10:30:00%2B01:00",
            "due_from=2030-01-31T10:30:00+01:00",
            "due_from=2030-01-31+09:30:00Z",
        ] {
            assert_eq!(time(query), wanted, "{query}");
        }
        for query in [
            "due_from=",
            "due_from=soon",
            "due_from=2030-01-31T09:30:00",
            "due_from=-1",
            "due_from=1893456000",
        ] {
            assert_eq!(
                read(query).unwrap().time("due_from").unwrap_err().kind(),
                ProblemType::InvalidValue,
                "{query}"
            );
        }
    }

    #[test]
    fn a_count_is_a_number_within_its_limits() {
        let count = |query: &str| read(query).unwrap().count("limit", 100, 1000);
        assert_eq!(
            (count("").unwrap(), count("limit=1").unwrap(), count("limit=1000").unwrap()),
            (100, 1, 1000)
        );
        for query in [
            "limit=0",
            "limit=1001",
            "limit=",
            "limit=-1",
            "limit=%2B1",
            "limit=1.0",
            "limit=99999999999999999999",
        ] {
            assert!(count(query).is_err(), "{query}");
        }
    }
}
