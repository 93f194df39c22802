//! Metrics of the auth file, and of its principals.

pub mod principals;

use self::principals::PrincipalMetrics;
use crate::telemetry::{Counter, Family, Gauge, Registry};

/// The state of the auth file as the node sees it.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    pub(super) reload_failures: Counter,
    pub(super) loaded_at: Gauge,
    pub(super) principals: Gauge,
    pub(super) tokens: Gauge,
    pub(super) token_expires: Gauge,
    pub(super) keys_missing: Gauge,
    pub(super) of_principals: PrincipalMetrics,
    key_fetches: Family<[(&'static str, &'static str); 1], Counter>,
}

impl Metrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "punctual_auth_reload_failures",
            "Checks of the auth file (one per second) that found it unreadable or wrong; the \
             previous rights stay in force",
            metrics.reload_failures.clone(),
        );
        registry.register(
            "punctual_auth_loaded_seconds",
            "Time at which the current rights were read from the auth file, in seconds since 1970; \
             0 without a file",
            metrics.loaded_at.clone(),
        );
        registry.register(
            "punctual_auth_principals",
            "Principals of the auth file",
            metrics.principals.clone(),
        );
        registry.register(
            "punctual_auth_tokens",
            "Tokens of the auth file, including expired ones",
            metrics.tokens.clone(),
        );
        registry.register(
            "punctual_auth_token_expires_seconds",
            "Time at which the next token of the auth file expires, in seconds since 1970; 0 if \
             none will",
            metrics.token_expires.clone(),
        );
        registry.register(
            "punctual_auth_keys_missing",
            "Issuers of the auth file without keys, whose tokens can be neither taken nor refused",
            metrics.keys_missing.clone(),
        );
        registry.register(
            "punctual_auth_key_fetches",
            "Fetches of the keys of issuers by URL",
            metrics.key_fetches.clone(),
        );
        metrics.of_principals.register(registry);
        for outcome in ["fetched", "failed"] {
            drop(metrics.key_fetches.get_or_create(&[("outcome", outcome)]));
        }
        metrics
    }

    pub(super) fn key_fetched(&self, is_fetched: bool) {
        let outcome = if is_fetched { "fetched" } else { "failed" };
        self.key_fetches.get_or_create(&[("outcome", outcome)]).inc();
    }
}
