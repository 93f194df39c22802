//! The OpenAPI document: the operations of the routes, the schemas, and the parts common to all.
//!
//! The document has two forms. The strict form (OpenAPI 3.1) says exactly which requests are
//! accepted and which answers are given; the tests check the API against this form. The loose form
//! is derived from the strict one, for generators of clients. Nodes serve the loose form, and
//! releases contain it.

use std::sync::LazyLock;

use axum::http::{Method, StatusCode};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Value, json};

use super::loose::{self, Loose};
use super::operation::{
    Content, Location, Operation, OperationAnswer, Parameter, RequestBody, Tag,
};
use super::schemas;
use crate::api::access::required::Access;
use crate::api::problems::problem_type::{ProblemType, TYPE_PREFIX};

/// Answers of a node, by operation and status, and its problems, by the last part of the type.
/// tests/integration/answers.rs writes the file, and checks that a node still answers like this.
static EXAMPLES: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("examples.json")).unwrap_or_default());

/// The name of the security scheme.
const TOKEN: &str = "token";

/// A path with its operations.
pub type PathOperations<'a> = (&'static str, &'a [(Method, &'static Operation)]);

/// Writes the strict form. Only the tests use it: `make docs` writes it into tests/interface.
#[cfg(test)]
pub fn write_strict(paths: &[PathOperations<'_>]) -> Result<String, serde_json::Error> {
    text_of(&Members(vec![
        ("openapi".to_owned(), DocumentPart::Value(json!("3.1.0"))),
        ("info".to_owned(), DocumentPart::Value(info())),
        ("servers".to_owned(), DocumentPart::Value(servers())),
        ("tags".to_owned(), DocumentPart::Value(tags())),
        ("paths".to_owned(), DocumentPart::Members(all_paths(paths))),
        ("components".to_owned(), DocumentPart::Members(components(schemas::all(), headers()))),
    ]))
}

/// Writes the loose form.
pub fn write_loose(paths: &[PathOperations<'_>]) -> Result<String, serde_json::Error> {
    let loose = Loose::new();
    let components = components(loose.components(), loose.member("headers", headers()));
    text_of(&Members(vec![
        ("openapi".to_owned(), DocumentPart::Value(json!(loose::VERSION))),
        ("info".to_owned(), DocumentPart::Value(loose_info())),
        ("servers".to_owned(), DocumentPart::Value(servers())),
        ("tags".to_owned(), DocumentPart::Value(tags())),
        ("paths".to_owned(), DocumentPart::Members(all_paths(paths).loosened(&loose))),
        ("components".to_owned(), DocumentPart::Members(components)),
    ]))
}

/// Writes a document, indented and with a line feed at its end, for both people and programs.
fn text_of(document: &Members) -> Result<String, serde_json::Error> {
    let mut text = serde_json::to_string_pretty(document)?;
    text.push('\n');
    Ok(text)
}

fn all_paths(paths: &[PathOperations<'_>]) -> Members {
    paths.iter().map(|(path, operations)| ((*path).to_owned(), path_item(operations))).collect()
}

fn components(schemas: Vec<(&'static str, Value)>, headers: Value) -> Members {
    let schemas = schemas
        .into_iter()
        .map(|(name, schema)| (name.to_owned(), DocumentPart::Value(schema)))
        .collect();
    Members(vec![
        ("schemas".to_owned(), DocumentPart::Members(schemas)),
        ("headers".to_owned(), DocumentPart::Value(headers)),
        ("securitySchemes".to_owned(), DocumentPart::Value(security_schemes())),
    ])
}

/// A JSON object whose members keep their order, as far as the order helps a reader.
struct Members(Vec<(String, DocumentPart)>);

enum DocumentPart {
    Value(Value),
    Members(Members),
}

impl Members {
    fn loosened(self, loose: &Loose) -> Self {
        let loosened = |(name, part): (String, DocumentPart)| {
            let part = match part {
                DocumentPart::Value(value) => DocumentPart::Value(loose.member(&name, value)),
                DocumentPart::Members(members) => DocumentPart::Members(members.loosened(loose)),
            };
            (name, part)
        };
        self.0.into_iter().map(loosened).collect()
    }
}

impl FromIterator<(String, DocumentPart)> for Members {
    fn from_iter<T: IntoIterator<Item = (String, DocumentPart)>>(members: T) -> Self {
        Self(members.into_iter().collect())
    }
}

impl Serialize for Members {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, part) in &self.0 {
            match part {
                DocumentPart::Value(value) => map.serialize_entry(name, value)?,
                DocumentPart::Members(members) => map.serialize_entry(name, members)?,
            }
        }
        map.end()
    }
}

fn info() -> Value {
    json!({
        "title": "Punctual",
        "version": env!("CARGO_PKG_VERSION"),
        "summary": "Publishes records to Kafka at their due time.",
        "description": include_str!("preface.md"),
        "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
    })
}

/// Returns the same without the members that OpenAPI 3.0 does not have.
fn loose_info() -> Value {
    let mut info = info();
    info["license"] = json!({
        "name": "Apache-2.0",
        "url": "https://www.apache.org/licenses/LICENSE-2.0",
    });
    if let Some(members) = info.as_object_mut() {
        members.remove("summary");
    }
    info
}

fn servers() -> Value {
    json!([{
        "url": "http://127.0.0.1:7070",
        "description": "A node on this machine (`make run`). Give a client the address of \
                        your own.",
    }])
}

fn tags() -> Value {
    let tag = |tag: &Tag| json!({ "name": tag.name(), "description": tag.description() });
    Tag::ALL.iter().map(tag).collect()
}

fn header(component: &str) -> Value {
    json!({ "$ref": format!("#/components/headers/{component}") })
}

fn headers() -> Value {
    let text = json!({ "type": "string" });
    json!({
        "Link": {
            "description": "`</problems/..>; rel=\"help\"`: the page of the `type`, with its \
                            meaning and advice.",
            "required": true,
            "schema": text,
        },
        "ETag": {
            "description": "The `id` of the task in quotes, for `If-Match` and `If-None-Match`. It \
                            does not change with the state of the task, so do not use it for \
                            caching.",
            "required": true,
            "schema": schemas::reference("EntityTag"),
        },
        "WWW-Authenticate": {
            "description": "`Bearer`, and `error` if a token was sent or a right is missing.",
            "schema": text,
        },
        "Accept-Encoding": {
            "description": "The supported compressions, for `unsupported-encoding`.",
            "schema": text,
        },
        "Retry-After": {
            "description": "Seconds to wait before the next attempt.",
            "required": true,
            "schema": { "type": "integer", "minimum": 1 },
        },
    })
}

fn security_schemes() -> Value {
    json!({
        TOKEN: {
            "type": "http",
            "scheme": "bearer",
            "description": "A token of the auth file. A node without an auth file asks for none.",
        },
    })
}

/// Returns the rights that an operation needs, as roles of the scheme. A node without an auth file
/// takes requests without a token, too.
fn security(operation: &Operation) -> Value {
    if operation.access == Access::Open {
        return json!([]);
    }
    json!([{}, { TOKEN: operation.access.rights() }])
}

fn path_item(operations: &[(Method, &'static Operation)]) -> DocumentPart {
    let member = |(method, operation): &(Method, &'static Operation)| {
        (method.as_str().to_ascii_lowercase(), operation_of(method, operation))
    };
    DocumentPart::Members(operations.iter().map(member).collect())
}

fn operation_of(method: &Method, operation: &Operation) -> DocumentPart {
    let mut members = vec![
        ("operationId".to_owned(), DocumentPart::Value(json!(operation.id))),
        ("tags".to_owned(), DocumentPart::Value(json!([operation.tag.name()]))),
        ("summary".to_owned(), DocumentPart::Value(json!(operation.summary))),
        ("description".to_owned(), DocumentPart::Value(json!(description_of(operation)))),
        ("security".to_owned(), DocumentPart::Value(security(operation))),
    ];
    if !operation.parameters.is_empty() {
        members.push((
            "parameters".to_owned(),
            DocumentPart::Value(operation.parameters.iter().map(parameter).collect()),
        ));
    }
    if let Some(body) = &operation.body {
        members.push(("requestBody".to_owned(), DocumentPart::Value(request_body(body))));
    }
    members.push(("responses".to_owned(), DocumentPart::Members(responses(operation))));
    let sample = json!([{ "lang": "Shell", "label": "curl", "source": sample(method, operation) }]);
    members.push(("x-codeSamples".to_owned(), DocumentPart::Value(sample)));
    DocumentPart::Members(Members(members))
}

fn description_of(operation: &Operation) -> String {
    match operation.access.sentence() {
        Some(sentence) => format!("{}\n\n{sentence}", operation.description),
        None => operation.description.to_owned(),
    }
}

fn parameter(parameter: &Parameter) -> Value {
    let (place, is_required) = match parameter.location {
        Location::Path => ("path", true),
        Location::Query => ("query", false),
        Location::Header => ("header", false),
    };
    json!({
        "name": parameter.name,
        "in": place,
        "required": is_required,
        "description": parameter.description,
        "schema": schemas::reference(parameter.schema),
    })
}

fn request_body(body: &RequestBody) -> Value {
    let examples: Value = body
        .examples
        .iter()
        .map(|example| {
            (
                example.name.to_owned(),
                json!({ "summary": example.summary, "value": value_of(example.json) }),
            )
        })
        .collect::<serde_json::Map<_, _>>()
        .into();
    json!({
        "required": body.is_required,
        "content": {
            "application/json": { "schema": schemas::reference(body.schema), "examples": examples },
        },
    })
}

/// Returns an example as a value. A test ensures that all examples are JSON.
fn value_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_default()
}

/// Returns the answers by status, successes first.
fn responses(operation: &Operation) -> Members {
    let mut responses: Vec<(String, DocumentPart)> = Vec::new();
    for answer in operation.answers {
        let response = response(operation, answer);
        responses.push((answer.status.as_str().to_owned(), DocumentPart::Value(response)));
    }
    let problems = operation.all_problems();
    for same_status in problems.chunk_by(|one, other| one.status() == other.status()) {
        if let Some(first) = same_status.first() {
            responses.push((
                first.status().as_str().to_owned(),
                DocumentPart::Value(problem_response(same_status)),
            ));
        }
    }
    Members(responses)
}

fn response(operation: &Operation, answer: &OperationAnswer) -> Value {
    let content = match answer.content {
        Content::Json(schema) => {
            let mut body = json!({ "schema": schemas::reference(schema) });
            if let Some(example) = example_of_answer(operation.id, answer.status) {
                body["example"] = example.clone();
            }
            json!({ "application/json": body })
        }
        Content::Text(media_type) => json!({ media_type: { "schema": { "type": "string" } } }),
    };
    let mut response = json!({ "description": answer.description, "content": content });
    if matches!(answer.content, Content::Json("Task")) {
        response["headers"] = json!({ "ETag": header("ETag") });
    }
    if answer.has_location {
        response["headers"]["Location"] = json!({
            "description": "The path of the new task.",
            "required": true,
            "schema": { "type": "string" },
        });
        let by_id = |operation: &str, description: &str| {
            json!({
                "operationId": operation,
                "parameters": { "id": "$response.body#/id" },
                "description": description,
            })
        };
        response["links"] = json!({
            "task": by_id("getTask", "Looks the new task up by its `id`."),
            "cancel": by_id("cancelTask", "Cancels the new task by its `id`."),
        });
    }
    response
}

/// Returns an answer of an operation. A test ensures that every JSON answer has one.
fn example_of_answer(operation: &str, status: StatusCode) -> Option<&'static Value> {
    EXAMPLES.get("answers")?.get(operation)?.get(status.as_str())
}

fn example_of_problem(kind: ProblemType) -> Option<&'static Value> {
    EXAMPLES.get("problems")?.get(kind.slug())
}

fn problem_response(problems: &[ProblemType]) -> Value {
    let lines: Vec<String> =
        problems.iter().map(|kind| format!("`{}`: {}.", kind.slug(), kind.row().title)).collect();
    let types: Vec<String> =
        problems.iter().map(|kind| format!("{TYPE_PREFIX}{}", kind.slug())).collect();
    let schema = json!({
        "allOf": [schemas::reference("Problem"), { "properties": { "type": { "enum": types } } }],
    });
    let mut headers = json!({ "Link": header("Link") });
    if problems.contains(&ProblemType::UnsupportedEncoding) {
        headers["Accept-Encoding"] = header("Accept-Encoding");
    }
    if problems.iter().any(|kind| matches!(kind.row().status, 401 | 403)) {
        headers["WWW-Authenticate"] = header("WWW-Authenticate");
    }
    if problems.iter().all(|kind| kind.retry_after().is_some()) {
        headers["Retry-After"] = header("Retry-After");
    }
    let mut body = json!({ "schema": schema });
    let seen = problems.iter().filter_map(|kind| Some((kind.slug(), example_of_problem(*kind)?)));
    let examples: serde_json::Map<String, Value> =
        seen.map(|(slug, problem)| (slug.to_owned(), json!({ "value": problem }))).collect();
    if !examples.is_empty() {
        body["examples"] = examples.into();
    }
    json!({
        "description": lines.join("\n"),
        "headers": headers,
        "content": { "application/problem+json": body },
    })
}

/// Returns the shell lines of an operation's sample.
fn sample(method: &Method, operation: &Operation) -> String {
    let mut lines = String::new();
    if !operation.sample.before.is_empty() {
        lines.push_str(operation.sample.before);
        lines.push('\n');
    }
    lines.push_str("curl --silent --show-error --fail-with-body ");
    let body = operation.body.as_ref().and_then(|body| body.examples.first());
    let method_by_default = if body.is_some() { Method::POST } else { Method::GET };
    if *method != method_by_default {
        lines.push_str(&format!("--request {method} "));
    }
    lines.push_str(&format!("\"http://127.0.0.1:7070{}\"", operation.sample.path));
    if let Some(example) = body {
        lines.push_str(&format!(
            " \\\n  --header 'content-type: application/json' --data '{}'",
            example.json
        ));
    }
    lines
}
