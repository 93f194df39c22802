//! The published documents: the checked-in OpenAPI document and the pages of the problems are equal
//! to the served ones.

use std::collections::BTreeSet;
use std::path::Path;

use super::*;
use crate::api::problems::problem_type::ProblemType;

/// Compares a document with the generated one, or writes the file when `PUNCTUAL_WRITE_DOCS` is
/// set.
fn check_document(path: &str, wanted: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os("PUNCTUAL_WRITE_DOCS").is_some() {
        std::fs::write(&file, wanted).unwrap();
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    let differs = found.lines().zip(wanted.lines()).position(|(found, wanted)| found != wanted);
    let line = differs.unwrap_or_else(|| found.lines().count().min(wanted.lines().count()));
    assert!(
        found == wanted,
        "{path} is not what the code says, from line {} on:\n  {}\n  should be\n  {}\n\
         If the code is right, write it anew: make docs",
        line + 1,
        found.lines().nth(line).unwrap_or("(its end)"),
        wanted.lines().nth(line).unwrap_or("(its end)"),
    );
}

#[tokio::test]
async fn the_document_that_is_checked_in_is_the_one_that_is_served() {
    let response = api().ask(bare("GET", "/openapi.json")).await;
    assert_eq!(
        (response.status(), header_of(&response, "content-type")),
        (StatusCode::OK, Some("application/json"))
    );
    check_document("docs/openapi.json", &text_of(response).await);
}

#[test]
fn the_strict_document_that_is_checked_in_is_that_of_the_code() {
    check_document("tests/interface/strict.json", &crate::api::server::router::strict_document());
}

/// Calls `visit` with every schema of a document in its loose form, and with its place.
fn each_schema(value: &Value, place: &str, visit: &mut impl FnMut(&str, &Value)) {
    let Some(members) = value.as_object() else {
        for (index, item) in value.as_array().into_iter().flatten().enumerate() {
            each_schema(item, &format!("{place}/{index}"), visit);
        }
        return;
    };
    for (name, member) in members {
        let place = format!("{place}/{name}");
        match name.as_str() {
            "example" | "examples" => {}
            "schema" | "items" | "additionalProperties" => visit(&place, member),
            "properties" | "schemas" => {
                for (name, schema) in member.as_object().unwrap() {
                    visit(&format!("{place}/{name}"), schema);
                }
            }
            _ => {}
        }
        if !matches!(name.as_str(), "example" | "examples") {
            each_schema(member, &place, visit);
        }
    }
}

/// Returns why generated code would fail on a schema, or refuse an answer of a newer node.
fn faults_of(schema: &Value) -> Vec<String> {
    let Some(members) = schema.as_object() else { return vec![format!("is {schema}")] };
    const ALLOWED: [&str; 13] = [
        "$ref",
        "additionalProperties",
        "allOf",
        "default",
        "description",
        "example",
        "format",
        "items",
        "nullable",
        "properties",
        "required",
        "type",
        "x-extensible-enum",
    ];
    let mut faults: Vec<String> = members
        .keys()
        .filter(|name| !ALLOWED.contains(&name.as_str()))
        .map(|name| format!("has {name}"))
        .collect();
    if schema["type"] == "integer" && !schema["format"].is_string() {
        faults.push("is an integer without a format".to_owned());
    }
    if schema["type"] == "array" && !schema["items"].is_object() {
        faults.push("is an array without items".to_owned());
    }
    if !schema["$ref"].is_null() && members.len() > 1 {
        faults.push("has members beside its $ref".to_owned());
    }
    if schema["allOf"].as_array().is_some_and(|all| all.len() != 1 || all[0]["$ref"].is_null()) {
        faults.push("has an allOf that is not one reference".to_owned());
    }
    faults
}

#[tokio::test]
async fn generators_can_read_each_schema_of_the_document_that_is_served() {
    let document = json_of(api().ask(bare("GET", "/openapi.json")).await).await;
    let mut faults = Vec::new();
    let mut count = 0;
    each_schema(&document, "", &mut |place, schema| {
        count += 1;
        faults.extend(faults_of(schema).iter().map(|fault| format!("{place} {fault}")));
    });
    assert_eq!(faults, Vec::<String>::new());
    assert!(count > 300, "{count} schemas");
    let strict: Value =
        serde_json::from_str(&crate::api::server::router::strict_document()).unwrap();
    let mut strict_faults = 0;
    each_schema(&strict, "", &mut |_, schema| strict_faults += faults_of(schema).len());
    assert!(strict_faults > 50, "the rule finds {strict_faults} faults in the strict document");
}

#[tokio::test]
async fn references_and_security_schemes_are_there_and_no_component_is_unused() {
    let document = json_of(api().ask(bare("GET", "/openapi.json")).await).await;
    let mut used = BTreeSet::new();
    let text = document.to_string();
    for part in text.split("\"$ref\":\"#/").skip(1) {
        used.insert(part.split('"').next().unwrap().to_owned());
    }
    let mut there = BTreeSet::new();
    for kind in ["schemas", "headers"] {
        let names = document["components"][kind].as_object().unwrap().keys();
        there.extend(names.map(|name| format!("components/{kind}/{name}")));
    }
    assert_eq!(used, there);
    let schemes = document["components"]["securitySchemes"].as_object().unwrap();
    for (_, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            for alternative in operation["security"].as_array().unwrap() {
                for (scheme, rights) in alternative.as_object().unwrap() {
                    assert!(schemes.contains_key(scheme), "{method} {scheme}");
                    assert_eq!(rights, &serde_json::json!([]), "3.0 has rights only for OAuth");
                }
            }
        }
    }
}

#[tokio::test]
async fn every_answer_has_an_example_and_every_problem_is_one_schema() {
    for (method, path, operation) in operations().await {
        for (status, response) in operation["responses"].as_object().unwrap() {
            let content = response["content"].as_object().unwrap();
            for (media_type, body) in content {
                let place = format!("{method} {path} {status}");
                match media_type.as_str() {
                    // The document itself would double its size.
                    "application/json" if path == "/openapi.json" => {}
                    "application/json" => assert!(body["example"].is_object(), "{place}"),
                    "application/problem+json" => {
                        let problem = "#/components/schemas/Problem";
                        assert_eq!(
                            body["schema"],
                            serde_json::json!({ "$ref": problem }),
                            "{place}"
                        );
                    }
                    _ => {}
                }
            }
        }
    }
}

#[tokio::test]
async fn the_page_of_problems_that_is_checked_in_is_the_one_that_is_served() {
    let response = api().ask(bare("GET", "/problems")).await;
    assert_eq!(header_of(&response, "content-type"), Some("text/markdown; charset=utf-8"));
    check_document("docs/problems.md", &text_of(response).await);
}

#[tokio::test]
async fn a_problem_leads_to_the_page_of_its_type() {
    let api = api();
    let response = api.ask(bare("GET", "/v1/tasks/17")).await;
    assert_eq!(header_of(&response, "link"), Some("</problems/task-not-found>; rel=\"help\""));
    for kind in ProblemType::ALL {
        let page = api.ask(bare("GET", &format!("/problems/{}", kind.slug()))).await;
        assert_eq!(page.status(), StatusCode::OK);
        assert!(text_of(page).await.contains(&format!("urn:punctual:problem:{}`", kind.slug())));
    }
    assert_eq!(api.ask(bare("GET", "/problems/none")).await.status(), StatusCode::NOT_FOUND);
}

/// Returns method, path and operation of the whole document.
async fn operations() -> Vec<(String, String, Value)> {
    let document = json_of(api().ask(bare("GET", "/openapi.json")).await).await;
    let mut operations = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            operations.push((method.to_uppercase(), path.clone(), operation.clone()));
        }
    }
    operations
}

#[tokio::test]
async fn every_operation_has_a_name_of_its_own_and_a_sample_of_itself() {
    let mut ids = BTreeSet::new();
    for (method, path, operation) in operations().await {
        assert!(
            ids.insert(operation["operationId"].as_str().unwrap().to_owned()),
            "{method} {path}"
        );
        let sample = operation["x-codeSamples"][0]["source"].as_str().unwrap();
        let last = sample.rsplit("curl --silent --show-error --fail-with-body").next().unwrap();
        let is_by_default =
            matches!((method.as_str(), last.contains("--data")), ("GET", false) | ("POST", true));
        assert!(
            is_by_default || last.contains(&format!("--request {method}")),
            "{method} {path}: {sample}"
        );
        let begin = path.split("/{").next().unwrap();
        assert!(
            sample.contains(&format!("http://127.0.0.1:7070{begin}")),
            "{method} {path}: {sample}"
        );
    }
}

#[tokio::test]
async fn a_sample_for_one_dead_letter_asks_for_nothing_more_where_there_is_none() {
    let mut count = 0;
    for (method, path, operation) in operations().await {
        if path.starts_with("/v1/dead/{id}") {
            let sample = operation["x-codeSamples"][0]["source"].as_str().unwrap();
            let lines = format!(
                "curl() {{ echo asked >&2; echo '{{\"dead\":[],\"cursor\":null}}'; }}\n{sample}"
            );
            let output = std::process::Command::new("bash").args(["-c", &lines]).output().unwrap();
            assert!(!output.status.success(), "{method} {path}: {sample}");
            assert_eq!(
                String::from_utf8_lossy(&output.stderr),
                "asked\n",
                "{method} {path}: {sample}"
            );
            count += 1;
        }
    }
    assert_eq!(count, 2);
}

#[tokio::test]
async fn every_parameter_of_a_path_is_told() {
    for (method, path, operation) in operations().await {
        let in_path: BTreeSet<&str> =
            path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')).collect();
        let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
        let told = parameters.iter().filter(|parameter| parameter["in"] == "path");
        assert_eq!(
            told.map(|parameter| parameter["name"].as_str().unwrap()).collect::<BTreeSet<_>>(),
            in_path,
            "{method} {path}"
        );
    }
}

#[tokio::test]
async fn examples_are_json_that_a_shell_takes_in_single_quotes_and_the_api_takes_too() {
    let api = api();
    for (method, path, operation) in operations().await {
        let Some(examples) =
            operation["requestBody"]["content"]["application/json"]["examples"].as_object()
        else {
            continue;
        };
        for (name, example) in examples {
            let body = example["value"].to_string();
            assert!(!body.contains('\'') && body != "null", "{method} {path} {name}: {body}");
            // The calls of consumers need a task that awaits a call, and a move needs a pending
            // task.
            let is_dead = path.starts_with("/v1/dead/{id}");
            let is_of_task = path.contains("/tasks/{") && method != "PUT" || is_dead;
            let topic = match (is_dead, is_of_task && method == "POST") {
                (true, _) => "dead",
                (false, true) => "tracked",
                (false, false) => "demo",
            };
            let ttr = if is_dead { "" } else { r#","ttr":"1m""# };
            let task =
                format!(r#"{{"topic":"{topic}","name":"{name}","delay":0,"payload":1{ttr}}}"#);
            let id = if is_of_task {
                let task = json_of(api.ask(post("/v1/tasks", task)).await).await;
                task["id"].as_str().unwrap().to_owned()
            } else {
                "x".to_owned()
            };
            let path = path.replace("{topic}", topic).replace("{name}", name).replace("{id}", &id);
            let response = api.ask(request(&method, &path, Some("application/json"), body)).await;
            assert!(
                response.status().is_success(),
                "{method} {path} {name}: {}",
                text_of(response).await
            );
        }
    }
}

#[test]
fn settings_that_the_docs_name_are_there_with_the_defaults_that_they_say() {
    let operations = include_str!("../../../docs/reference/settings.md");
    let preface = include_str!("../openapi/preface.md");
    let flags = |text: &str| -> BTreeSet<String> {
        let parts = text.split("`--").skip(1);
        parts
            .map(|part| {
                part.split(|c: char| c != '-' && !c.is_ascii_lowercase()).next().unwrap().to_owned()
            })
            .collect()
    };
    for flag in flags(preface).union(&flags(&crate::api::problems::pages::all())) {
        assert!(operations.contains(&format!("| `--{flag}` |")), "--{flag} is no setting");
    }
    let ApiSettings { body_bytes_max, batch_tasks_max, header_bytes_max, .. } =
        ApiSettings::default();
    assert_eq!((body_bytes_max >> 20, batch_tasks_max, header_bytes_max >> 10), (16, 10_000, 16));
    let ApiSettings { caller_requests_max, requests_in_flight_max, body_memory_max, .. } =
        ApiSettings::default();
    let ApiSettings { connections_max, caller_connections_max, .. } = ApiSettings::default();
    let ApiSettings { request_deadline, header_timeout, answer_timeout, idle_timeout, .. } =
        ApiSettings::default();
    let seconds = |span: std::time::Duration| format!("{} s", span.as_secs());
    for (flag, default) in [
        ("body-max", "16 MiB".to_owned()),
        ("batch-max", "10,000".to_owned()),
        ("header-max", "16 KiB".to_owned()),
        ("caller-requests-max", caller_requests_max.to_string()),
        ("requests-max", requests_in_flight_max.to_string()),
        ("connections-max", connections_max.to_string()),
        ("caller-connections-max", caller_connections_max.to_string()),
        ("body-memory", format!("{} MiB", body_memory_max >> 20)),
        ("request-timeout", seconds(request_deadline)),
        ("header-timeout", seconds(header_timeout)),
        ("answer-timeout", seconds(answer_timeout)),
        ("idle-timeout", seconds(idle_timeout)),
    ] {
        assert!(preface.contains(&format!("`--{flag}`, {default}")), "--{flag}: {default}");
    }
}

#[tokio::test]
async fn each_port_has_its_own_routes() {
    let all = json_of(api().ask(bare("GET", "/openapi.json")).await).await;
    let paths: Vec<String> = all["paths"].as_object().unwrap().keys().cloned().collect();
    let internal = ["/metrics", "/v1/cluster"];
    let of_operators = ["/livez", "/metrics", "/readyz", "/v1/cluster"];
    for port in [Port::Public, Port::Operator] {
        let (api, model) = api_of(ApiSettings { port, ..ApiSettings::default() });
        for path in &paths {
            let response = api.ask(bare("GET", path)).await;
            let is_unknown = response.status() == StatusCode::NOT_FOUND
                && text_of(response).await.contains(match port {
                    Port::Operator => "ask the other port of the node (--listen)",
                    _ => "only the operator port of the node has this path",
                });
            let is_there = match port {
                Port::Operator => of_operators.contains(&path.as_str()),
                _ => !internal.contains(&path.as_str()),
            };
            assert_eq!(!is_unknown, is_there, "{port:?} {path}");
        }
        model.is_draining.store(true, Ordering::Relaxed);
        let response = api.ask(bare("GET", "/readyz")).await;
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        let problem = json_of(response).await;
        assert_eq!(problem["type"], "urn:punctual:problem:not-ready");
        let has_reasons = problem["missing"].is_array();
        assert_eq!(has_reasons, port == Port::Operator, "{problem}");
        assert_eq!(problem["detail"].as_str().unwrap().contains("draining"), has_reasons);
    }
    let (api, _) = api_of(ApiSettings { port: Port::Public, ..ApiSettings::default() });
    let told = json_of(api.ask(bare("GET", "/openapi.json")).await).await;
    assert_eq!(told["paths"].as_object().unwrap().len(), paths.len() - internal.len());
}
