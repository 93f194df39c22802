//! Tokens of issuers whose keys are not there.

use serde_json::json;

use super::console::{csrf_of, form};
use super::*;
use crate::access::credential::jwt::keys::tests::{ec_jwk, set_of, sign};
use crate::clock;
use crate::node::requests::service::model::NOW_MILLIS;

#[tokio::test]
async fn tokens_that_cannot_be_judged_are_throttled_until_the_keys_are_there() {
    let settings = ApiSettings { caller_denials_max: 2, ..ApiSettings::default() };
    let world = World::of(&[(&[Action::Read], "orders")], settings);
    let text = format!(
        "version = 1\n[principals.ann]\noperate = true\ntokens = [ {{ id = \"{}\", sha256 = \
         \"{}\" }} ]\n[[jwt]]\nname = 'i'\nissuer = 'https://i'\naudience = 'p'\njwks_url = \
         'https://i/keys'\n",
        Token::parse(&world.token).unwrap().id(),
        Token::parse(&world.token).unwrap().hash(),
    );
    world.policy.replace(document::read(&text, NodeRules::NONE).unwrap().policy);
    let (key, jwk) = ec_jwk("k");
    let token_of = |subject: &str| {
        let now = NOW_MILLIS / 1000;
        let claims = json!({
            "iss": "https://i", "aud": "p", "sub": subject, "iat": now - 10, "exp": now + 60
        });
        let parts = [json!({ "alg": "ES256", "kid": "k" }), claims];
        let signed = parts.map(|part| URL_SAFE_NO_PAD.encode(part.to_string())).join(".");
        let signature = URL_SAFE_NO_PAD.encode(sign(&key, &signed));
        format!("{signed}.{signature}")
    };
    let ask = async |token: &str| {
        let mut request = bare("GET", "/v1/whoami");
        let value = format!("Bearer {token}").parse().unwrap();
        request.headers_mut().insert(header::AUTHORIZATION, value);
        world.api.ask(request).await
    };
    for n in 0..2 {
        assert_eq!(ask(&token_of(&format!("forged-{n}"))).await.status(), 503);
    }
    let throttled = ask(&token_of("honest")).await;
    assert_eq!(
        (throttled.status().as_u16(), header_of(&throttled, "retry-after")),
        (429, Some("5"))
    );
    let problem = json_of(throttled).await;
    assert_eq!(problem["type"], "urn:punctual:problem:too-many-requests", "its token may be good");
    assert_eq!(ask("pt_wrong").await.status(), 429, "they count as failed logins");
    let page = text_of(world.api.ask(bare("GET", "/console/login")).await).await;
    let fields = [("csrf", csrf_of(&page)), ("token", token_of("honest"))];
    let fields = fields.each_ref().map(|(name, value)| (*name, value.as_str()));
    assert_eq!(world.api.ask(form("/console/login", &fields, &[])).await.status(), 429);
    assert_eq!(world.ask(bare("GET", "/v1/whoami")).await.status(), 200, "a valid token passes");

    let policy = world.policy.current();
    policy.issuers().all()[0].keys.end(Some(set_of(&[jwk])), clock::monotonic());
    assert_eq!(ask(&token_of("honest")).await.status(), 200, "as soon as its key is known");
}
