//! Callers without rights hold up nobody, whether they do not read answers or do not send bodies.

use std::convert::Infallible;

use super::*;

/// More than all places of a node. Each request here comes from a caller of its own.
const MANY: usize = 1_100;

async fn is_served(world: &World) {
    let answer = world.ask(bare("GET", "/v1/tasks/counts?topic=orders")).await;
    assert_eq!(answer.status(), StatusCode::OK);
}

#[tokio::test]
async fn refused_callers_who_do_not_read_hold_no_places() {
    let world = World::new(&[Action::Read], "orders");
    let mut unread = Vec::new();
    for _ in 0..MANY {
        let refused = world.api.ask(bare("GET", "/v1/tasks/counts?topic=orders")).await;
        assert!(matches!(refused.status().as_u16(), 401 | 429), "{}", refused.status());
        unread.push(refused);
    }
    is_served(&world).await;
}

#[tokio::test]
async fn documents_that_nobody_reads_take_no_places_of_others_and_no_memory() {
    let world = World::new(&[Action::Read], "orders");
    let mut unread = Vec::new();
    let mut refused_count = 0;
    for path in ["/openapi.json", "/problems"].into_iter().cycle().take(MANY) {
        let answer = world.api.ask(bare("GET", path)).await;
        refused_count += usize::from(answer.status() == StatusCode::SERVICE_UNAVAILABLE);
        unread.push(answer);
    }
    assert_eq!(refused_count, MANY - 128);
    is_served(&world).await;
    assert_eq!(metric(&world.all, "punctual_api_body_memory_bytes").await.as_deref(), Some("0"));
}

#[tokio::test]
async fn pages_that_nobody_reads_and_forms_that_do_not_come_hold_no_places() {
    let world = World::new(&[Action::Read], "orders");
    let mut unread = Vec::new();
    for _ in 0..MANY {
        unread.push(world.api.ask(bare("GET", "/console/login")).await);
    }
    is_served(&world).await;
    let never = || Body::from_stream(futures_util::stream::pending::<Result<&str, Infallible>>());
    let post = |path: &str| {
        let mut request = request("POST", path, Some("application/x-www-form-urlencoded"), "");
        *request.body_mut() = never();
        request
    };
    let refused = world.api.ask(post("/console/act")).await;
    assert_eq!(refused.status(), StatusCode::UNAUTHORIZED, "before the form has come");
}
