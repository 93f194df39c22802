//! The outcome of a request, as the metrics of its principal show it.

use axum::http::StatusCode;

use crate::access::RequestOutcome;

/// The limits of the auth file and of policies of topics, as problems name them.
const QUOTAS: [&str; 2] = ["quota", "pending_max"];
/// The end of the names of limits that are the share of one caller.
const SHARE: &str = "_share";
/// The only share that belongs to an address.
const SHARE_OF_ADDRESS: &str = "body_memory_share";

/// Returns the outcome of a request. `limit` is the reached limit that its problem names. A hidden
/// task counts like an absent one: the metrics must not tell them apart either.
pub fn outcome_of(status: StatusCode, limit: Option<&'static str>) -> RequestOutcome {
    match status {
        StatusCode::FORBIDDEN => RequestOutcome::Denied,
        _ if limit.is_some_and(is_of_principal) => RequestOutcome::Limited,
        _ if status.is_client_error() => RequestOutcome::Refused,
        _ if status.is_server_error() => RequestOutcome::Failed,
        _ => RequestOutcome::Ok,
    }
}

/// Returns true for the limits that a principal reaches by its own use. Other limits belong to all
/// callers of the node, to one address, or to one task.
fn is_of_principal(limit: &str) -> bool {
    QUOTAS.contains(&limit) || (limit.ends_with(SHARE) && limit != SHARE_OF_ADDRESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_tells_rights_and_limits_of_the_principal_from_other_refusals() {
        use RequestOutcome as O;
        for (status, limit, outcome) in [
            (200, None, O::Ok),
            (201, None, O::Ok),
            (403, None, O::Denied),
            (404, None, O::Refused),
            (409, None, O::Refused),
            (429, Some("quota"), O::Limited),
            (429, Some("pending_max"), O::Limited),
            (503, Some("submit_queue_share"), O::Limited),
            (503, Some("submit_queue"), O::Failed),
            (503, Some("body_memory_share"), O::Failed),
            (503, None, O::Failed),
            (500, None, O::Failed),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(outcome_of(status, limit), outcome, "{status} {limit:?}");
        }
    }
}
