//! Tricks of callers: bodies that could be read in two ways, credentials in other places, cursors
//! of others, and connections that outlive their token.

use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::api::serve;
use crate::api::tests::sockets::{PATIENCE, one_answer};
use crate::shutdown::Tasks;

#[tokio::test]
async fn a_topic_that_is_given_twice_or_escaped_does_not_get_around_the_rights() {
    let world = World::new(&Action::ON_TOPICS, "open");
    let rest = r#""delay":"1h","payload":1"#;
    let before = world.state().await;
    for (topics, status) in [
        (r#""topic":"open","topic":"secret""#, 400),
        (r#""topic":"secret","topic":"open""#, 400),
        (r#""topic":"open","\u0074opic":"secret""#, 400),
        (r#""Topic":"secret","topic":"open""#, 400),
        (r#""\u0074opic":"secret""#, 403),
        (r#""topic":"\u0073ecret""#, 403),
        (r#""topic":["open","secret"]"#, 400),
        (r#""topic":"open\u0000secret""#, 400),
    ] {
        let one = world.ask(post("/v1/tasks", format!("{{{topics},{rest}}}"))).await;
        assert_eq!(one.status(), status, "{topics}");
        let batch = format!(r#"{{"tasks":[{{{topics},{rest}}}]}}"#);
        let batch = json_of(world.ask(post("/v1/tasks/batch", batch)).await).await;
        assert_eq!(batch["results"][0]["status"], status, "{topics}: {batch}");
        let many = format!(r#"{{{topics}}}"#);
        let many = world.ask(post("/v1/tasks/cancel", many)).await;
        assert_eq!(many.status(), status, "{topics}");
    }
    // The path has the topic, and the body cannot have another one.
    let body = format!(r#"{{"topic":"secret",{rest}}}"#);
    let put = request("PUT", "/v1/topics/open/tasks/n", Some("application/json"), body);
    assert_eq!(world.ask(put).await.status(), 400);
    assert_eq!(world.state().await, before);
}

#[tokio::test]
async fn one_forbidden_task_among_ten_thousand_is_the_only_one_refused() {
    let world = World::new(&[Action::Submit], "open");
    let item = |topic: &str| format!(r#"{{"topic":"{topic}","delay":"1h","payload":1}}"#);
    let mut items = vec![item("open"); 10_000];
    items[7_777] = item("secret");
    let body = format!(r#"{{"tasks":[{}]}}"#, items.join(","));
    let answer = json_of(world.ask(post("/v1/tasks/batch", body)).await).await;
    let results = answer["results"].as_array().unwrap();
    let refused: Vec<usize> =
        (0..results.len()).filter(|index| results[*index]["status"] != 201).collect();
    assert_eq!((results.len(), refused), (10_000, vec![7_777]));
    assert_eq!(results[7_777]["problem"]["topic"], "secret");
    let stored = text_of(world.all.ask(bare("GET", "/v1/tasks?topic=secret")).await).await;
    assert!(!stored.contains("\"secret\""), "{stored}");
}

#[tokio::test]
async fn a_token_counts_in_its_header_alone() {
    let world = World::new(&Action::ON_TOPICS, "open");
    let token = world.token.clone();
    for path in [
        format!("/v1/tasks?topic=open&token={token}"),
        format!("/v1/tasks?topic=open&access_token={token}"),
    ] {
        let status = world.api.ask(bare("GET", &path)).await.status().as_u16();
        assert!([400, 401].contains(&status), "{status}");
    }
    for (name, value) in [
        ("cookie", format!("token={token}; punctual-session={token}")),
        ("x-api-key", token.clone()),
        ("proxy-authorization", format!("Bearer {token}")),
        ("x-forwarded-authorization", format!("Bearer {token}")),
    ] {
        let mut request = bare("GET", "/v1/tasks?topic=open");
        request.headers_mut().insert(name, value.parse().unwrap());
        assert_eq!(world.api.ask(request).await.status(), 401, "{name}");
    }
}

#[tokio::test]
async fn a_cursor_of_another_caller_leads_nowhere() {
    let world = World::new(&[Action::Read], "open");
    for name in ["a", "b", "c"] {
        world.task("open", name).await;
    }
    let path = "/v1/tasks?topic=open&limit=2";
    let own = json_of(world.ask(bare("GET", path)).await).await;
    let foreign = json_of(world.all.ask(bare("GET", path)).await).await;
    let next = async |page: &Value| {
        let path = format!("{path}&cursor={}", page["cursor"].as_str().unwrap());
        world.ask(bare("GET", &path)).await.status()
    };
    assert_eq!(own["tasks"][1]["id"], foreign["tasks"][1]["id"]);
    assert_eq!(next(&own).await, 200);
    assert_eq!(next(&foreign).await, 400);
}

/// Serves the API of a world at a socket.
async fn serve_world(world: &World) -> (std::net::SocketAddr, Tasks) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, tasks) = (listener.local_addr().unwrap(), Tasks::default());
    tasks.spawn("api", serve(listener, world.api.clone(), None, tasks.clone()));
    (address, tasks)
}

#[tokio::test]
async fn a_revoked_token_is_refused_at_the_next_request_of_an_open_connection() {
    let world = World::new(&[Action::Read], "open");
    let (address, tasks) = serve_world(&world).await;
    let bearer = format!("Bearer {}", world.token);

    let mut kept = TcpStream::connect(address).await.unwrap();
    let request = format!("GET /v1/whoami HTTP/1.1\r\nhost: a\r\nauthorization: {bearer}\r\n\r\n");
    let mut over_one = async || {
        kept.write_all(request.as_bytes()).await.unwrap();
        one_answer(&mut kept).await.lines().next().unwrap().to_owned()
    };
    let stream = TcpStream::connect(address).await.unwrap();
    let (caller, connection) = h2::client::handshake(stream).await.unwrap();
    tasks.spawn("caller", async move {
        connection.await.ok();
        Ok(())
    });
    let over_two = async || {
        let request = Request::get("http://a/v1/whoami").header(header::AUTHORIZATION, &bearer);
        let mut ready = caller.clone().ready().await.unwrap();
        let (answer, _) = ready.send_request(request.body(()).unwrap(), true).unwrap();
        tokio::time::timeout(PATIENCE, answer).await.unwrap().unwrap().status()
    };
    assert_eq!((over_one().await.as_str(), over_two().await), ("HTTP/1.1 200 OK", StatusCode::OK));
    world.policy.replace(Policy::new(Vec::new(), HashMap::new(), None));
    assert_eq!(over_one().await, "HTTP/1.1 401 Unauthorized");
    assert_eq!(over_two().await, StatusCode::UNAUTHORIZED);
    assert!(tasks.stop(PATIENCE).await);
}
