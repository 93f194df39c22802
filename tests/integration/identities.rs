//! Callers whose identity another authority proves: by a certificate, and by a token of an issuer.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::SanType;
use reqwest::Method;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::{Value, json};

use crate::support::node::program;
use crate::support::wait::now_ms;
use crate::support::{Api, Authority, Cluster, eventually};

const DEADLINE: Duration = Duration::from_secs(60);

/// Writes a file that nobody else may write.
fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}

/// A key that signs tokens.
struct TokenKey(EcdsaKeyPair);

impl TokenKey {
    fn new() -> Self {
        let (random, algorithm) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        Self(EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random).unwrap())
    }

    fn jwks(&self, kid: &str) -> String {
        let [x, y] = [1..33, 33..65]
            .map(|range| URL_SAFE_NO_PAD.encode(&self.0.public_key().as_ref()[range]));
        let key = json!({ "kty": "EC", "crv": "P-256", "x": x, "y": y, "kid": kid });
        json!({ "keys": [key] }).to_string()
    }

    fn token(&self, kid: &str, sub: &str) -> String {
        let now = now_ms() / 1000;
        let header = json!({ "alg": "ES256", "kid": kid });
        let claims = json!({
            "iss": "https://issuer.example", "aud": "punctual", "sub": sub,
            "iat": now, "exp": now + 600
        });
        let [header, claims] =
            [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
        let signed = format!("{header}.{claims}");
        let signature = self.0.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

const AUTH: &str = r#"version = 1
[roles.orders]
allow = [ { actions = ["*"], topics = ["*"] } ]

[[certificate]]
uri = "spiffe://shop.example/*"
roles = ["orders"]

[[jwt]]
name = "web"
issuer = "https://issuer.example"
audience = "punctual"
jwks_file = "jwks.json"
map = [ { claim = "sub", equals = "orders", roles = ["orders"] } ]
"#;

async fn who_am_i(api: &Api, token: Option<&str>) -> (u16, Value) {
    let header = token.map(|token| ("authorization", format!("Bearer {token}")));
    let headers: Vec<(&str, &str)> =
        header.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let answer = api.send_with(Method::GET, "/v1/whoami", &headers, None).await;
    let who: Value = serde_json::from_str(&answer.text).unwrap();
    (answer.status, who["principal"].clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_and_tokens_of_issuers_are_principals() {
    let cluster = Cluster::start("identities").await;
    let folder = cluster.folder();
    let authority = Authority::new();
    let server = authority.sign_local();
    let identity = "spiffe://shop.example/orders".try_into().unwrap();
    let client = authority.sign(|params| params.subject_alt_names = vec![SanType::URI(identity)]);
    let files = [
        ("ca.pem", authority.pem()),
        ("server.pem", server.0),
        ("server-key.pem", server.1),
        ("client.pem", client.0.clone()),
        ("client-key.pem", client.1.clone()),
        ("auth.toml", AUTH.to_owned()),
    ]
    .map(|(name, text)| write(folder, name, &text).to_str().unwrap().to_owned());
    let [ca, server, server_key, own, own_key, auth] = &files;
    let key = TokenKey::new();
    write(folder, "jwks.json", &key.jwks("one"));
    let mut node = cluster.spawn(&[
        "--auth-file",
        auth,
        "--tls-certificate-file",
        server,
        "--tls-key-file",
        server_key,
        "--tls-client-ca-file",
        ca,
        "--tls-client-auth",
        "optional",
    ]);
    node.wait_listening_securely(&authority.pem()).await;
    node.wait_ready().await;

    let base = node.api().base().to_owned();
    let known = Api::secure_as(base.clone(), &authority.pem(), &(client.1 + &client.0));
    let cert = json!("cert:spiffe://shop.example/orders");
    assert_eq!(who_am_i(&known, None).await, (200, cert));
    assert_eq!(who_am_i(node.api(), None).await.0, 401);
    let token = key.token("one", "orders");
    for api in [&known, node.api()] {
        assert_eq!(who_am_i(api, Some(&token)).await, (200, json!("jwt:web/orders")));
    }
    let listed = program(&["list", "--url", &base, "--ca-file", ca])
        .args(["--certificate-file", own, "--key-file", own_key])
        .output()
        .await
        .unwrap();
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));

    // A connection ends with the certificate of its caller: the next handshake would refuse it.
    let identity = "spiffe://shop.example/orders".try_into().unwrap();
    let end = Duration::from_millis(u64::try_from(now_ms()).unwrap()) + Duration::from_secs(5);
    let brief = authority.sign(|params| {
        params.subject_alt_names = vec![SanType::URI(identity)];
        params.not_after = rcgen::date_time_ymd(1970, 1, 1) + end;
    });
    let brief = Api::secure_as(base.clone(), &authority.pem(), &(brief.1 + &brief.0));
    assert_eq!(who_am_i(&brief, None).await.0, 200);
    eventually("the expired certificate proves nothing", DEADLINE, async || {
        brief.try_send(Method::GET, "/v1/whoami", None).await.is_err()
    })
    .await;

    // The key is rotated out: a token verified with it ends.
    let next = TokenKey::new();
    write(folder, "jwks.json", &next.jwks("two"));
    eventually("the former key no longer counts", DEADLINE, async || {
        who_am_i(node.api(), Some(&token)).await.0 == 401
    })
    .await;
    let renewed = next.token("two", "orders");
    assert_eq!(who_am_i(node.api(), Some(&renewed)).await.0, 200);
}
