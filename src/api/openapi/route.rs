//! A path of the API with its handlers and their operations.

use axum::handler::Handler;
use axum::http::Method;
use axum::routing::{MethodFilter, MethodRouter};
use std::sync::Arc;

use super::operation::Operation;
use crate::api::shared::ApiShared;

/// One path. Each handler comes with its [`Operation`].
#[derive(Debug)]
pub struct Route {
    pub path: &'static str,
    pub handlers: MethodRouter<Arc<ApiShared>>,
    pub operations: Vec<(Method, &'static Operation)>,
}

impl Route {
    pub fn at(path: &'static str) -> Self {
        Self { path, handlers: MethodRouter::new(), operations: Vec::new() }
    }

    pub fn get<H: Handler<T, Arc<ApiShared>>, T: 'static>(
        self,
        handler: H,
        operation: &'static Operation,
    ) -> Self {
        self.on(Method::GET, MethodFilter::GET, handler, operation)
    }

    pub fn put<H: Handler<T, Arc<ApiShared>>, T: 'static>(
        self,
        handler: H,
        operation: &'static Operation,
    ) -> Self {
        self.on(Method::PUT, MethodFilter::PUT, handler, operation)
    }

    pub fn post<H: Handler<T, Arc<ApiShared>>, T: 'static>(
        self,
        handler: H,
        operation: &'static Operation,
    ) -> Self {
        self.on(Method::POST, MethodFilter::POST, handler, operation)
    }

    pub fn patch<H: Handler<T, Arc<ApiShared>>, T: 'static>(
        self,
        handler: H,
        operation: &'static Operation,
    ) -> Self {
        self.on(Method::PATCH, MethodFilter::PATCH, handler, operation)
    }

    pub fn delete<H: Handler<T, Arc<ApiShared>>, T: 'static>(
        self,
        handler: H,
        operation: &'static Operation,
    ) -> Self {
        self.on(Method::DELETE, MethodFilter::DELETE, handler, operation)
    }

    fn on<H, T>(
        mut self,
        method: Method,
        filter: MethodFilter,
        handler: H,
        operation: &'static Operation,
    ) -> Self
    where
        H: Handler<T, Arc<ApiShared>>,
        T: 'static,
    {
        self.handlers = self.handlers.on(filter, handler);
        self.operations.push((method, operation));
        self
    }
}
