//! Handler of `GET /v1/whoami`: the caller and its rights.

use axum::http::{StatusCode, Uri};
use axum::response::Response;
use serde::Serialize;

use crate::access::pattern::Pattern;
use crate::access::{Action, Rights};
use crate::api::access::guard::Guard;
use crate::api::json::answers::{self, DisplayJson};
use crate::api::problems::problem::Problem;
use crate::api::request::query;

#[derive(Serialize)]
struct WhoAmIJson<'a> {
    principal: &'a str,
    credential: String,
    operate: bool,
    rights: Vec<RightJson<'a>>,
}

/// The topics of one action.
#[derive(Serialize)]
struct RightJson<'a> {
    action: &'static str,
    topics: Vec<DisplayJson<&'a Pattern>>,
    except: Vec<DisplayJson<&'a Pattern>>,
}

pub async fn show(guard: Guard, uri: Uri) -> Result<Response, Problem> {
    query::refuse(&uri)?;
    let caller = guard.caller();
    let rights = &caller.principal.rights;
    let answer = WhoAmIJson {
        principal: caller.principal.name.as_str(),
        credential: caller.credential.to_string(),
        operate: guard.operates(),
        rights: Action::ON_TOPICS
            .into_iter()
            .chain([Action::Callback])
            .chain((!guard.operates()).then_some(Action::Operate))
            .filter_map(|action| right_of(rights, action))
            .collect(),
    };
    Ok(answers::json(StatusCode::OK, &answer))
}

/// Returns the topics of an action, if there are any.
fn right_of(rights: &Rights, action: Action) -> Option<RightJson<'_>> {
    let (allowed, denied) = rights.patterns(action);
    (!allowed.is_empty()).then(|| RightJson {
        action: action.name(),
        topics: allowed.iter().map(DisplayJson).collect(),
        except: denied.iter().map(DisplayJson).collect(),
    })
}
