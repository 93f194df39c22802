//! Checks the properties of a login to Kafka. librdkafka reports these problems when it makes a
//! client, in words for developers, or not at all.

const MECHANISMS: &str = "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER";
const METHOD: &str = "sasl.oauthbearer.method";
const TOKEN_URL: &str = "sasl.oauthbearer.token.endpoint.url";
const GRANT: &str = "sasl.oauthbearer.grant.type";
/// Where a token comes from, if no property has the address: from the machine's own service.
const METADATA: &str = "sasl.oauthbearer.metadata.authentication.type";
/// The query to the machine's service.
const CONFIG: &str = "sasl.oauthbearer.config";
const CLIENT: [&str; 2] = ["sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret"];
/// One of them proves the client in a grant by assertion.
const ASSERTIONS: [&str; 3] = [
    "sasl.oauthbearer.assertion.file",
    "sasl.oauthbearer.assertion.private.key.file",
    "sasl.oauthbearer.assertion.private.key.pem",
];

/// Returns the problems of the login that properties describe. `value` returns one of them by its
/// canonical name. No value is repeated.
pub(super) fn problems<'a>(value: &dyn Fn(&str) -> Option<&'a str>) -> Vec<String> {
    let login = Login { value };
    if !login.is_wanted() {
        return Vec::new();
    }
    match login.value("sasl.mechanisms").map(str::to_ascii_uppercase).as_deref() {
        None | Some("GSSAPI") => vec![format!(
            "without sasl.mechanism, SASL means Kerberos, which is not built in: set the Kafka \
             property sasl.mechanism to {MECHANISMS}"
        )],
        Some("OAUTHBEARER") => login.problems_of_oidc(),
        Some(_) => Vec::new(),
    }
}

struct Login<'f, 'a> {
    value: &'f dyn Fn(&str) -> Option<&'a str>,
}

impl<'a> Login<'_, 'a> {
    fn value(&self, name: &str) -> Option<&'a str> {
        (self.value)(name).filter(|value| !value.is_empty())
    }

    fn is(&self, name: &str, value: &str) -> bool {
        self.value(name).is_some_and(|given| given.eq_ignore_ascii_case(value))
    }

    fn is_wanted(&self) -> bool {
        let protocol = self.value("security.protocol").unwrap_or_default();
        protocol.to_ascii_uppercase().starts_with("SASL")
    }

    /// Returns true when the machine's service is asked for the token of some resource.
    fn has_query(&self) -> bool {
        let parts = self.value(CONFIG).unwrap_or_default().split(',');
        parts.into_iter().any(|part| part.trim_start().starts_with("query="))
    }

    fn problems_of_oidc(&self) -> Vec<String> {
        // No part of the node fetches a token, and librdkafka is silent while it waits for one.
        if !self.is(METHOD, "oidc") {
            return vec![format!(
                "OAUTHBEARER needs the Kafka property {METHOD}=oidc; no other method is supported"
            )];
        }
        let is_by_machine = self.is(METADATA, "azure_imds");
        let mut problems = Vec::new();
        match self.value(TOKEN_URL) {
            None if is_by_machine && self.has_query() => {}
            None if is_by_machine => problems.push(format!(
                "OAUTHBEARER by azure_imds needs a query=.. in the Kafka property {CONFIG}, or \
                 {TOKEN_URL}"
            )),
            None => {
                problems.push(format!("OAUTHBEARER needs the Kafka property {TOKEN_URL}"));
            }
            Some(url) => problems.extend(
                problem_of_url(url)
                    .map(|problem| format!("the Kafka property {TOKEN_URL} {problem}")),
            ),
        }
        if is_by_machine {
            return problems;
        }
        if self.is(GRANT, "client_credentials") || self.value(GRANT).is_none() {
            let missing = CLIENT.into_iter().filter(|name| self.value(name).is_none());
            problems
                .extend(missing.map(|name| format!("OAUTHBEARER needs the Kafka property {name}")));
        } else if ASSERTIONS.iter().all(|name| self.value(name).is_none()) {
            problems.push(format!(
                "OAUTHBEARER with an assertion needs one of the Kafka properties {}",
                ASSERTIONS.join(", ")
            ));
        }
        problems
    }
}

fn problem_of_url(url: &str) -> Option<&'static str> {
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    if !["http", "https"].contains(&scheme.to_ascii_lowercase().as_str()) {
        return Some("must begin with https:// (or http://)");
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    // librdkafka logs the address of a server that gives no token.
    authority.contains('@').then_some("must not have a password, which the log would show")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENOUGH: [(&str, &str); 6] = [
        ("security.protocol", "sasl_ssl"),
        ("sasl.mechanism", "OAUTHBEARER"),
        (METHOD, "oidc"),
        (TOKEN_URL, "https://login.example/token"),
        ("sasl.oauthbearer.client.id", "punctual"),
        ("sasl.oauthbearer.client.credentials.client.secret", "s3cret"),
    ];

    fn said(properties: &[(&str, &str)]) -> Vec<String> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        crate::kafka::problems_of_properties(&properties.iter().map(owned).collect::<Vec<_>>())
    }

    #[test]
    fn a_login_by_oidc_is_built_in() {
        assert_eq!(said(&ENOUGH), Vec::<String>::new());
        let by_the_machine = [(METADATA, "azure_imds"), (CONFIG, "query=resource=api://kafka")];
        assert_eq!(said(&[&ENOUGH[..3], &by_the_machine].concat()), Vec::<String>::new());
        let at_another_address = [by_the_machine[0], ENOUGH[3]];
        assert_eq!(said(&[&ENOUGH[..3], &at_another_address].concat()), Vec::<String>::new());
        let by_assertion = [
            (GRANT, "urn:ietf:params:oauth:grant-type:jwt-bearer"),
            ("sasl.oauthbearer.assertion.file", "/run/secrets/token"),
        ];
        assert_eq!(said(&[&ENOUGH[..4], &by_assertion].concat()), Vec::<String>::new());
    }

    #[test]
    fn a_login_by_oidc_needs_all_that_a_token_takes() {
        let without = |count: usize| said(&ENOUGH[..count]);
        let of_url = |url| {
            let mut properties = ENOUGH;
            properties[3].1 = url;
            said(&properties)
        };
        let default = [&ENOUGH[..2], &[(METHOD, "default")], &ENOUGH[3..]].concat();
        let unproven = [&ENOUGH[..4], &[(GRANT, "urn:ietf:params:oauth:grant-type:jwt-bearer")]];
        let unasked = [&ENOUGH[..3], &[(METADATA, "azure_imds"), (CONFIG, "a=b")]];
        for (said, wanted) in [
            (said(&unasked.concat()), vec![CONFIG]),
            (without(2), vec![METHOD]),
            (said(&default), vec![METHOD]),
            (without(3), vec![TOKEN_URL, CLIENT[0], CLIENT[1]]),
            (without(5), vec![CLIENT[1]]),
            (of_url("login.example/token"), vec!["https://"]),
            (of_url("file:///etc/token"), vec!["https://"]),
            (of_url("https://me:hunter2@login.example/token"), vec!["password"]),
            (said(&unproven.concat()), vec![ASSERTIONS[1]]),
        ] {
            assert_eq!(said.len(), wanted.len(), "{wanted:?}: {said:?}");
            assert!(
                said.iter().zip(&wanted).all(|(said, wanted)| said.contains(wanted)),
                "{said:?}"
            );
            assert!(!format!("{said:?}").contains("hunter2"), "{said:?}");
        }
    }

    #[test]
    fn an_unsigned_token_is_refused() {
        let said =
            said(&[&ENOUGH[..], &[("enable.sasl.oauthbearer.unsecure.jwt", "true")]].concat());
        assert!(said.len() == 1 && said[0].contains("unsecure.jwt"), "{said:?}");
    }

    #[test]
    fn sasl_wants_a_mechanism_that_is_built_in() {
        for mechanism in [&[][..], &[("sasl.mechanisms", "GSSAPI")]] {
            let said = said(&[&[("security.protocol", "sasl_ssl")], mechanism].concat());
            assert!(said.len() == 1 && said[0].contains("sasl.mechanism"), "{said:?}");
        }
        let plain = [("security.protocol", "SASL_PLAINTEXT"), ("sasl.mechanism", "PLAIN")];
        assert_eq!(said(&plain), Vec::<String>::new());
        assert_eq!(said(&[("security.protocol", "SSL")]), Vec::<String>::new());
    }
}
