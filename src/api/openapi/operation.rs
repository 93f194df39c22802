//! An operation of the API, described beside the handler: inputs and answers.
//!
//! The router takes a handler and an operation together (see [`super::route`]), so no handler lacks
//! an operation. In debug builds, and so in the tests, an assertion fails for an answer that the
//! operation does not list.

use axum::http::{Method, StatusCode};

use crate::api::access::required::Access;
use crate::api::problems::problem_type::ProblemType;

/// One method of one path.
#[derive(Debug)]
pub struct Operation {
    /// A unique id, from which generated clients take the name.
    pub id: &'static str,
    pub tag: Tag,
    /// The required right. There is no default, so that no route is open by mistake.
    pub access: Access,
    pub summary: &'static str,
    pub description: &'static str,
    pub parameters: &'static [Parameter],
    pub body: Option<RequestBody>,
    pub answers: &'static [OperationAnswer],
    /// The problems of this operation alone. [`Operation::all_problems`] adds the common ones.
    pub problems: &'static [ProblemType],
    pub sample: ShellSample,
}

/// The subject of an operation. The tag also says whether a busy or draining node answers it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tag {
    Tasks,
    Names,
    /// The answers of consumers about tracked tasks.
    Feedback,
    Dead,
    /// Recurring schedules.
    Schedules,
    /// Topics as operators hold them.
    Topics,
    /// The cluster, and the interface itself.
    Cluster,
    /// Probes, which have places of their own.
    Node,
}

/// A parameter of the path, of the query, or a header.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    pub name: &'static str,
    pub location: Location,
    pub description: &'static str,
    /// The name of a component.
    pub schema: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Location {
    /// Always required.
    Path,
    /// Never required.
    Query,
    /// Never required.
    Header,
}

/// A JSON body.
#[derive(Debug)]
pub struct RequestBody {
    /// The name of a component.
    pub schema: &'static str,
    pub is_required: bool,
    pub examples: &'static [Example],
}

#[derive(Debug)]
pub struct Example {
    pub name: &'static str,
    pub summary: &'static str,
    /// The example, without a `'`, because a shell sample puts it in single quotes.
    pub json: &'static str,
}

/// A successful answer.
#[derive(Debug)]
pub struct OperationAnswer {
    pub status: StatusCode,
    pub description: &'static str,
    pub content: Content,
    /// True when the answer names a new task, by `id` and in the header `Location`.
    pub has_location: bool,
}

#[derive(Clone, Copy, Debug)]
pub enum Content {
    /// JSON, with the name of a component.
    Json(&'static str),
    /// Another media type.
    Text(&'static str),
}

/// Lines for a shell. They work when pasted, on a node whose cluster has the topic `demo`.
#[derive(Debug)]
pub struct ShellSample {
    /// Lines that must run first. They may set variables.
    pub before: &'static str,
    /// The path as the shell reads it within double quotes.
    pub path: &'static str,
}

impl Tag {
    pub const ALL: [Self; 8] = [
        Self::Tasks,
        Self::Names,
        Self::Feedback,
        Self::Dead,
        Self::Schedules,
        Self::Topics,
        Self::Cluster,
        Self::Node,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Tasks => "tasks",
            Self::Names => "names",
            Self::Feedback => "feedback",
            Self::Dead => "dead letters",
            Self::Schedules => "schedules",
            Self::Topics => "topics",
            Self::Cluster => "cluster",
            Self::Node => "node",
        }
    }

    pub const fn description(self) -> &'static str {
        match self {
            Self::Tasks => "Submit, look up and cancel tasks.",
            Self::Names => {
                "Tasks by name (your idempotency key): create or replace, look up, cancel. \
                 docs/how-to/names.md has the rules in a table."
            }
            Self::Feedback => {
                "The answers of consumers about tasks with a time to run (`ttr`): finish, fail, \
                 extend. docs/how-to/retries.md shows a consumer."
            }
            Self::Dead => "Tasks that Punctual gave up on: list, redrive, drop.",
            Self::Schedules => {
                "Recurring schedules, whose runs are tasks. docs/how-to/schedules.md has examples."
            }
            Self::Topics => {
                "Topics with tasks or a policy: pause, resume, policies. docs/how-to/topics.md has \
                 the rules."
            }
            Self::Cluster => "The cluster, and this API itself.",
            Self::Node => {
                "Probes and metrics. They are answered while the node is busy, starting or \
                 draining, too. Each caller may have 16 in progress."
            }
        }
    }
}

impl Operation {
    /// Returns all problems that may be answered, in the order of their table.
    pub fn all_problems(&self) -> Vec<ProblemType> {
        use ProblemType as P;
        let mut problems = self.problems.to_vec();
        // `Busy` is also answered when there is no memory left for a large answer.
        problems.extend([P::TooManyRequests, P::HeaderTooLarge, P::Internal, P::Busy]);
        if !self.answers_any_host() {
            problems.extend([P::WrongHost, P::DeniedTooOften]);
        }
        if self.access != Access::Open {
            problems.extend([P::Unauthenticated, P::Forbidden, P::InvalidValue]);
            problems.push(P::QuotaExceeded);
            // A token whose issuer has no keys yet.
            problems.push(P::Unavailable);
        }
        if self.tag != Tag::Node {
            problems.extend([P::UnknownField, P::Draining]);
        }
        if self.body.is_some() {
            problems.extend([P::MalformedJson, P::DuplicateField, P::InvalidValue]);
            problems.extend([
                P::RequestTimeout,
                P::BodyTooLarge,
                P::MalformedEncoding,
                P::UnsupportedEncoding,
                P::UnsupportedMediaType,
            ]);
        }
        // The path may have a wrong %, and a header may have a wrong value.
        if self.parameters.iter().any(|parameter| parameter.location != Location::Query) {
            problems.push(P::InvalidValue);
        }
        // An unwanted body is read to see whether it contains anything.
        if self.problems.contains(&P::RequestTimeout) {
            problems.push(P::MalformedEncoding);
        }
        problems.sort_unstable();
        problems.dedup();
        problems
    }

    /// True for probes: a platform asks them by the address of a container.
    pub fn answers_any_host(&self) -> bool {
        self.tag == Tag::Node && self.access == Access::Open
    }

    /// True when a request with this method may change something. A GET never does, whatever right
    /// it needs.
    pub fn changes(&self, method: &Method) -> bool {
        !method.is_safe() && self.access.changes()
    }

    /// True when the operation lists this answer.
    pub fn tells_of(&self, status: StatusCode, problem: Option<ProblemType>) -> bool {
        match problem {
            Some(kind) => self.all_problems().contains(&kind),
            None => self.answers.iter().any(|answer| answer.status == status),
        }
    }
}

impl Parameter {
    pub const fn path(name: &'static str, description: &'static str, schema: &'static str) -> Self {
        Self { name, location: Location::Path, description, schema }
    }

    pub const fn query(
        name: &'static str,
        description: &'static str,
        schema: &'static str,
    ) -> Self {
        Self { name, location: Location::Query, description, schema }
    }

    pub const fn header(
        name: &'static str,
        description: &'static str,
        schema: &'static str,
    ) -> Self {
        Self { name, location: Location::Header, description, schema }
    }
}

impl OperationAnswer {
    pub const fn json(status: StatusCode, schema: &'static str, description: &'static str) -> Self {
        Self { status, description, content: Content::Json(schema), has_location: false }
    }

    pub const fn text(media_type: &'static str, description: &'static str) -> Self {
        Self {
            status: StatusCode::OK,
            description,
            content: Content::Text(media_type),
            has_location: false,
        }
    }

    /// Makes the answer with a new task.
    pub const fn created(description: &'static str) -> Self {
        Self {
            status: StatusCode::CREATED,
            description,
            content: Content::Json("Task"),
            has_location: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::openapi::operations;

    #[test]
    fn an_operation_tells_of_its_answers_and_of_no_others() {
        let submit = &operations::tasks::SUBMIT;
        assert!(submit.tells_of(StatusCode::CREATED, None));
        assert!(!submit.tells_of(StatusCode::NO_CONTENT, None));
        assert!(submit.tells_of(StatusCode::UNPROCESSABLE_ENTITY, Some(ProblemType::UnknownTopic)));
        assert!(!submit.tells_of(StatusCode::CONFLICT, Some(ProblemType::TooLate)));
        assert!(
            operations::node::LIVEZ
                .tells_of(StatusCode::INTERNAL_SERVER_ERROR, Some(ProblemType::Internal))
        );
        assert!(
            !operations::node::LIVEZ
                .tells_of(StatusCode::SERVICE_UNAVAILABLE, Some(ProblemType::Draining))
        );
    }
}
