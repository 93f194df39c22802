//! The description of the interface, kept beside its routes: operations, schemas, the OpenAPI
//! document.

pub mod document;
mod loose;
pub mod operation;
pub mod operations;
pub mod route;
pub mod schemas;
