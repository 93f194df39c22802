//! The metrics of principals: whose requests are served and refused, and whose tasks are stored.

use super::*;
use crate::access::Metrics;
use crate::telemetry;

/// A world whose caller is counted.
struct Counted {
    world: World,
    registry: Registry,
}

impl Counted {
    fn new(world: World) -> Self {
        let mut registry = Registry::default();
        world.policy.current().count_with(&Metrics::register(&mut registry));
        Self { world, registry }
    }

    async fn status(&self, request: Request<Body>) -> u16 {
        self.world.ask(request).await.status().as_u16()
    }

    fn value(&self, series: &str) -> u64 {
        let text = telemetry::encode(&self.registry).unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {series} in {text}")).parse().unwrap()
    }

    /// Returns the numbers of requests that were ok, denied, limited, refused and failed.
    fn requests(&self) -> [u64; 5] {
        ["ok", "denied", "limited", "refused", "failed"].map(|outcome| {
            let labels = format!(r#"{{principal="ann",outcome="{outcome}"}}"#);
            self.value(&format!("punctual_principal_requests_total{labels}"))
        })
    }

    fn submitted(&self) -> u64 {
        self.value(r#"punctual_principal_tasks_submitted_total{principal="ann"}"#)
    }
}

fn task(topic: &str) -> String {
    format!(r#"{{"topic":"{topic}","delay":"1h","payload":1}}"#)
}

#[tokio::test]
async fn requests_count_for_their_principal_by_outcome_and_stored_tasks_do_as_well() {
    let counted = Counted::new(World::new(&[Action::Submit, Action::Read], "orders"));
    let hidden = counted.world.task("secret", "n").await;
    assert_eq!((counted.requests(), counted.submitted()), ([0; 5], 0), "of another caller");

    assert_eq!(counted.status(post("/v1/tasks", task("orders"))).await, 201);
    let items = [task("orders"), task("secret"), task("orders")].join(",");
    let batch = post("/v1/tasks/batch", format!(r#"{{"tasks":[{items}]}}"#));
    assert_eq!(counted.status(batch).await, 200);
    assert_eq!((counted.requests(), counted.submitted()), ([2, 0, 0, 0, 0], 3));

    assert_eq!(counted.status(post("/v1/tasks", task("secret"))).await, 403);
    assert_eq!(counted.status(bare("GET", &format!("/v1/tasks/{hidden}"))).await, 404);
    assert_eq!(counted.status(bare("GET", "/v1/cluster")).await, 403);
    assert_eq!(counted.requests(), [2, 2, 0, 1, 0], "a hidden task is like an absent one");

    let absent = "/v1/tasks/01934b2e-7d3c-8017-9f2b-000000000001";
    assert_eq!(counted.status(bare("GET", absent)).await, 404);
    assert_eq!(counted.status(post("/v1/tasks", "{")).await, 400);
    assert_eq!(counted.requests(), [2, 2, 0, 3, 0]);

    // Probes and documents do not count, and neither do callers who are not identified.
    for path in ["/livez", "/openapi.json"] {
        assert_eq!(counted.status(bare("GET", path)).await, 200);
    }
    assert_eq!(counted.world.api.ask(post("/v1/tasks", task("orders"))).await.status(), 401);
    assert_eq!((counted.requests(), counted.submitted()), ([2, 2, 0, 3, 0], 3));
}

#[tokio::test]
async fn a_request_beyond_a_quota_counts_as_limited() {
    let world = World::new(&[], "orders");
    let token = Token::parse(&world.token).unwrap();
    let text = format!(
        "version = 1\n[principals.ann]\nallow = [ {{ actions = ['*'], topics = ['*'] }} ]\n\
         limits = {{ tasks_per_second = 1, burst = 1 }}\n\
         tokens = [ {{ id = '{}', sha256 = '{}' }} ]\n",
        token.id(),
        token.hash()
    );
    world.policy.replace(document::read(&text, NodeRules::NONE).unwrap().policy);
    let counted = Counted::new(world);
    // The next submit waits for a minute.
    let batch = format!(r#"{{"tasks":[{}]}}"#, vec![task("orders"); 60].join(","));
    assert_eq!(counted.status(post("/v1/tasks/batch", batch)).await, 200);
    assert_eq!(counted.status(post("/v1/tasks", task("orders"))).await, 429);
    assert_eq!((counted.requests(), counted.submitted()), ([1, 0, 1, 0, 0], 60));
}
