//! Readers of the console see and change only as the rights allow, and forms belong to one session.

use super::*;
use crate::console::format::path;

const HOSTILE: &str = "<img src=x onerror=alert(1)>";

pub(super) fn form(path: &str, fields: &[(&str, &str)], headers: &[(&str, &str)]) -> Request<Body> {
    let encode = |value: &str| path_part(value);
    let pairs = fields.iter().map(|(name, value)| format!("{name}={}", encode(value)));
    let body = pairs.collect::<Vec<_>>().join("&");
    let mut request = request("POST", path, Some("application/x-www-form-urlencoded"), body);
    for (name, value) in headers {
        request
            .headers_mut()
            .append(axum::http::HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
    }
    request
}

fn path_part(value: &str) -> String {
    path(&[value])[1..].to_owned()
}

fn get(path: &str, cookie: &str) -> Request<Body> {
    let mut request = bare("GET", path);
    if !cookie.is_empty() {
        request.headers_mut().insert(header::COOKIE, cookie.parse().unwrap());
    }
    request
}

/// Returns the token of the forms of a page.
pub(super) fn csrf_of(page: &str) -> String {
    let (_, rest) = page.split_once(r#"name="csrf" value=""#).expect("the page has a form");
    rest.split('"').next().unwrap().to_owned()
}

/// Logs in, and returns the header of the answer that sets the cookie.
async fn log_in(world: &World, headers: &[(&str, &str)]) -> String {
    let page = text_of(world.api.ask(bare("GET", "/console/login")).await).await;
    let fields = [
        ("csrf", csrf_of(&page)),
        ("token", world.token.clone()),
        ("next", "/console/dead".into()),
    ];
    let fields = fields.each_ref().map(|(name, value)| (*name, value.as_str()));
    let answer = world.api.ask(form("/console/login", &fields, headers)).await;
    assert_eq!(answer.status(), StatusCode::SEE_OTHER);
    assert_eq!(header_of(&answer, "location"), Some("/console/dead"));
    header_of(&answer, "set-cookie").unwrap().to_owned()
}

fn pair_of(cookie: &str) -> &str {
    cookie.split(';').next().unwrap()
}

#[tokio::test]
async fn a_session_is_a_sealed_cookie_and_ends_with_its_token() {
    let world = World::new(&[Action::Read], "orders");
    let plain = log_in(&world, &[("origin", "http://a")]).await;
    assert!(plain.starts_with("punctual-session=") && !plain.contains(&world.token), "{plain}");
    assert!(plain.ends_with("; Path=/; Max-Age=28800; HttpOnly; SameSite=Strict"), "{plain}");
    let secure = log_in(&world, &[("origin", "https://a")]).await;
    assert!(secure.starts_with("__Host-punctual-session="), "{secure}");
    assert!(secure.ends_with("; HttpOnly; SameSite=Strict; Secure"), "{secure}");

    let page = world.api.ask(get("/console/tasks?topic=orders", pair_of(&plain))).await;
    assert_eq!(page.status(), StatusCode::OK);
    let page = text_of(page).await;
    assert!(page.contains(">ann</span>") && page.contains("Log out"), "{page}");
    let out = form("/console/logout", &[("csrf", &csrf_of(&page))], &[("cookie", pair_of(&plain))]);
    let out = world.api.ask(out).await;
    assert!(header_of(&out, "set-cookie").unwrap().contains("=; Path=/; Max-Age=0;"));

    let nobody = Policy::new(Vec::new(), HashMap::new(), None);
    world.policy.replace(nobody);
    let ended = world.api.ask(get("/console/tasks?topic=orders", pair_of(&plain))).await;
    assert_eq!(ended.status(), StatusCode::UNAUTHORIZED);
    assert!(text_of(ended).await.contains(r#"name="token""#), "the login is shown in its place");
}

#[tokio::test]
async fn a_wrong_token_and_a_strange_form_do_not_log_in() {
    let world = World::new(&[Action::Read], "orders");
    let page = text_of(world.api.ask(bare("GET", "/console/login")).await).await;
    let csrf = csrf_of(&page);
    for (fields, headers, status) in [
        ([("csrf", csrf.as_str()), ("token", "pt_wrong")], &[][..], StatusCode::UNAUTHORIZED),
        ([("csrf", ""), ("token", &world.token)], &[], StatusCode::FORBIDDEN),
        ([("csrf", "AAAA"), ("token", &world.token)], &[], StatusCode::FORBIDDEN),
        (
            [("csrf", &csrf), ("token", &world.token)],
            &[("origin", "https://evil.example")],
            StatusCode::FORBIDDEN,
        ),
    ] {
        let answer = world.api.ask(form("/console/login", &fields, headers)).await;
        assert_eq!((answer.status(), header_of(&answer, "set-cookie")), (status, None));
    }
    for next in ["//evil.example", "https://evil.example", "/consolex", "/v1/tasks"] {
        let fields = [("csrf", csrf.as_str()), ("token", &world.token), ("next", next)];
        let answer = world.api.ask(form("/console/login", &fields, &[])).await;
        assert_eq!(header_of(&answer, "location"), Some("/console"), "{next}");
    }
}

#[tokio::test]
async fn failed_logins_are_throttled() {
    let settings = ApiSettings { caller_denials_max: 2, ..ApiSettings::default() };
    let world = World::of(&[(&[Action::Read], "orders")], settings);
    let page = text_of(world.api.ask(bare("GET", "/console/login")).await).await;
    let csrf = csrf_of(&page);
    let mut statuses = Vec::new();
    for _ in 0..3 {
        let fields = [("csrf", csrf.as_str()), ("token", "pt_wrong")];
        statuses.push(world.api.ask(form("/console/login", &fields, &[])).await.status().as_u16());
    }
    assert_eq!(statuses, [401, 401, 429]);
}

#[tokio::test]
async fn a_reader_sees_no_other_topic_and_no_payload_without_the_right() {
    let world = World::new(&[Action::Read], "orders");
    let (own, other) = (world.task("orders", "n").await, world.task("secret", "n").await);
    let cookie = log_in(&world, &[]).await;
    let cookie = pair_of(&cookie);
    for (path, status) in [
        ("/console", 403),
        ("/console/inbound", 403),
        ("/console/topics", 403),
        ("/console/topics?topic=orders", 200),
        ("/console/topics?topic=secret", 403),
        ("/console/ahead?topic=secret", 403),
        ("/console/tasks", 403),
        ("/console/tasks?topic=orders", 200),
        ("/console/tasks?topic=secret", 403),
        ("/console/tasks?topic=secret&name=n", 403),
        ("/console/tasks?name=n", 400),
        ("/console/dead?topic=secret", 403),
        ("/console/schedules?topic=secret", 403),
        ("/console/schedules/secret/n", 403),
        ("/console/confirm?action=drop-many&topic=secret", 200),
        (&format!("/console/tasks/{own}"), 200),
        (&format!("/console/tasks/{other}"), 404),
        ("/console/nothing", 404),
    ] {
        let answer = world.api.ask(get(path, cookie)).await;
        assert_eq!(answer.status().as_u16(), status, "{path}");
        let text = text_of(answer).await;
        assert!(!text.contains(MARKER) && !text.contains(&world.token), "{path}: {text}");
        assert!(!text.contains(&other) || path.contains(&other), "{path}: {text}");
    }
    let page = text_of(world.api.ask(get(&format!("/console/tasks/{own}"), cookie)).await).await;
    assert!(page.contains("read-payload"), "{page}");

    let world = World::new(&[Action::Read, Action::ReadPayload], "orders");
    let own = world.task("orders", "n").await;
    let cookie = log_in(&world, &[]).await;
    let page = world.api.ask(get(&format!("/console/tasks/{own}"), pair_of(&cookie))).await;
    assert!(text_of(page).await.contains(MARKER));
}

#[tokio::test]
async fn an_action_needs_the_right_of_its_call_and_the_token_of_its_form() {
    let world = World::new(&[Action::Read], "orders");
    let id = world.task("orders", "n").await;
    let cookie = log_in(&world, &[]).await;
    let cookie = pair_of(&cookie);
    let before = world.state().await;
    let page = text_of(world.api.ask(get("/console/tasks?topic=orders", cookie)).await).await;
    let csrf = csrf_of(&page);
    let act = async |csrf: &str, action: (&str, &str), headers: &[(&str, &str)]| {
        let (verb, topic) = action;
        let fields =
            [("csrf", csrf), ("action", verb), ("id", &id), ("topic", topic), ("name", "n")];
        world.api.ask(form("/console/act", &fields, headers)).await.status().as_u16()
    };
    let signed = [("cookie", cookie)];
    assert_eq!(act(&csrf, ("cancel", "orders"), &[]).await, 401, "no session");
    assert_eq!(act("", ("cancel", "orders"), &signed).await, 403, "no token");
    assert_eq!(act("AAAA", ("cancel", "orders"), &signed).await, 403, "a wrong token");
    let other =
        text_of(world.all.ask(bare("GET", "/console/confirm?action=cancel&id=i")).await).await;
    assert_eq!(act(&csrf_of(&other), ("cancel", "orders"), &signed).await, 403, "another reader's");
    let foreign = [signed[0], ("sec-fetch-site", "cross-site")];
    assert_eq!(act(&csrf, ("cancel", "orders"), &foreign).await, 403, "another site's");
    let verbs = [
        "redrive",
        "drop",
        "redrive-many",
        "drop-many",
        "pause",
        "resume",
        "trigger",
        "pause-topic",
        "resume-topic",
    ];
    for verb in verbs {
        let status = act(&csrf, (verb, "orders"), &signed).await;
        assert_eq!(status, 403, "{verb}");
    }
    assert_eq!(act(&csrf, ("cancel", "orders"), &signed).await, 403, "no right");
    assert_eq!(world.state().await, before, "nothing was changed");

    let world = World::new(&[Action::Read, Action::Cancel], "orders");
    let id = world.task("orders", "n").await;
    let cookie = log_in(&world, &[]).await;
    let confirm = format!("/console/confirm?action=cancel&id={id}");
    let page = text_of(world.api.ask(get(&confirm, pair_of(&cookie))).await).await;
    assert!(page.contains("DELETE") && page.contains("{PUNCTUAL_TOKEN_FILE:-"), "{page}");
    let fields = [("csrf", csrf_of(&page)), ("action", "cancel".into()), ("id", id)];
    let fields = fields.each_ref().map(|(name, value)| (*name, value.as_str()));
    let done = form("/console/act", &fields, &[("cookie", pair_of(&cookie))]);
    let done = world.api.ask(done).await;
    assert_eq!(done.status(), StatusCode::SEE_OTHER, "a reload must not act again");
    assert!(!world.state().await.contains(fields[2].1), "it is gone");
    let address = header_of(&done, "location").unwrap().to_owned();
    let page = world.api.ask(get(&address, pair_of(&cookie))).await;
    assert_eq!(page.status(), StatusCode::OK);
    assert!(text_of(page).await.contains("The task is cancelled"));

    // Nobody is told of a success by an address of somebody else.
    let again = log_in(&world, &[]).await;
    for (address, cookie) in [
        (address.clone(), pair_of(&again)),
        (address.replace("action=cancel", "action=drop"), pair_of(&cookie)),
        (address.split("&seal=").next().unwrap().to_owned(), pair_of(&cookie)),
        ("/console/done".to_owned(), pair_of(&cookie)),
    ] {
        let answer = world.api.ask(get(&address, cookie)).await;
        assert_eq!(answer.status(), StatusCode::FORBIDDEN, "{address}");
        let text = text_of(answer).await;
        assert!(!text.contains("is cancelled") && !text.contains("is dropped"), "{text}");
    }
}

#[tokio::test]
async fn every_page_has_the_headers_that_keep_it_from_doing_anything_else() {
    let api = api();
    for (path, cache) in [
        ("/console", "no-store"),
        ("/console/login", "no-store"),
        ("/console/nothing", "no-store"),
        (crate::console::assets::Asset::Style.path(), "public, max-age=31536000, immutable"),
    ] {
        let answer = api.ask(bare("GET", path)).await;
        let policy = header_of(&answer, "content-security-policy").expect(path);
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
        assert_eq!(header_of(&answer, "x-content-type-options"), Some("nosniff"));
        assert_eq!(header_of(&answer, "referrer-policy"), Some("same-origin"));
        assert_eq!(header_of(&answer, "cache-control"), Some(cache), "{path}");
    }
    let wrong_host = request("GET", "/console", None, Body::empty());
    let (mut parts, body) = wrong_host.into_parts();
    parts.headers.insert(header::HOST, "evil.example".parse().unwrap());
    let answer = api.ask(Request::from_parts(parts, body)).await;
    assert_eq!(answer.status(), StatusCode::MISDIRECTED_REQUEST);
}

#[tokio::test]
async fn a_link_of_another_site_leads_to_a_page_that_loads_itself_again() {
    let mut request = bare("GET", "/console/tasks?topic=a%22b");
    for (name, value) in [("site", "cross-site"), ("mode", "navigate"), ("dest", "document")] {
        let name = axum::http::HeaderName::try_from(format!("sec-fetch-{name}")).unwrap();
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    let text = text_of(api().ask(request).await).await;
    assert!(text.contains(r#"<a href="/console/tasks?topic=a%22b">"#), "{text}");
    assert!(!text.contains("<nav"), "{text}");
}

#[tokio::test]
async fn hostile_text_is_escaped_on_every_page() {
    let api = api();
    let task = serde_json::json!({
        "topic": "t", "delay": "1h", "name": HOSTILE, "key": HOSTILE, "payload": {HOSTILE: HOSTILE},
        "headers": {"h": HOSTILE},
    });
    let id = submit(&api, &task.to_string()).await["id"].as_str().unwrap().to_owned();
    for path in [
        "/console/tasks".to_owned(),
        format!("/console/tasks/{id}"),
        format!("/console/tasks?topic=u&name={}&state=x", path_part(HOSTILE)),
        format!("/console/topics?topic={}", path_part(HOSTILE)),
        format!("/console/schedules/t/{}", path_part(HOSTILE)),
        format!("/console/confirm?action=drop-many&topic=t&due_from={}", path_part(HOSTILE)),
    ] {
        let text = text_of(api.ask(bare("GET", &path)).await).await;
        assert!(!text.contains("<img") && text.ends_with("</html>"), "{path}: {text}");
    }
}

#[tokio::test]
async fn a_form_after_the_end_of_its_session_leads_back_to_its_page() {
    let world = World::new(&[Action::Read], "orders");
    let page = "/console/confirm?action=cancel&id=i";
    for (referer, next) in [
        (format!("http://a{page}"), page),
        (format!("http://evil.example{page}"), "/console"),
        ("http://a/v1/tasks".to_owned(), "/console"),
        ("http://a/console/done?seal=x".to_owned(), "/console"),
        (page.to_owned(), "/console"),
    ] {
        let headers = [("referer", referer.as_str())];
        let act = form("/console/act", &[("action", "cancel"), ("id", "i")], &headers);
        let answer = world.api.ask(act).await;
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
        let text = text_of(answer).await;
        let field = format!(r#"name="next" value="{}""#, next.replace('&', "&amp;"));
        assert!(text.contains("your session has ended") && text.contains(&field), "{text}");
    }
    let out = world.api.ask(form("/console/logout", &[], &[])).await;
    assert_eq!(header_of(&out, "location"), Some("/console/login"), "it is ended already");
}

#[tokio::test]
async fn a_node_that_is_starting_says_so_and_calls_no_form_stale() {
    let mut registry = Registry::default();
    let metrics = ApiMetrics::register(&mut registry);
    let service = Service::of_model(Arc::new(Model::default()));
    let nobody = PolicyHandle::new(Policy::new(Vec::new(), HashMap::new(), None));
    let api = Api::new(service, ApiSettings::default(), metrics, Arc::new(registry), nobody);
    let fields = [("csrf", ""), ("token", "pt_any")];
    for request in [
        bare("GET", "/console"),
        bare("GET", "/console/login"),
        form("/console/login", &fields, &[]),
        form("/console/act", &fields, &[]),
    ] {
        let answer = api.ask(request).await;
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(text_of(answer).await.contains("the node is starting"));
    }
    api.cursors().set_secret(b"a secret of tests");
    assert_eq!(api.ask(bare("GET", "/console/login")).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_port_without_the_state_of_the_cluster_leads_to_the_topics() {
    let (api, _model) = api_of(ApiSettings { port: Port::Public, ..ApiSettings::default() });
    for path in ["/console", "/console/inbound"] {
        let answer = api.ask(bare("GET", path)).await;
        assert_eq!(answer.status(), StatusCode::SEE_OTHER, "{path}");
        assert_eq!(header_of(&answer, "location"), Some("/console/topics"), "{path}");
    }
    let text = text_of(api.ask(bare("GET", "/console/topics")).await).await;
    assert!(text.contains(">Topics</a>") && !text.contains(">Now</a>"), "{text}");
    assert!(!text.contains("/console/inbound"), "{text}");
}

#[tokio::test]
async fn a_node_without_outboxes_and_intake_topics_says_how_to_set_one_up() {
    let answer = api().ask(bare("GET", "/console/inbound")).await;
    assert_eq!(answer.status(), StatusCode::OK);
    let text = text_of(answer).await;
    assert!(text.contains("--outbox") && text.contains("--intake-topic"), "{text}");
    assert!(text.contains(r#"<a href="/console/inbound" aria-current="page">"#), "{text}");
}

#[tokio::test]
async fn a_callback_is_shown_to_readers_with_its_rights_and_others_are_not_denied() {
    let callback = r#"{"url":"https://jobs.example.com/orders?key=marker-of-a-url","paused":true}"#;
    let read = [Action::Read];
    let both = [Action::Read, Action::Callback, Action::ReadPayload];
    let without_payload = [Action::Read, Action::Callback];
    for (actions, is_shown) in
        [(&read[..], false), (&without_payload[..], false), (&both[..], true)]
    {
        let settings = ApiSettings { caller_denials_max: 1, ..ApiSettings::default() };
        let world = World::of(&[(actions, "orders")], settings);
        let path = "/v1/topics/orders/callback";
        let put = request("PUT", path, Some("application/json"), callback);
        assert_eq!(world.all.ask(put).await.status(), StatusCode::OK);
        let cookie = log_in(&world, &[]).await;
        for _ in 0..3 {
            let page = world.api.ask(get("/console/topics?topic=orders", pair_of(&cookie))).await;
            assert_eq!(page.status(), StatusCode::OK, "a page must not use up the denied requests");
            let text = text_of(page).await;
            assert_eq!(text.contains("https://jobs.example.com/orders<"), is_shown, "{text}");
            assert_eq!(text.contains("punctual topic callback orders"), is_shown, "{text}");
            assert!(!text.contains("marker-of-a-url"), "{text}");
        }
    }
}

#[tokio::test]
async fn a_drop_of_many_ends_at_the_due_time_of_its_count() {
    let page = bare("GET", "/console/confirm?action=drop-many&topic=t");
    let text = text_of(api().ask(page).await).await;
    let (_, form) = text.split_once("/console/act").unwrap();
    assert!(form.contains(r#"type="hidden" name="due_to" value="20"#), "{text}");
}

#[tokio::test]
async fn a_node_without_the_console_has_no_page_of_it() {
    let (api, _model) = api_of(ApiSettings { has_console: false, ..ApiSettings::default() });
    for path in ["/console", "/console/login"] {
        assert_eq!(api.ask(bare("GET", path)).await.status(), StatusCode::NOT_FOUND);
    }
}
