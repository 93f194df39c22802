//! Clients that were generated from docs/openapi.json (`scripts/generated`) parse answers of a
//! node.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::process::Command;

/// Generated code of four languages starts beside other tests.
const DEADLINE: Duration = Duration::from_secs(300);

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The document that is shipped.
pub fn document() -> Value {
    let text = std::fs::read_to_string(root().join("docs/openapi.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Returns the component of an answer by its operation. `None` for text, and for an unknown status.
pub fn schema_of(operation: &Value, status: u16) -> Option<String> {
    let content = &operation["responses"][status.to_string()]["content"];
    let body = content.get("application/json").or_else(|| content.get("application/problem+json"));
    Some(body?["schema"]["$ref"].as_str()?.rsplit('/').next()?.to_owned())
}

/// Returns the operation of a request.
pub fn operation_of<'a>(document: &'a Value, method: &str, path: &str) -> Option<&'a Value> {
    let parts: Vec<&str> = path.split('?').next()?.split('/').collect();
    let fits = |template: &str| {
        let template: Vec<&str> = template.split('/').collect();
        let part = |(part, given): (&&str, &&str)| part == given || part.starts_with('{');
        template.len() == parts.len() && template.iter().zip(&parts).all(part)
    };
    let paths = document["paths"].as_object()?;
    let exact = paths.get(path.split('?').next()?);
    let found =
        exact.or_else(|| paths.iter().find(|(template, _)| fits(template)).map(|(_, of)| of));
    found?.get(method.to_ascii_lowercase())
}

/// Answers with their components.
#[derive(Default)]
pub struct Answers {
    lines: String,
    pub count: usize,
}

impl Answers {
    /// Adds an answer, and what a later version may make of it: another member, another value of a
    /// list that may grow.
    pub fn add(&mut self, schema: &str, answer: &Value) {
        let mut later = answer.clone();
        later["later_member"] = json!({ "since": 2 });
        for (member, value) in [("type", "urn:punctual:problem:later"), ("state", "later")] {
            if later.get(member).is_some() {
                later[member] = json!(value);
            }
        }
        for answer in [answer, &later] {
            writeln!(self.lines, "{}", json!({ "schema": schema, "answer": answer })).unwrap();
            self.count += 1;
        }
    }

    /// Gives all answers to the generated code of each language.
    pub async fn parse_with_each_language(&self, folder: &Path) {
        let file = folder.join("answers.jsonl");
        std::fs::write(&file, &self.lines).unwrap();
        for (language, mut command) in programs() {
            command.arg(&file).kill_on_drop(true);
            let output = tokio::time::timeout(DEADLINE, command.output()).await.unwrap().unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{language}: {errors}");
            let printed = String::from_utf8_lossy(&output.stdout);
            assert_eq!(printed.trim(), self.count.to_string(), "{language}");
        }
    }
}

fn built(path: &str) -> PathBuf {
    let path = root().join(".stack/generated").join(path);
    assert!(path.exists(), "{} is not built: run scripts/generated", path.display());
    path
}

fn programs() -> Vec<(&'static str, Command)> {
    let python = |module: &str| {
        let mut command = Command::new(root().join(".stack/generated-python/bin/python"));
        command.arg(root().join("tests/interface/generated/parse.py")).arg(module);
        command.env("PYTHONPATH", built("python")).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    };
    let mut java = Command::new("java");
    let path = format!("{}:{}/*", built("java/classes").display(), built("tools").display());
    java.args(["-cp", &path, "Parse"]);
    let mut node = Command::new("node");
    node.arg(built("typescript/built/parse.js"));
    vec![
        ("Python (openapi-python-client)", python("punctual_client.models")),
        ("Python (openapi-generator)", python("openapi_client.models")),
        ("Go", Command::new(built("go/parse/parse"))),
        ("Java", java),
        ("TypeScript", node),
    ]
}

#[tokio::test]
async fn generated_clients_parse_the_examples_of_the_document() {
    let mut answers = Answers::default();
    for (_, operations) in document()["paths"].as_object().unwrap() {
        for (_, operation) in operations.as_object().unwrap() {
            for (status, response) in operation["responses"].as_object().unwrap() {
                let Some(schema) = schema_of(operation, status.parse().unwrap()) else { continue };
                let content = response["content"].as_object().unwrap().values().next().unwrap();
                let problems = content["examples"].as_object().into_iter().flatten();
                let values = problems.map(|(_, example)| &example["value"]);
                values.chain(content.get("example")).for_each(|value| answers.add(&schema, value));
            }
        }
    }
    assert!(answers.count > 100, "{} answers", answers.count);
    let folder = std::env::temp_dir().join(format!("punctual-generated-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    answers.parse_with_each_language(&folder).await;
    std::fs::remove_dir_all(&folder).unwrap();
}
