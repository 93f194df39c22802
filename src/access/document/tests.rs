use std::path::Path;
use std::time::Duration;

use super::*;
use crate::access::action::Action;
use crate::access::credential::certificate::{PeerCertificate, PeerName};
use crate::access::credential::token::Token;
use crate::access::limits::{Limits, Rate};
use crate::access::policy::Unidentified;
use crate::access::principal::Fingerprint;
use crate::domain::{Timestamp, TopicName};

const EXAMPLE: &str = r#"
version = 1

[roles.orders-producer]
allow = [ { actions = ["submit", "cancel", "read"], topics = ["orders.*", "orders-retry"] } ]
deny  = [ { actions = ["*"], topics = ["orders.audit"] } ]

[roles.support]
allow = [ { actions = ["read", "redrive"], topics = ["*"] } ]

[principals.order-service]
roles  = ["orders-producer"]
tokens = [ { id = "k3v9q0ab", sha256 = "HASH", expires = 2027-03-01T00:00:00Z },
           { id = "7h2m1x9c", sha256 = "8888888888888888888888888888888888888888888888888888888888888888" } ]

[principals."ann@shop.example"]
roles  = ["support"]
allow  = [ { actions = ["read-payload"], topics = ["orders-retry"] } ]
tokens = [ { id = "aaaaaaaa", sha256 = "9999999999999999999999999999999999999999999999999999999999999999", not_before = 2026-01-01T00:00:00+01:00 } ]

[principals.prometheus]
operate = true
tokens  = [ { id = "p0r0m0e0", sha256 = "7777777777777777777777777777777777777777777777777777777777777777" } ]

[anonymous]
allow = [ { actions = ["read"], topics = ["status"] } ]
"#;

fn read_text(text: &str) -> Result<Document, Vec<Remark>> {
    read(text, NodeRules::NONE)
}

fn example() -> (Policy, Token) {
    let text = "pt_k3v9q0ab_BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc1PmrQz";
    let token = Token::parse(text).unwrap();
    let read = read_text(&EXAMPLE.replace("HASH", &token.hash().to_string())).unwrap();
    assert_eq!(read.warnings, []);
    (read.policy, token)
}

fn problems(text: &str) -> Vec<String> {
    read_text(text).unwrap_err().iter().map(ToString::to_string).collect()
}

fn topic(name: &str) -> TopicName {
    TopicName::new(name).unwrap()
}

#[test]
fn the_example_of_the_docs_means_what_it_says() {
    let (policy, token) = example();
    let authorization = format!("Bearer {}", token.expose());
    let at = |text| Timestamp::of_rfc3339(text).unwrap();
    let caller = policy.identify(&authorization, at("2026-12-01T00:00:00Z")).unwrap();
    assert_eq!(caller.principal.name.as_str(), "order-service");
    assert_eq!(caller.credential.to_string(), "k3v9q0ab");
    let rights = &caller.principal.rights;
    assert!(rights.allows(Action::Submit, &topic("orders.new")));
    assert!(!rights.allows(Action::Submit, &topic("orders.audit")));
    assert!(!rights.allows(Action::ReadPayload, &topic("orders.new")));
    assert!(!rights.operates());
    let late = policy.identify(&authorization, at("2027-03-01T00:00:00Z"));
    assert_eq!(late.unwrap_err(), Unidentified::Expired);

    let named = |name: &str| {
        policy.principals().iter().find(|other| other.name.as_str() == name).unwrap().rights.clone()
    };
    let support = named("ann@shop.example");
    assert!(support.allows_everywhere(Action::Redrive));
    assert!(support.allows(Action::ReadPayload, &topic("orders-retry")));
    assert!(!support.allows(Action::ReadPayload, &topic("orders.new")));
    assert!(named("prometheus").operates());
    let anonymous = policy.identify_peer(None).unwrap();
    assert!(anonymous.principal.rights.allows(Action::Read, &topic("status")));
    assert!(!anonymous.principal.rights.allows_anywhere(Action::Submit));
}

#[test]
fn all_problems_are_told_at_once_each_with_its_line() {
    let text = r#"version = 2
surprise = 1
[roles.a]
allow = [ { actions = ["sumbit", "operat"], topics = ["_x*", "a*b"] } ]
deny = [ { actions = ["read"] } ]
[principals."a:b"]
roles = ["b", "a", "a"]
operate = "yes"
limit = {}
[principals.c]
tokens = [ { id = "SHORT", sha256 = "x", expires = 2027-03-01 },
           { sha256 = 1 } ]
"#;
    let told = problems(text);
    let lines: Vec<&str> =
        told.iter().map(|line| line.split(':').next().unwrap_or_default()).collect();
    let expected = [
        "line 1", "line 2", "line 4", "line 4", "line 4", "line 4", "line 5", "line 6", "line 7",
        "line 7", "line 8", "line 9", "line 11", "line 11", "line 11", "line 12", "line 12",
    ];
    assert_eq!(lines, expected, "{told:#?}");
}

#[test]
fn what_a_problem_says_helps() {
    for (text, part) in [
        ("", "`version = 1` is missing"),
        ("version = 1", "no principal"),
        ("version = 1\n[roles.a]\n[roles.a]\n", "line 3"),
        ("version = 1\n[principals.anonymous]\noperate = true", "[anonymous]"),
        ("version = 1\n[principals.a]\nroles = 'x'", "`roles` is not an array"),
        ("version = 1\nroles = 3", "`roles` is not a table"),
        (
            "version = 1\n[anonymous]\nallow = [{ actions = ['Operate'], topics = ['*'] }]",
            "schedule, callback, operate, and *",
        ),
        ("version = 1\n[anonymous]\nallow = [{ actions = [], topics = ['*'] }]", "without actions"),
        ("version = 1\n[principals", "line 2"),
        (
            "version = 1\n[anonymous]\nallow = [{ actions = ['read'], topics = ['a\u{1}'] }]",
            "line 3",
        ),
        (
            "version = 1\n[anonymous]\nallow = [{ actions = ['read'], topics = [\"a\\u001b\"] }]",
            "matches no topic",
        ),
    ] {
        let told = problems(text);
        assert!(told.iter().any(|line| line.contains(part)), "{text}: {told:?}");
        assert!(told.iter().all(|line| !line.contains(char::is_control)), "{told:?}");
    }
}

#[test]
fn an_id_or_a_hash_that_two_tokens_have_is_refused() {
    let token =
        |id: &str, digit: &str| format!("{{ id = \"{id}\", sha256 = \"{}\" }}", digit.repeat(64));
    let text = |one: String, other: String| {
        format!(
            "version = 1\n\
             [principals.a]\n\
             operate = true\n\
             tokens = [{one}]\n\
             [principals.b]\n\
             operate = true\n\
             tokens = [{other}]\n"
        )
    };
    assert!(read_text(&text(token("aaaaaaaa", "1"), token("bbbbbbbb", "2"))).is_ok());
    let same_id = problems(&text(token("aaaaaaaa", "1"), token("aaaaaaaa", "2")));
    assert!(same_id.len() == 1 && same_id[0].contains("the id aaaaaaaa"), "{same_id:?}");
    let same_hash = problems(&text(token("aaaaaaaa", "1"), token("bbbbbbbb", "1")));
    assert!(same_hash.len() == 1 && same_hash[0].contains("this hash"), "{same_hash:?}");
}

#[test]
fn a_token_that_expires_before_it_begins_is_refused() {
    let text = format!(
        "version = 1\n\
         [principals.a]\n\
         operate = true\n\
         tokens = [{{ id = \"aaaaaaaa\", sha256 = \"{}\", not_before = 2027-01-01T00:00:00Z, \
         expires = 2027-01-01T00:00:00Z }}]",
        "1".repeat(64)
    );
    assert_eq!(problems(&text), ["line 4: the token expires before it is valid"]);
}

#[test]
fn what_the_author_may_not_have_meant_is_a_warning() {
    let text = r#"version = 1
[roles.unused]
allow = [ { actions = ["*"], topics = ["orders*"] } ]
[principals.idle]
"#;
    let read = read_text(text).unwrap();
    let warnings: Vec<String> = read.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "line 2: nobody has the role \"unused\"",
            "line 3: `orders*` covers `orders-secret`, too",
            "line 4: the principal \"idle\" has no rights",
            "line 4: the principal \"idle\" has no token",
        ]
    );
}

#[test]
fn certificates_have_names_and_rights() {
    let text = r#"version = 1
[roles.orders]
allow = [ { actions = ["submit"], topics = ["orders"] } ]
[[certificate]]
uri = "spiffe://shop.example/ns/orders/*"
roles = ["orders"]
[[certificate]]
dns = "metrics.shop.svc"
operate = true
"#;
    let read = read_text(text).unwrap();
    assert_eq!(read.warnings, []);
    let caller = |name| {
        let peer =
            PeerCertificate { id: Fingerprint::of(b""), names: vec![name], until: Timestamp::MAX };
        read.policy.identify_peer(Some(&peer)).unwrap().principal
    };
    let orders = caller(PeerName::uri("spiffe://shop.example/ns/orders/sa/web").unwrap());
    assert_eq!(orders.name.as_str(), "cert:spiffe://shop.example/ns/orders/sa/web");
    assert!(orders.rights.allows(Action::Submit, &topic("orders")) && !orders.rights.operates());
    assert!(caller(PeerName::dns("metrics.shop.svc").unwrap()).rights.operates());
}

#[test]
fn wrong_entries_for_certificates_are_told() {
    let text = r#"version = 1
[[certificate]]
operate = true
[[certificate]]
uri = "spiffe://shop/*"
dns = "a"
[[certificate]]
uri = "spiffe://shop*"
cn = "orders"
[[certificate]]
uri = "spiffe://shop/*"
roles = ["none"]
[[certificate]]
uri = "spiffe://shop/ns/*"
operate = true
"#;
    let told = problems(text);
    let parts = [
        ("line 2", "either `uri` or `dns`"),
        ("line 4", "either `uri` or `dns`"),
        ("line 8", "a `*` only after the last `/`"),
        ("line 9", "unknown key \"cn\""),
        ("line 12", "no role \"none\""),
        ("line 14", "another entry, spiffe://shop/*, covers names of spiffe://shop/ns/*"),
    ];
    assert_eq!(told.len(), parts.len(), "{told:#?}");
    for (line, (start, part)) in told.iter().zip(parts) {
        assert!(line.starts_with(&format!("{start}: ")) && line.contains(part), "{line}");
    }
}

#[test]
fn issuers_have_keys_and_maps() {
    let text = r#"version = 1
[roles.orders]
allow = [ { actions = ["submit"], topics = ["orders"] } ]
[[jwt]]
name = "k8s"
issuer = "https://kubernetes.default.svc.cluster.local"
audience = "punctual"
jwks_url = "https://kubernetes.default.svc/openid/v1/jwks"
ca_file = "/ca.pem"
bearer_token_file = "/token"
max_age = "48h"
algorithms = ["EdDSA"]
[[jwt.map]]
claim = "sub"
equals = "system:serviceaccount:shop:orders"
roles = ["orders"]
[[jwt.map]]
claim = "groups"
contains = "sre"
operate = true
"#;
    let read = read_text(text).unwrap();
    assert_eq!((read.warnings, read.issuer_lines), (Vec::new(), vec![4]));
    let [issuer] = read.policy.issuers().all() else { panic!("one issuer") };
    assert_eq!((issuer.principal_claim.as_str(), issuer.maps.len()), ("sub", 2));
    assert_eq!(issuer.max_age, Duration::from_hours(48));
    assert_eq!(issuer.keys.url().unwrap().ca_file.as_deref(), Some(Path::new("/ca.pem")));
}

#[test]
fn wrong_issuers_are_told() {
    let text = r#"version = 1
[[jwt]]
name = "K8S"
issuer = "https://a"
audience = ""
jwks_file = "a.json"
ca_file = "ca.pem"
algorithms = ["HS256", "none"]
max_age = "1y"
map = [ { claim = "sub", equals = "a", contains = "a" }, { equals = "a" } ]
[[jwt]]
name = "K8S"
issuer = "https://a"
audience = "p"
jwks_url = "http://a/keys"
algorithms = []
[[jwt]]
audience = "p"
jwks_url = "https://me:secret@a/keys"
jwks_file = "a.json"
"#;
    let told = problems(text);
    let lines: Vec<&str> =
        told.iter().map(|line| line.split(':').next().unwrap_or_default()).collect();
    let expected = [
        "line 3", "line 5", "line 7", "line 8", "line 8", "line 9", "line 10", "line 10",
        "line 12", "line 12", "line 13", "line 15", "line 16", "line 17", "line 17", "line 17",
    ];
    assert_eq!(lines, expected, "{told:#?}");
    let all = told.join("\n");
    assert!(
        all.contains("https:// URL")
            && all.contains("not a known algorithm")
            && !all.contains("secret")
    );
}

#[test]
fn principals_are_in_the_order_of_the_file() {
    let text = "version = 1\n[principals]\nd = { operate = true }\n[principals.b]\noperate = true\n\
                [principals.c]\noperate = true\n[principals.a]\noperate = true\n";
    let read = read_text(text).unwrap();
    let names = read.policy.principals().iter().map(|principal| principal.name.as_str());
    assert_eq!(names.collect::<Vec<_>>(), ["d", "b", "c", "a"]);
}

#[test]
fn limits_are_numbers_and_spans() {
    let text = r#"version = 1
[principals.a]
operate = true
limits = { tasks_per_second = 2000, burst = 10000, bytes_per_second = 1000000, reads_per_second = 50, requests = 64, delay_max = "30d", record_max = 65536, pending_max = 7 }
[principals.b]
operate = true
limits = { tasks_per_second = 5 }
[anonymous]
operate = true
limits = { requests = 1 }
"#;
    let read = read_text(text).unwrap();
    let [a, b] = read.policy.principals() else { panic!("two principals") };
    let rate = |per_second, burst| Some(Rate { per_second, burst });
    let expected = Limits {
        tasks: rate(2000, 10_000),
        bytes: rate(1_000_000, 1_000_000),
        reads: rate(50, 50),
        requests: Some(64),
        delay_max: Some(Duration::from_hours(30 * 24)),
        record_max: Some(65_536),
        pending_max: Some(7),
    };
    assert_eq!(a.limits, expected);
    assert_eq!(b.limits, Limits { tasks: rate(5, 5), ..Limits::default() });
    let anonymous = read.policy.identify_peer(None).unwrap();
    assert_eq!(anonymous.principal.limits.requests, Some(1));
    let told = super::read(text, rules(10_000)).unwrap_err();
    assert!(
        told.len() == 1 && told[0].line == 7 && told[0].text.contains("--batch-max"),
        "{told:?}"
    );
}

#[test]
fn wrong_limits_are_told() {
    for (limits, part) in [
        ("7", "not a table"),
        ("{ tasks = 7 }", "unknown key"),
        ("{ tasks_per_second = 0 }", "no whole number from 1"),
        ("{ tasks_per_second = 1.5 }", "no whole number"),
        ("{ tasks_per_second = 0x10 }", "no whole number"),
        ("{ requests = \"7\" }", "no whole number"),
        ("{ burst = 7 }", "goes with"),
        ("{ delay_max = 7 }", "not a string"),
        ("{ delay_max = \"7\" }", "`delay_max`"),
        ("{ record_max = -1 }", "no whole number"),
    ] {
        let told = problems(&format!("version = 1\n[anonymous]\nlimits = {limits}\n"));
        assert!(told.len() == 1 && told[0].contains(part), "{limits}: {told:?}");
    }
}

#[test]
fn topics_have_limits_of_their_own() {
    let anonymous = "version = 1\n[anonymous]\nallow = [{ actions = ['read'], topics = ['a'] }]\n";
    let text = |topics: &str| format!("{anonymous}{topics}");
    let file = "[topics.'orders.*'.limits]\ntasks_per_second = 10\n\
                [topics.'*']\nlimits = { delay_max = '1d', record_max = 5 }\n";
    let policy = read(&text(file), NodeRules::NONE).unwrap().policy;
    let of = |topic: &str| {
        let topic = TopicName::new(topic).unwrap();
        policy.topic_limits(&topic).map(|(pattern, _)| pattern.to_string()).collect::<Vec<_>>()
    };
    assert_eq!((of("orders.a"), of("_x")), (vec!["*".into(), "orders.*".into()], vec!["*".into()]));
    for (wrong, part) in [
        ("[topics.'a*b']", "`*`"),
        ("[topics.a]\nlimits = { requests = 1 }", "limits of principals"),
        ("[topics.a]\nlimits = { reads_per_second = 1 }", "limits of principals"),
        ("[topics.a]\nlimit = {}", "limit"),
        ("[topics]\na = 1", "not a table"),
    ] {
        let told = problems(&text(wrong));
        assert!(told.len() == 1 && told[0].contains(part), "{wrong}: {told:?}");
    }
    let told = read(&text("[topics.a]\nlimits = { tasks_per_second = 5 }"), rules(6)).unwrap_err();
    assert!(told[0].text.contains("--batch-max"), "{told:?}");
}

#[test]
fn certificates_are_refused_where_no_caller_can_show_one() {
    let text = "version = 1\n[[certificate]]\nuri = 'spiffe://shop/*'\noperate = true\n";
    let told = super::read(text, NodeRules { takes_certificates: false, ..NodeRules::NONE });
    let told = told.unwrap_err();
    assert!(told.len() == 1 && told[0].text.contains("--tls-client-ca-file"), "{told:?}");
}

/// The rules of a node that takes batches of this size.
fn rules(burst_min: u64) -> NodeRules {
    NodeRules { burst_min, ..NodeRules::NONE }
}
