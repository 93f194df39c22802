//! The routes of the API: the handler and the documented operation of each, and their documents.

use axum::body::Bytes;
use axum::http::Method;

use crate::api::handlers::{
    bulk, cluster, dev, feedback, lists, names, node, schedules, tasks, topics, who_am_i,
};
use crate::api::openapi::operation::Operation;
use crate::api::openapi::route::Route;
use crate::api::openapi::{document, operations};

/// Returns all routes. Literal ones come before those with a parameter that would match them, too:
/// the label of a request is the first match.
pub fn routes() -> [Route; 40] {
    use operations as ops;
    [
        Route::at("/v1/tasks")
            .get(lists::tasks, &ops::lists::TASKS)
            .post(tasks::submit, &ops::tasks::SUBMIT),
        Route::at("/v1/tasks/batch").post(tasks::submit_batch, &ops::tasks::SUBMIT_BATCH),
        Route::at("/v1/tasks/counts").get(lists::counts, &ops::lists::COUNTS),
        Route::at("/v1/tasks/cancel").post(bulk::cancel, &ops::tasks::CANCEL_MANY),
        Route::at("/v1/tasks/move").post(bulk::move_all, &ops::tasks::MOVE_MANY),
        Route::at("/v1/tasks/{id}")
            .get(tasks::look_up, &ops::tasks::LOOK_UP)
            .patch(tasks::move_to, &ops::tasks::MOVE)
            .delete(tasks::cancel, &ops::tasks::CANCEL),
        Route::at("/v1/topics/{topic}/tasks/{name}")
            .get(names::look_up, &ops::names::LOOK_UP)
            .put(names::replace, &ops::names::REPLACE)
            .patch(names::move_to, &ops::names::MOVE)
            .delete(names::cancel, &ops::names::CANCEL),
        Route::at("/v1/tasks/{id}/finish").post(feedback::finish, &ops::feedback::FINISH_TASK),
        Route::at("/v1/tasks/{id}/fail").post(feedback::fail, &ops::feedback::FAIL_TASK),
        Route::at("/v1/tasks/{id}/extend").post(feedback::extend, &ops::feedback::EXTEND_TASK),
        Route::at("/v1/topics/{topic}/tasks/{name}/finish")
            .post(feedback::finish_named, &ops::feedback::FINISH_NAMED),
        Route::at("/v1/topics/{topic}/tasks/{name}/fail")
            .post(feedback::fail_named, &ops::feedback::FAIL_NAMED),
        Route::at("/v1/topics/{topic}/tasks/{name}/extend")
            .post(feedback::extend_named, &ops::feedback::EXTEND_NAMED),
        Route::at("/v1/outcomes").post(feedback::outcomes, &ops::feedback::OUTCOMES),
        Route::at("/v1/dead").get(lists::dead, &ops::dead::LIST),
        Route::at("/v1/dead/redrive").post(bulk::redrive_all, &ops::dead::REDRIVE_MANY),
        Route::at("/v1/dead/drop").post(bulk::drop_all_dead, &ops::dead::DROP_MANY),
        Route::at("/v1/dead/{id}").delete(bulk::drop_dead, &ops::dead::DROP),
        Route::at("/v1/dead/{id}/redrive").post(bulk::redrive, &ops::dead::REDRIVE),
        Route::at("/v1/schedules/{topic}").get(schedules::list, &ops::schedules::LIST),
        Route::at("/v1/schedules/{topic}/{name}")
            .get(schedules::look_up, &ops::schedules::LOOK_UP)
            .put(schedules::put, &ops::schedules::PUT)
            .delete(schedules::delete, &ops::schedules::DELETE),
        Route::at("/v1/schedules/{topic}/{name}/pause")
            .post(schedules::pause, &ops::schedules::PAUSE),
        Route::at("/v1/schedules/{topic}/{name}/resume")
            .post(schedules::resume, &ops::schedules::RESUME),
        Route::at("/v1/schedules/{topic}/{name}/trigger")
            .post(schedules::trigger, &ops::schedules::TRIGGER),
        Route::at("/v1/schedules/{topic}/{name}/backfill")
            .post(schedules::backfill, &ops::schedules::BACKFILL),
        Route::at("/v1/topics").get(topics::list, &ops::topics::LIST),
        Route::at("/v1/topics/{topic}").get(topics::look_up, &ops::topics::LOOK_UP),
        Route::at("/v1/topics/{topic}/policy")
            .put(topics::put_policy, &ops::topics::PUT_POLICY)
            .delete(topics::delete_policy, &ops::topics::DELETE_POLICY),
        Route::at("/v1/topics/{topic}/pause").post(topics::pause, &ops::topics::PAUSE),
        Route::at("/v1/topics/{topic}/resume").post(topics::resume, &ops::topics::RESUME),
        Route::at("/v1/topics/{topic}/pop").post(feedback::pop::pop, &ops::pops::POP),
        Route::at("/v1/topics/{topic}/callback")
            .get(feedback::callback::look_up, &ops::pops::GET_CALLBACK)
            .put(feedback::callback::put, &ops::pops::PUT_CALLBACK)
            .delete(feedback::callback::delete, &ops::pops::DELETE_CALLBACK),
        Route::at("/v1/cluster").get(cluster::show, &ops::cluster::SHOW),
        Route::at("/v1/whoami").get(who_am_i::show, &ops::cluster::WHO_AM_I),
        Route::at("/openapi.json").get(node::document, &ops::cluster::INTERFACE),
        Route::at("/problems").get(node::problems, &ops::cluster::PROBLEMS),
        Route::at("/problems/{slug}").get(node::problem, &ops::cluster::PROBLEM),
        Route::at("/livez").get(node::livez, &ops::node::LIVEZ),
        Route::at("/readyz").get(node::readyz, &ops::node::READYZ),
        Route::at("/metrics").get(node::metrics, &ops::node::METRICS),
    ]
}

/// Returns the routes that only a dev server has.
pub fn dev_routes() -> [Route; 2] {
    [
        Route::at("/dev/clock").post(dev::clock, &operations::dev::CLOCK),
        Route::at("/dev/published").get(dev::published, &operations::dev::PUBLISHED),
    ]
}

/// The label of an unknown path.
pub const NO_ROUTE: &str = "none";

pub fn document_of(routes: &[Route]) -> Bytes {
    let paths: Vec<_> =
        routes.iter().map(|route| (route.path, route.operations.as_slice())).collect();
    // The document consists of strings and numbers, so it always serialises. A test reads it.
    document::write_loose(&paths).map(Bytes::from).unwrap_or_default()
}

/// Returns the strict form of the document of all routes, for the tests.
#[cfg(test)]
pub fn strict_document() -> String {
    let routes = routes();
    let paths: Vec<_> =
        routes.iter().map(|route| (route.path, route.operations.as_slice())).collect();
    document::write_strict(&paths).unwrap()
}

pub fn operations_of(
    route: &Route,
) -> impl Iterator<Item = (&'static str, Method, &'static Operation)> {
    route.operations.iter().map(|(method, operation)| (route.path, method.clone(), *operation))
}

/// Returns the route of a path, for metrics and logs. The path itself may hold names and ids.
pub fn label_of(paths: &[&'static str], path: &str) -> &'static str {
    paths.iter().copied().find(|route| matches_route(route, path)).unwrap_or(NO_ROUTE)
}

fn matches_route(route: &str, path: &str) -> bool {
    let mut parts = path.split('/');
    let is_match = route.split('/').all(|part| match parts.next() {
        Some(given) => given == part || (part.starts_with('{') && !given.is_empty()),
        None => false,
    });
    is_match && parts.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_is_its_own_label() {
        let paths = routes().map(|route| route.path);
        for path in paths {
            assert_eq!(label_of(&paths, path), path);
        }
    }

    #[test]
    fn no_get_changes_anything_and_the_callback_of_a_topic_is_changed_by_other_methods() {
        let routes: Vec<Route> = routes().into_iter().chain(dev_routes()).collect();
        let mut of_callback = Vec::new();
        for (path, method, operation) in routes.iter().flat_map(operations_of) {
            let changes = operation.changes(&method);
            assert!(!changes || method != Method::GET, "{path}");
            if path.ends_with("/callback") {
                of_callback.push((method, changes));
            }
        }
        let wanted = [(Method::GET, false), (Method::PUT, true), (Method::DELETE, true)];
        assert_eq!(of_callback, wanted);
    }

    #[test]
    fn a_path_gets_the_label_of_its_route() {
        let paths = routes().map(|route| route.path);
        assert_eq!(
            label_of(&paths, "/v1/tasks/01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f"),
            "/v1/tasks/{id}"
        );
        for path in [
            "/",
            "",
            "/v1/tasks/",
            "/v1/dead//redrive",
            "/v1/topics//tasks/x",
            "/v1/topics/x/tasks/",
            "/v1/tasks/a/b",
            "/v1",
            "/livez/",
        ] {
            assert_eq!(label_of(&paths, path), "none", "{path}");
        }
    }
}
